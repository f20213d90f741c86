"""Adds the biases that a layout's reader builds."""

from __future__ import annotations

from draftconv.conversion.passes.base import Context
from draftconv.conversion.working_drafter import WorkingDrafter, zeros
from draftconv.drafter.facts import Gqa


def run(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """Add a zero o_proj.bias where one flag builds the biases of q, k, v and o together."""
    attention = work.facts.attention
    if (
        not context.writer.spelling.o_bias
        or not isinstance(attention, Gqa)
        or not attention.qkv_bias
        or attention.o_bias
    ):
        return work
    for layer in range(work.facts.layers):
        stem = f"layers.{layer}.self_attn"
        packed = f"{stem}.o_proj.weight" not in work.tensors
        dtype = work.tensors[f"{stem}.q_proj.bias" if packed else f"{stem}.o_proj.weight"].dtype
        work = work.put(zeros(f"{stem}.o_proj.bias", dtype, (work.facts.hidden,)))
        work = work.declare("added", f"{stem}.o_proj.bias", "zeros: attention_bias builds it, and it would be garbage")
    return work
