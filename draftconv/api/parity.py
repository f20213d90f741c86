"""Accept-length parity by replay: is the candidate as good as its reference?

Everything runs in one pass over the trace: the reference, the candidates, and, where asked
for, one arm per changed tensor (`attribute`) and one per fault (`self_test`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.conversion.provenance import recorded_engines
from draftconv.errors import UsageError
from draftconv.options import Place, each_of, several, takes
from draftconv.reference.accept_length import Counts
from draftconv.replay.arms import ReplayArm, ReplayArms, load_arms
from draftconv.replay.options import ParityOptions, Progress
from draftconv.replay.settings import drawn_at, refuse_depth, refuse_impossible, run_info, tokens_done
from draftconv.report import read_report
from draftconv.report.merge_extension import announce_extension, extended, refuse_unextendable
from draftconv.report.model import Attribution, Comparison, Control, Diagnostics, Report
from draftconv.report.records import Record, paired
from draftconv.report.verdict import CONTROL_MARGIN, EXIT_CODES, Gate, judge
from draftconv.traces.trace import Trace, TraceEntry, open_trace

if TYPE_CHECKING:
    from draftconv.replay import controls, replay

__all__ = ["ParityOptions", "exit_code", "parity"]


@takes(ParityOptions)
def parity(reference: Place, candidates: Place | Sequence[Place], options: ParityOptions) -> Report:
    """Replay drafters on a trace and judge each candidate against the reference.

    Args:
        reference: directory or Hub id; with `baseline` the first candidate.
        candidates: none or several of them; `fake_quant` adds simulated ones.

    Raises:
        UsageError: nothing to compare, an option is impossible, or the trace lacks something that replay needs.
        BadCheckpoint, Refused, Undecided: a drafter or the trace cannot be read or computed.
        BadReport: the report to be extended, or the baseline, cannot be read.
    """
    progress, candidates = options.progress, each_of(candidates)
    refuse_impossible(options)
    if options.trace_cand is not None:
        return _on_two_targets(reference, candidates, options)
    if options.baseline is not None:
        return _against_baseline((reference, *candidates), options)
    candidate_count = len(candidates) + len(several(options.fake_quant))
    if not candidate_count and not options.self_test:
        raise UsageError(
            "there is no candidate to compare with the reference",
            cure="name a second drafter, or add --fake-quant RECIPE or --self-test",
        )
    earlier = read_report(Path(options.extend)) if options.extend else None
    if earlier:
        refuse_unextendable(earlier, candidate_count)
    trace = open_trace(options.trace)
    refuse_depth(options.num_speculative_tokens, trace)
    entries = trace.entries[: options.limit]
    arms = load_arms(trace, reference, candidates, options, recorded_engines, _reading(options))
    if earlier:
        announce_extension(earlier, arms.reference.about, arms.candidates[0].about, options.announce)
    report = _report(trace, entries, arms, options, progress)
    return extended(earlier, report) if earlier else report


def _against_baseline(candidates: Sequence[Place], options: ParityOptions) -> Report:
    from draftconv.replay.baseline import compare_with_baseline

    trace = open_trace(options.trace)
    refuse_depth(options.num_speculative_tokens, trace)
    entries = trace.entries[: options.limit]
    return compare_with_baseline(trace, entries, candidates, options, recorded_engines, _reading(options))


def _on_two_targets(drafter: Place, candidates: Sequence[Place], options: ParityOptions) -> Report:
    from draftconv.replay.two_targets import compare_targets

    if candidates:
        raise UsageError(
            "--trace-cand is about one drafter on two targets", cure="name the one drafter, or leave out --trace-cand"
        )
    first, second = open_trace(options.trace), open_trace(Path(str(options.trace_cand)))
    return compare_targets(first, second, drafter, options, recorded_engines)


def _reading(options: ParityOptions) -> Callable[[int, int], None] | None:
    return None if options.progress is None else partial(options.progress, "reading")


def exit_code(report: Report) -> int:
    """0 if every candidate passed and every control was caught, else what the worst of them asks for."""
    return EXIT_CODES[report.outcome]


# ── the report ─────────────────────────────────────────────────────────────────────


def _report(
    trace: Trace,
    entries: Sequence[TraceEntry],
    arms: ReplayArms,
    options: ParityOptions,
    progress: Progress | None,
) -> Report:
    from draftconv.replay.run import run

    reference = arms.reference.arm
    replayed = run(
        trace, entries, reference, [side.arm for side in arms.candidates], arms.others(),
        depth=options.num_speculative_tokens, drawn_at=drawn_at(trace, options),
        progress=tokens_done(trace, entries, progress),
    )  # fmt: skip
    comparisons = tuple(
        Comparison.of(
            replayed.records,
            reference.name,
            side.arm.name,
            side.gate,
            how="replay",
            again=arms.again.name,
            losses=tally.losses() if tally else None,
            diagnostics=replace(
                tally.diagnostics() if tally else Diagnostics(),
                attribution=_attribution(replayed.records, reference, side),
            ),
        )
        for side in arms.candidates
        for tally in [replayed.tallies.get(side.arm.name)]
    )
    infos = (
        arms.reference.about,
        replace(arms.reference.about, name=arms.again.name),
        *(side.about for side in arms.candidates),
    )
    names = {arm.name for arm in infos}
    return Report(
        about=run_info(trace, entries, options),
        arms=infos,
        records=tuple(record for record in replayed.records if record.arm in names),
        comparisons=comparisons,
        controls=tuple(_control(replayed.records, reference, arms.twin, *row) for row in arms.broken),
    )


def _attribution(records: Sequence[Record], reference: replay.Arm, side: ReplayArm) -> tuple[Attribution, ...]:
    """The costliest tensor first."""
    if not side.parts:
        return ()
    of_all = _accept_length(records, reference.name)
    rows = [
        Attribution(tensor, length, length / of_all - 1)
        for tensor, arm in side.parts.items()
        for length in [_accept_length(records, arm.name)]
    ]
    return tuple(sorted(rows, key=lambda row: (row.change, row.tensor)))


def _control(
    records: Sequence[Record],
    reference: replay.Arm,
    twin: replay.Arm | None,
    fault: controls.PlantedFault,
    arm: replay.Arm | str,
) -> Control:
    if isinstance(arm, str):
        return Control(fault.name, fault.says, note=arm)
    base = twin if fault.base == "int4" and twin else reference
    pairs = paired(records, base.name, arm.name)
    verdict = judge(pairs, Gate(CONTROL_MARGIN), how="replay")
    against = f"against {base.name}" if base is twin else ""
    return Control(
        fault.name,
        fault.says,
        accept_length=_accept_length(records, arm.name),
        caught=not all(pair.equal for pair in pairs),
        outcome=verdict.outcome,
        note=verdict.reasons[0] if verdict.outcome == "void" else against,
    )


def _accept_length(records: Sequence[Record], arm: str) -> float:
    return Counts.pooled(line.counts for line in records if line.arm == arm).accept_length
