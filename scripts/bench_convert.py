"""Measure `convert` on a full-size drafter: speed against a durable copy, peak memory, start-up.

The baseline is the least that any program could do to have the weights safely in a second place: `cp` of
the weights file, then fsync. Both start with the source in the page cache and nothing waiting to be
written, in alternation, and both are timed as whole processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from measuring import (
    SCRIPTS,
    BenchError,
    Row,
    Run,
    Section,
    durable,
    least_memory,
    machine,
    progress,
    remove,
    run,
    spread,
)

TITLE = "Conversion"
ROOM_NEEDED = 20e9

# A target for the miniature: as many layers as Kimi-K2.5 has, the other sizes from specs/tiny-eagle3.json.
TINY_TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 61,
    "vocab_size": 256,
}


def durable_copy(source: Path, out: Path) -> Run:
    """`cp`, then fsync of the copy; the fsync is timed too."""
    return durable(["cp", source, out], out)


def settle(source: Path) -> None:
    """Bring the source into the page cache and everything that waits to be written onto the disk."""
    os.sync()
    buffer = bytearray(1 << 20)
    with source.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def measure_convert(program: Path, source: Path, target: str, work: Path, runs: int) -> tuple[list[Run], list[Run]]:
    """Durable copies and conversions of the same file, in alternation.

    Each goes first in every second round: a disk may take a first write faster than the one after it. One
    round before the others is thrown away, since blocks that were never written before can be slow.
    """
    weights = source / "model.safetensors"
    copy, converted = work / "copy.safetensors", work / "converted"
    convert: list[str | Path] = [program, "convert", source, converted, "--to", "vllm", "--target", target]
    copies, conversions = [], []
    for number in range(runs + 1):
        for kind in ("copy", "convert") if number % 2 else ("convert", "copy"):
            settle(weights)
            if kind == "copy":
                copies.append(durable_copy(weights, copy))
            else:
                conversions.append(run(convert))
            remove(copy)
            remove(converted)
        pair = f"copy {copies[-1].seconds:.2f} s, convert {conversions[-1].seconds:.2f} s"
        progress(f"round {number} of {runs}: {pair}" + ("" if number else " (not counted)"))
    return copies[1:], conversions[1:]


def imports_torch(program: Path, argv: Sequence[str | Path]) -> bool:
    """Whether running the program (a Python script) with these arguments imports torch."""
    command = [sys.executable, "-X", "importtime", program, *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    return "torch" in modules


def seconds(runs: Sequence[Run]) -> list[float]:
    return [run.seconds for run in runs]


def median(runs: Sequence[Run]) -> float:
    return statistics.median(seconds(runs))


def limit(what: str, value: float, most: float, unit: str) -> Row:
    digits = 0 if unit == "MB" else 3
    return Row(what, f"{value:.{digits}f} {unit}", f"at most {most:g} {unit}", value <= most)


def figures(program: Path, source: Path, target: str, work: Path, runs: int) -> tuple[Row, ...]:
    """Every figure of the section."""
    data_bytes = (source / "model.safetensors").stat().st_size
    copies, conversions = measure_convert(program, source, target, work, runs)
    commands: dict[str, list[str | Path]] = {"--help": ["--help"], "inspect": ["inspect", source]}
    starts: dict[str, list[Run]] = {}
    for name, argv in commands.items():
        run([program, *argv])  # the first run compiles and fills caches
        starts[name] = [run([program, *argv]) for _ in range(runs)]
    peak = max(conversion.peak_bytes for conversion in conversions)
    torch_imported = imports_torch(program, commands["inspect"])
    ratios = sorted(b.seconds / a.seconds for a, b in zip(copies, conversions, strict=True))
    rounds = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return (
        Row(
            "durable copy (`cp`, then fsync)",
            f"{spread(seconds(copies))}, {data_bytes / median(copies) / 1e9:.2f} GB/s",
        ),
        Row(
            "`draftconv convert --to vllm`",
            f"{spread(seconds(conversions))}, {data_bytes / median(conversions) / 1e9:.2f} GB/s",
        ),
        limit("convert : durable copy, medians", median(conversions) / median(copies), 1.15, "x"),
        Row("convert : durable copy, round by round", rounds),
        limit("peak memory of `convert`", peak / 1e6, 250, "MB"),
        limit("`draftconv --help`", median(starts["--help"]), 0.15, "s"),
        limit("`draftconv inspect`", median(starts["inspect"]), 0.4, "s"),
        Row("`inspect` imports torch", "yes" if torch_imported else "no", "no", not torch_imported),
    )


def filesystem(path: Path) -> str:
    """The type of the filesystem that holds `path`, where the system tells it."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown filesystem"
    kinds = {Path(line.split()[1]): line.split()[2] for line in mounts.read_text().splitlines()}
    return next(kinds[folder] for folder in (path.resolve(), *path.resolve().parents) if folder in kinds)


def make_source(spec: Path, source: Path) -> None:
    if source.exists():
        return
    progress(f"writing {source}")
    run([sys.executable, SCRIPTS / "make_synthetic.py", spec, source])


def make_target(work: Path, config: Mapping[str, object] = TINY_TARGET) -> str:
    """A target which is nothing but its config.json; the miniature's."""
    (work / "target").mkdir(exist_ok=True)
    (work / "target" / "config.json").write_text(json.dumps(config))
    return str(work / "target")


def about(source: Path, what: str, work: Path, runs: int, load: float) -> str:
    """What was measured, how, and on what."""
    gigabytes = (source / "model.safetensors").stat().st_size / 1e9
    return (
        f"Drafter: {what}, {gigabytes:.2f} GB. Times are medians of {runs} runs "
        "(fastest to slowest), whole processes, the source in the page cache; copies and draftconv alternate, "
        "take turns in going first, and everything ends with its data on the disk. A process that does nothing "
        f"would read as {least_memory():.0f} MB of peak memory.\n\n"
        f"Machine: {machine()}, {filesystem(work)}. Load average before the first run: {load:.1f}."
    )


Figures = Callable[[Path, Path, str, Path, int], tuple[Row, ...]]
"""From program, source, target, work directory and number of runs to rows."""


def measure(options: argparse.Namespace, program: Path) -> Section:
    """Make the drafter, measure, clean up.

    Raises:
        BenchError: no room, or a program failed.
    """
    return section(options, program, TITLE, "converted", figures)


def section(options: argparse.Namespace, program: Path, title: str, output: str, figures: Figures) -> Section:
    """What some figures say of the full-size drafter, or of a miniature.

    Args:
        output: what the program measured leaves in the work directory.

    Raises:
        BenchError: no room, or a program failed.
    """
    name = "tiny-eagle3" if options.quick else "kimi-k2.5-eagle3"
    work: Path = options.dir
    work.mkdir(parents=True, exist_ok=True)
    source = work / name
    if not options.quick and not source.exists() and shutil.disk_usage(work).free < ROOM_NEEDED:
        raise BenchError(f"{work} has less than {ROOM_NEEDED / 1e9:.0f} GB of room; choose another with --dir")
    with ExitStack() as cleanup:
        if not options.keep:
            cleanup.callback(remove, source)
        for leftover in (f"{name}.partial", "copy.safetensors", output, "target"):
            cleanup.callback(remove, work / leftover)
        make_source(SCRIPTS / "specs" / f"{name}.json", source)
        target = make_target(work) if options.quick else "kimi-k2.5"
        load = os.getloadavg()[0]
        rows = figures(program, source, target, work, options.runs)
        what = f"random weights in the shape of {name}" + (" (a miniature)" if options.quick else "")
        return Section(title, about(source, what, work, options.runs, load), rows)
