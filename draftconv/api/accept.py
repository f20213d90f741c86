"""Accept length of single drafters: what each would have been accepted on the text of a trace.

One replay at the largest K that the trace allows for tells the accept length of every smaller one. What it records is
the baseline that `parity --baseline` compares a later candidate with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from draftconv.conversion.provenance import recorded_engines
from draftconv.drafter.step_bytes import step_bytes
from draftconv.drafter.tensors import HEAD
from draftconv.errors import UsageError
from draftconv.live.step_times import ServerSpeed, asked_speed
from draftconv.options import Place, each_of, takes
from draftconv.replay.arithmetic import AskedEngines
from draftconv.replay.drafters import LoadedDrafter, load_drafters, read_drafters, target_of
from draftconv.replay.options import AcceptOptions
from draftconv.replay.settings import drawn_at, refuse_depth, refuse_impossible, run_info, tokens_done
from draftconv.replay.target_tables import from_target
from draftconv.report.acceptance.model import AcceptanceReport
from draftconv.report.acceptance.speed import StepCost
from draftconv.report.arms import ArmNames
from draftconv.report.verdict import EXIT_CODES
from draftconv.traces.trace import open_trace

__all__ = ["AcceptOptions", "accept", "accept_exit_code"]


@takes(AcceptOptions)
def accept(drafters: Place | Sequence[Place], options: AcceptOptions) -> AcceptanceReport:
    """Replay drafters on a trace and measure the accept length of each.

    Args:
        drafters: directories or Hub ids, one or several.

    Raises:
        UsageError: no drafter, an option is impossible, or the trace lacks something that replay needs.
        BadCheckpoint, Refused, Undecided: a drafter or the trace cannot be read or computed.
    """
    specs, depth = each_of(drafters), options.num_speculative_tokens
    if not specs:
        raise UsageError("there is no drafter to measure", cure="name one")
    refuse_impossible(options)
    if options.min_al is not None and not 1 <= options.min_al < depth + 1:
        raise UsageError(
            f"--min-al {options.min_al:g}: with {depth} drafted tokens an accept length lies between 1 and {depth + 1}",
            cure=f"give one from 1 to less than {depth + 1}, or more drafted tokens",
        )
    server = asked_speed(options.speed, options.target_step)
    trace = open_trace(options.trace)
    refuse_depth(depth, trace)
    entries, longest = trace.entries[: options.limit], max(depth, trace.about.depth)
    asked = AskedEngines.of(specs, options.as_engine, target_of(trace), recorded_engines)
    read = read_drafters(trace, specs, options, ArmNames())
    reading = None if options.progress is None else partial(options.progress, "reading")
    loaded = load_drafters(trace, read, asked.of_each(read), options, reading)

    from draftconv.replay.accept import accept_records, mapped

    arms, about = [drafter.arm for drafter in loaded], run_info(trace, entries, options)
    costs = {} if server is None else {one.about.name: _costs(server, one, options.semantics) for one in loaded}
    return AcceptanceReport.of(
        replace(about, settings={**about.settings, "torch": version("torch")}),
        longest,
        options.min_al,
        [drafter.about for drafter in loaded],
        mapped(arms),
        accept_records(
            trace,
            entries,
            arms,
            depth=longest,
            drawn_at=drawn_at(trace, options),
            progress=tokens_done(trace, entries, options.progress),
        ),
        costs,
    )


def _costs(server: ServerSpeed, loaded: LoadedDrafter, semantics: str) -> tuple[StepCost, ...]:
    drafter, about = loaded.drafter, loaded.about
    reads = step_bytes(drafter, lent_head=HEAD in from_target(drafter.facts, semantics))
    return server.costs(about.name, about.content, reads)


def accept_exit_code(report: AcceptanceReport) -> int:
    """0 if every drafter accepts what was asked for, else what the worst of them asks for."""
    return EXIT_CODES[report.outcome]
