"""Run whole searches on the trained fixtures, and hold every certificate against text that nobody saw.

    scripts/slim-runs                    print the table
    scripts/slim-runs --write            put it into docs/slim.md
    scripts/slim-runs --work DIR [...]   keep traces and results in DIR, and take those that are there

Every fixture is searched on four traces of other prompts, for two engines, with `--max-loss 0.01`. The prompts are
excerpts of the running Python's standard library, of modules that neither fixtures nor targets were trained on, dealt
out in turns. What a search wrote is then replayed on 480 more, which no search, no calibration and no certificate saw:
a certificate is wrong where the drafter loses 1 % or more there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from measure_recipes import DATA, EXCERPT, MODULES, ROOT, TOKENS, table

import draftconv
from draftconv.api.parity import parity
from draftconv.api.trace import TraceOptions, trace
from draftconv.traces.trace import INDEX
from tests.keywords import keywords

PAGE = ROOT / "docs/slim.md"
PART = re.compile(r"(<!-- measured: runs -->\n).*?(<!-- end: runs -->)", re.DOTALL)

MAX_LOSS = 0.01
ENGINES = ("vllm:b200", "sglang:h200", "vllm:b200", "sglang:h200")
"""Of each of the four searches of a fixture: each has prompts of its own."""
SEARCHED, JUDGED = 4, 24
"""Excerpts of each module that a search has, for both of its halves, and that judge what it wrote."""


@dataclass(frozen=True, slots=True)
class Run:
    """One search.

    Attributes:
        chosen: what was certified; None where nothing was.
        share: of the bytes per draft step. `unseen`: loss on the half that certified it.
        loss, low, high: on the prompts that nobody saw, with the 95 % interval.
    """

    fixture: str
    engine: str
    prompts: int
    seconds: float
    chosen: str | None
    share: float = 1.0
    unseen: float = 0.0
    loss: float = 0.0
    low: float = 0.0
    high: float = 0.0

    @property
    def wrong(self) -> bool:
        """Whether the certificate says what is not so."""
        return self.chosen is not None and self.loss >= MAX_LOSS

    def row(self) -> Sequence[str]:
        """As it stands in the table."""
        start = (f"`{self.fixture}`", self.engine, str(self.prompts))
        if self.chosen is None:
            return (*start, "nothing", "", "", "", "")
        return (
            *start,
            self.chosen.replace("; ", "<br>"),
            f"{100 * self.share:.0f} %",
            f"{100 * self.unseen:.2f} %",
            f"{100 * self.loss:.2f} % ({100 * self.low:.2f} to {100 * self.high:.2f})",
            "**wrong**" if self.wrong else "right",
        )


def excerpts() -> list[list[str]]:
    """The prompts of each search, and last those that judge: dealt out in turns, each a stretch of its own."""
    library, each = Path(sysconfig.get_paths()["stdlib"]), len(ENGINES) * SEARCHED + JUDGED
    kinds: list[list[str]] = [[] for _ in range(len(ENGINES) + 1)]
    for module in MODULES:
        text = (library / f"{module}.py").read_text(encoding="utf-8")
        stride = len(text) // each
        for number in range(each):
            turn = number % (each // SEARCHED)
            kinds[min(turn, len(ENGINES))].append(text[number * stride : number * stride + EXCERPT])
    return kinds


def traced(target: str, drafters: Sequence[Path], work: Path) -> list[Path]:
    """A trace of each kind of prompts, taken where it is there whole."""
    options = TraceOptions(drafters=tuple(drafters), dtype="float32", batch=32, max_tokens=TOKENS, ignore_eos=True)
    places = []
    for number, texts in enumerate(excerpts()):
        prompts, place = work / f"prompts-{number}.json", work / f"{target}-{number}"
        if not (place / INDEX).exists():
            prompts.write_text(json.dumps(texts), encoding="utf-8")
            trace(DATA / "targets" / target, prompts, place, **keywords(options))
        places.append(place)
    return places


def searched(drafter: Path, number: int, target: Path, prompts: Path, work: Path) -> Run:
    """One search; what it wrote lies in the directory of its name."""
    kept, out = work / f"{drafter.name}-{number}.json", work / f"{drafter.name}-{number}"
    if not kept.exists():
        began, engine = time.perf_counter(), ENGINES[number]
        found = draftconv.slim(
            drafter, out, engine=engine, trace=prompts, max_loss=MAX_LOSS, target=target, overwrite=True
        )
        seconds, every, chosen = time.perf_counter() - began, found.searched + found.unseen, found.chosen
        run = Run(drafter.name, engine, every, seconds, None)
        if chosen is not None and chosen.certificate is not None:
            share, unseen = found.bytes_read(chosen) / found.whole_bytes, 1 - chosen.certificate.ratio
            run = replace(run, chosen=chosen.planned.name, share=share, unseen=unseen)
        kept.write_text(json.dumps(asdict(run)), encoding="utf-8")
    run = Run(**json.loads(kept.read_text(encoding="utf-8")))
    print(f"slim-runs: {drafter.name}, {run.engine}: {run.seconds:.0f} s", file=sys.stderr, flush=True)
    return run


def judged(drafter: Path, found: Sequence[Run], judging: Path, work: Path) -> Iterator[Run]:
    """The searches of a fixture with what their drafters lose on the prompts that judge."""
    outs = {f"{drafter.name}-{number}": run for number, run in enumerate(found) if run.chosen is not None}
    comparisons = {}
    if outs:
        report = parity(drafter, [work / name for name in outs], trace=judging, margin=MAX_LOSS)
        comparisons = {comparison.candidate: comparison for comparison in report.comparisons}
    for number, run in enumerate(found):
        comparison = comparisons.get(f"{drafter.name}-{number}")
        if comparison is None:
            yield run
            continue
        estimate = comparison.verdict.estimate
        if estimate is None:
            raise SystemExit(f"{comparison.candidate} gave no interval: {comparison.verdict.outcome}")
        low, high = 1 - estimate.interval.high, 1 - estimate.interval.low
        yield replace(run, loss=1 - estimate.ratio, low=low, high=high)


def runs(work: Path) -> Iterator[Run]:
    """Every fixture, target after target; searches that are kept are taken as they are."""
    targets: dict[str, list[Path]] = {}
    for drafter in sorted((DATA / "drafters").iterdir()):
        targets.setdefault(drafter.name.partition("-")[0], []).append(drafter)
    for target, drafters in targets.items():
        *prompts, judging = traced(target, drafters, work)
        for drafter in drafters:
            place = DATA / "targets" / target
            found = [searched(drafter, number, place, prompts[number], work) for number in range(len(ENGINES))]
            yield from judged(drafter, found, judging, work)


def text(found: Sequence[Run]) -> str:
    """The table, and what it comes to in a sentence."""
    head = ("drafter", "engine", "prompts", "certified", "bytes per draft step", "loss, unseen half",
            f"loss, {JUDGED * len(MODULES)} other prompts", "certificate")  # fmt: skip
    certified = [run for run in found if run.chosen is not None]
    wrong = sum(run.wrong for run in found)
    outcome = f"{len(certified)} of {len(found)} searches certified a drafter, {wrong} of them wrongly.\n"
    return f"{table(head, [run.row() for run in found])}\n{outcome}"


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/slim-runs",
        description="Run whole searches on the trained fixtures and hold certificates against other text.",
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/slim.md")
    parser.add_argument(
        "--work", type=Path, help="a directory for traces and results, which are taken if they are there"
    )
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        found = text(list(runs(work)))
    print(found, end="")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        if not PART.search(page):
            raise SystemExit(f"{PAGE.relative_to(ROOT)} has no place for runs")
        PAGE.write_text(PART.sub(lambda match: f"{match[1]}\n{found}\n{match[2]}", page), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
