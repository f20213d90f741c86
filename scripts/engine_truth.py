"""Holds what draftconv says of an engine against that engine: see `scripts/engine-truth`."""

from __future__ import annotations

import argparse
import datetime
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from truth.drafts import Makers
from truth.judges import JUDGES, Judge, find_judge
from truth.store import Store, made_by
from truth.table import Part, Row, Truth, changes, disagreements, incoherent, load, plain, save

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "docs" / "engine-truth"
WORK = ROOT / ".engine-truth"
AT_A_TIME = 2
"""Parts that are asked side by side; an engine computes with one thread and takes about 1 GB."""

Rows = Callable[[Judge, Part, Path, Store], Iterator[Row]]
"""Everything of one part, or what every test run asks of it."""


def everything(judge: Judge, part: Part, work: Path, store: Store) -> Iterator[Row]:
    """The whole of a part, asked of the engine."""

    def ask(part: Part, case: str, depends: Iterable[object], find: Callable[[], Any]) -> Any:
        return store.get(f"{part} {case}", depends, find)

    return judge.rows(part, Makers(work, judge.reader), store, ask, True)


def fixed(judge: Judge, part: Part, work: Path, store: Store) -> Iterator[Row]:
    """What every test run asks.

    Every prediction is made anew; where the engine is not asked again, it is compared with what was committed.
    """
    known = {(row.part, row.case): row for row in load(table_of(judge)).rows}
    chosen = judge.fixed() if judge.fixed else frozenset(known)

    def ask(part: Part, case: str, depends: Iterable[object], find: Callable[[], Any]) -> Any:
        row = known.get((part, case))
        if row is None or (part, case) in chosen:
            return store.get(f"{part} {case}", depends, find)
        return {"observed": row.observed, "detail": row.detail}

    return judge.rows(part, Makers(work, judge.reader), store, ask, False)


def table_of(judge: Judge) -> Path:
    """The file that keeps what an engine did."""
    return TABLES / f"{judge.name}.json"


def collect(judge: Judge, parts: Sequence[Part], rows: Rows, work: Path, store: Store) -> tuple[Row, ...]:
    """The rows of some parts, two parts at a time; each part is told when it is known."""
    table_rows: list[Row] = []
    with ProcessPoolExecutor(AT_A_TIME, get_context("fork")) as pool:  # forked: the engine is imported already
        for part, (its, seconds) in zip(parts, pool.map(partial(_timed, judge, rows, work, store), parts), strict=True):
            table_rows += its
            for fault in disagreements(its):
                say(fault)
            say(f"{part}: {len(its)} cases, {seconds:.0f} s")
    return tuple(table_rows)


def _timed(judge: Judge, rows: Rows, work: Path, store: Store, part: Part) -> tuple[list[Row], float]:
    """A part, and how many seconds it took; it makes its files in a directory of its own."""
    started, place = time.monotonic(), work / part
    place.mkdir(parents=True, exist_ok=True)
    table_rows = [replace(row, detail=plain(row.detail)) for row in rows(judge, part, place, store)]
    return table_rows, time.monotonic() - started


def fresh(work: Path) -> Path:
    """Where this code makes its directories; those of other code are removed."""
    directory = work / f"made-{made_by(ROOT)}"
    for other in work.glob("made-*"):
        if other != directory:
            shutil.rmtree(other)
    return directory


def commit() -> str:
    """The commit of the checkout, marked when files differ from it."""
    argv = ("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*")
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def say(text: str) -> None:
    print(f"engine-truth: {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str], judge: Judge | None = None, rows: Rows | None = None) -> int:
    """The exit code: 1 when draftconv and the engine disagree, or the table is not what was committed.

    Args:
        judge: the engine, and `rows`: of a part; stand-ins in tests.
    """
    parser = argparse.ArgumentParser(
        prog="scripts/engine-truth", description="Hold what draftconv says of an engine against that engine."
    )
    parser.add_argument("engine", choices=JUDGES, help="which engine is asked")
    parser.add_argument("parts", nargs="*", help="some of its parts; all by default, and the table is written")
    parser.add_argument(
        "--check", action="store_true", help="what every test run asks, against the committed table; writes nothing"
    )
    parser.add_argument(
        "--write", action="store_true", help="with parts: put their rows into the table, keep the others"
    )
    parser.add_argument("--work", type=Path, default=WORK, help="where answers are kept (default: %(default)s)")
    options = parser.parse_args(argv)
    judge = judge or find_judge(options.engine)
    if unknown := [part for part in options.parts if part not in judge.parts]:
        parser.error(f"unknown part {unknown[0]}; known: {', '.join(judge.parts)}")
    if options.write and (options.check or not options.parts):
        parser.error("--write goes with some parts, and without --check")
    chosen = [part for part in judge.parts if not options.parts or part in options.parts]
    version = judge.start()
    table = table_of(judge)
    if options.check:
        with tempfile.TemporaryDirectory() as directory:
            work = Path(directory)
            table_rows = collect(judge, chosen, rows or fixed, work, Store(work / "answers", version, judge.asking))
        committed = load(table)
        faults = [*disagreements(table_rows), *changes(table_rows, committed), *incoherent(committed)]
    else:
        work, made_at = fresh(options.work / judge.name), commit()
        answers = Store(options.work / judge.name / "answers", version, judge.asking)
        table_rows = collect(judge, chosen, rows or everything, work, answers)
        faults = disagreements(table_rows)
        if not options.parts or options.write:
            kept = [row for row in load(table).rows if row.part not in chosen] if options.parts else []
            whole = tuple(sorted((*kept, *table_rows), key=lambda row: judge.parts.index(row.part)))
            save(Truth(judge.title.format(version=version), made_at, str(datetime.date.today()), whole), table)
            say(f"wrote docs/{table.parent.name}/{table.name}; run scripts/docs")
    print(f"{judge.name}: {len(table_rows)} cases, {len(faults)} disagreements")
    print("".join(f"{fault}\n" for fault in faults), end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
