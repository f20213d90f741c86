"""What SGLang makes of a drafter that has a problem, by its code, in words that go on from the engine's title."""

from __future__ import annotations

from collections.abc import Mapping

PROBLEMS: Mapping[str, str] = {
    "d2t-range": "indexes with these ids",
    "d2t-on-full-vocab": "ignores zeros",
    "norm-without-flag": "drops them silently",
    "both-fusion-norms": "applies both in sequence",
    "feedback-contradiction": "reads norm_output",
    "tensor-missing": "runs on uninitialised memory or weights of one",
    "tensor-unexpected": "drops them silently",
    "joined-weight-scales": "multiplies all of them under the largest, so the others come out too large",
    "joined-input-scales": "rounds them under the largest",
    "name-prefix": "drops such tensors in its MLA class",
    "embedding-differs": "always uses the target's",
    "embedding-random": "always uses the target's",
    "rope-injected": "multiplies cos and sin by 0.1 ln(factor) + 1 and rescales the frequencies",
    "rope-attention-factor": "ignores it",
    "positions-short": "refuses to start",
    "config-null": "breaks on a null target_hidden_size or eagle_config",
    "routed-experts-null": "cannot read the config then",
    "draft-vocab-missing": "stops in its Llama class, and silently replaces the head by the target's in its MLA class",
    "tied-flag": "shares the embedding",
}
