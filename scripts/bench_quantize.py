"""Measure `quantize` on a full-size drafter: time against a durable copy of the source, and peak memory.

Baseline, cache and order as in `bench_convert`: whole processes in turn, the source in the page
cache, everything on the disk at the end. A quantized output is smaller than the copy, so a ratio
of one would mean that arithmetic costs what the smaller file saves. The packages whose rules draftconv
follows do the same once, where scripts/oracle-env made their environment; what they leave to the page cache
is brought onto the disk within their time.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from bench_convert import durable_copy, limit, median, seconds, section, settle
from measuring import SCRIPTS, Row, Run, Section, durable, progress, remove, run, spread

TITLE = "Quantization"

RECIPES: Mapping[str, float] = MappingProxyType({"quark-w4a8": 1.1, "w4a16": 1.5})
"""Recipe → the most that it may take, in durable copies: one by the largest magnitude, one by search (mse)."""

MEMORY = 700  # MB

PEERS: Mapping[str, str] = MappingProxyType(
    {
        "quark-memory": "amd-quark 0.13, in memory",
        "quark-files": "amd-quark 0.13, file to file",
        "modelopt": "nvidia-modelopt 0.47, in memory",
    }
)
"""What scripts/peer_quantize.py can run."""

LIKE = "quark-w4a8"
"""The recipe that they are compared with: amd-quark writes the same integers."""

FASTER, SMALLER = 3.0, 10.0
"""Targets: a peer's time and peak memory over draftconv's, at least."""

PEER_PYTHON = SCRIPTS.parent / ".oracle-venv/bin/python"


def measure_quantize(program: Path, source: Path, target: str, work: Path, runs: int) -> dict[str, list[Run]]:
    """Durable copies and quantizations of the same file, in turn; each is first as often as the others.

    One round before the others is thrown away, since blocks that were never written before can be slow.
    """
    weights = source / "model.safetensors"
    copy, quantized = work / "copy.safetensors", work / "quantized"
    kinds = ("copy", *RECIPES)
    by_kind: dict[str, list[Run]] = {kind: [] for kind in kinds}
    for number in range(runs + 1):
        first = number % len(kinds)
        for kind in (*kinds[first:], *kinds[:first]):
            settle(weights)
            if kind == "copy":
                by_kind[kind].append(durable_copy(weights, copy))
            else:
                by_kind[kind].append(
                    run([program, "quantize", source, quantized, "--recipe", kind, "--target", target])
                )
            remove(copy)
            remove(quantized)
        times = ", ".join(f"{kind} {by_kind[kind][-1].seconds:.2f} s" for kind in kinds)
        progress(f"round {number} of {runs}: {times}" + ("" if number else " (not counted)"))
    return {kind: by_kind[kind][1:] for kind in kinds}


def measure_peers(python: Path, source: Path, work: Path) -> dict[str, Run]:
    """One run of each, imports included, its data on the disk; what Quark compiles at its first import is there."""
    settings = {"TORCH_EXTENSIONS_DIR": str(python.parents[1] / "extensions"), "HF_HUB_OFFLINE": "1"}
    environment, out = os.environ | settings, work / "quantized"
    by_peer = {}
    for peer in PEERS:
        settle(source / "model.safetensors")
        by_peer[peer] = durable([python, SCRIPTS / "peer_quantize.py", peer, source, out], out, environment)
        remove(out)
        progress(f"{peer}: {by_peer[peer].seconds:.2f} s")
    return by_peer


def figures(program: Path, source: Path, target: str, work: Path, runs: int) -> tuple[Row, ...]:
    """Every figure of the section."""
    gigabytes = (source / "model.safetensors").stat().st_size / 1e9
    measurements = measure_quantize(program, source, target, work, runs)
    copies = measurements.pop("copy")
    rows = [Row("durable copy (`cp`, then fsync)", f"{spread(seconds(copies))}, {gigabytes / median(copies):.2f} GB/s")]
    for recipe, quantizations in measurements.items():
        ratios = sorted(b.seconds / a.seconds for a, b in zip(copies, quantizations, strict=True))
        peak = max(process.peak_bytes for process in quantizations)
        rows += [
            Row(
                f"`draftconv quantize --recipe {recipe}`",
                f"{spread(seconds(quantizations))}, {gigabytes / median(quantizations):.2f} GB/s read",
            ),
            limit(f"{recipe} : durable copy, medians", median(quantizations) / median(copies), RECIPES[recipe], "x"),
            Row(
                f"{recipe} : durable copy, round by round",
                f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            ),
            limit(f"peak memory of {recipe}", peak / 1e6, MEMORY, "MB"),
        ]
    return (*rows, *peer_rows(measurements[LIKE], source, work))


def peer_rows(ours: Sequence[Run], source: Path, work: Path) -> Iterator[Row]:
    """The packages on the same weights, where they are installed."""
    if not PEER_PYTHON.exists():
        yield Row("amd-quark and ModelOpt on the same weights", "not measured: scripts/oracle-env installs them")
        return
    memory = max(process.peak_bytes for process in ours)
    for peer, peer_run in measure_peers(PEER_PYTHON, source, work).items():
        title = PEERS[peer]
        yield Row(title, f"{peer_run.seconds:.2f} s, {peer_run.peak_bytes / 1e6:.0f} MB at its peak")
        yield at_least(f"time of {title} : {LIKE}", peer_run.seconds / median(ours), FASTER)
        yield at_least(f"peak memory of {title} : {LIKE}", peer_run.peak_bytes / memory, SMALLER)


def at_least(what: str, value: float, least: float) -> Row:
    return Row(what, f"{value:.1f} x", f"at least {least:g} x", value >= least)


def measure(options: argparse.Namespace, program: Path) -> Section:
    """Make the drafter, measure, clean up.

    Raises:
        BenchError: no room, or a program failed.
    """
    return section(options, program, TITLE, "quantized", figures)
