"""Break one line at a time, and see which test of the room notices.

    scripts/mutate                    every row of scripts/mutations.py; about half an hour
    scripts/mutate --room layouts     those of some rooms
    scripts/mutate --only d2t         those whose file or words hold a text
    scripts/mutate --write            put the result of all of them into docs/mutations.md

Faults are made in a copy, one after the other; the checkout is only read. Each is imported first, so
that what fails is a test and not the import, and then has to make one test of its room fail.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import datetime
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Literal

from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/mutations.md"
PART = re.compile(r"(<!-- measured: mutations -->\n).*?(<!-- end: mutations -->)", re.DOTALL)

LEFT_BEHIND = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
"""Of a checkout, not copied: environments, caches, git's own; tests that want other data beside it skip."""

LIMIT = 300.0
"""Seconds for the tests of one fault."""

Outcome = Literal["caught", "survived", "invalid"]


class MutateError(Exception):
    """The question cannot be asked: a row does not apply, or tests fail without any fault."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one fault; `detail` is the test that failed, or what went wrong instead."""

    mutation: Mutation
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A program's end: its exit code, or None where it ran past its limit, and all that it said."""

    code: int | None
    output: str


def mutated(mutation: Mutation, source: str) -> str:
    """The text of the file with the fault in it.

    Raises:
        MutateError: what the row replaces is not there exactly once.
    """
    if (count := source.count(mutation.old)) != 1:
        raise MutateError(f"{mutation.file}: found {count} times and not once: {mutation.old}")
    return source.replace(mutation.old, mutation.new)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a checkout in which faults are made.

    Attributes:
        limit: seconds for the tests of one fault.
    """

    root: Path
    limit: float

    def judge(self, mutation: Mutation) -> Result:
        """Make the fault, run the tests of its room, and take it back."""
        path = self.root / mutation.file
        source = path.read_text(encoding="utf-8")
        path.write_text(mutated(mutation, source), encoding="utf-8")
        # Python takes a compiled file for current when size and second are the same.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
        try:
            if fault := self._import_fault(mutation.file):
                return Result(mutation, "invalid", fault)
            return _judged(mutation, self.tests(mutation.run))
        finally:
            path.write_text(source, encoding="utf-8")

    def tests(self, paths: Sequence[str], limit: float | None = None) -> Ended:
        """Run some tests up to the first that fails."""
        options = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb", "no", "-m", "not slow")
        return self._python(["-m", "pytest", *options, *paths], limit or self.limit)

    def _import_fault(self, file: str) -> str:
        """Why the module with the fault in it cannot be imported, or what is imported in its place."""
        if not file.endswith(".py"):
            return ""
        name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        ended = self._python(["-c", f"import sys, {name}; print(sys.modules[{name!r}].__file__)"], self.limit)
        last = ended.output.strip().rpartition("\n")[2]
        if ended.code:
            return last
        return "" if Path(last) == self.root / file else f"{last} was imported in its place"

    def _python(self, arguments: Sequence[str], limit: float) -> Ended:
        """Run Python in the copy. What it started ends with it, also when somebody stops us."""
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as program:
            try:
                output, _ = program.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                return Ended(None, "")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)
        return Ended(program.returncode, output)


def _judged(mutation: Mutation, ended: Ended) -> Result:
    """Pytest's exit codes: 0 every test passed, 1 one failed; with any other nothing was asked."""
    match ended.code:
        case None:
            return Result(mutation, "caught", "the time limit")
        case 0:
            return Result(mutation, "survived", "")
        case 1:
            failure = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", ended.output, re.MULTILINE)
            return Result(mutation, "caught", failure[1] if failure else "a test")
        case code:
            last = ended.output.strip().rpartition("\n")[2]
            return Result(mutation, "invalid", f"pytest ended with code {code}: {last}")


@contextlib.contextmanager
def copied(root: Path, limit: float) -> Iterator[Copy]:
    """A copy of a checkout, removed in the end."""
    with tempfile.TemporaryDirectory(prefix="draftconv-mutate-") as directory:
        copy = Path(directory).resolve() / "checkout"
        shutil.copytree(root, copy, ignore=LEFT_BEHIND)
        compileall.compile_dir(copy / "draftconv", quiet=2)
        yield Copy(copy, limit)


