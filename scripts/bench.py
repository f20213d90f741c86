"""Measure draftconv on a full-size drafter: speed against a durable copy, peak memory, start-up.

The baseline for `convert` is the least that any program could do to have the weights safely in a second
place: `cp` of the weights file, then fsync. Both start with the source in the page cache and nothing
waiting to be written, in alternation, and both are timed as whole processes.

This module imports nothing but the standard library: a child process reports at least the peak memory of
the process that started it, so the one that measures has to be small.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent
ROOM_NEEDED = 20e9
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss

# A target for the miniature: as many layers as Kimi-K2.5 has, the other sizes from specs/tiny-eagle3.json.
TINY_TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 61,
    "vocab_size": 256,
}


class BenchError(Exception):
    """The measurement could not be made."""


@dataclass(frozen=True)
class Run:
    """One whole process: wall-clock seconds and peak resident bytes."""

    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Row:
    """One line of the report; `met` is None where there is no target."""

    what: str
    measured: str
    target: str = ""
    met: bool | None = None


def run(argv: Sequence[str | Path]) -> Run:
    """Run a program to its end; what it prints is shown only if it fails."""
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        redirections = [(os.POSIX_SPAWN_DUP2, output.fileno(), 1), (os.POSIX_SPAWN_DUP2, output.fileno(), 2)]
        pid = os.posix_spawnp(str(argv[0]), [str(word) for word in argv], os.environ, file_actions=redirections)
        _, status, usage = os.wait4(pid, 0)
        seconds = time.perf_counter() - started
        code = os.waitstatus_to_exitcode(status)
        if code:
            output.seek(0)
            text = output.read().decode(errors="replace")
            raise BenchError(f"{' '.join(map(str, argv))}\nended with code {code}:\n{text}")
    return Run(seconds, usage.ru_maxrss * MAXRSS_BYTES)


def durable_copy(source: Path, out: Path) -> Run:
    """`cp`, then fsync of the copy; the fsync is timed too."""
    started = time.perf_counter()
    copied = run(["cp", source, out])
    with out.open("rb+") as file:
        os.fsync(file.fileno())
    return Run(time.perf_counter() - started, copied.peak_bytes)


def settle(source: Path) -> None:
    """Bring the source into the page cache and everything that waits to be written onto the disk."""
    os.sync()
    buffer = bytearray(1 << 20)
    with source.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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


def median(runs: Sequence[Run]) -> float:
    return statistics.median(run.seconds for run in runs)


def spread(runs: Sequence[Run]) -> str:
    seconds = sorted(run.seconds for run in runs)
    return f"{statistics.median(seconds):.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f})"


def limit(what: str, value: float, most: float, unit: str) -> Row:
    digits = 0 if unit == "MB" else 3
    return Row(what, f"{value:.{digits}f} {unit}", f"at most {most:g} {unit}", value <= most)


def measure(program: Path, source: Path, target: str, work: Path, runs: int) -> list[Row]:
    """Every figure of the report."""
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
    return [
        Row(
            "durable copy (`cp`, then fsync)",
            f"{spread(copies)}, {data_bytes / median(copies) / 1e9:.2f} GB/s",
        ),
        Row(
            "`draftconv convert --to vllm`",
            f"{spread(conversions)}, {data_bytes / median(conversions) / 1e9:.2f} GB/s",
        ),
        limit("convert : durable copy, medians", median(conversions) / median(copies), 1.15, "x"),
        Row("convert : durable copy, round by round", rounds),
        limit("peak memory of `convert`", peak / 1e6, 250, "MB"),
        limit("`draftconv --help`", median(starts["--help"]), 0.15, "s"),
        limit("`draftconv inspect`", median(starts["inspect"]), 0.4, "s"),
        Row("`inspect` imports torch", "yes" if torch_imported else "no", "no", not torch_imported),
    ]


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def filesystem(path: Path) -> str:
    """The type of the filesystem that holds `path`, where the system tells it."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown filesystem"
    kinds = {Path(line.split()[1]): line.split()[2] for line in mounts.read_text().splitlines()}
    return next(kinds[folder] for folder in (path.resolve(), *path.resolve().parents) if folder in kinds)


def report(rows: Sequence[Row], *, source: Path, what: str, work: Path, runs: int, load: float) -> str:
    """The report as markdown."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES / 1e6
    gigabytes = (source / "model.safetensors").stat().st_size / 1e9
    lines = [
        "# Benchmarks",
        "",
        f"Written by `scripts/bench`. Drafter: {what}, {gigabytes:.2f} GB. Times are medians of {runs} runs "
        "(fastest to slowest), whole processes, the source in the page cache; copy and conversion alternate, "
        "take turns in going first, and both end with their data on the disk. A process that does nothing "
        f"would read as {floor:.0f} MB of peak memory.",
        "",
        f"Machine: {cpu_model()}, {os.cpu_count()} cores, {memory:.0f} GiB memory, {filesystem(work)}, "
        f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}. "
        f"Load average before the first run: {load:.1f}.",
        "",
        "| what | measured | target | met |",
        "|---|---|---|---|",
    ]
    verdicts = {None: "", True: "yes", False: "**no**"}
    lines += [f"| {row.what} | {row.measured} | {row.target} | {verdicts[row.met]} |" for row in rows]
    return "\n".join(lines) + "\n"


def progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def make_source(spec: Path, source: Path) -> None:
    if source.exists():
        return
    progress(f"writing {source}")
    run([sys.executable, SCRIPTS / "make_synthetic.py", spec, source])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure draftconv on a full-size drafter (6.4 GB, needs 20 GB of room).",
    )
    parser.add_argument("--dir", type=Path, default=SCRIPTS.parent / ".bench", help="work directory (default: .bench)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each kind; medians are reported (default: 5)")
    parser.add_argument("--keep", action="store_true", help="keep the synthetic drafter for the next time")
    parser.add_argument("--quick", action="store_true", help="a miniature instead: shows that it works, nothing more")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the report there too")
    return parser.parse_args(argv)


def bench(options: argparse.Namespace, program: Path) -> bool:
    """Make the drafter, measure, report; returns whether every target was met."""
    name = "tiny-eagle3" if options.quick else "kimi-k2.5-eagle3"
    work: Path = options.dir
    work.mkdir(parents=True, exist_ok=True)
    source = work / name
    if not options.quick and not source.exists() and shutil.disk_usage(work).free < ROOM_NEEDED:
        raise BenchError(f"{work} has less than {ROOM_NEEDED / 1e9:.0f} GB of room; choose another with --dir")
    with ExitStack() as cleanup:
        if not options.keep:
            cleanup.callback(remove, source)
        for leftover in (f"{name}.partial", "copy.safetensors", "converted", "target"):
            cleanup.callback(remove, work / leftover)
        make_source(SCRIPTS / "specs" / f"{name}.json", source)
        target = "kimi-k2.5"
        if options.quick:
            (work / "target").mkdir(exist_ok=True)
            (work / "target" / "config.json").write_text(json.dumps(TINY_TARGET))
            target = str(work / "target")
        load = os.getloadavg()[0]
        rows = measure(program, source, target, work, options.runs)
        what = f"random weights in the shape of {name}" + (" (a miniature)" if options.quick else "")
        text = report(rows, source=source, what=what, work=work, runs=options.runs, load=load)
    print(text, end="")
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(text)
    return all(row.met is not False for row in rows)


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
