"""Candidates against a baseline: the reference's own records of the same trace, without the reference at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from draftconv.checkpoint import show
from draftconv.errors import UsageError
from draftconv.options import Place
from draftconv.replay.arithmetic import AskedEngines, WrittenFor
from draftconv.replay.drafters import LoadedDrafter, load_drafters, read_drafters, target_of
from draftconv.replay.options import ParityOptions
from draftconv.replay.settings import drawn_at, run_info, tokens_done
from draftconv.report.acceptance.model import AcceptanceReport
from draftconv.report.acceptance.records import AcceptanceRecord
from draftconv.report.acceptance.write import edited, read_acceptance
from draftconv.report.arms import ArmNames, gate, kind_against
from draftconv.report.model import Comparison, Diagnostics, EveryPosition, Report
from draftconv.report.statistics import Discordant, discordance
from draftconv.traces.trace import Trace, TraceEntry

SAME = ("replay", "tables", "drafts")
"""Settings of the baseline that the counts depend on."""

NEEDS_REFERENCE = {
    "fake_quant": "--fake-quant changes the reference itself",
    "calibrate": "--calibrate is for --fake-quant, which changes the reference itself",
    "attribute": "--attribute puts single tensors into the reference",
    "self_test": "--self-test breaks the reference itself",
    "extend": "--extend adds requests of both drafters",
}


def compare_with_baseline(
    trace: Trace,
    entries: Sequence[TraceEntry],
    specs: Sequence[Place],
    options: ParityOptions,
    written_for: WrittenFor,
    reading: Callable[[int, int], None] | None,
) -> Report:
    """Replay candidates and judge each against the records of a baseline.

    Args:
        specs: the candidates. `written_for`: the engines in the record of a drafter.
        reading: told the bytes of drafters that were read so far, and all that will be.

    Raises:
        UsageError: the baseline is of another trace, dtype or rule for tables, of several drafters, or of fewer drafted
            tokens; an option needs the reference itself; no candidate.
        BadReport: the baseline cannot be read.
        BadCheckpoint, Refused, Undecided: a drafter or the trace cannot be read or computed.
    """
    _refuse_options(options, specs)
    baseline = read_acceptance(Path(str(options.baseline)))
    about = run_info(trace, entries, options)
    _refuse_other_run(baseline, options.num_speculative_tokens, about.trace, about.settings)
    (reference,) = baseline.arms
    names = ArmNames()
    names.new(reference.name)
    asked = AskedEngines.of(specs, options.as_engine, target_of(trace), written_for)
    drafters = read_drafters(trace, specs, options, names)
    loaded = load_drafters(trace, drafters, asked.of_each(drafters), options, reading)
    sides = _replayed(trace, entries, loaded, options)
    depth = options.num_speculative_tokens
    for side in sides.values():
        _refuse_other_requests(baseline.records, side, Path(str(options.baseline)))
    before = {record.id: record for record in baseline.records}
    records = [record.record(depth) for record in baseline.records]
    records += [record.record(depth) for side in sides.values() for record in side]
    comparisons = [
        Comparison.of(
            records,
            reference.name,
            side.about.name,
            gate(kind_against(reference.quantization, side.drafter), options.margin),
            how="replay",
            diagnostics=_diagnostics(before, sides[side.about.name], depth),
        )
        for side in loaded
    ]
    told = {"reference": f"a baseline of draftconv {baseline.about.version}"}
    return Report(
        about=replace(about, settings={**about.settings, **told}),
        arms=(reference, *(side.about for side in loaded)),
        records=tuple(records),
        comparisons=tuple(comparisons),
    )


def _refuse_options(options: ParityOptions, specs: Sequence[Place]) -> None:
    for name, why in NEEDS_REFERENCE.items():
        if getattr(options, name):
            raise UsageError(
                f"{why}, and --baseline has only its counts",
                cure=f"leave out --{name.replace('_', '-')}, or name the reference in place of --baseline",
            )
    if not specs:
        raise UsageError("there is no candidate to compare with the baseline", cure="name a drafter")


def _refuse_other_run(baseline: AcceptanceReport, depth: int, trace: str | None, settings: Mapping[str, str]) -> None:
    """Refuse counts that were not made as the candidates' will be."""
    again = "make one with `draftconv accept DRAFTER --trace TRACE --report DIR`"
    if len(baseline.arms) != 1:
        listed = ", ".join(show(arm.name) for arm in baseline.arms)
        raise UsageError(f"the baseline is of {len(baseline.arms)} drafters: {listed}", cure=f"{again}, of one")
    if baseline.about.trace != trace:
        raise UsageError(
            f"the baseline is of another trace: {show(baseline.about.trace)}, this one is {show(trace)}",
            why="only counts of the same text and the same requests can be compared",
            cure=f"give the trace of the baseline, with the same --limit; or {again} of this one",
        )
    for name in SAME:
        if (was := baseline.about.settings.get(name)) != settings[name]:
            raise UsageError(
                f"the baseline has {name}: {show(was)}; this run has {settings[name]}",
                why="a difference of the arithmetic would be taken for one of the drafters",
                cure=f"repeat the options of the baseline; or {again} with these",
            )
    if depth > baseline.longest:
        raise UsageError(
            f"--num-speculative-tokens {depth}: the baseline has counts up to {baseline.longest}",
            cure=f"give {baseline.longest} or fewer; or {again} and --num-speculative-tokens {depth}",
        )


