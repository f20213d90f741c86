"""What TensorRT-LLM makes of a drafter that has a problem, by its code, in words that go on from the engine's title."""

from __future__ import annotations

from collections.abc import Mapping

PROBLEMS: Mapping[str, str] = {
    "d2t-missing": "stops with an assertion",
    "d2t-on-full-vocab": "ignores zeros",
    "norm-without-flag": "drops them silently",
    "both-fusion-norms": "applies fc_norm only",
    "feedback-contradiction": "reads either of them",
    "tensor-unexpected": "drops them silently",
    "joined-weight-scales": "stops",
    "joined-input-scales": "stops unless they are FP8",
    "joined-smoothing": "takes that of the first for all of them, and none at all beside 16-bit activations",
    "name-prefix": "prepends model. itself and stops",
    "embedding-differs": "always uses the target's",
    "embedding-random": "always uses the target's",
    "config-null": "breaks on a null target_hidden_size or eagle_config",
    "tied-flag": "stops: it has no embedding to tie the head to",
    "auto-map": "imports it",
}
