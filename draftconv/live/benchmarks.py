"""What is measured of a server beside accept length: speed and accuracy, by other people's programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from draftconv.drafter.targets import Target
from draftconv.engines import EngineSpec
from draftconv.engines.live import Generator, Load, Tool
from draftconv.engines.serving import located
from draftconv.errors import EngineError
from draftconv.live import accuracy, speed
from draftconv.live.capabilities import generator_of
from draftconv.live.external_tools import refuse_missing, run_tool
from draftconv.live.options import LiveOptions
from draftconv.live.speed import CONCURRENCY
from draftconv.report.model import Accuracy, Speed

ALONE = "the target alone"


@dataclass(frozen=True, slots=True)
class BenchmarkJob:
    """One run of a program.

    Attributes:
        argv: its command. `log`: the file that gets what it says. `result`: the file or directory that it writes.
        read: the result as rows of the report, for a drafter's name; raises EngineError where it is none.
    """

    name: str
    tool: Tool
    argv: tuple[str, ...]
    log: str
    result: Path
    read: Callable[[str | None], Sequence[Speed | Accuracy]]

    @property
    def done(self) -> bool:
        return self.result.exists()


@dataclass(frozen=True, slots=True)
class Benchmarks:
    """What is to be measured of every server.

    Attributes:
        spec: the engine. `load`: of the speed measurement; None without it. `task`: of lm_eval; None without it.
    """

    spec: EngineSpec
    model: str
    load: Load | None
    task: str | None
    remote_code: bool
    python: Path | None
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: LiveOptions, spec: EngineSpec, goal: Target, *, look: bool = True) -> Benchmarks:
        """What the options ask for.

        Args:
            look: whether the programs are there.

        Raises:
            EngineError: a program is not in the engine's environment.
        """
        model = str(goal.path) if goal.path else goal.repo
        load = Load(model, *options.speed_tokens, remote_code=goal.remote_code) if options.also_speed else None
        python = options.python
        environment = {**options.environment, **os.environ}
        benchmarks = cls(spec, model, load, options.accuracy, goal.remote_code, python, environment)
        if look:
            for tool in benchmarks.tools():
                refuse_missing(tool, python, environment)
        return benchmarks

    def tools(self) -> Iterator[Tool]:
        """The programs that are needed."""
        if self.load:
            yield generator_of(self.spec.name).tool
        if self.task:
            yield accuracy.TOOL

    def jobs(self, url: str, directory: Path) -> Iterator[BenchmarkJob]:
        """Everything that is run on one server."""
        if self.load:
            generator = generator_of(self.spec.name)
            for count in CONCURRENCY:
                load_round = speed.round_of(self.load, url, count, directory, self.spec.hardware)
                speeds = partial(_speed, generator, directory, count)
                argv = generator.command(load_round)
                yield BenchmarkJob(
                    f"speed, {count} at a time", generator.tool, argv, "speed.log", load_round.result, speeds
                )
        if self.task:
            argv = accuracy.evaluation(
                self.task, url, self.model, directory, max(CONCURRENCY), remote_code=self.remote_code
            )
            result = directory / accuracy.RESULTS
            scores = partial(accuracy.read_accuracy, directory, self.task)
            yield BenchmarkJob(f"accuracy, {self.task}", accuracy.TOOL, argv, "accuracy.log", result, scores)

    def lacks(self, directory: Path) -> bool:
        """Whether anything is still to be measured of a server."""
        return not all(job.done for job in self.jobs("", directory))

    def measure(
        self, url: str, directory: Path, name: str, progress: Callable[[str, int, int], None] | None = None
    ) -> None:
        """Run what has not been run yet on a server; a result that is none is set aside, so that it is run again.

        Raises:
            EngineError: a program failed, or wrote something else than it documents.
        """
        jobs = list(self.jobs(url, directory.absolute()))
        for number, job in enumerate(jobs, 1):
            if not job.done:
                try:
                    run_tool(job.tool, located(job.argv, self.python), directory, job.log, self.environment)
                    job.read(name)
                except EngineError:
                    _set_aside(job.result)
                    raise
            if progress:
                progress(f"{name}, speed and accuracy", number, len(jobs))

    def results(self, servers: Iterable[tuple[str | None, Path]]) -> tuple[tuple[Speed, ...], tuple[Accuracy, ...]]:
        """What was measured of servers: the name of the drafter, None for none, and the directory of results."""
        by_server = [[(name, job) for job in self.jobs("", at)] for name, at in servers]
        rows = [row for same in zip(*by_server, strict=True) for name, job in same for row in job.read(name)]
        return (
            tuple(row for row in rows if isinstance(row, Speed)),
            tuple(row for row in rows if isinstance(row, Accuracy)),
        )


def _speed(generator: Generator, directory: Path, count: int, drafter: str | None) -> Sequence[Speed]:
    return [speed.read_speed(generator, directory, drafter, count)]


def _set_aside(result: Path) -> None:
    aside = result.with_name(f"{result.name}.refused")
    if aside.is_dir():
        shutil.rmtree(aside)
    if result.exists():
        result.replace(aside)
