"""Accept-length parity on a running engine: every arm is served, asked the same, and its own counts are compared.

The reference goes first; what it answers is quoted in later turns, so every arm gets the same token
ids. Then it is asked everything once more (A/A), then the candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from draftconv.engines import parse_engine
from draftconv.live.arms import arms_of
from draftconv.live.benchmarks import Benchmarks
from draftconv.live.capabilities import live_of
from draftconv.live.machine_summary import machine_summary
from draftconv.live.options import LiveOptions, check_options, in_full, way_of
from draftconv.live.plan import PlannedStep, plan_live
from draftconv.live.report import report_of
from draftconv.live.run import LiveRun
from draftconv.live.run_directory import RunDirectory, RunSettings
from draftconv.live.serve_arms import serve_arms
from draftconv.live.servers import launch_of
from draftconv.options import Place, each_of, several, takes
from draftconv.report import read_report
from draftconv.report.merge_extension import announce_extension, extended, refuse_unextendable
from draftconv.report.model import Report
from draftconv.traces.prompts import load_prompts
from draftconv.traces.target_prompts import ends_of, goal_of, refuse_too_long, target_files, tokenize_prompts

__all__ = ["LiveOptions", "PlannedStep", "live_parity", "plan_live"]


@takes(LiveOptions)
def live_parity(reference: Place, candidates: Place | Sequence[Place], options: LiveOptions) -> Report:
    """Run drafters on an engine and judge each candidate against the reference.

    Args:
        reference: directory or Hub id. `candidates`: one or several of them.

    Raises:
        UsageError: nothing to compare, options that contradict each other, or another run's directory.
        BadCheckpoint, Undecided, BadPrompts: drafter, target or prompts cannot be read.
        CheckFailed: the engine would refuse or mis-read a drafter (with `launch` and `offline`).
        EngineError: the engine is not there, does not answer as it should, or another drafter or target is served.
        Void: counts that are not to be trusted, or more than 5 % of an arm's requests failed.
        Unfinished: with `url`: the next drafter has to be served first.
    """
    progress, candidates = options.progress, each_of(candidates)
    way = way_of(options, len(candidates))
    spec = parse_engine(options.engine)
    check_options(options, way, spec, candidates)
    earlier = read_report(Path(options.extend)) if options.extend else None
    if earlier:
        refuse_unextendable(earlier, len(candidates))
    goal = goal_of(in_full(options.target))
    directory, checkpoint = target_files(goal, weights=False)
    tokenized = tokenize_prompts(
        goal,
        directory,
        load_prompts(options.prompts, options.limit),
        ends_of(checkpoint),
        depth=options.num_speculative_tokens,
        max_tokens=options.max_tokens,
        chat=options.chat,
        trust_remote_code=options.trust_remote_code,
    )
    refuse_too_long(tokenized, goal)
    arms = arms_of(reference, candidates, goal, options, progress)
    if earlier:
        announce_extension(earlier, arms[0].about, arms[-1].about, options.announce)
    benchmarks = Benchmarks.of(options, spec, goal) if options.also_speed or options.accuracy else None
    started = way in ("launch", "offline")
    settings = RunSettings(
        target=checkpoint.name + (f"@{checkpoint.revision}" if checkpoint.revision else ""),
        engine=spec.name,
        way=way,
        prompts=tokenized.source,
        prompts_sha256=tokenized.sha256,
        depth=options.num_speculative_tokens,
        length=tokenized.length,
        ignore_eos=not options.natural_stop,
        concurrency=options.concurrency,
        arguments=(
            *several(options.server_args),
            *([f"tensor parallel {options.tensor_parallel_size}"] * (options.tensor_parallel_size > 1)),
        ),
        machine=machine_summary(options, spec) if started else {},
        sampling=options.sampling,
    )
    live = live_of(spec.name)
    launches = [launch_of(arm.source, arm.reader, live, options) for arm in arms] if started else []
    with RunDirectory(options.directory, settings) as run_directory:
        run = LiveRun(
            options, way, spec, goal, tokenized, arms, launches, benchmarks, settings, run_directory, progress
        )
        report = report_of(run, serve_arms(run))
    return extended(earlier, report) if earlier else report
