"""Hold the replay of drawn drafts against speculative sampling with a live target.

    scripts/simulate-sampling            print the table
    scripts/simulate-sampling --write    put it into docs/sampling.md

Every run decodes one held-out prompt of a trained fixture, every die thrown (`sampled_speculation`). The replay sees
the run's text alone and says how many verify steps it expects; counted minus expected steps must be zero on average.
With drafts that are the drafter's most likely tokens the two must be the same, run by run. A planted fault, drafts
that the replay takes to be drawn at another temperature, must be seen at every temperature.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
from sampled_speculation import Method, SampledRun, speculate_sampled
from target_model import TargetModel, TargetSession, load_target
from train_tiny import DATA, RECIPES, read_prompts

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.targets import find_target
from draftconv.layouts.drafter_reader import drafter_readers
from draftconv.reference.accept_length import Counts, expected_steps
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.sampling import Sampling
from draftconv.replay.drawn import replay_odds
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.replay.replay import Arm, replay
from draftconv.traces.request import TraceRequest

PAGE = Path(__file__).parents[1] / "docs/sampling.md"
PART = re.compile(r"(<!-- simulated: drawn -->\n).*?(<!-- end: drawn -->)", re.DOTALL)

DEPTH, LENGTH = 3, 32
TEMPERATURES, TOP_PS = (0.3, 0.7, 1.0), (1.0, 0.9)
FAULT = 1.5
"""The planted fault: the replay takes drafts to be drawn at this many times their temperature."""
BOUND = 3.0
"""Standard errors within which the mean difference must lie, and beyond which the fault's must."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A fixture with its target, ready to run."""

    name: str
    arm: Arm
    target: TargetModel

    @classmethod
    def of(cls, name: str) -> Subject:
        """A trained fixture, in float32."""
        directory = DATA / "targets" / RECIPES[name].target
        target, (reader,) = load_target(directory), drafter_readers([DATA / "drafters" / name], (), ())
        drafter = reader.read(open_checkpoint(DATA / "drafters" / name), find_target(str(directory), None))
        tables = open_checkpoint(directory).tensors
        lent = {"embed_tokens": tables["model.embed_tokens.weight"], "lm_head": tables.get("lm_head.weight")}
        return cls(name, load_arm(name, drafter, LoadSettings(lent.get)), target)

    @property
    def model(self) -> DrafterModel:
        """The drafter."""
        return self.arm.model

    def run(self, prompt_T: torch.Tensor, sampling: Sampling, method: Method, number: int) -> SampledRun:
        """One request with every die thrown; the same number throws the same."""
        generator = torch.Generator().manual_seed(number)
        session = TargetSession(self.target, self.arm.boundaries)
        return speculate_sampled(
            self.model, session, prompt_T, depth=DEPTH, length=LENGTH, sampling=sampling, method=method,
            generator=generator,
        )  # fmt: skip

    @torch.no_grad()
    def request(self, prompt: int, run: SampledRun, number: int) -> TraceRequest:
        """The run's text as a trace holds it."""
        output = self.target(run.tokens_N[None, :-1], None, self.arm.boundaries)
        return TraceRequest(
            str(number), str(number), "", prompt, LENGTH, run.tokens_N, output.states[0], logprobs_N=run.logprobs_N
        )


@dataclass(frozen=True, slots=True)
class SamplingCell:
    """Runs of one fixture at one setting.

    Attributes:
        counted, expected: verify steps per run, by the dice and by the replay, on average.
        score: of counted - expected, in standard errors of its mean. `fault`: the same with the planted fault.
        equal: runs whose counts are the same, where nothing is drawn but the text.
    """

    name: str
    method: Method
    sampling: Sampling
    runs: int
    counted: float
    expected: float
    score: float
    fault: float | None
    equal: int | None

    @property
    def holds(self) -> bool:
        """Whether replay and dice agree."""
        return abs(self.score) <= BOUND if self.equal is None else self.equal == self.runs


def unseen_faults(cells: Sequence[SamplingCell]) -> list[tuple[str, float]]:
    """Drafters and temperatures at which the planted fault is not seen, all settings of top_p taken together."""
    faults: dict[tuple[str, float], list[float]] = {}
    for cell in cells:
        if cell.fault is not None:
            faults.setdefault((cell.name, cell.sampling.temperature), []).append(cell.fault)
    # Scores of independent runs: their sum over the root of their number is one again (Stouffer et al. 1949).
    return [where for where, scores in faults.items() if abs(sum(scores)) / len(scores) ** 0.5 <= BOUND]


