"""Break inputs by a seed, give them to draftconv, and keep every one that it does not answer as it should.

    scripts/fuzz --minutes 10                  as many inputs as fit, round robin over the mutators
    scripts/fuzz --inputs 2000 --seed 7        the same 2000 inputs every time
    scripts/fuzz --mutator header pickle       some mutators
    scripts/fuzz --replay fuzz-faults          what was kept, once more

A fault is: an exit code that is not documented, a "fault of draftconv", a traceback, no end in time, too much
memory, a file written or a program started outside of the directory of the input, output that is no strict JSON.
docs/fuzz.md tells what is broken and how.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fuzzing.case import CASE, Case
from fuzzing.loop import Fault, Loop, Tally, clean, summary
from fuzzing.mutators import MUTATORS
from fuzzing.seeds import ROOT, SeedError, Seeds

import draftconv

PAGE = "docs/fuzz.md"
PART = re.compile(r"(<!-- measured: fuzz -->\n).*?(<!-- end: fuzz -->)", re.DOTALL)
KEEP = "fuzz-faults"
MEMORY_DISK = Path("/dev/shm")
"""Where outputs are written: fsync costs nothing there."""


def imports(torch: bool) -> None:
    """Everything that a command may import, before the first fork."""
    from draftconv.cli import COMMANDS

    late = ("numpy", "yaml", "pydantic", "httpx2", "huggingface_hub", "jinja2", "rich.table", "rich.console")
    for name in (*late, *(f"draftconv.cli.{command}" for command in COMMANDS)):
        importlib.import_module(name)
    from huggingface_hub import HfApi, ModelInfo, get_session, snapshot_download

    del HfApi, ModelInfo, get_session, snapshot_download
    if torch:
        import torch as library

        library.set_num_threads(1)
        for module in pkgutil.walk_packages(draftconv.__path__, "draftconv."):
            if not re.search(r"__main__|\.vllm\.(tracing|worker|bench)", module.name):  # what needs an engine
                importlib.import_module(module.name)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="no input starts later  [default: 10]")
    parser.add_argument("--inputs", type=int, metavar="N", help="how many inputs in all, however long they take")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides every input  [default: 0]")
    parser.add_argument(
        "--mutator", nargs="+", choices=list(MUTATORS), metavar="NAME", help=f"of {', '.join(MUTATORS)}"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="inputs at a time")
    parser.add_argument("--keep", type=Path, default=Path(KEEP), metavar="DIR", help=f"for faults  [default: {KEEP}]")
    parser.add_argument("--replay", type=Path, metavar="DIR", help="run what was kept there, and nothing else")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}; of all mutators only")
    options = parser.parse_args(argv)
    if options.write and (options.mutator or options.replay):
        parser.error("--write takes the result of all mutators: leave --mutator and --replay out")
    return options


def table(tallies: Mapping[str, Tally]) -> str:
    """In Markdown."""
    rows = [f"| {n} | {t.inputs} | {t.refused} | {t.accepted} | {t.faults} |" for n, t in summary(tallies)]
    return "\n".join(
        ("| mutator | inputs | refused | accepted | faults |", "| --- | ---: | ---: | ---: | ---: |", *rows)
    )


def write(tallies: Mapping[str, Tally], seed: int, minutes: float) -> None:
    """Put the table into the page."""
    page = ROOT / PAGE
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)  # noqa: PLW1510
    at = f", commit `{done.stdout.strip()}`" if done.returncode == 0 else ""
    date = datetime.datetime.now(datetime.UTC).date()
    part = f"{minutes:.0f} minutes on {date}{at}, seed {seed}.\n\n{table(tallies)}"
    text = PART.sub(lambda match: f"{match[1]}\n{part}\n\n{match[2]}", page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")


def show(fault: Fault, number: int) -> None:
    print(f"fault {number}: {fault.case.mutator} {fault.case.number}: {fault.faults[0]}\n", flush=True)


def replayed(loop: Loop, directory: Path) -> int:
    """Run what was kept; 1 when something of it is still a fault."""
    places = sorted(path.parent for path in directory.rglob(CASE))
    if not places:
        print(f"Error: {directory} holds no {CASE}", file=sys.stderr)
        return 2
    left = 0
    for place in places:
        faults = loop.replay(Case.load(place, loop.seeds.root))
        left += bool(faults)
        print(f"{'fault' if faults else 'mended':7} {place}{''.join(f'{chr(10)}  {fault}' for fault in faults)}")
    print(f"{left} of {len(places)} are still faults")
    return int(left > 0)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code: 1 when there was a fault."""
    options = parsed(argv)
    mutators = [MUTATORS[name] for name in options.mutator or MUTATORS]
    sys.dont_write_bytecode = True
    imports(torch=any(mutator.torch for mutator in mutators))
    room = Path(tempfile.mkdtemp(prefix="draftconv-fuzz-", dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    loop = Loop(options.seed, Seeds(room / "seeds"), room, options.keep.absolute(), options.jobs)
    began, found = time.monotonic(), 0
    try:
        loop.seeds.root.mkdir()
        for name in sorted({name for mutator in mutators for name in mutator.seeds}):
            loop.seeds.path(name)
        if options.replay:
            return replayed(loop, options.replay)
        seconds = float("inf") if options.inputs else 60 * options.minutes
        began = time.monotonic()
        for found, fault in enumerate(loop.run(mutators, seconds=seconds, inputs=options.inputs), 1):
            show(fault, found)
    except SeedError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        clean(room)
    minutes = (time.monotonic() - began) / 60
    whole = summary(loop.tallies)[-1][1]
    print(table(loop.tallies))
    print(f"\n{whole.inputs / max(minutes, 1e-9):.0f} inputs a minute; {found} different faults, kept in {options.keep}"
          if found else f"\n{whole.inputs / max(minutes, 1e-9):.0f} inputs a minute; no fault")  # fmt: skip
    if options.write:
        write(loop.tallies, options.seed, minutes)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
