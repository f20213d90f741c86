"""From a drafter on disk to an arm of a replay, with the tables that an engine would give it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

import torch

from draftconv.checkpoint import TensorRef
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import AuxLayers
from draftconv.drafter.tensors import HEAD
from draftconv.engines.registry import DEFAULT
from draftconv.errors import BadCheckpoint, Refused, Undecided, UsageError
from draftconv.quantization.quantized_forward import load_quantized
from draftconv.reference.devices import find_device
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.load import load_drafter
from draftconv.replay.replay import Arm
from draftconv.replay.target_tables import from_target, semantics


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How arms are loaded: whose tables win, in which dtype, and where they run.

    Attributes:
        lend: the target's `embed_tokens` or `lm_head` [V, H]; None when it is not at hand.
        dtype: of every floating parameter, as torch names it.
    """

    lend: Callable[[str], TensorRef | None]
    semantics: str = DEFAULT
    dtype: str = "float32"
    device: str = "cpu"


def fed_by(name: str, drafter: Drafter) -> tuple[int, ...]:
    """The boundaries that feed a drafter.

    Raises:
        Undecided: its files do not tell.
    """
    boundaries = drafter.facts.boundaries
    if isinstance(boundaries, AuxLayers):
        raise Undecided(
            f"{name}: its files do not tell which layers it captures",
            why="a drafter that is fed the wrong states accepts less and nothing crashes",
            cure="add --aux-convention before or after, as `draftconv inspect` explains",
        )
    return boundaries


def load_arm(
    name: str,
    drafter: Drafter,
    how: LoadSettings,
    *,
    like: DrafterModel | None = None,
    rounds: Collection[str] | None = None,
) -> Arm:
    """Load a drafter with the tables that an engine would give it.

    Args:
        like: an arm in memory already; tensors that are equal to its own are shared with it, so
            that a second copy of a Kimi drafter's tables takes no room.
        rounds: as `load_quantized` takes it.

    Raises:
        UsageError: a table is needed that nobody lends, or torch has no such device or no room on it.
        Undecided: which boundaries feed it cannot be told.
        Refused, BadCheckpoint: as `load_drafter`.
    """
    device, boundaries = find_device(how.device), fed_by(name, drafter)
    tables = {table: target_ref(name, table, how) for table in sorted(from_target(drafter.facts, how.semantics))}
    load = partial(load_quantized, rounds=rounds) if drafter.facts.quantization else load_drafter
    try:
        model = load(drafter, tables=tables, dtype=getattr(torch, how.dtype))
    except (Refused, BadCheckpoint) as error:
        raise type(error)(f"{name}: {error.what}", why=error.why, cure=error.cure) from error
    try:
        model = model.to(device)
    except RuntimeError as error:
        raise UsageError(f"--device {how.device}: {error}", cure="name a device that the drafters fit on") from error
    if like is not None:
        share(model, like)
    return Arm(name, model, boundaries)


def share(model: DrafterModel, like: DrafterModel) -> None:
    """Let `model` use the memory of `like` for every parameter whose values are all equal."""
    source = dict(like.named_parameters())
    equal = {
        name: source[name]
        for name, parameter in model.named_parameters()
        if name in source and parameter.shape == source[name].shape and torch.equal(parameter, source[name])
    }
    model.load_state_dict(equal, strict=False, assign=True)
    model.requires_grad_(False)


def replaced_one_by_one(reference: Arm, candidate: Arm) -> dict[str, Arm]:
    """The reference with one tensor of the candidate, for every tensor that differs, by its name.

    Raises:
        Refused: the two are not the same drafter but for their weights.
    """
    mine, theirs = reference.model.state_dict(), candidate.model.state_dict()
    alike = reference.model.facts.computed == candidate.model.facts.computed
    if not alike or ("d2t" in mine and not torch.equal(mine["d2t"], theirs["d2t"])):
        raise Refused(
            f"{candidate.name} is not {reference.name} with other weights",
            why="the cost of one tensor can only be told between drafters that differ in weights alone",
            cure="leave out --attribute; `draftconv diff` shows how they differ",
        )
    return {
        name: replace(reference, model=reference.model.changed(tensors={name: theirs[name]}))
        for name in mine
        if not torch.equal(mine[name], theirs[name])
    }


def target_ref(name: str, table: str, how: LoadSettings) -> TensorRef:
    """A table that the target lends, by its canonical name.

    Raises:
        UsageError: nobody lends it.
    """
    short = table.removesuffix(".weight")
    ref = how.lend(short)
    if ref is None:
        replaced = table in semantics()[how.semantics]
        raise UsageError(
            f"{name} needs the target's {short}, and the trace does not hold it",
            why=f"{how.semantics} replaces the drafter's own" if replaced else f"the drafter stores no {short}",
            cure="make the trace with --lm-head" if table == HEAD else "make the trace again with `draftconv trace`",
        )
    return ref