def measure(subject: Subject, sampling: Sampling, method: Method, runs: int) -> SamplingCell:
    """Run, replay the texts, compare."""
    prompts = read_prompts()
    made = [subject.run(prompts[i % len(prompts)], sampling, method, i) for i in range(runs)]
    return compare(subject, sampling, method, [len(prompts[i % len(prompts)]) for i in range(runs)], made)


def compare(
    subject: Subject, sampling: Sampling, method: Method, lengths: Sequence[int], made: Sequence[SampledRun]
) -> SamplingCell:
    """Replay the texts of runs after prompts of these lengths, and compare the steps."""
    runs = len(made)
    requests = [subject.request(length, run, i) for i, (length, run) in enumerate(zip(lengths, made, strict=True))]
    counted = [float(run.counts.steps) for run in made]
    if method == "greedy":
        found = [done[0].counts for _, done in replay([subject.arm], requests, subject.arm.boundaries, depth=DEPTH)]
        steps = [float(counts.steps) for counts in found]
        equal = sum(run.counts == counts for run, counts in zip(made, found, strict=True))
        return SamplingCell(subject.name, method, sampling, runs, mean(counted), mean(steps), 0.0, None, equal)
    expected, wrong = (
        [float(counts.steps) for counts in _expected(subject, requests, sampling.temperature * factor)]
        for factor in (1.0, FAULT)
    )
    return SamplingCell(
        subject.name, method, sampling, runs, mean(counted), mean(expected), score(counted, expected),
        score(counted, wrong), None,
    )  # fmt: skip


def _expected(subject: Subject, requests: Sequence[TraceRequest], temperature: float) -> Iterator[Counts]:
    arm = subject.arm
    for _, (odds_RK,) in replay_odds([arm], requests, arm.boundaries, depth=DEPTH, temperature=temperature):
        steps = expected_steps(odds_RK.tolist(), DEPTH)
        yield Counts.weighted(((accepted, chance) for _, accepted, chance in steps), DEPTH)


def mean(values: Sequence[float]) -> float:
    """Of some numbers."""
    return sum(values) / len(values)


def score(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The mean paired difference in standard errors."""
    differences = torch.tensor(ours, dtype=torch.float64) - torch.tensor(theirs, dtype=torch.float64)
    return float(differences.mean() / (differences.std() / len(differences) ** 0.5))


def table(cells: Sequence[SamplingCell]) -> str:
    """The figures in Markdown."""
    lines = [
        "| drafter | drafts | text | runs | steps counted | steps expected | difference, standard errors | the same "
        "with the planted fault |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    return "\n".join([*lines, *map(row, cells)])


def row(cell: SamplingCell) -> str:
    """One line of the table."""
    text = f"temperature {cell.sampling.temperature:g}, top_p {cell.sampling.top_p:g}"
    shown = f"{cell.equal} of {cell.runs} runs equal" if cell.equal is not None else f"{cell.score:+.2f}"
    fault = "" if cell.fault is None else f"{cell.fault:+.1f}"
    return (
        f"| {cell.name} | {cell.method} | {text} | {cell.runs} | {cell.counted:.3f} | {cell.expected:.3f} | "
        f"{shown} | {fault} |"
    )


def main(argv: Sequence[str]) -> int:
    """Print or write the table; 1 where replay and dice disagree."""
    parser = argparse.ArgumentParser(
        prog="scripts/simulate-sampling",
        description="Hold the replay of drawn drafts against speculative sampling with a live target.",
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/sampling.md")
    parser.add_argument("--runs", type=int, default=400, help="runs per fixture and setting (default: 400)")
    parser.add_argument("--fixtures", default="llama-eagle3-reduced,mla-eagle3.1", metavar="NAME,…", help="which")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    cells = []
    for name in options.fixtures.split(","):
        subject = Subject.of(name)
        for method in get_args(Method):
            for temperature in TEMPERATURES:
                for top_p in TOP_PS:
                    cells.append(measure(subject, Sampling(temperature, top_p), method, options.runs))
                    print(table(cells[-1:]).splitlines()[-1], flush=True)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(PART.sub(lambda found: f"{found[1]}\n{table(cells)}\n\n{found[2]}", text), encoding="utf-8")
    return 0 if all(cell.holds for cell in cells) and not unseen_faults(cells) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
