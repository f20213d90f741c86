"""How a mis-reading is replayed: the name that a rule gives to what an engine then computes.

`draftconv.replay.misreadings` computes each of them. A rule whose outcome nobody can compute says why. What a rule of
another package does not declare is not known to be either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Misreading = Literal[
    "boundaries - 1",
    "boundaries + 1",
    "default boundaries",
    "last state",
    "fc left out",
    "d2t zeroed",
    "d2t absolute",
    "feedback norm",
    "norm before residual",
    "fusion norm",
    "fusion norm of ones",
    "input_layernorm of ones",
    "hidden_norm of ones",
    "post_attention_layernorm of ones",
    "final norm of ones",
    "later norms of ones",
    "q and k norms",
    "biases dropped",
    "target's embedding",
    "target's head",
    "tied head",
    "random lm_head",
    "rms_norm_eps",
    "rope base",
    "default rope base",
    "rope pairs",
    "rope scaling",
    "window",
    "activation",
]


@dataclass(frozen=True, slots=True)
class NoReplay:
    """Why what a rule leads to cannot be computed."""

    why: str


Replay = tuple[Misreading, ...] | NoReplay
"""What a rule leads to; an empty tuple where nobody has said."""

MEMORY = NoReplay("weights stay uninitialised memory, and nobody can say what it holds")
CUT = NoReplay("what is cut or filled up depends on the sizes in config.json, which only that directory has")
CODES = NoReplay(
    "codes without their scales, or under others, are whatever the directory and its declaration make them"
)
BREAKS = NoReplay("the server breaks or answers no token ids")
ATTENTION = NoReplay("the reference forward has no such attention")

BOUNDARIES: Replay = ("boundaries - 1", "boundaries + 1", "default boundaries")
NORMS: Replay = (
    "input_layernorm of ones",
    "hidden_norm of ones",
    "post_attention_layernorm of ones",
    "final norm of ones",
    "fusion norm of ones",
)
FUSION: Replay = ("fusion norm", "fusion norm of ones")
ROPE: Replay = ("rope base", "default rope base", "rope pairs", "rope scaling")
