"""Every command that a live run would give, in order, without a look at the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from draftconv.drafter.targets import Target
from draftconv.engines import EngineSpec, parse_engine
from draftconv.engines.hardware import devices_of
from draftconv.engines.serving import LOOPBACK, located
from draftconv.errors import UsageError
from draftconv.live.benchmarks import Benchmarks
from draftconv.live.capabilities import live_of, offline_of
from draftconv.live.launch import Launch
from draftconv.live.machine import PROBES
from draftconv.live.offline import started
from draftconv.live.options import LiveOptions, check_options, in_full, way_of
from draftconv.live.servers import launch_of
from draftconv.report.arms import ArmNames
from draftconv.traces.target_prompts import MAX_TOKENS, goal_of

PORT = "PORT"
"""Stands for the free port that a server gets."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One command, or a few of which one is enough.

    Attributes:
        title: what it is for. `commands`: argument lists.
        environment: variables that are set where they are not. `files`: name → text, written first.
        then: what draftconv does once it runs. `notes`: what a person should know before.
    """

    title: str
    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    then: str = ""
    notes: tuple[str, ...] = ()


def plan_live(reference: str | Path, candidates: Sequence[str | Path], options: LiveOptions) -> tuple[PlannedStep, ...]:
    """What `live_parity` would run.

    Raises:
        UsageError: options that contradict each other, or nothing is to be started.
        BadCheckpoint, Undecided, CheckFailed: as `serve`.
    """
    way = way_of(options, len(candidates))
    spec = parse_engine(options.engine)
    check_options(options, way, spec, candidates)
    if way not in ("launch", "offline"):
        raise UsageError(
            "--dry-run has nothing to show for running servers",
            why="draftconv would start nothing",
            cure="give --launch or --offline",
        )
    return tuple(_steps([reference, *candidates], options, spec, goal_of(in_full(options.target))))


def _steps(
    drafters: Sequence[str | Path], options: LiveOptions, spec: EngineSpec, goal: Target
) -> Iterator[PlannedStep]:
    if spec.hardware not in (None, "cpu"):
        yield _look_step(spec, options)
    benchmarks = (
        Benchmarks.of(options, spec, goal, look=False) if options.also_speed or options.accuracy is not None else None
    )
    names = ArmNames()
    readers = options.readers(drafters)
    first, *rest = [
        (names.new(Path(str(source)).name), in_full(str(source)), reader)
        for source, reader in zip(drafters, readers, strict=True)
    ]
    arms = [(f"reference {first[0]}", *first[1:], 0), (f"reference {first[0]} again (A/A)", *first[1:], 1)]
    arms += [(f"candidate {name}", source, reader, number) for number, (name, source, reader) in enumerate(rest, 2)]
    live = live_of(spec.name)
    for title, source, reader, number in arms:
        launch = launch_of(source, reader, live, options)
        yield _serve_step(title, launch, options, spec)
        if benchmarks and number != 1:
            yield from _benchmark_steps(benchmarks, title, options.directory / "arms" / str(number))
    if benchmarks:
        launch = launch_of(*first[1:], live, options, alone=True)
        yield PlannedStep("the target without a drafter", (_argv(launch),), launch.environment, launch.files)
        yield from _benchmark_steps(benchmarks, "the target without a drafter", options.directory / "arms" / "alone")


def _look_step(spec: EngineSpec, options: LiveOptions) -> PlannedStep:
    commands = tuple(probe.argv for probe in PROBES if probe.argv[0] != "python")
    count, devices = options.tensor_parallel_size, devices_of(str(spec.machine or spec.hardware))
    return PlannedStep(
        f"the machine must show {count} x {spec.hardware}, and no other device",
        commands,
        then=f"asks the first of these that is there, else torch, for {' or '.join(devices)}",
    )


def _serve_step(title: str, launch: Launch, options: LiveOptions, spec: EngineSpec) -> PlannedStep:
    tokens = options.max_tokens or f"the suite's, else {MAX_TOKENS}"
    prompts = f"{options.limit} prompts of {options.prompts}" if options.limit else options.prompts
    then = (
        f"waits for {launch.health}, asks {prompts} with {tokens} tokens each, {options.sampling or 'greedy'}, "
        f"{options.concurrency} at a time, then stops it"
    )
    if options.offline:
        how = offline_of(spec.name)
        python = str(options.engine_python or "python")
        argv = started(how, launch.argv, python, ignore_eos=not options.natural_stop)
        return PlannedStep(title, (argv,), launch.environment, launch.files, then.partition(", ")[2], launch.notes)
    return PlannedStep(title, (_argv(launch),), launch.environment, launch.files, then, launch.notes)


def _benchmark_steps(benchmarks: Benchmarks, title: str, directory: Path) -> Iterator[PlannedStep]:
    for job in benchmarks.jobs(f"http://{LOOPBACK}:{PORT}", directory):
        yield PlannedStep(f"{job.name}: {title}, on the same server", (located(job.argv, benchmarks.python),))


def _argv(launch: Launch) -> tuple[str, ...]:
    return (*launch.located(), "--port", PORT)
