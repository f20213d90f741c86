"""Whose embedding and head a drafter is run with: engines do not agree. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from draftconv.drafter.facts import Facts
from draftconv.drafter.tensors import EMBEDDING, HEAD

Semantics = Literal["vllm", "sglang", "trtllm"]
SEMANTICS: tuple[Semantics, ...] = get_args(Semantics)

REPLACED: Mapping[Semantics, frozenset[str]] = {
    "vllm": frozenset(),
    "sglang": frozenset({EMBEDDING}),
    "trtllm": frozenset({EMBEDDING}),
}
"""Tables of the drafter that the target's replace, if both are equally wide; what it lacks is always the target's.

vLLM 0.33.0 keeps an embedding or head that differs from the target's: `_maybe_share_embeddings` and
`_maybe_share_lm_head` of `v1/spec_decode/llm_base_proposer.py`, `v1/worker/gpu/spec_decode/eagle/utils.py`.
SGLang 0.5.23 calls `set_embed` of `srt/models/{llama,kimi_k25}_eagle3.py` with the target's embedding.
The head goes with it only where draft_vocab_size is null; draftconv never writes that, and
`inspect --for sglang` reports it (rule sglang-head).
TensorRT-LLM (1.3.0rc at 00679c66) `_torch/models/modeling_speculative.py` builds no embedding of the
drafter's own, and has its own head wherever one is stored.
"""


def from_target(facts: Facts, semantics: Semantics) -> frozenset[str]:
    """Canonical names of the tables that come from the target."""
    stored = {EMBEDDING: facts.own_embedding, HEAD: facts.own_head}
    missing = frozenset(table for table, own in stored.items() if not own)
    return missing | REPLACED[semantics] if facts.hidden == facts.target_hidden else missing
