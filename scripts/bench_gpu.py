"""Measure what runs on a GPU: replay at full size, quantization, and whether both say what a CPU says.

Nothing but torch is needed beside draftconv: targets are the fixtures', full-size drafters hold random weights. On a
machine without a GPU the section says that nothing was run.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import make_synthetic
from bench_convert import make_target
from bench_parity import QUICK, WHOLE, Bench, full_size, ratios, times
from measuring import SCRIPTS, Row, Section, machine, progress, remove, run, spread

TITLE = "GPU"
NO_GPU = Row("everything on a GPU", "not run on hardware: no GPU at hand")
DRAFTERS = ("llama-eagle3", "llama-eagle3-reduced", "llama-eagle3.1", "mla-eagle3", "mla-eagle3.1")
RECIPES = ("quark-w4a8", "w4a16")
WEIGHTS = "model.safetensors"
SPEC = ("kimi-k2.5-eagle3", "kimi-k2.5")
"""A full-size drafter and its target."""


def measure(options: argparse.Namespace, program: Path) -> Section:
    """Measure on the GPU that torch sees first; clean up.

    Raises:
        BenchError: a program failed.
    """
    bench = Bench(program, options.dir / "gpu", options.runs, QUICK if options.quick else WHOLE, os.cpu_count() or 1)
    found, _ = bench.child("device")
    if found["cuda"] is None:
        return Section(TITLE, "Written by `scripts/gpu-check` on a machine that has one.", (NO_GPU,))
    return Section(TITLE, about(bench, found["cuda"]), tuple(measured(bench, "cuda", quick=options.quick)))


def measured(bench: Bench, device: str, *, quick: bool) -> Iterator[Row]:
    """Every row, on one device."""
    remove(bench.work)
    bench.work.mkdir(parents=True)
    try:
        yield from counted(bench, device, DRAFTERS[:1] if quick else DRAFTERS)
        yield from quantized(bench, device, *(("tiny-eagle3", make_target(bench.work)) if quick else SPEC))
        yield from full_size(bench, device)
    finally:
        remove(bench.work)


def counted(bench: Bench, device: str, drafters: Sequence[str]) -> Iterator[Row]:
    """Whether a replay on the device counts what one on the CPU counts, both in float32."""
    for drafter in drafters:
        progress(f"{drafter}: counts on {device}")
        figures, _ = bench.child("counts", drafter, bench.size.prompts, bench.size.tokens, device)
        equal, requests = figures["equal"], figures["requests"]
        yield Row(
            f"{drafter}: requests with the counts of a CPU, float32", f"{equal} of {requests}", "all", equal == requests
        )


def quantized(bench: Bench, device: str, spec: str, target: str) -> Iterator[Row]:
    """`quantize --device`: the same bytes as on the CPU, and its time against it."""
    source = bench.work / spec
    make_synthetic.write_checkpoint(make_synthetic.read_spec(SCRIPTS / "specs" / f"{spec}.json"), source)
    for recipe in RECIPES:
        on_cpu: list[float] = []
        on_device: list[float] = []
        ours, theirs = bench.work / "cpu", bench.work / "device"
        equal = True
        for number in range(bench.runs):
            progress(f"{recipe}: round {number + 1} of {bench.runs} on the CPU and on {device}")
            for where, out, seconds in (("cpu", ours, on_cpu), (device, theirs, on_device)):
                done = run(
                    [sys.executable, "-m", "draftconv", "quantize", source, out, "--recipe", recipe, "--target", target,
                     "--device", where, "--no-card"],
                    os.environ | {"PYTHONPATH": str(SCRIPTS.parent)},
                )  # fmt: skip
                seconds.append(done.seconds)
            equal = equal and filecmp.cmp(ours / WEIGHTS, theirs / WEIGHTS, shallow=False)
            remove(ours)
            remove(theirs)
        yield Row(f"`quantize --recipe {recipe}` of {spec} on the device", spread(on_device))
        yield Row(f"{recipe}: CPU : device, round by round", times(ratios(on_cpu, on_device)))
        yield Row(f"{recipe}: bytes of the two", "equal" if equal else "different", "equal", equal)


def about(bench: Bench, gpu: str) -> str:
    """What was measured, how, and on what."""
    size = bench.size
    return (
        f"Written by `scripts/gpu-check`. Fixtures: {size.prompts} prompts of `tests/data`, continued greedily by "
        f"{size.tokens}, K = 3, replayed in float32 on both. Quantization: whole processes, the CPU and the device in "
        "turn. Full size: as in the part on parity.\n\n"
        f"Machine: {gpu}; {machine()}."
    )
