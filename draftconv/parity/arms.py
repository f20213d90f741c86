"""From a drafter on disk to an arm of a replay, with the tables that an engine would give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from draftconv.checkpoint import TensorRef
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts, Taps
from draftconv.errors import Undecided, UsageError
from draftconv.parity.replay import Arm
from draftconv.reference.drafter import EMBEDDING, HEAD, DrafterModel
from draftconv.reference.load import load_drafter

Semantics = Literal["vllm", "sglang", "trtllm"]
TableName = Literal["embed_tokens", "lm_head"]

REPLACED: Mapping[Semantics, frozenset[str]] = {
    "vllm": frozenset(),
    "sglang": frozenset({EMBEDDING}),
    "trtllm": frozenset({EMBEDDING}),
}
"""Tables of the drafter that the target's replace, if both are equally wide; what it lacks is always the target's.

vLLM 0.33.0 `v1/spec_decode/llm_base_proposer.py` keeps an embedding or head that differs from the
target's. SGLang 0.5.23 `srt/speculative/eagle_worker*.py` calls `set_embed` with the target's, and
TensorRT-LLM `_torch/models/modeling_speculative.py` never loads the drafter's.
"""

_TABLES: Mapping[str, TableName] = {EMBEDDING: "embed_tokens", HEAD: "lm_head"}


class Lender(Protocol):
    """Whoever has the target's tables."""

    def table(self, name: str) -> TensorRef | None:
        """The target's `embed_tokens` or `lm_head` [V, H], if it is at hand."""


@dataclass(frozen=True, slots=True)
class Loading:
    """How arms are loaded: whose tables win, in which dtype, and where they run."""

    lender: Lender
    semantics: Semantics = "vllm"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"


def load_arm(name: str, drafter: Drafter, how: Loading, *, like: DrafterModel | None = None) -> Arm:
    """Load a drafter as an engine would see it.

    Args:
        like: an arm in memory already; tensors that are equal to its own are shared with it, so
            that a second copy of a Kimi drafter's tables takes no room.

    Raises:
        UsageError: a table is needed that nobody lends.
        Undecided: which boundaries feed it cannot be told.
        Refused, BadCheckpoint: as `load_drafter`.
    """
    boundaries = drafter.facts.boundaries
    if isinstance(boundaries, Taps):
        raise Undecided(
            f"{name}: its files do not tell which layers it captures",
            why="a drafter that is fed the wrong states accepts less and nothing crashes",
            cure="add --aux-convention before or after, as `draftconv inspect` explains",
        )
    tables = {table: _lent(name, table, how) for table in sorted(from_target(drafter.facts, how.semantics))}
    model = load_drafter(drafter, tables=tables, dtype=how.dtype).to(how.device)
    if like is not None:
        share(model, like)
    return Arm(name, model, boundaries)


def from_target(facts: Facts, semantics: Semantics) -> frozenset[str]:
    """Canonical names of the tables that come from the target."""
    absent = {EMBEDDING: not facts.own_embedding, HEAD: not facts.own_head}
    missing = frozenset(name for name, gone in absent.items() if gone)
    return missing | REPLACED[semantics] if facts.hidden == facts.target_hidden else missing


def share(model: DrafterModel, like: DrafterModel) -> None:
    """Let `model` use the memory of `like` for every parameter that is equal in all bits of value."""
    held = dict(like.named_parameters())
    equal = {
        name: held[name]
        for name, parameter in model.named_parameters()
        if name in held and parameter.shape == held[name].shape and torch.equal(parameter, held[name])
    }
    model.load_state_dict(equal, strict=False, assign=True)
    model.requires_grad_(False)


def _lent(name: str, table: str, how: Loading) -> TensorRef:
    short = _TABLES[table]
    found = how.lender.table(short)
    if found is None:
        replaced = table in REPLACED[how.semantics]
        raise UsageError(
            f"{name} needs the target's {short}, and the trace does not hold it",
            why=f"{how.semantics} replaces the drafter's own" if replaced else f"the drafter stores no {short}",
            cure="make the trace with --lm-head" if table == HEAD else "make the trace again with `draftconv trace`",
        )
    return found
