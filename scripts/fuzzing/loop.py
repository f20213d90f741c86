"""Many inputs, some at a time, each batch in a process that is forked when everything has been imported."""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzzing import child
from fuzzing.case import Case
from fuzzing.mutators import Mutator
from fuzzing.seeds import Seeds

BATCH = 20
"""Inputs of one process: a fork costs as much as two of them."""
WALL_SECONDS = 40.0
"""For one input, on whatever else the machine is doing; what is too slow for the processor is found before."""


@dataclass(slots=True)
class Tally:
    """Of one mutator. An input is refused when every command ended with exit code 2, else accepted."""

    inputs: int = 0
    refused: int = 0
    accepted: int = 0
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """One input that did what none may."""

    case: Case
    faults: tuple[str, ...]

    @property
    def signature(self) -> str:
        """What is the same in faults that are one: the last lines of a traceback, without figures."""
        first = self.faults[0]
        lines = [line for line in first.splitlines() if line.strip()]
        text = " ".join(lines[-3:]) if "Traceback" in first else first.partition(": ")[2][:120]
        return "".join(letter for letter in text if not letter.isdigit())


@dataclass(slots=True)
class Batch:
    """A process at work: the inputs that it has still to run, and the pipe that it tells from."""

    pid: int
    pipe: int
    todo: list[tuple[Mutator, int]]
    deadline: float
    said: bytes = b""


@dataclass(slots=True)
class Loop:
    """A run.

    Attributes:
        seed: decides every input. `room`: a directory for inputs and outputs. `keep`: where faults are saved.
        jobs: processes at a time.
    """

    seed: int
    seeds: Seeds
    room: Path
    keep: Path
    jobs: int
    tallies: dict[str, Tally] = field(default_factory=dict)
    signatures: Counter[str] = field(default_factory=Counter)

    def run(self, mutators: Sequence[Mutator], *, seconds: float, inputs: int | None) -> Iterator[Fault]:
        """Faults that no input before had, as they are found.

        Args:
            seconds: no batch starts later. `inputs`: how many in all; None is as many as there is time for.
        """
        self.tallies = {mutator.name: Tally() for mutator in mutators}
        plan = self._plan(mutators, inputs)
        ends, free, running = time.monotonic() + seconds, list(range(self.jobs)), dict[int, tuple[int, Batch]]()
        gc.freeze()  # what was imported is not copied by a collection in a child
        while True:
            while (
                free
                and time.monotonic() < ends
                and (todo := [item for _, item in zip(range(BATCH), plan, strict=False)])
            ):
                place = free.pop()
                batch = self._start(todo, place)
                running[batch.pipe] = place, batch
            if not running:
                return
            ready, _, _ = select.select(list(running), [], [], 0.2)
            for pipe in ready:
                running[pipe][1].said += (data := os.read(pipe, 1 << 16))
                if not data:
                    place, batch = running.pop(pipe)
                    yield from self._ended(batch)
                    self._again(batch, place, running, free)
            for _, batch in list(running.values()):
                yield from self._told(batch)
                if time.monotonic() > batch.deadline:
                    os.kill(batch.pid, signal.SIGKILL)
                    batch.deadline = float("inf")

    def replay(self, case: Case) -> tuple[str, ...]:
        """What one case does today."""
        found: list[str] = []
        batch = self._start([], 0, case)
        while data := os.read(batch.pipe, 1 << 16):
            batch.said += data
        os.close(batch.pipe)
        _, status = os.waitpid(batch.pid, 0)
        for line in batch.said.splitlines():
            found += json.loads(line)["faults"]
        return tuple(found) or ((_ending(status),) if status else ())

    def _plan(self, mutators: Sequence[Mutator], inputs: int | None) -> Iterator[tuple[Mutator, int]]:
        number = 0
        while inputs is None or number < inputs:
            yield mutators[number % len(mutators)], number // len(mutators)
            number += 1

    def _start(self, todo: list[tuple[Mutator, int]], place: int, case: Case | None = None) -> Batch:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writing)
            return Batch(pid, reading, todo, time.monotonic() + WALL_SECONDS)
        code = 1
        try:
            os.close(reading)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            child.prepare()
            room = self.room / f"room{place}"
            for one in [case] if case else (mutator.case(self.seed, number, self.seeds) for mutator, number in todo):
                ran = child.run(one, self.seeds, room)
                os.write(writing, json.dumps({"codes": ran.codes, "faults": ran.faults}).encode() + b"\n")
            code = 0
        finally:
            os._exit(code)

    def _told(self, batch: Batch) -> Iterator[Fault]:
        """Take what a process has said of its inputs."""
        *lines, batch.said = batch.said.split(b"\n")
        for line in lines:
            told = json.loads(line)
            mutator, number = batch.todo.pop(0)
            batch.deadline = time.monotonic() + WALL_SECONDS
            yield from self._count(mutator, number, told["codes"], tuple(told["faults"]))

    def _ended(self, batch: Batch) -> Iterator[Fault]:
        yield from self._told(batch)
        os.close(batch.pipe)
        _, status = os.waitpid(batch.pid, 0)
        if batch.todo:  # it did not come to the end: the first that is left ended it
            mutator, number = batch.todo.pop(0)
            yield from self._count(mutator, number, (), (f"{mutator.name}: {_ending(status)}",))

    def _again(self, batch: Batch, place: int, running: dict[int, tuple[int, Batch]], free: list[int]) -> None:
        """Go on with what a killed process had still to do."""
        if batch.todo:
            after = self._start(batch.todo, place)
            running[after.pipe] = place, after
        else:
            free.append(place)

    def _count(self, mutator: Mutator, number: int, codes: Sequence[int], faults: tuple[str, ...]) -> Iterator[Fault]:
        tally = self.tallies[mutator.name]
        tally.inputs += 1
        if not faults:
            tally.refused += set(codes) == {2}
            tally.accepted += set(codes) != {2}
            return
        tally.faults += 1
        fault = Fault(mutator.case(self.seed, number, self.seeds), faults)
        self.signatures[fault.signature] += 1
        if self.signatures[fault.signature] == 1:
            fault.case.save(self.keep / f"{len(self.signatures):03}-{mutator.name}-{number}", faults)
            yield fault


def _ending(status: int) -> str:
    """How a process ended that said nothing more."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        told = {signal.SIGXCPU: f"more than {child.CPU_SECONDS} s of the processor", signal.SIGKILL: "no end in time"}
        return told.get(signal.Signals(number), f"ended by {signal.Signals(number).name}")
    return f"the process ended with {os.WEXITSTATUS(status)}"


def clean(room: Path) -> None:
    """Remove what a run has left."""
    shutil.rmtree(room, ignore_errors=True)


def summary(tallies: Mapping[str, Tally]) -> list[tuple[str, Tally]]:
    """Rows per mutator, and their sum."""
    whole = Tally(*(sum(getattr(tally, name) for tally in tallies.values()) for name in Tally.__slots__))
    return [*tallies.items(), ("all", whole)]
