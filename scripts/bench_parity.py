"""Measure replay: on the trained fixtures, against decoding with a live target, and at full size.

Every figure comes from a process of its own (`bench_replay.py`, or `draftconv` itself), so that its peak
memory is its own. What is compared with each other runs in one process, in alternation.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import SCRIPTS, Row, Run, Section, least_memory, machine, progress, remove, run, spread

TITLE = "Parity"
DATA = SCRIPTS.parent / "tests" / "data"
DEPTH = 3
ACCEPT = 1.5
"""Times a bare replay that `accept` may take."""
TRACE = 0.5
"""Live arms that `trace` may take."""


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        drafters: target → its fixture drafters; the first one is decoded live too.
        prompts, tokens: of a trace. `specs`: full-size drafters. `positions`: by device.
        times_faster: than live decoding is what replay has to be; None asks for nothing.
        accepted: prompts of the trace that `accept` is measured on.
    """

    drafters: Mapping[str, Sequence[str]]
    prompts: int
    tokens: int
    specs: Sequence[str]
    positions: Mapping[str, int]
    times_faster: float | None = None
    accepted: int = 320


WHOLE = Size(
    drafters={
        "llama": ("llama-eagle3", "llama-eagle3-reduced", "llama-eagle3.1"),
        "mla": ("mla-eagle3", "mla-eagle3.1"),
    },
    prompts=32,
    tokens=64,
    specs=("kimi-k2.5-eagle3", "kimi-k2.5-eagle3-mla"),
    positions={"cpu": 256, "cuda": 16384},
    times_faster=100,
)
QUICK = Size({"llama": ("llama-eagle3",)}, 2, 8, ("tiny-eagle3",), {"cpu": 96, "cuda": 96}, accepted=4)


@dataclass(frozen=True)
class Bench:
    """Where and how the processes run."""

    program: Path
    work: Path
    runs: int
    size: Size
    threads: int
    """Of full-size drafters; fixtures take one."""

    def draftconv(self, *argv: str | Path) -> Run:
        """One whole process of the program, in one thread."""
        return run([self.program, *argv], environment(1))

    def child(self, *argv: str | Path | int, threads: int = 1) -> tuple[dict[str, Any], Run]:
        """What `bench_replay.py` found, and the process."""
        done = run([sys.executable, SCRIPTS / "bench_replay.py", *map(str, argv)], environment(threads))
        figures: dict[str, Any] = json.loads(done.stdout)
        return figures, done


def environment(threads: int) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": str(threads)}


def measure(options: argparse.Namespace, program: Path) -> Section:
    """Trace the fixtures' targets, measure, clean up.

    Raises:
        BenchError: a program failed, or live decoding and replay do not count the same.
    """
    size = QUICK if options.quick else WHOLE
    work: Path = options.dir / "parity"
    remove(work)
    work.mkdir(parents=True)
    load = os.getloadavg()[0]
    bench = Bench(program, work, options.runs, size, options.threads or os.cpu_count() or 1)
    try:
        rows = (*fixtures(bench), *full_size(bench, "cpu"))
    finally:
        remove(work)
    return Section(TITLE, about(bench, load), rows)


# ── fixtures ───────────────────────────────────────────────────────────────────────


def fixtures(bench: Bench) -> Iterator[Row]:
    """Rows about the trained drafters and their targets."""
    ids = json.loads((DATA / "prompts.json").read_text())
    for name, drafters in bench.size.drafters.items():
        trace = bench.work / name
        progress(f"trace of {name}")
        traced = []
        for _ in range(bench.runs):
            remove(trace)
            traced.append(make_trace(bench, name, drafters[0], trace, ids[: bench.size.prompts]))
        for drafter in drafters:
            target = DATA / "targets" / name
            bench.draftconv("convert", original(drafter), bench.work / drafter, "--to", "vllm", "--target", target)
        yield from against_live(bench, name, drafters[0], traced)
        yield accepted(bench, name, drafters[0], ids)
        for drafter in drafters:
            yield from alone(bench, trace, drafter)


