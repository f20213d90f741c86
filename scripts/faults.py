"""Let every system call of every writing command fail in turn, and look at what is left.

    scripts/faults                      every case: about ten minutes
    scripts/faults --sample             a fixed sample, at most two minutes: three calls of each kind
    scripts/faults --only "convert"     the commands whose name holds a text
    scripts/faults --write              put the result of all cases into docs/faults.md

A command is imported and run once, then forked for each case (see injection.py). After each, what stands there is
judged, and the same command is run again without a fault, once for each different state that was left.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from fault_commands import DATA, Command, Outcome, Tree, commands, program, tree
from huggingface_hub import close_session
from injection import NETWORK, Call, Fault, Injection, Ran, Unavailable, run_child

import draftconv

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/faults.md"
PART = re.compile(r"(<!-- measured: faults -->\n).*?(<!-- end: faults -->)", re.DOTALL)
FAULTS: tuple[Fault, ...] = get_args(Fault)


@dataclass(frozen=True, slots=True)
class Case:
    """One injection, and what was wrong afterwards; `hit` is None where the call was not reached this time."""

    command: str
    injection: Injection
    hit: Call | None
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        injection = self.injection
        where = f"{self.hit.name} on {self.hit.file}" if self.hit else "not reached"
        return f"{self.command}: {injection.fault} at {injection.kind} {injection.number} ({where}): " + "; ".join(
            self.wrong
        )


class Trial:
    """One command in one directory: run without faults, then with each."""

    def __init__(self, command: Command, room: Path, inputs: Path) -> None:
        self.command = command
        self.work = room / "work"
        self.roots = (self.work, inputs, DATA)
        self._judged: dict[str, tuple[str, ...]] = {}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self._fresh()
            program(command.words, self.work)()  # imports what it imports only when it runs
        close_session()  # a connection of this process is no child's
        self.before = self._fresh()
        ran = self._run(command.words)
        self.whole = Outcome(ran.code if ran.code is not None else -1, tree(self.work), command.held())
        self.calls = ran.calls
        if self.whole.code not in (0, 3):
            raise SystemExit(f"{command.name} fails without any fault: {ran.said}")
        # every output that counts as complete has these bytes
        if command.source and not draftconv.verify(self.work / command.out, command.source).passed:
            raise SystemExit(f"what {command.name} writes does not pass verify")

    def injections(self) -> Iterator[Injection]:
        """Every call of every kind in turn, with every fault."""
        for kind, count in Counter(call.kind for call in self.calls).items():
            if kind in NETWORK and self.command.hub is None:
                continue
            for number in range(1, count + 1):
                yield from (Injection(kind, number, fault) for fault in FAULTS)

    def case(self, injection: Injection) -> Case:
        """Run it with one fault, judge, and run it again."""
        self._fresh()
        ran = self._run(self.command.words, injection)
        after = tree(self.work)
        wrong = (*self.command.faults(self.before, self.whole, ran, after), *self._next(after))
        return Case(self.command.name, injection, ran.hit, wrong)

    def _next(self, after: Tree) -> tuple[str, ...]:
        """What is wrong with the next run; it depends on nothing but what was left."""
        state = hashlib.sha256(repr(sorted(after.items())).encode()).hexdigest()
        if state not in self._judged:
            self.command.reset()
            done = self.command.keeps and "out/trace.json" in after  # a complete trace is never overwritten
            ran = None if done else self._run(self.command.again)
            self._judged[state] = (
                () if ran is None else tuple(self.command.faults_of_next(self.whole, ran, tree(self.work)))
            )
        return self._judged[state]

    def _run(self, words: Sequence[str], injection: Injection | None = None) -> Ran:
        return run_child(program(words, self.work), self.roots, injection)

    def _fresh(self) -> Tree:
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        self.command.prepare(self.work)
        self.command.reset()
        return tree(self.work)


def sampled(injections: Iterable[Injection]) -> list[Injection]:
    """Of each kind the first and the last call with EIO, and one in the middle with each of the others."""
    groups: dict[tuple[str, Fault], list[Injection]] = {}
    for injection in injections:
        groups.setdefault((injection.kind, injection.fault), []).append(injection)
    chosen = []
    for (_, fault), group in groups.items():
        places = {0, len(group) - 1} if fault == "EIO" else {len(group) // 2}
        chosen += [group[place] for place in sorted(places)]
    return chosen


def measure(only: str, *, sample: bool) -> Iterator[Case]:
    """Every case of the commands whose name holds a text, told on stderr as they go."""
    with tempfile.TemporaryDirectory(prefix="draftconv-faults-") as room:
        inputs = Path(room, "inputs")
        inputs.mkdir()
        with commands(inputs) as all_commands:
            for command in all_commands:
                if only not in command.name:
                    continue
                started = time.monotonic()
                trial = Trial(command, Path(room), inputs)
                every = list(trial.injections())
                chosen = sampled(every) if sample else every
                for injection in chosen:
                    yield trial.case(injection)
                seconds = time.monotonic() - started
                print(f"{command.name}: {len(chosen)} of {len(every)} cases, {seconds:.0f} s", file=sys.stderr)


def table(cases: Sequence[Case]) -> Iterator[str]:
    """Commands and kinds of calls by faults: cases, and how many of them broke a promise."""
    yield f"| command | call | {' | '.join(FAULTS)} |"
    yield "| --- | --- |" + " --: |" * len(FAULTS)
    counts: dict[tuple[str, str], dict[Fault, list[Case]]] = {}
    for case in cases:
        row = counts.setdefault((case.command, case.injection.kind), {fault: [] for fault in FAULTS})
        row[case.injection.fault].append(case)
    for (command, kind), row in counts.items():
        cells = (f"{len(found)}, {_broken(sum(bool(case.wrong) for case in found))}" for found in row.values())
        yield f"| `{command}` | {kind} | {' | '.join(cells)} |"


def _broken(count: int) -> str:
    return f"**{count} broken**" if count else "0 broken"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when no promise was broken, 1 when one was, 3 where nothing can be injected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", action="store_true", help="the first, a middle and the last call of each kind")
    parser.add_argument("--only", default="", metavar="TEXT", help="commands whose name holds this text")
    parser.add_argument("--write", action="store_true", help="put the result into docs/faults.md")
    options = parser.parse_args(argv)
    if options.write and (options.sample or options.only):
        parser.error("--write is about every case")
    started = time.monotonic()
    try:
        cases = []
        for case in measure(options.only, sample=options.sample):
            cases.append(case)
            if case.wrong:
                print(case, flush=True)
    except Unavailable as error:
        print(f"LEFT OUT: {error}", file=sys.stderr)
        return 3
    broken = sum(bool(case.wrong) for case in cases)
    missed = sum(case.hit is None for case in cases)
    seconds = time.monotonic() - started
    summary = f"{len(cases)} cases, {broken} broken, {missed} whose call did not come, in {seconds:.0f} s"
    print(summary)
    if options.write:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()
        lines = [f"{datetime.date.today():%Y-%m-%d}, commit {commit or 'unknown'}: {summary}.", "", *table(cases)]
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(PART.sub(lambda part: f"{part[1]}\n" + "\n".join(lines) + f"\n\n{part[2]}", text), "utf-8")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
