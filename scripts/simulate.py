"""Test the parity statistics on drafters whose true loss is known.

    scripts/simulate            print the tables
    scripts/simulate --write    put them into docs/statistics.md

A simulated request has a latent ease u ~ N(0, 0.45), every position of its text a difficulty
N(0, 1) that all depths share, and the reference guesses the j-th token rightly with probability
sigmoid(logit(.73, .71, .68) + u + difficulty). A candidate keeps a right guess or loses it, and
turns some wrong ones right. Both are then decoded by a greedy chain, K = 3, 256 tokens. How often
guesses are lost is solved for, so that the pooled accept length of a population of 10,000
requests falls by a given share; samples are drawn from it with replacement, so the truth is known
exactly. The statistics are draftconv's own, run on many samples at once.

Three kinds of candidates:

    same text    both arms decode one text, as in replay; the loss is the same for all requests
    split        the candidate's text parts from the reference's after 200 tokens on average, as live
    uneven       one text, and one request in ten bears all of the loss
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from draftconv.report.resampling import Bounds, bounds, log_influence, reach, resampled
from draftconv.report.verdict import CATEGORY_FLOOR

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Kind = Literal["same text", "split", "uneven"]

PAGE = Path(__file__).parents[1] / "docs/statistics.md"
PART = re.compile(r"(<!-- simulated: (?P<name>[\w-]+) -->\n).*?(<!-- end: (?P=name) -->)", re.DOTALL)

RATES = np.array([0.73, 0.71, 0.68])
EASE = 0.45
TOKENS = 256
SPLIT_AFTER = 200
UNEVEN_SHARE = 0.1
GAIN = 0.06
"""The chance that the candidate is right where the reference is wrong."""
REQUESTS = 10_000
SEED = 1
CATEGORIES = 8
SAMPLES = (30, 40, 80, 260)
MARGINS = (0.01, 0.02)
LOSSES = (0.0, 0.005, 0.01, 0.02, 0.04)
SHOWN = (0.0, 0.02)
METHODS = {"bootstrap": "bootstrap_", "delta": "delta_", "both": ""}
LENGTHS = (32, 128, 512)
AT_ONCE = 200
"""Samples that are judged together, to bound memory."""


# ── populations ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Population:
    """Requests on both arms: accepted tokens and verify steps, each [N, 2] (reference, candidate)."""

    accepted: Floats
    steps: Floats

    @property
    def ratio(self) -> float:
        """The true ratio of accept lengths."""
        reference, candidate = 1 + self.accepted.sum(0) / self.steps.sum(0)
        return float(candidate / reference)

    def samples(self, prompts: int, repeats: int, random: np.random.Generator) -> Floats:
        """Counts [prompts, 2 (accepted, steps), 2 (arms), repeats]."""
        drawn = random.integers(len(self.steps), size=(prompts, repeats))
        counts = np.stack((self.accepted[drawn], self.steps[drawn]), 1)
        return np.moveaxis(counts, 2, 3)


class Simulated:
    """Texts, the reference's guesses, and candidates that lose as much as is asked."""

    def __init__(self, kind: Kind, requests: int, tokens: int = TOKENS) -> None:
        random = np.random.default_rng(SEED)
        self.tokens = tokens
        shape = (requests, tokens + len(RATES), len(RATES))
        ease = random.normal(0, EASE, (requests, 1, 1))

        def guesses() -> Bools:
            score = np.log(RATES / (1 - RATES)) + ease + random.normal(size=(*shape[:2], 1))
            right: Bools = random.random(shape) < 1 / (1 + np.exp(-score))
            return right

        self.right = guesses()
        self.base = self.right
        if kind == "split":
            after = random.exponential(SPLIT_AFTER, (requests, 1, 1))
            self.base = np.where(np.arange(shape[1])[:, None] < after, self.right, guesses())
        self.luck = random.random(shape, np.float32)
        self.bears = np.ones((requests, 1, 1)) if kind != "uneven" else np.zeros((requests, 1, 1))
        self.bears[: round(UNEVEN_SHARE * requests)] = 1

    def decode(self, right: Bools) -> tuple[Floats, Floats]:
        """Accepted tokens and verify steps [N] of a greedy chain, the first token being there already."""
        requests, _, depth = right.shape
        rows = np.arange(requests)
        at = np.ones(requests, np.int64)
        accepted, steps = np.zeros(requests), np.zeros(requests)
        while len(rows := rows[at[rows] < self.tokens]):
            hits = np.stack([right[rows, at[rows] + j, j] for j in range(depth)], 1)
            run = np.logical_and.accumulate(hits, 1).sum(1)
            accepted[rows] += run
            steps[rows] += 1
            at[rows] += run + 1
        return accepted, steps

    @cached_property
    def reference(self) -> tuple[Floats, Floats]:
        return self.decode(self.right)

    def candidate(self, lost: float | Floats) -> Population:
        """The population when a right guess is lost with probability `lost` (one, or one per request)."""
        right = np.where(self.base, self.luck >= lost, self.luck < GAIN)
        accepted, steps = zip(self.reference, self.decode(right), strict=True)
        return Population(np.stack(accepted, 1), np.stack(steps, 1))

    @cached_property
    def harmless(self) -> float:
        """How often right guesses are lost when the gains make up for it."""
        return _solve(lambda lost: self.candidate(lost).ratio, 1.0)

    def losing(self, loss: float) -> Population:
        """A candidate whose accept length is lower by the share `loss`, up to the grain of the population."""
        if not loss:
            return self.candidate(self.harmless)
        extra = _solve(lambda extra: self.candidate(self.harmless + extra * self.bears).ratio, 1 - loss)
        return self.candidate(self.harmless + extra * self.bears)