def judged(root: Path, mutations: Sequence[Mutation], limit: float) -> Iterator[Result]:
    """What becomes of each fault, after the tests have passed without any.

    Raises:
        MutateError: they have not, or a row does not apply to this checkout.
    """
    for mutation in mutations:
        mutated(mutation, (root / mutation.file).read_text(encoding="utf-8"))
    with copied(root, limit) as copy:
        paths = dict.fromkeys(path for mutation in mutations for path in mutation.run)
        whole = copy.tests(_outermost(list(paths)), limit * len(paths))
        if whole.code != 0:
            raise MutateError(f"tests fail without any fault:\n{whole.output}")
        yield from map(copy.judge, mutations)


def _outermost(paths: Sequence[str]) -> list[str]:
    """Paths less those that lie in another one: pytest would run them twice."""
    return [path for path in paths if not any(path.startswith((f"{other}/", f"{other}::")) for other in paths)]


def table(results: Sequence[Result]) -> str:
    """The faults and what noticed them, as Markdown."""
    rows = ["| room | fault | in | noticed by |", "| --- | --- | --- | --- |"]
    for result in results:
        mutation = result.mutation
        detail = f"`{result.detail.removeprefix('tests/')}`" if "::" in result.detail else result.detail
        noticed = detail if result.outcome == "caught" else f"**{result.outcome}** {detail}"
        file = mutation.file.removeprefix("draftconv/")
        rows.append(f"| {mutation.room} | {mutation.breaks} | `{file}` | {noticed.strip()} |")
    return "".join(f"{row}\n" for row in rows)


def summary(results: Sequence[Result]) -> str:
    """How many of which outcome."""
    counts: Mapping[str, int] = {
        outcome: sum(result.outcome == outcome for result in results) for outcome in ("caught", "survived", "invalid")
    }
    return f"{len(results)} faults: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}"


def commit(root: Path) -> str:
    """The commit that a checkout is at, and whether it holds more than that."""

    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", root, *args], capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--", ".", f":!{PAGE}")
    return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def page_with_a_place(root: Path) -> str:
    """The text of the page.

    Raises:
        MutateError: it has no place for a result.
    """
    text = (root / PAGE).read_text(encoding="utf-8")
    if not PART.search(text):
        raise MutateError(f"{PAGE} has no place for the result")
    return text


def write(root: Path, results: Sequence[Result], at: str) -> None:
    """Put the result of a commit into the page."""
    text = page_with_a_place(root)
    date = datetime.datetime.now(datetime.UTC).date()
    part = f"{summary(results)}; {date}, commit `{at}`.\n\n{table(results)}"
    (root / PAGE).write_text(PART.sub(lambda match: f"{match[1]}\n{part}\n{match[2]}", text), encoding="utf-8")


def parsed(argv: Sequence[str], rooms: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/mutate",
        description="Break draftconv in a copy, one line at a time, and tell which faults no test of the room notices.",
    )
    parser.add_argument("--room", nargs="+", choices=rooms, metavar="ROOM", help=f"only these: {', '.join(rooms)}")
    parser.add_argument("--only", metavar="TEXT", help="only faults whose file or words hold this text")
    parser.add_argument("--list", action="store_true", help="list the faults, and run nothing")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="for the tests of one fault")
    parser.add_argument("--write", action="store_true", help=f"put the result into {PAGE}; of all faults only")
    options = parser.parse_args(argv)
    if options.write and (options.room or options.only or options.list):
        parser.error("--write takes the result of all faults: leave --room, --only and --list out")
    return options


def main(argv: Sequence[str], root: Path = ROOT, mutations: Sequence[Mutation] = MUTATIONS) -> int:
    """Returns the exit code: 1 when a fault survived or could not be judged."""
    options = parsed(argv, sorted({mutation.room for mutation in mutations}))
    chosen = [
        mutation
        for mutation in mutations
        if mutation.room in (options.room or [mutation.room])
        and (options.only or "").lower() in f"{mutation.file} {mutation.breaks}".lower()
    ]
    if not chosen:
        print("Error: no fault is so described", file=sys.stderr)
        return 2
    if options.list:
        print("".join(f"{m.room:13} {m.breaks}  ({m.file})\n" for m in chosen), end="")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    results: list[Result] = []
    try:
        if options.write:  # of what is copied now, whatever is there in the end
            page_with_a_place(root)
            at = commit(root)
        for result in judged(root, chosen, options.limit):
            results.append(result)
            mutation = result.mutation
            print(f"{result.outcome:9} {mutation.room}: {mutation.breaks}  [{result.detail}]", flush=True)
        if options.write:
            write(root, results, at)
    except MutateError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted after {summary(results)}", file=sys.stderr)
        return 130
    print(summary(results))
    return int(any(result.outcome != "caught" for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
