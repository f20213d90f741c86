"""Drafters of a replay, from what was typed to what is run: read, held to the trace, and loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Protocol

from draftconv.checkpoint import ByteCounter, open_checkpoint, show
from draftconv.checkpoint.hashing import tensor_hash
from draftconv.drafter.checks import target_table
from draftconv.drafter.config import Config
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import AuxLayers
from draftconv.drafter.targets import EMBED_NAMES, FAMILIES, Target
from draftconv.drafter.tensors import EMBEDDING
from draftconv.errors import BadCheckpoint, UsageError
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.drafter_reader import drafter_readers
from draftconv.layouts.reader import read_drafter
from draftconv.options import Place, Several
from draftconv.replay.arithmetic import ArmArithmetic
from draftconv.report.arms import ArmNames, about_arm, bytes_of
from draftconv.report.model import ArmInfo
from draftconv.traces.trace import TOKENIZER, Trace

if TYPE_CHECKING:
    from draftconv.replay import replay

logger = logging.getLogger(__name__)


class ReplaySettings(Protocol):
    """What every replay is told of its drafters, and of the arithmetic."""

    @property
    def layout(self) -> Several: ...
    @property
    def aux_convention(self) -> Several: ...
    @property
    def accept_detected(self) -> bool: ...
    @property
    def semantics(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """A drafter in memory: as it was read, what a report says of it, and what is replayed."""

    drafter: Drafter
    about: ArmInfo
    arm: replay.Arm


def target_of(trace: Trace) -> Target:
    """The target of a trace, as far as drafters are read with it."""
    about = trace.about
    return Target(about.target, about.layers, about.family, hidden=about.hidden, vocab=about.vocab)


def read_drafters(trace: Trace, specs: Sequence[Place], options: ReplaySettings, names: ArmNames) -> dict[str, Drafter]:
    """Open drafters and hold them to the trace, by their names in the report.

    Raises:
        UsageError: one is of another target than the trace, or the trace lacks what it needs.
        BadCheckpoint, Refused, Undecided: one cannot be read.
    """
    from draftconv.replay.load_arm import fed_by

    target = target_of(trace)
    readers = drafter_readers(specs, options.layout, options.aux_convention, accept_detected=options.accept_detected)
    read = [
        reader.read(open_checkpoint(spec, download=True), target) for reader, spec in zip(readers, specs, strict=True)
    ]
    drafters = {names.new(drafter.checkpoint.name): drafter for drafter in read}
    for name, drafter in drafters.items():
        refuse_other_target(name, drafter, trace)
        trace.columns(fed_by(name, drafter))
    return drafters


def load_drafters(
    trace: Trace,
    drafters: Mapping[str, Drafter],
    arithmetics: Sequence[ArmArithmetic | None],
    options: ReplaySettings,
    progress: Callable[[int, int], None] | None = None,
) -> list[LoadedDrafter]:
    """Load drafters; tensors that are equal to the first one's are shared with it.

    Args:
        arithmetics: how each is multiplied, in the order of `drafters`.
        progress: told the bytes of drafters that were read so far, and all that will be.

    Raises:
        UsageError, BadCheckpoint, Refused, Undecided: as `load_arm`.
    """
    from draftconv.replay.load_arm import LoadSettings, load_arm

    logger.info("replaying %s, %s on %s", ", ".join(drafters), options.dtype, options.device)
    total = 2 * sum(bytes_of(drafter) for drafter in drafters.values())  # once to hash it, once to load it
    tally = ByteCounter(None if progress is None else lambda done: progress(done, total))
    how = LoadSettings(cache(trace.table), options.semantics, options.dtype, options.device)
    loaded: list[LoadedDrafter] = []
    for (name, drafter), chosen in zip(drafters.items(), arithmetics, strict=True):
        like = loaded[0].arm.model if loaded else None
        arm = load_arm(name, drafter, how, like=like, rounds=chosen.rounds if chosen else None)
        tally.add(bytes_of(drafter))
        about = _doubted(about_arm(name, drafter, tally), embedding_doubts(name, drafter, trace))
        loaded.append(LoadedDrafter(drafter, about if chosen is None else replace(about, arithmetic=chosen.told), arm))
    return loaded


def embedding_doubts(name: str, drafter: Drafter, trace: Trace) -> tuple[str, ...]:
    """What speaks for a trace of another target, and proves nothing: a drafter may have trained its embedding."""
    own, traced = drafter.tensors.get(EMBEDDING), trace.tables.get("embed_tokens")
    if own is None or traced is None or tensor_hash(own) == traced.sha256:
        return ()
    try:
        target = trace.table("embed_tokens")
    except BadCheckpoint:
        return ()  # a linked table that is gone: whoever needs it says so
    if target is None or (own.dtype, own.shape) != (target.dtype, target.shape):
        return ()
    return (
        f"the embed_tokens of {name} is not that of {trace.about.target}, which the trace is of: either the drafter "
        "trained its own, or it was made for another target and accepts less on this trace than on one of its own",
    )


def _doubted(about: ArmInfo, doubts: tuple[str, ...]) -> ArmInfo:
    """What a report says of a drafter, with what is doubtful besides how it was read."""
    told = [*filter(None, [about.facts.get("doubtful")]), *doubts]
    return replace(about, facts={**about.facts, "doubtful": "; ".join(told)}) if told else about


def with_layers(drafter: Drafter, trace: Trace) -> Drafter:
    """A drafter with the layers that it captures, which the trace's target tells where its files leave them open."""
    if not isinstance(drafter.facts.boundaries, AuxLayers):
        return drafter
    read = read_drafter(drafter.checkpoint, ReadOptions(drafter.detection.layout, target=target_of(trace)))
    return replace(drafter, facts=replace(drafter.facts, boundaries=read.facts.boundaries))


