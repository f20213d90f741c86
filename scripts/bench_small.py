"""Measure what makes a full-size drafter small: a pruned head, what `slim` writes, GPTQ.

A drafter in the sizes of Kimi's with random weights, of one kind of attention or the other. Baseline, cache and order
as in `bench_convert`. GPTQ runs once, on a trace of invented states (`random_trace`): it takes minutes, and tells
beforehand how many and how much memory. What it tells is compared with what it took. Where vLLM's environment is there
(`scripts/engine-env`, or the one whose Python DRAFTCONV_ENGINE_PYTHON names), it loads what was written.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bench_convert import (
    TINY_TARGET,
    durable_copy,
    filesystem,
    limit,
    make_source,
    make_target,
    median,
    seconds,
    settle,
)
from measuring import SCRIPTS, BenchError, Row, Run, Section, engine_python, machine, progress, remove, run, spread

LLAMA, MLA = "kimi-k2.5-eagle3", "kimi-k2.6-eagle3-mla"
TITLES: Mapping[str, str] = MappingProxyType({LLAMA: "A small Llama-style drafter", MLA: "A small MLA drafter"})
"""Spec of a drafter → heading of its part of the report."""
ROOM_NEEDED = 30e9

ENGINE = "vllm:cpu"
EIGHT_BITS = "int8-all"
PRUNE, QUANTIZE = "prune", "quantize"

MEMORY = 6000
"""MB that GPTQ may take at its peak."""
AS_TOLD = 1.15
"""Most that it may take of the memory it told."""

OPENED = "opens in vLLM"

TOLD = re.compile(r"GPTQ will take about (?P<time>[\d.]+ \w+) and (?P<memory>[\d.]+) (?P<unit>[kMG])B")
UNITS: Mapping[str, float] = MappingProxyType({"k": 1e-3, "M": 1.0, "G": 1e3})


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        target: config.json of the drafter's, which is all that there is of it.
        gptq: the recipe that is calibrated.
        rows: of the head that stay. `counted`: tokens that choose them.
        requests, positions: of the trace.
    """

    target: Mapping[str, object]
    gptq: str
    rows: int
    counted: int
    requests: int
    positions: int


FULL = Sizes(
    {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "num_attention_heads": 64,
        "num_hidden_layers": 61,
        "vocab_size": 163840,
    },
    gptq="w4a16-g128-all",
    rows=32000,
    counted=1_000_000,
    requests=44,
    positions=512,
)
MINIATURE = Sizes(TINY_TARGET, gptq="w4a16-gptq", rows=32, counted=20_000, requests=20, positions=64)


def measure(spec: str, options: argparse.Namespace, program: Path) -> Section:
    """Make a drafter, counts and a trace, measure, clean up.

    Args:
        spec: of the drafter; a miniature takes its place where the options say `quick`.

    Raises:
        BenchError: no room, or a program failed.
    """
    sizes, name = (MINIATURE, "tiny-eagle3") if options.quick else (FULL, spec)
    work: Path = options.dir
    work.mkdir(parents=True, exist_ok=True)
    if not options.quick and shutil.disk_usage(work).free < ROOM_NEEDED:
        raise BenchError(f"{work} has less than {ROOM_NEEDED / 1e9:.0f} GB of room; choose another with --dir")
    load, rows = os.getloadavg()[0], list[Row]()
    source, place = work / name, work / "small"
    remove(place)
    place.mkdir()
    try:
        make_source(SCRIPTS / "specs" / f"{name}.json", source)
        for row in _rows(program, source, make_target(place, sizes.target), place, sizes, options.runs):
            progress(f"{row.what}: {row.measured}")
            rows.append(row)
    finally:
        remove(place)
        if not options.keep:
            remove(source)
    return Section(TITLES[spec], _about(name, sizes, options.runs, work, load), tuple(rows))


def _rows(program: Path, source: Path, target: str, work: Path, sizes: Sizes, runs: int) -> Iterator[Row]:
    """Every row of one drafter."""
    copies, by_kind = _writing(program, source, target, work, sizes, runs)
    gigabytes = (source / "model.safetensors").stat().st_size / 1e9
    yield Row("durable copy (`cp`, then fsync)", f"{spread(seconds(copies))}, {gigabytes / median(copies):.2f} GB/s")
    for kind, what in (
        (PRUNE, f"`draftconv prune --vocab {sizes.rows}`, {sizes.counted:,} tokens counted"),
        (QUANTIZE, f"`draftconv quantize --recipe {EIGHT_BITS}` of that"),
    ):
        found = by_kind[kind]
        yield Row(
            what,
            f"{spread(seconds(found))}, {median(found) / median(copies):.2f} x the copy; "
            f"{_gigabytes(work / kind):.2f} GB written; {_peak(found):.0f} MB",
        )
    yield opened(f"`draftconv quantize --recipe {EIGHT_BITS}` of that", work / QUANTIZE, target)
    yield from _gptq_rows(program, source, target, work, sizes)


