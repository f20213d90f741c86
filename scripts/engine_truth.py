"""Holds what draftconv says of vLLM against a real vLLM: see `scripts/engine-truth`."""

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

from truth.store import Ask, Store, made_by
from truth.table import PARTS, Part, Row, Truth, changes, disagreements, incoherent, load, plain, save

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "engine-truth.json"
WORK = ROOT / ".engine-truth"
AT_A_TIME = 2
"""Parts that are asked side by side; an engine computes with one thread and takes about 1 GB."""

Rows = Callable[[Part, Path, Store], Iterator[Row]]
"""Everything of one part."""


def everything(part: Part, work: Path, store: Store) -> Iterator[Row]:
    """The whole of a part, asked of vLLM."""

    def ask(part: Part, case: str, depends: Iterable[object], find: Callable[[], Any]) -> Any:
        return store.get(f"{part} {case}", depends, find)

    return _rows(part, work, store, ask, whole=True)


def fixed(part: Part, work: Path, store: Store) -> Iterator[Row]:
    """What every test run asks: each rule once, each format and each kind of spelling once.

    Of the loader and the matcher, every prediction is made anew; where vLLM is not asked again, it is
    compared with what was committed.
    """
    from truth import dtypes, loader_cases, matcher

    known = {(row.part, row.case): row for row in load(TABLE).rows}
    chosen = {("loader", case) for case in loader_cases.fixed() | dtypes.fixed()} | {
        ("matcher", case) for case in matcher.fixed()
    }

    def ask(part: Part, case: str, depends: Iterable[object], find: Callable[[], Any]) -> Any:
        row = known.get((part, case))
        if row is None or (part, case) in chosen:
            return store.get(f"{part} {case}", depends, find)
        return {"observed": row.observed, "detail": row.detail}

    return _rows(part, work, store, ask, whole=False)


def _rows(part: Part, work: Path, store: Store, ask: Ask, *, whole: bool) -> Iterator[Row]:
    from truth import controls, conversions, loader, matcher, replaying, twins

    match part:
        case "loader":
            return loader.rows(work, ask)
        case "matcher":
            return matcher.rows(work, ask)
        case "replay":
            return replaying.rows(work, store, length=replaying.LENGTH if whole else replaying.SHORT)
        case "conversions":
            return conversions.rows(work, store, None if whole else conversions.fixed(work))
        case "quantized":
            return twins.rows(work, store, twins.ALL if whole else twins.FIXED)
        case "controls":
            return controls.rows(work, store, controls.FAULTS if whole else controls.FIXED)


def collect(parts: Sequence[Part], rows: Rows, work: Path, store: Store) -> tuple[Row, ...]:
    """The rows of some parts, two parts at a time; each part is told when it is known."""
    table_rows: list[Row] = []
    with ProcessPoolExecutor(AT_A_TIME, get_context("fork")) as pool:  # forked: vLLM is imported already
        for part, (its, seconds) in zip(parts, pool.map(partial(_timed, rows, work, store), parts), strict=True):
            table_rows += its
            for fault in disagreements(its):
                say(fault)
            say(f"{part}: {len(its)} cases, {seconds:.0f} s")
    return tuple(table_rows)


def _timed(rows: Rows, work: Path, store: Store, part: Part) -> tuple[list[Row], float]:
    """A part, and how many seconds it took; it makes its files in a directory of its own."""
    started, place = time.monotonic(), work / part
    place.mkdir(parents=True, exist_ok=True)
    table_rows = [replace(row, detail=plain(row.detail)) for row in rows(part, place, store)]
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


def main(argv: Sequence[str], start: Callable[[], str] | None = None, rows: Rows | None = None) -> int:
    """The exit code: 1 when draftconv and the engine disagree, or the table is not what was committed.

    Args:
        start: makes the engine ready and returns its version. `rows`: of a part; stand-ins in tests.
    """
    parser = argparse.ArgumentParser(
        prog="scripts/engine-truth", description="Hold what draftconv says of vLLM against a real vLLM."
    )
    parser.add_argument(
        "parts", nargs="*", help=f"some of {', '.join(PARTS)}; all by default, and the table is written"
    )
    parser.add_argument(
        "--check", action="store_true", help="a fixed part, against the committed table; writes nothing"
    )
    parser.add_argument("--work", type=Path, default=WORK, help="where answers are kept (default: %(default)s)")
    options = parser.parse_args(argv)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]}; known: {', '.join(PARTS)}")
    chosen = [part for part in PARTS if not options.parts or part in options.parts]
    if start is None:
        from truth import engine

        start = engine.start
    version = start()
    if options.check:
        with tempfile.TemporaryDirectory() as directory:
            work = Path(directory)
            table_rows = collect(chosen, rows or fixed, work, Store(work / "answers", version))
        committed = load(TABLE)
        faults = [*disagreements(table_rows), *changes(table_rows, committed), *incoherent(committed)]
    else:
        work, made_at = fresh(options.work), commit()
        table_rows = collect(chosen, rows or everything, work, Store(options.work / "answers", version))
        faults = disagreements(table_rows)
        if not options.parts:
            save(Truth(f"vLLM {version}, CPU", made_at, str(datetime.date.today()), table_rows), TABLE)
            say(f"wrote docs/{TABLE.name}; run scripts/docs")
    print(f"{len(table_rows)} cases, {len(faults)} disagreements")
    print("".join(f"{fault}\n" for fault in faults), end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