def _refuse_other_requests(
    before: Sequence[AcceptanceRecord], candidate: Sequence[AcceptanceRecord], file: Path
) -> None:
    """Refuse records that are not of the trace whose hash the baseline has: an edited file's."""

    def requests(records: Sequence[AcceptanceRecord]) -> list[tuple[object, ...]]:
        return [(one.id, one.cluster, one.category, one.prompt, one.counted, one.tokens) for one in records]

    if requests(before) != requests(candidate):
        raise edited(file, "its requests are not those of the trace that it names")


def _replayed(
    trace: Trace, entries: Sequence[TraceEntry], loaded: Sequence[LoadedDrafter], options: ParityOptions
) -> dict[str, list[AcceptanceRecord]]:
    """The records of every candidate."""
    from draftconv.replay.accept import accept_records

    sides: dict[str, list[AcceptanceRecord]] = {side.about.name: [] for side in loaded}
    arms = [side.arm for side in loaded]
    done = tokens_done(trace, entries, options.progress)
    drawn, depth = drawn_at(trace, options), options.num_speculative_tokens
    for record in accept_records(trace, entries, arms, depth=depth, drawn_at=drawn, progress=done):
        sides[record.arm].append(record)
    return sides


def _diagnostics(
    before: Mapping[str, AcceptanceRecord], candidate: Sequence[AcceptanceRecord], depth: int
) -> Diagnostics:
    """What can be told without the reference's own drafts: which first tokens only one of the two has right.

    Nothing of drawn drafts: there none is right or wrong.
    """
    if any(record.odds for record in candidate):
        return Diagnostics()
    rows, positions = [], 0
    reached = [[0, 0] for _ in range(depth)]
    for record in candidate:
        ours, theirs = before[record.id].accepted, record.accepted
        positions += len(theirs)
        rows.append(
            Discordant(
                cluster=record.cluster,
                category=record.category,
                positions=len(theirs),
                lost=sum(a > 0 and b == 0 for a, b in zip(ours, theirs, strict=True)),
                gained=sum(a == 0 and b > 0 for a, b in zip(ours, theirs, strict=True)),
            )
        )
        for j in range(depth):
            reached[j][0] += sum(a > j for a in ours)
            reached[j][1] += sum(b > j for b in theirs)
    if not positions:
        return Diagnostics()
    return Diagnostics(
        discordance=discordance(rows),
        every_position=tuple(
            EveryPosition(j, reference / positions, other / positions)
            for j, (reference, other) in enumerate(reached, 1)
        ),
    )
