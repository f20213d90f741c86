"""Measure draftconv: full-size drafters converted, quantized, made small; replay against live decoding, memory, a GPU.

scripts/bench                                   every part, printed
scripts/bench parity --write docs/benchmarks.md one part; the other parts of the file stay
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

import bench_convert
import bench_gpu
import bench_memory
import bench_parity
import bench_quantize
import bench_small
from measuring import SCRIPTS, BenchError, Section

TITLE = "# Benchmarks\n\nWritten by `scripts/bench`, one part at a time or all at once.\n"
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)

Measure = Callable[[argparse.Namespace, Path], Section]
PARTS: Mapping[str, tuple[str, Measure]] = MappingProxyType(
    {
        "convert": (bench_convert.TITLE, bench_convert.measure),
        "quantize": (bench_quantize.TITLE, bench_quantize.measure),
        "small": (bench_small.TITLES[bench_small.LLAMA], partial(bench_small.measure, bench_small.LLAMA)),
        "small-mla": (bench_small.TITLES[bench_small.MLA], partial(bench_small.measure, bench_small.MLA)),
        "parity": (bench_parity.TITLE, bench_parity.measure),
        "memory": (bench_memory.TITLE, bench_memory.measure),
        "gpu": (bench_gpu.TITLE, bench_gpu.measure),
    }
)
"""Part → its heading in the report, and what measures it; in the order of the report."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure draftconv: `convert` and `quantize` on a full-size drafter (6.4 GB, needs 20 GB of room), "
        "what makes one `small`, and one with MLA (`small-mla`; each takes an hour, 6 GB of memory and 30 GB of room), "
        "`parity` on the trained fixtures and on full-size drafters in memory (needs 8 GB of it), `memory` of long "
        "texts on random models (needs 1 GB of memory and of room), and all but small ones on a `gpu`, where there is "
        "one.",
    )
    parser.add_argument("part", nargs="?", choices=["all", *PARTS], default="all", help="what to measure")
    parser.add_argument("--dir", type=Path, default=SCRIPTS.parent / ".bench", help="work directory (default: .bench)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each kind; medians are reported (default: 5)")
    parser.add_argument("--quick", action="store_true", help="a miniature instead: shows that it works, nothing more")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the measured parts into this report too")
    convert = parser.add_argument_group("convert, quantize, small and small-mla")
    convert.add_argument("--keep", action="store_true", help="keep the synthetic drafter for the next time")
    parity = parser.add_argument_group("parity")
    parity.add_argument("--threads", type=int, help="CPU threads of full-size drafters (default: one per core)")
    return parser.parse_args(argv)


def document(old: str, sections: Mapping[str, str]) -> str:
    """The report with these sections (title → text); those that were not measured stay as they are in `old`."""
    _, *parts = HEADING.split(old)
    texts = dict(zip(parts[::2], (text.strip() + "\n" for text in parts[1::2]), strict=True)) | dict(sections)
    return "\n".join([TITLE, *(f"## {title}\n\n{texts[title]}" for title, _ in PARTS.values() if title in texts)])


def bench(options: argparse.Namespace, program: Path) -> bool:
    """Measure and report; returns whether every target was met."""
    sections = {}
    met = True
    for name, (title, measure) in PARTS.items():
        if options.part in ("all", name):
            section = measure(options, program)
            sections[title] = section.markdown()
            met = met and section.met
    print(document("", sections), end="")
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        old = options.write.read_text(encoding="utf-8") if options.write.exists() else ""
        options.write.write_text(document(old, sections), encoding="utf-8")
    return met


def main(argv: Sequence[str], program: Path) -> int:
    """Run the benchmark of `program` and return the exit code: 1 when a target was missed."""
    options = parse(argv)
    try:
        return 0 if bench(options, program) else 1
    except BenchError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(sys.executable).with_name("draftconv")))
