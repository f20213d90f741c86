"""Accept-length parity by replay: is the candidate as good as its reference?

Everything runs in one pass over the trace: the reference, the candidates, and, where asked
for, one arm per changed tensor (`attribute`) and one per fault (`self_test`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import draftconv
from draftconv.checkpoint import Checkpoint, show
from draftconv.conversion.provenance import read_provenance
from draftconv.errors import UsageError
from draftconv.options import Place, each_of, several, takes
from draftconv.reference.accept_length import Counts
from draftconv.replay.arms import ReplayArm, ReplayArms, load_arms
from draftconv.replay.options import ParityOptions, Progress
from draftconv.replay.target_tables import semantics
from draftconv.report import read_report
from draftconv.report.merge_extension import announce_extension, extended, refuse_unextendable
from draftconv.report.model import Attribution, Comparison, Control, Report, RunInfo
from draftconv.report.records import Record, paired
from draftconv.report.verdict import CONTROL_MARGIN, EXIT_CODES, Gate, judge
from draftconv.traces.trace import DTYPES, Trace, TraceEntry, digest, open_trace

if TYPE_CHECKING:
    from draftconv.replay import controls, replay

__all__ = ["ParityOptions", "exit_code", "parity"]


@takes(ParityOptions)
def parity(reference: Place, candidates: Place | Sequence[Place], options: ParityOptions) -> Report:
    """Replay drafters on a trace and judge each candidate against the reference.

    Args:
        reference: directory or Hub id. `candidates`: one or several of them; `fake_quant` adds simulated ones.

    Raises:
        UsageError: nothing to compare, an option is impossible, or the trace lacks something that replay needs.
        BadCheckpoint, Refused, Undecided: a drafter or the trace cannot be read or computed.
        BadReport: the report to be extended cannot be read.
    """
    progress, candidates = options.progress, each_of(candidates)
    _check_options(options)
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
    _refuse_depth(options.num_speculative_tokens, trace.about.depth)
    entries = trace.entries[: options.limit]
    loading = None if progress is None else partial(progress, "reading")
    arms = load_arms(trace, reference, candidates, options, _written_for, loading)
    if earlier:
        announce_extension(earlier, arms.reference.about, arms.candidates[0].about, options.announce)
    report = _report(trace, entries, arms, options, progress)
    return extended(earlier, report) if earlier else report


def exit_code(report: Report) -> int:
    """0 if every candidate passed and every control was caught, else what the worst of them asks for."""
    return EXIT_CODES[report.outcome]


def _check_options(options: ParityOptions) -> None:
    """Refuse what the command line would not let through."""
    for name, number in (("num-speculative-tokens", options.num_speculative_tokens), ("limit", options.limit)):
        if number is not None and number < 1:
            raise UsageError(f"--{name} {number}: too small", cure="give a number from 1")
    for name, value, known in (("dtype", options.dtype, DTYPES), ("semantics", options.semantics, tuple(semantics()))):
        if value not in known:
            raise UsageError(f"--{name} {show(value)}: unknown", cure=f"one of {', '.join(known)}")


def _refuse_depth(depth: int, trace_depth: int) -> None:
    """The first draft of the last step is a counted token, the others lie beyond the end."""
    if depth > trace_depth + 1:
        raise UsageError(
            f"--num-speculative-tokens {depth}: the trace keeps {trace_depth} tokens beyond the end of each text, "
            f"{depth - 1} are needed",
            why="the last steps would be clipped, which lowers the accept length",
            cure=f"make a trace with --num-speculative-tokens {depth}, "
            f"or replay with --num-speculative-tokens {trace_depth + 1}",
        )


def _written_for(checkpoint: Checkpoint) -> tuple[str, ...] | None:
    """The engines that the record of a drafter names; None where it has none that is its own."""
    provenance = read_provenance(checkpoint)
    return provenance.engines if provenance else None


# ── the report ─────────────────────────────────────────────────────────────────────


def _report(
    trace: Trace,
    entries: Sequence[TraceEntry],
    arms: ReplayArms,
    options: ParityOptions,
    progress: Progress | None,
) -> Report:
    from draftconv.replay.run import run

    total, done = sum(entry.prompt + entry.counted + trace.about.depth for entry in entries), 0

    def count_tokens(tokens: int) -> None:
        nonlocal done
        done += tokens
        if progress:
            progress("replaying", done, total)

    reference = arms.reference.arm
    replayed = run(
        trace, entries, reference, [side.arm for side in arms.candidates], arms.others(),
        depth=options.num_speculative_tokens, progress=count_tokens,
    )  # fmt: skip
    comparisons = tuple(
        Comparison.of(
            replayed.records,
            reference.name,
            side.arm.name,
            side.gate,
            how="replay",
            again=arms.again.name,
            losses=replayed.tallies[side.arm.name].losses(),
            diagnostics=replace(
                replayed.tallies[side.arm.name].diagnostics(),
                attribution=_attribution(replayed.records, reference, side),
            ),
        )
        for side in arms.candidates
    )
    infos = (
        arms.reference.about,
        replace(arms.reference.about, name=arms.again.name),
        *(side.about for side in arms.candidates),
    )
    names = {arm.name for arm in infos}
    return Report(
        about=_run_about(trace, entries, options),
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


def _run_about(trace: Trace, entries: Sequence[TraceEntry], options: ParityOptions) -> RunInfo:
    about = trace.about
    return RunInfo(
        how="replay",
        target=about.target + (f"@{about.revision}" if about.revision else ""),
        prompts=about.prompts,
        prompts_sha256=about.prompts_sha256,
        depth=options.num_speculative_tokens,
        version=draftconv.__version__,
        command=options.command,
        settings={
            "requests": str(len(entries)),
            "tokens": f"at most {about.max_tokens} per request",
            "sampling": "greedy",
            "target": f"{about.dtype}, {about.made_by}",
            "replay": f"{options.dtype} on {options.device}",
            "tables": f"as {options.semantics} takes them",
        },
        trace=digest(about, trace.tables, entries),
    )