def make_trace(bench: Bench, name: str, drafter: str, trace: Path, ids: Sequence[Sequence[int]]) -> Run:
    """The command that traces a fixture target on token ids."""
    prompts = bench.work / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"token_ids": row}) + "\n" for row in ids))
    return bench.draftconv(
        "trace", "--target", DATA / "targets" / name, "--prompts", prompts, "--out", trace, "--ignore-eos",
        "--max-tokens", str(bench.size.tokens), "--num-speculative-tokens", str(DEPTH), "--drafter", original(drafter),
        "--dtype", "float32", "--device", "cpu",
    )  # fmt: skip


def accepted(bench: Bench, name: str, drafter: str, ids: Sequence[Sequence[int]]) -> Row:
    """`accept` beside a process that only imports torch, loads the drafter and replays it; the two alternate."""
    count, trace = bench.size.accepted, bench.work / f"{name}-accept"
    cut = [row[: len(row) - 4 * shorter] for shorter in range(-(-count // len(ids))) for row in ids]
    progress(f"{drafter}: accept on {count} prompts")
    make_trace(bench, name, drafter, trace, cut[:count])
    whole, bare = [], []
    for _ in range(bench.runs):
        bare.append(run([sys.executable, SCRIPTS / "bare_replay.py", trace, original(drafter)], environment(1)).seconds)
        whole.append(bench.draftconv("accept", original(drafter), "--trace", trace).seconds)
    factors = ratios(whole, bare)
    return Row(
        f"{drafter}: `draftconv accept` on {count} prompts : import torch, load, replay",
        f"{times(factors)}; {spread(whole)} against {spread(bare)}",
        f"at most {ACCEPT} x" if bench.size.times_faster else "",
        statistics.median(factors) <= ACCEPT if bench.size.times_faster else None,
    )


def against_live(bench: Bench, name: str, drafter: str, traced: Sequence[Run]) -> Iterator[Row]:
    """Two arms, decoded with the live target and replayed."""
    progress(f"{name}: {bench.runs} rounds of replay and live decoding")
    copy = bench.work / drafter
    figures, _ = bench.child(
        "against-live", bench.work / name, bench.runs, DATA / "targets" / name, original(drafter), copy
    )
    faster, least = ratios(figures["live"], figures["replay"]), bench.size.times_faster
    yield Row(f"{name}: two arms decoded with the live target", spread(figures["live"]))
    yield Row(f"{name}: the same two replayed from the trace", spread(figures["replay"]))
    yield Row(
        f"{name}: live : replay, round by round",
        times(faster),
        f"at least {least} x" if least else "",
        statistics.median(faster) >= least if least else None,
    )
    cases = figures["requests"] * figures["arms"]
    yield Row(f"{name}: requests with equal counts, live and replayed", f"{cases} of {cases}", "all", True)
    seconds = [done.seconds for done in traced]
    arms = statistics.median(seconds) / (statistics.median(figures["live"]) / figures["arms"])
    yield Row(
        f"{name}: `draftconv trace`, once for all drafters",
        f"{spread(seconds)}, as long as {arms:.2f} live arms; {traced[-1].peak_bytes / 1e6:.0f} MB",
        f"at most {TRACE} live arms" if least else "",
        arms <= TRACE if least else None,
    )


def alone(bench: Bench, trace: Path, drafter: str) -> Iterator[Row]:
    """One drafter replayed, and the command that compares it with its copy."""
    progress(f"{drafter}: replay")
    figures, _ = bench.child("alone", trace, bench.runs, original(drafter))
    yield Row(f"{drafter}: replay of one arm", rate(figures["positions"], figures["seconds"]))
    command = bench.draftconv("parity", original(drafter), bench.work / drafter, "--trace", trace, "--margin", "0")
    yield Row(f"{drafter}: `draftconv parity`", f"{command.seconds:.2f} s, {command.peak_bytes / 1e6:.0f} MB")


def original(drafter: str) -> Path:
    return DATA / "drafters" / drafter


# ── full-size drafters ─────────────────────────────────────────────────────────────


def full_size(bench: Bench, device: str) -> Iterator[Row]:
    """Rows about random drafters of full size on one device."""
    for spec in bench.size.specs:
        progress(f"{spec}: replay on {device}")
        figures, process = bench.child(
            "full-size", SCRIPTS / "specs" / f"{spec}.json", bench.runs, device, bench.size.positions[device],
            threads=bench.threads,
        )  # fmt: skip
        threads = f", {figures['threads']} thread{'s' * (figures['threads'] > 1)}" if device == "cpu" else ""
        where, flop = f"{spec} on {figures['device']}{threads}", figures["floor_flop"]
        positions, floor = figures["positions"], statistics.median(figures["floor"])
        reads, head = DEPTH * figures["blocks"], figures["head_bytes"] / 1e9
        yield Row(f"{where}: replay of one arm", rate(positions, figures["replay"]))
        yield Row(
            f"{where}: floor, its head alone",
            f"{rate(positions, figures['floor'])}; {flop / 1e9:.3g} GFLOP per position, "
            f"{positions * flop / floor / 1e12:.3g} TFLOP/s; {head:.3g} GB read {reads} times, "
            f"{head * reads / floor:.3g} GB/s",
        )
        yield Row(
            f"{where}: replay : floor, round by round",
            f"{times(ratios(figures['replay'], figures['floor']))}; all products with weights are "
            f"{figures['flop'] / flop:.2f} x the head's FLOPs",
        )
        on_device = f", {figures['device_bytes'] / 1e9:.2f} GB on the device" if "device_bytes" in figures else ""
        yield Row(
            f"{where}: peak memory",
            f"{process.peak_bytes / 1e9:.2f} GB{on_device}; the weights take {figures['weight_bytes'] / 1e9:.3g} GB",
        )


# ── report ─────────────────────────────────────────────────────────────────────────


def rate(positions: int, seconds: Sequence[float]) -> str:
    """Positions per second of the median run, and all runs' times."""
    per_second = positions / statistics.median(seconds)
    return f"{per_second:,.{0 if per_second >= 100 else 1}f} positions/s; {positions:,} in {spread(seconds)}"


def ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """a : b, round by round: what slows the machine down for a while slows both."""
    return [x / y for x, y in zip(a, b, strict=True)]


def times(factors: Sequence[float]) -> str:
    """Median, least and largest."""
    return f"{statistics.median(factors):.3g} x ({min(factors):.3g} to {max(factors):.3g})"


def about(bench: Bench, load: float) -> str:
    """What was measured, how, and on what."""
    size = bench.size
    return (
        f"A position is one from which a verify step with K = {DEPTH} drafts starts. Times are medians of {bench.runs} "
        "runs (fastest to slowest) after one that does not count.\n\n"
        f"Fixtures: the trained targets and drafters of `tests/data`, {size.prompts} prompts of 64 tokens continued "
        f"greedily by {size.tokens}, float32, one CPU thread everywhere, the fastest for models this small. Live "
        "decoding is a plain speculative loop: a transformers model with key/value cache, rewound after each step, "
        "states by hooks, one request at a time, one arm after the other. Replay reads and hashes the trace from disk "
        "each time and compares the two arms. Both are timed without imports and loading, in one process and in "
        "alternation; counts that differ in one request end the benchmark with an error. Rows that name a command are "
        f"whole processes. One that does nothing would read as {least_memory():.0f} MB of peak memory. In a profile of "
        "the two replayed arms of `llama` on one core products with weights take 62 % of the time, those of "
        "attention 5 %: what is left to gain there is less than a factor of two. In a profile of `trace` on `mla` the "
        "target's own forward passes take 58 % of the process, imports 37 %, and draftconv the rest.\n\n"
        "Full size: random weights and states in bfloat16, texts of up to 512 positions that accept every draft, so "
        "that no step is skipped. The floor is the product of as many rows with the head alone, once per draft; replay "
        "and floor alternate.\n\n"
        f"Machine: {machine()}. Load average before the first run: {load:.1f}."
    )
