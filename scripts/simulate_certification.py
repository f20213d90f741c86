"""Test how often a drafter that loses too much is certified.

    scripts/simulate-certification            print the table
    scripts/simulate-certification --write    put it into docs/slim.md

Every trained fixture is replayed beside what recipes make of it, as `measure_recipes` does. The prompts of that
replay are a population whose ratio of accept lengths is known for every candidate; the loss that is allowed is set
to exactly what each candidate loses, so that none of them should be certified. Samples of as many prompts as a search
leaves unseen are drawn from the population with replacement, and judged by draftconv's own code. Among k candidates
any that passes is a wrong certificate, and there may be alpha of them.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measure_recipes import TARGETS, drafters_of, held_out, trace_of
from simulate import Bools, Floats

from draftconv.api.parity import parity
from draftconv.report import Report
from draftconv.report.certification import ALPHA, lower_bounds, share_of
from draftconv.report.records import paired

PAGE = Path(__file__).parents[1] / "docs/slim.md"
PART = re.compile(r"(<!-- simulated: certificates -->\n).*?(<!-- end: certificates -->)", re.DOTALL)

CANDIDATES = ("w4a16", "quark-w4a8", "w4a16-g128", "w4a8", "fp8")
"""Recipes, those of the largest loss first: of k candidates the first k."""
GROUPS = (1, 3, 5)
PROMPTS = (40, 160)
BOUND = 3.0
"""Standard errors that the share of wrong certificates may lie above alpha by chance."""
AT_ONCE = 200
"""Samples that are judged together, to bound memory."""


@dataclass(frozen=True)
class Population:
    """The prompts of one fixture: accepted tokens and verify steps [N, 2 (arms), candidates]."""

    accepted: Floats
    steps: Floats

    @classmethod
    def of(cls, report: Report) -> Population:
        """The counts of a report, prompt by prompt."""
        reference, _, *candidates = (arm.name for arm in report.arms)  # the second is the reference again
        pairs = [paired(report.records, reference, name) for name in candidates]
        counts = [[(pair.reference, pair.candidate) for pair in of_one] for of_one in pairs]
        accepted = [[[c.accepted for c in two] for two in of_one] for of_one in counts]
        steps = [[[c.steps for c in two] for two in of_one] for of_one in counts]
        return cls(np.moveaxis(np.array(accepted, float), 0, -1), np.moveaxis(np.array(steps, float), 0, -1))

    @property
    def ratios(self) -> Floats:
        """The true ratio of each candidate."""
        reference, candidate = 1 + self.accepted.sum(0) / self.steps.sum(0)
        ratios: Floats = candidate / reference
        return ratios

    def wrong(self, prompts: int, level: float, candidates: int, random: np.random.Generator, repeats: int) -> Bools:
        """Which of the first candidates pass at the boundary, in each of some samples: [candidates, repeats]."""
        drawn = random.integers(len(self.steps), size=(prompts, repeats))
        passed = []
        for k in range(candidates):
            accepted, steps = (np.moveaxis(part[drawn, :, k], 2, 1) for part in (self.accepted, self.steps))
            passed.append(lower_bounds([prompts], accepted, steps, level).low > self.ratios[k])
        return np.array(passed)


@dataclass(frozen=True)
class Cell:
    """How often any of some candidates was certified wrongly."""

    fixture: str
    candidates: int
    prompts: int
    samples: int
    wrong: float

    @property
    def holds(self) -> bool:
        """Whether that is no more than alpha, as far as so many samples can tell."""
        return self.wrong <= ALPHA + BOUND * math.sqrt(ALPHA * (1 - ALPHA) / self.samples)


def replayed(work: Path) -> Iterator[tuple[str, Population]]:
    """Every fixture under the recipes."""
    for target in TARGETS:
        judge = trace_of(target, held_out(), work)
        for drafter in drafters_of(target):
            print(f"simulate-certification: {drafter.name}", file=sys.stderr, flush=True)
            yield drafter.name, Population.of(parity(drafter, [], trace=judge, margin=0.02, fake_quant=CANDIDATES))


def simulate(populations: Mapping[str, Population], samples: int) -> Iterator[Cell]:
    """A cell for every fixture, number of candidates and number of prompts."""
    for fixture, population in populations.items():
        for candidates in GROUPS:
            for prompts in PROMPTS:
                random = np.random.default_rng((candidates, prompts))
                level = share_of(ALPHA, candidates)
                runs = [
                    population.wrong(prompts, level, candidates, random, min(AT_ONCE, samples - done))
                    for done in range(0, samples, AT_ONCE)
                ]
                any_passed = np.concatenate(runs, axis=-1).any(0)
                yield Cell(fixture, candidates, prompts, samples, float(any_passed.mean()))


def table(cells: Sequence[Cell]) -> str:
    """The figures in Markdown."""
    lines = [
        "| drafter | candidates | unseen prompts | samples | wrong certificates |",
        "| --- | --- | --- | --- | --- |",
    ]
    for cell in cells:
        lines.append(
            f"| `{cell.fixture}` | {cell.candidates} | {cell.prompts} | {cell.samples:,} | {100 * cell.wrong:.1f} % |"
        )
    return "\n".join(lines)


def told(cells: Sequence[Cell]) -> str:
    """How far chance goes, and which rows are the largest, in words."""
    samples = min(cell.samples for cell in cells)
    points = 100 * 1.96 * math.sqrt(ALPHA * (1 - ALPHA) / samples)
    shares = [float(f"{100 * cell.wrong:.1f}") for cell in cells]
    above = [share for share in shares if share > 100 * ALPHA]
    beyond = sum(share > 100 * ALPHA + points for share in above)
    by_more = f"{beyond} of them" if beyond else "none"
    largest = ", ".join(
        f"`{cell.fixture}` with {cell.candidates} candidate{'s' * (cell.candidates > 1)} and {cell.prompts} prompts"
        for cell, share in zip(cells, shares, strict=True)
        if share == max(shares)
    )
    verb = "are" if shares.count(max(shares)) > 1 else "is"
    return (
        f"{samples:,} samples leave ± {points:.1f} points. Above {100 * ALPHA:g} % lie {len(above)} of {len(cells)} "
        f"rows, {by_more} by more than that; the largest, {max(shares)} %, {verb} {largest}."
    )


def main(argv: Sequence[str]) -> int:
    """Print or write the table; 1 where certificates are wrong oftener than alpha."""
    parser = argparse.ArgumentParser(
        prog="scripts/simulate-certification",
        description="Test how often a drafter that loses too much is certified; some minutes.",
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/slim.md")
    parser.add_argument("--samples", type=int, default=4000, help="samples per figure (default: 4000)")
    parser.add_argument("--work", type=Path, help="a directory for traces, which are taken if they are there")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        populations = dict(replayed(options.work or Path(directory)))
    cells = list(simulate(populations, options.samples))
    found = f"{table(cells)}\n\n{told(cells)}"
    print(found)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(PART.sub(lambda part: f"{part[1]}\n{found}\n\n{part[2]}", text), encoding="utf-8")
    return 0 if all(cell.holds for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