def _writing(
    program: Path, source: Path, target: str, work: Path, sizes: Sizes, runs: int
) -> tuple[list[Run], dict[str, list[Run]]]:
    """Durable copies, prunings, and quantizations of what was pruned, in turn; the last outputs stay."""
    counts, copy = work / "counts.jsonl", work / "copy.safetensors"
    _write_counts(counts, sizes)
    pruned, engine = work / PRUNE, ["--for", ENGINE, "--target", target]
    commands: Mapping[str, list[str | Path]] = {
        PRUNE: [program, "prune", source, pruned, "--vocab", str(sizes.rows), "--counts", counts, "--target", target],
        QUANTIZE: [program, "quantize", pruned, work / QUANTIZE, "--recipe", EIGHT_BITS, *engine],
    }
    # No tokenizer tells which tokens are special.
    commands[PRUNE].append("--force")
    copies, by_kind = list[Run](), dict[str, list[Run]]({kind: [] for kind in commands})
    for number in range(runs + 1):
        for path in (copy, *(work / kind for kind in commands)):
            remove(path)
        settle(source / "model.safetensors")
        copies.append(durable_copy(source / "model.safetensors", copy))
        for kind, argv in commands.items():
            os.sync()
            by_kind[kind].append(run(argv))
        times = ", ".join(f"{kind} {found[-1].seconds:.2f} s" for kind, found in by_kind.items())
        progress(f"round {number} of {runs}: {times}" + ("" if number else " (not counted)"))
    remove(copy)
    return copies[1:], {kind: found[1:] for kind, found in by_kind.items()}


def _gptq_rows(program: Path, source: Path, target: str, work: Path, sizes: Sizes) -> Iterator[Row]:
    trace, out = work / "trace", work / "gptq"
    rows = ["--requests", str(sizes.requests), "--positions", str(sizes.positions)]
    progress(f"writing {trace}")
    run([sys.executable, SCRIPTS / "random_trace.py", source, trace, "--target", target, *rows], _environment())
    argv: list[str | Path] = [program, "quantize", source, out, "--recipe", sizes.gptq, "--calibrate", trace]
    argv += ["--for", ENGINE, "--target", target]
    said = TOLD.search(run([*argv, "--dry-run"]).stdout)
    if said is None:
        raise BenchError("quantize --dry-run does not tell what GPTQ will take")
    progress(f"GPTQ of {source.name} will take {said['time']}")
    done = run(argv)
    told, peak = float(said["memory"]) * UNITS[said["unit"]], _peak([done])
    what = f"`draftconv quantize --recipe {sizes.gptq}`"
    yield Row(
        f"{what}, {sizes.requests * sizes.positions:,} rows",
        f"{done.seconds / 60:.1f} minutes, told {said['time']}; {_gigabytes(out):.2f} GB written",
    )
    yield limit(f"{what}: peak memory", peak, MEMORY, "MB")
    yield limit(f"{what}: peak memory : what it told", peak / told, AS_TOLD, "x")
    yield opened(what, out, target)


def opened(what: str, out: Path, target: str) -> Row:
    """Whether vLLM's CPU build loads an output, and how its linear layers are multiplied."""
    python = engine_python()
    if not python.exists():
        return Row(f"{what}: {OPENED}", "not asked: vLLM is not installed here")
    environment = _environment() | {"OMP_NUM_THREADS": "1"}
    answer = json.loads(run([python, SCRIPTS / "open_with_vllm.py", out, target], environment).stdout)
    if "refused" in answer:
        return Row(f"{what}: {OPENED}", f"{answer['version']}: {answer['refused']}", "yes", met=False)
    methods = ", ".join(f"{count} x {method}" for method, count in answer["methods"].items())
    return Row(f"{what}: {OPENED}", f"{answer['version']}, {answer['class']}: {methods}", "yes", met=True)


def _write_counts(place: Path, sizes: Sizes) -> None:
    """Token ids as frequent as words are: the k-th token k times as rare as the first."""
    draw, vocab = random.Random(0), int(str(sizes.target["vocab_size"]))
    ids = draw.choices(range(vocab), [1 / (rank + 1) for rank in range(vocab)], k=sizes.counted)
    texts = (ids[first : first + 1000] for first in range(0, len(ids), 1000))
    place.write_text("".join(json.dumps({"token_ids": text}) + "\n" for text in texts), encoding="utf-8")


def _gigabytes(directory: Path) -> float:
    return sum(file.stat().st_size for file in directory.glob("*.safetensors")) / 1e9


def _peak(runs: list[Run]) -> float:
    """In MB."""
    return max(process.peak_bytes for process in runs) / 1e6


def _environment() -> dict[str, str]:
    """Scripts import draftconv from where they lie."""
    return os.environ | {"PYTHONPATH": str(SCRIPTS.parent)}


def _about(name: str, sizes: Sizes, runs: int, work: Path, load: float) -> str:
    return (
        f"Drafter: random weights in the shape of {name}, for {ENGINE}. Commands ran {runs} "
        "x, GPTQ once; times are medians (fastest to slowest) of whole processes, and everything ends with its data on "
        f"the disk. GPTQ is calibrated on {sizes.requests} invented requests of {sizes.positions} tokens: what it "
        "takes depends on how many they are, and not on what they hold. It tells what it will take at the rate of the "
        "machine at that moment. Where the load is more than the cores, other work ran beside all this.\n\n"
        f"Machine: {machine()}, {filesystem(work)}. Load average before the first run: {load:.1f}."
    )