def refuse_other_calibration(drafter: Drafter, trace: Trace, judge: Trace) -> None:
    """Hold a trace that a drafter is calibrated on to the one that judges it.

    Raises:
        UsageError: they are of two targets, or the drafter fits neither.
    """
    from draftconv.replay.two_targets import vocabulary_of

    refuse_other_trace(drafter, trace, target_of(judge))
    ours, theirs = trace.about.target, judge.about.target
    tables = [found.tables.get("embed_tokens") for found in (trace, judge)]
    if len({table.sha256 for table in tables if table is not None}) > 1:
        raise UsageError(
            f"the trace of --calibrate, of {ours}, has another embed_tokens than that of --trace, of {theirs}",
            why="they are of two targets, or of other weights of one",
            cure="calibrate on a trace of the target that judges",
        )
    if trace.tokenizer and judge.tokenizer and vocabulary_of(trace.tokenizer) != vocabulary_of(judge.tokenizer):
        raise UsageError(
            f"the traces of --calibrate, of {ours}, and of --trace, of {theirs}, were made with two tokenizers",
            why="the token ids of one stand for other text in the other",
            cure="calibrate on a trace of the target that judges",
        )


def refuse_other_trace(drafter: Drafter, trace: Trace, target: Target | None) -> None:
    """Hold a drafter to a trace that it is calibrated on.

    Args:
        target: that the drafter is made for, as far as it was told.

    Raises:
        UsageError: the trace is of another target or tokenizer, or lacks a boundary.
    """
    from draftconv.replay.load_arm import fed_by
    from draftconv.replay.two_targets import vocabulary_of

    name, about = drafter.checkpoint.name, trace.about
    refuse_other_target(name, drafter, trace)
    trace.columns(fed_by(name, drafter))
    if target is None:
        return
    for what, its, found in (
        ("layers", target.layers, about.layers),
        ("hidden states of width", target.hidden, about.hidden),
        ("a vocabulary of", target.vocab, about.vocab),
    ):
        if its is not None and its != found:
            raise UsageError(
                f"the trace is of {about.target}, which has {what} {found}; {target.name} has {its}",
                why="a drafter is calibrated on what it will be fed",
                cure="give a trace of its own target",
            )
    if target.family is not None and about.family is not None and target.family != about.family:
        raise UsageError(
            f"the trace is of another kind of target: {about.target} is {about.family}, {target.name} {target.family}",
            why="a drafter is calibrated on what it will be fed",
            cure="give a trace of its own target",
        )
    table = target_table(target, EMBED_NAMES) if target.has_weights else None
    traced = trace.tables.get("embed_tokens")
    if table is not None and traced is not None and tensor_hash(table) != traced.sha256:
        raise UsageError(
            f"the trace was made with another embed_tokens than that of {target.name}",
            why="it is of another target, or of other weights of it",
            cure="give a trace of its own target",
        )
    its_own = None if target.path is None else target.path / TOKENIZER
    if (
        trace.tokenizer is not None
        and its_own is not None
        and its_own.is_file()
        and vocabulary_of(trace.tokenizer) != vocabulary_of(its_own)
    ):
        raise UsageError(
            f"the trace was made with another tokenizer than that of {target.name}",
            why="its token ids stand for other text, so the drafter was fed what it never sees",
            cure="give a trace of its own target",
        )


def refuse_other_target(name: str, drafter: Drafter, trace: Trace) -> None:
    """Refuse a drafter that was made for another target than a trace was made with.

    Raises:
        UsageError: its vocabulary, the width of its states, or the target that its config.json names is another.
    """
    facts, about = drafter.facts, trace.about
    for what, its, targets in (
        ("a vocabulary of", facts.vocab, about.vocab),
        ("states of width", facts.target_hidden, about.hidden),
    ):
        if its != targets:
            raise UsageError(
                f"{name} is made for {what} {its}, {about.target} has {targets}",
                why="a drafter can only be replayed on the target that it was trained for",
                cure="give a trace of its own target",
            )
    config = Config(drafter.config, f"{name}: config.json")
    model_type, layers = config.text("target_model_type"), config.integer("target_num_hidden_layers")
    family = FAMILIES.get(model_type, "llama") if model_type else None
    of_family = f"a target of the family {family} ({show(model_type)})"
    named: tuple[tuple[str, object, object], ...] = (
        (of_family, family, about.family),
        (f"a target of {layers} layers", layers, about.layers),
    )
    for made_for, told, traced in named:
        if told is not None and traced is not None and told != traced:
            raise UsageError(
                f"{name} is made for {made_for}, by its config.json; {about.target} is of {traced}",
                why="a drafter can only be replayed on the target that it was trained for",
                cure="give a trace of its own target",
            )
