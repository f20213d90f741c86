"""What GPTQ takes: arithmetic, time at the rate of this machine now, and memory. Known before anything is done.

The arithmetic follows from the sizes of the weights and the rows of the trace. How fast it goes is measured when it is
asked for, on products and columns like those to come: a quarter of a second, on the device and the threads that will
do it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from draftconv.quantization.gptq import COLUMNS, DAMPINGS, HEIGHT, Spread, round_rows
from draftconv.quantization.scheme import WeightScheme
from draftconv.quantization.second_moments import AT_ONCE
from draftconv.quantization.threads import workers

PROBE = 1024
"""Side of the products that the rate is measured on."""

INTERPRETER = 350_000_000
"""Bytes of Python with torch loaded."""

FLOAT = 4
"""Bytes of a number while it is computed."""


@dataclass(frozen=True, slots=True)
class SharedInputs:
    """Weights that read the same inputs.

    Attributes:
        inputs: of a row. `outputs`: of all of them together. `largest`: outputs of the largest one.
        stored: bytes of all of them in their file.
    """

    inputs: int
    outputs: int
    largest: int
    stored: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Operations of a stretch of work.

    Attributes:
        products: multiplications and additions in products of matrices.
        columns: columns of a block of rows that are rounded one after the other.
    """

    products: float
    columns: float

    def __add__(self, other: Workload) -> Workload:
        return Workload(self.products + other.products, self.columns + other.columns)


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast this machine is now.

    Attributes:
        products: multiplications and additions a second, on all threads. `columns`: a second, on all threads.
    """

    products: float
    columns: float

    def seconds(self, work: Workload) -> float:
        """What some work takes."""
        return self.equivalent(work) / self.products

    def equivalent(self, work: Workload) -> float:
        """Operations of products that would take as long."""
        return work.products + work.columns * self.products / self.columns


def pass_work(parameters: int, shared: Sequence[SharedInputs], rows: int) -> Workload:
    """One pass over a trace: the drafter is run, and the second moments of some inputs are added up."""
    return Workload(2.0 * parameters * rows + sum(float(rows) * one.inputs**2 for one in shared), 0)


def rounding_work(one: SharedInputs, held: int) -> Workload:
    """Factoring, rounding and judging, for every damping and for rounding to nearest."""
    tried = len(DAMPINGS)
    factor = tried * 2 / 3 * one.inputs**3
    spread = tried * float(one.outputs) * one.inputs**2
    judged = (tried + 1) * 4.0 * held * one.inputs * one.outputs
    return Workload(factor + spread + judged, tried * one.inputs * -(-one.outputs // HEIGHT))


def collecting_memory(parameters: int, shared: Sequence[SharedInputs], held: int, passing: int) -> int:
    """Bytes at the peak of a pass.

    The drafter without its tables, second moments, rows on their way into them, held-out rows, and what a pass holds.

    Args:
        held: rows that are held out. `passing`: numbers that a forward pass holds at a time.
    """
    sides = sum(one.inputs**2 for one in shared) + (3 * AT_ONCE + held) * sum(one.inputs for one in shared)
    return INTERPRETER + FLOAT * (parameters + sides + passing)


def rounding_memory(one: SharedInputs, threads: int, held: int) -> int:
    """Bytes at the peak of rounding: the factor, the weights and what they become, and what each thread holds."""
    weights = one.stored + (one.outputs + one.largest) * one.inputs
    blocks = threads * 5 * HEIGHT * one.inputs + 2 * held * one.inputs
    return INTERPRETER + weights + FLOAT * (one.inputs**2 + blocks)


@cache
def measured_rate(device: str) -> Rate:
    """The rate of this machine as it is now, for the arithmetic of this module."""
    where = torch.device(device)
    random = torch.Generator().manual_seed(1)
    square = torch.randn(PROBE, PROBE, generator=random).to(where)
    scheme = WeightScheme("int4", "channel", "max/7", "F32")
    by = Spread(torch.eye(COLUMNS, device=where), torch.arange(COLUMNS, device=where))
    block, scale = square[:HEIGHT, :COLUMNS].contiguous(), square.new_ones(HEIGHT, 1)
    with workers(where) as each:
        count = each.threads
        products = _seconds(lambda: each(lambda _: torch.mm(square, square), range(count)), where)
        columns = _seconds(lambda: each(lambda _: round_rows(block, scale, scheme, by), range(count)), where)
    return Rate(2.0 * PROBE**3 * count / products, float(COLUMNS) * count / columns)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The shorter of two runs, after one that warms up."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])
