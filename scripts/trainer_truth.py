"""Holds what draftconv makes of trainers' drafters against their own classes: see `scripts/trainer-truth`."""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from truth.trainers.table import Row, Truth, changes, disagreements, load, save
from truth.trainers.trainer import NAMES, trainer

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "engine-truth" / "trainers.json"
AT_A_TIME = 2
"""Trainers that are asked side by side, each in a process of its own: what one changes in transformers is its own."""

Ask = Callable[[Path, str], list[Row]]


def ask(work: Path, name: str) -> list[Row]:
    """Every case of one trainer."""
    from truth.trainers import judging

    logging.disable(logging.WARNING)
    started, place = time.monotonic(), work / name
    place.mkdir(parents=True)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):  # trainers print what they do
        rows = list(judging.rows(name, place))
    say(f"{name}: {len(rows)} cases, {time.monotonic() - started:.0f} s")
    return rows


def collect(names: Sequence[str], ask: Ask, work: Path) -> tuple[Row, ...]:
    """The rows of some trainers."""
    with ProcessPoolExecutor(AT_A_TIME, get_context("spawn"), max_tasks_per_child=1) as pool:
        return tuple(row for rows in pool.map(partial(ask, work), names) for row in rows)


def commit() -> str:
    """The commit of the checkout, marked when files differ from it."""
    argv = ("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*")
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def say(text: str) -> None:
    print(f"trainer-truth: {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str], absent: Callable[[str], str] | None = None, ask: Ask = ask) -> int:
    """The exit code: 1 when draftconv and a trainer disagree, or the table is not what was committed.

    Args:
        absent: why a trainer cannot be asked. `ask`: every case of one. Stand-ins in tests.
    """
    parser = argparse.ArgumentParser(
        prog="scripts/trainer-truth",
        description="Hold draftconv against the trainers' own classes.",
    )
    parser.add_argument("trainers", nargs="*", help=f"some of {', '.join(NAMES)}; all: the table is written")
    parser.add_argument("--check", action="store_true", help="against the committed table; writes nothing")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.trainers if name not in NAMES]:
        parser.error(f"unknown trainer {unknown[0]}; known: {', '.join(NAMES)}")
    absent = absent or (lambda name: trainer(name).ORIGIN.absent)
    chosen = []
    for name in options.trainers or NAMES:
        if why := absent(name):
            say(f"{name} is skipped: {why}")
        else:
            chosen.append(name)
    with tempfile.TemporaryDirectory() as directory:
        rows = collect(chosen, ask, Path(directory))
    faults = disagreements(rows)
    committed = load(TABLE) if TABLE.exists() else Truth({}, "", "", ())
    if options.check:
        faults += changes(rows, committed)
    elif not options.trainers:
        kept = tuple(row for row in committed.rows if row.trainer not in chosen)
        versions = dict(committed.versions) | {name: trainer(name).ORIGIN.version for name in chosen}
        TABLE.parent.mkdir(exist_ok=True)
        save(Truth(versions, commit(), str(datetime.date.today()), (*kept, *rows)), TABLE)
        say(f"wrote {TABLE.relative_to(ROOT)}; run scripts/docs")
    print(f"{len(rows)} cases, {len(faults)} disagreements")
    print("".join(f"{fault}\n" for fault in faults), end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