def _solve(ratio: Callable[[float], float], value: float) -> float:
    """Where a falling function on 0…1 takes a value, by bisection to 1e-4."""
    low, high = 0.0, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(middle) > value else (low, middle)
    return low


# ── judging many samples ───────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Judged:
    """What the statistics say of many samples: the bounds, and the upper ends of their categories [8, repeats].

    Categories have the delta interval only. The gate takes the wider of two, so it fails no more often than this.
    """

    bounds: Bounds
    categories: Floats

    def fails(self, margin: float) -> Bools:
        high: Bools = self.bounds.high < 1 - margin
        return high | (self.categories < CATEGORY_FLOOR).any(0)

    def passes(self, margin: float) -> Bools:
        low: Bools = self.bounds.low > 1 - margin
        return low & ~self.fails(margin)


def judged(samples: Floats) -> Judged:
    """The verdict's figures for samples [prompts, 2, 2, repeats], prompts spread evenly over eight categories."""
    parts = [_judged(samples[..., start : start + AT_ONCE]) for start in range(0, samples.shape[-1], AT_ONCE)]
    return Judged(
        Bounds(*(np.concatenate(column) for column in zip(*(part.bounds for part in parts), strict=True))),
        np.concatenate([part.categories for part in parts], -1),
    )


def _judged(samples: Floats) -> Judged:
    rows = np.array_split(samples, CATEGORIES)
    draws = resampled([len(part) for part in rows], samples)
    return Judged(
        bounds(samples[:, 0], samples[:, 1], draws[:, 0], draws[:, 1]), np.stack([_highest(part) for part in rows])
    )


def _highest(samples: Floats) -> Floats:
    ratio, psi = log_influence(samples[:, 0], samples[:, 1])
    high: Floats = ratio * np.exp(reach(psi))
    return high


# ── figures ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Cell:
    """One candidate and sample size: the truth, a look, and a second one after as many prompts were added."""

    truth: float
    first: Judged
    second: Judged | None

    def covered(self, method: str) -> float:
        """How often an interval of the first look holds the truth; `method` is empty for the gate's own."""
        limits = self.first.bounds._asdict()
        return float(((limits[f"{method}low"] <= self.truth) & (self.truth <= limits[f"{method}high"])).mean())

    def passes(self, margin: float) -> float:
        return float(self.first.passes(margin).mean())

    def fails(self, margin: float) -> float:
        return float(self.first.fails(margin).mean())

    def passes_in_two(self, margin: float) -> float:
        """How often it passes if an inconclusive sample is extended."""
        if self.second is None:
            return self.passes(margin)
        passed = self.first.passes(margin)
        return float((passed | (~self.first.fails(margin) & self.second.passes(margin))).mean())


Cells: TypeAlias = Mapping[tuple[Kind, float, int], Cell]


def simulate(
    kinds: Sequence[Kind], losses: Sequence[float], prompts: Sequence[int], *, repeats: int, requests: int
) -> Cells:
    """A cell for every kind of candidate, loss and number of prompts."""
    cells = {}
    for kind in kinds:
        world = Simulated(kind, requests)
        for loss in losses:
            population = world.losing(loss)
            for number in prompts:
                random = np.random.default_rng(number)
                first, added = (population.samples(number, repeats, random) for _ in range(2))
                second = judged(np.concatenate((first, added))) if loss in MARGINS else None
                cells[kind, loss, number] = Cell(population.ratio, judged(first), second)
            progress(f"{kind}, loss {percent(loss)}")
    return cells


