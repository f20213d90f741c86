"""One drafter on two targets that were asked the same prompts: does it still fit the fine-tuned or quantized one?

The targets write different texts, so steps are not compared one by one: accept lengths are paired by prompt, and how
far the texts agree is told beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.text import parse_object
from draftconv.errors import UsageError
from draftconv.options import Place
from draftconv.replay.arithmetic import AskedEngines, WrittenFor
from draftconv.replay.drafters import LoadedDrafter, load_drafters, read_drafters, target_of
from draftconv.replay.options import ParityOptions
from draftconv.replay.settings import drawn_at, refuse_depth, run_info, tokens_done
from draftconv.report.arms import ArmNames
from draftconv.report.model import Comparison, Diagnostics, Report, RunInfo, Texts
from draftconv.report.records import Record
from draftconv.report.verdict import Gate
from draftconv.traces.trace import Trace

MARGIN = 0.02
"""What is asked where nobody says: two targets never give equal counts."""


@dataclass(frozen=True, slots=True)
class TargetSide:
    """The drafter on one of the targets.

    Attributes:
        texts: request → the counted tokens that the target wrote.
    """

    run: RunInfo
    drafter: LoadedDrafter
    records: tuple[Record, ...]
    texts: Mapping[str, tuple[int, ...]]


ONE_DRAFTER = {
    "fake_quant": "--fake-quant adds a drafter",
    "calibrate": "--calibrate is for --fake-quant, which adds a drafter",
    "attribute": "--attribute compares two drafters",
    "self_test": "--self-test breaks the drafter",
    "extend": "--extend adds requests of one target",
    "baseline": "--baseline is of one target",
}


def compare_targets(
    first: Trace, second: Trace, spec: Place, options: ParityOptions, written_for: WrittenFor
) -> Report:
    """Replay a drafter on the traces of two targets, and judge it on the second by itself on the first.

    Raises:
        UsageError: the traces are of other prompts, vocabularies, tokenizers or lengths; an option compares drafters.
        BadCheckpoint, Refused, Undecided: the drafter or a trace cannot be read or computed.
    """
    for name, why in ONE_DRAFTER.items():
        if getattr(options, name):
            raise UsageError(
                f"{why}, and --trace-cand compares two targets", cure=f"leave out --{name.replace('_', '-')}"
            )
    if options.margin == 0:
        raise UsageError(
            "--margin 0 asks for equal counts", why="two targets write two texts", cure="give the loss that is allowed"
        )
    _refuse_unlike(first, second)
    names = ArmNames()
    sides = [
        _replayed(trace, spec, options, written_for, names.new(f"on {trace.about.target}")) for trace in (first, second)
    ]
    records = tuple(record for side in sides for record in side.records)
    (reference, candidate), (about, other) = (side.drafter.about for side in sides), (side.run for side in sides)
    told = {
        "target of the candidate": other.target,
        "trace of the candidate": str(other.trace),
        "made by, of the candidate": other.settings["target"],
    }
    comparison = Comparison.of(
        records,
        reference.name,
        candidate.name,
        Gate(options.margin or MARGIN),
        how="replay",
        diagnostics=Diagnostics(texts=_compared(*(side.texts for side in sides))),
    )
    return Report(
        about=replace(about, settings={**about.settings, **told}),
        arms=(reference, candidate),
        records=records,
        comparisons=(comparison,),
    )


def _replayed(trace: Trace, spec: Place, options: ParityOptions, written_for: WrittenFor, name: str) -> TargetSide:
    """The drafter as it is run beside this target, whose tables it may take."""
    from draftconv.replay.accept import accept_records

    depth, entries = options.num_speculative_tokens, trace.entries[: options.limit]
    refuse_depth(depth, trace)
    asked = AskedEngines.of([spec], options.as_engine, target_of(trace), written_for)
    (drafter,) = read_drafters(trace, [spec], options, ArmNames()).values()
    reading = None if options.progress is None else partial(options.progress, "reading")
    named = {name: drafter}
    (loaded,) = load_drafters(trace, named, asked.of_each(named), options, reading)
    done, drawn = tokens_done(trace, entries, options.progress), drawn_at(trace, options)
    records = accept_records(trace, entries, [loaded.arm], depth=depth, drawn_at=drawn, progress=done)
    return TargetSide(
        run_info(trace, entries, options),
        loaded,
        tuple(record.record(depth) for record in records),
        {entry.id: trace.tokens(entry)[entry.prompt : entry.prompt + entry.counted] for entry in entries},
    )


def _compared(first: Mapping[str, Sequence[int]], second: Mapping[str, Sequence[int]]) -> Texts:
    """How far the two targets write the same."""
    splits = []
    for id, ours in first.items():
        theirs = second.get(id, ())
        if ours != theirs:
            pairs = enumerate(zip(ours, theirs, strict=False))
            splits.append(next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs))))
    return Texts(len(first), len(first) - len(splits), tuple(sorted(splits)))


def _refuse_unlike(first: Trace, second: Trace) -> None:
    """Refuse two traces that were not asked the same; found from their indexes alone."""
    ours, theirs = first.about, second.about
    for what, was, now in (
        ("a vocabulary of", ours.vocab, theirs.vocab),
        ("states of width", ours.hidden, theirs.hidden),
        ("texts of at most", ours.max_tokens, theirs.max_tokens),
        ("text drawn by", str(ours.sampling or "greedy"), str(theirs.sampling or "greedy")),
    ):
        if was != now:
            raise UsageError(
                f"the trace of {ours.target} has {what} {show(was)}, that of {theirs.target} {show(now)}",
                why="accept lengths would differ for another reason than the target",
                cure="make both with the same options, of targets that one drafter fits",
            )
    one, other = first.tokenizer, second.tokenizer
    if one and other and vocabulary_of(one) != vocabulary_of(other):
        raise UsageError(
            f"the tokenizers of {ours.target} and {theirs.target} differ",
            why="the same prompt is other tokens, and a token of one means another text to the other",
            cure="give a target with the tokenizer that the drafter was trained with",
        )
    if [entry.id for entry in first.entries] != [entry.id for entry in second.entries]:
        raise UsageError(
            f"the trace of {ours.target} has {len(first.entries)} requests, that of {theirs.target} "
            f"{len(second.entries)}, and not all are the same",
            why="accept lengths are paired by prompt",
            cure="make both traces with the same prompts",
        )
    if ours.prompts_sha256 != theirs.prompts_sha256:
        chat = ", one with its chat template and one without" if ours.chat != theirs.chat else ""
        raise UsageError(
            f"the targets were not asked the same: {show(ours.prompts)} and {show(theirs.prompts)}{chat}",
            why="accept lengths are paired by prompt, token for token",
            cure="make both traces with the same prompts; a chat template that differs needs --raw or token ids",
        )


def vocabulary_of(tokenizer: Path) -> tuple[object, object]:
    """What a tokenizer.json calls which number, and how it cuts.

    Raises:
        BadCheckpoint: it cannot be read, is no JSON object, or is too large.
    """
    with LocalFile(tokenizer) as file:
        limits.TOKENIZER.check(file.size, f"{tokenizer.name} has {file.size} bytes")
        document = parse_object(file.read(0, file.size), tokenizer.name)
    return document.get("model"), document.get("added_tokens")