def engine_averages(tokens: int, requests: int) -> Mapping[str, float]:
    """Averages in use, relative to pooled accept length, on one simulated run of fixed length."""
    accepted, steps = Simulated("same text", requests, tokens).reference
    length = 1 + accepted.sum() / steps.sum()
    averages = {
        "mean over requests of 1 + accepted / steps": (1 + accepted / steps).mean(),
        "tokens / steps, pooled (SGLang's accept length, from sums)": tokens * requests / steps.sum(),
        "tokens / steps, mean over requests (SGLang's `spec_accept_length`)": (tokens / steps).mean(),
        "tokens / (steps + 1), pooled (trtllm-bench)": tokens * requests / (steps + 1).sum(),
        "mean chunk, mean over turns (specdec_bench)": ((1 + accepted + steps) / (1 + steps)).mean(),
    }
    return {name: float(value / length - 1) for name, value in averages.items()}


# ── tables ─────────────────────────────────────────────────────────────────────────


Row: TypeAlias = Sequence[object]


def table(head: Row, rows: Iterable[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def percent(share: float, sign: str = "-") -> str:
    return f"{round(100 * share, 1) + 0.0:{sign}.1f} %"  # + 0.0: never -0.0


def coverage_table(cells: Cells) -> str:
    def row(kind: Kind, number: int) -> Row:
        shown = [cells[kind, loss, number] for loss in SHOWN]
        return (kind, number, *(percent(cell.covered(method)) for cell in shown for method in METHODS.values()))

    return table(
        ("candidate", "prompts", *(f"{name}, loss {percent(loss)}" for loss in SHOWN for name in METHODS)),
        (row(kind, number) for kind in get_args(Kind) for number in SAMPLES),
    )


def decision_table(cells: Cells, margin: float) -> str:
    def row(kind: Kind, number: int) -> Row:
        good, half, edge, bad = (cells[kind, share * margin, number] for share in (0, 0.5, 1, 2))
        truth = 1 - edge.truth  # the margin to the last digit, where nobody should pass more often than promised
        shares = (
            *(good.passes(margin), half.passes(margin)),
            *(edge.passes(truth), edge.passes_in_two(truth)),
            *(good.fails(margin), bad.fails(margin)),
        )
        return (kind, number, *(percent(share) for share in shares))

    return table(
        (
            "candidate",
            "prompts",
            "no loss: passes",
            f"loss {percent(margin / 2)}: passes",
            f"loss {percent(margin)}: passes",
            "… with one extension",
            "no loss: fails",
            f"loss {percent(2 * margin)}: fails",
        ),
        (row(kind, number) for kind in get_args(Kind) for number in SAMPLES),
    )


def spread_table(cells: Cells) -> str:
    return table(
        ("candidate", *(f"loss {percent(loss)}" for loss in LOSSES)),
        (
            (kind, *(percent(cells[kind, loss, SAMPLES[-1]].first.bounds.spread.mean()) for loss in LOSSES))
            for kind in get_args(Kind)
        ),
    )


def average_table(requests: int) -> str:
    columns = {tokens: engine_averages(tokens, requests) for tokens in LENGTHS}
    names = columns[LENGTHS[0]]
    return table(
        ("average", *(f"{tokens} tokens" for tokens in LENGTHS)),
        ((name, *(percent(columns[tokens][name], "+") for tokens in LENGTHS)) for name in names),
    )


# ── command line ───────────────────────────────────────────────────────────────────


def progress(text: str) -> None:
    print(f"simulate: {text}", file=sys.stderr, flush=True)


def filled(page: str, parts: Mapping[str, str]) -> str:
    """The page with its simulated parts made anew; every part must have its place."""
    if missing := set(parts) ^ {match["name"] for match in PART.finditer(page)}:
        raise SystemExit(f"parts and places differ: {', '.join(sorted(missing))}")
    return PART.sub(lambda match: f"{match[1]}\n{parts[match['name']]}\n{match[3]}", page)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/simulate",
        description="Test the parity statistics on drafters whose true loss is known; takes some minutes.",
    )
    parser.add_argument("--write", action="store_true", help="put the tables into docs/statistics.md")
    parser.add_argument("--repeats", type=int, default=4000, help="samples per figure (default: 4000)")
    options = parser.parse_args(argv)
    cells = simulate(get_args(Kind), LOSSES, SAMPLES, repeats=options.repeats, requests=REQUESTS)
    parts = {
        "averages": average_table(REQUESTS),
        "spread": spread_table(cells),
        "coverage": coverage_table(cells),
        **{f"decisions-{margin:.0%}".rstrip("%"): decision_table(cells, margin) for margin in MARGINS},
    }
    for name, text in parts.items():
        print(f"{name}\n\n{text}")
    if options.write:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), parts), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
