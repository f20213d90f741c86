"""What a drafter's model card says of a report: a section in Markdown, and `model-index` for the Hub.

The Hub's `.eval_results` takes scores of registered benchmarks only, which prompts of one's own are not; `model-index`
(modelcard.md of huggingface/hub-docs) takes any metric on any data set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftconv.checkpoint.text import plain
from draftconv.display import Column, Table, table
from draftconv.report import tables
from draftconv.report.formatting import SYMBOLS, length, sentence
from draftconv.report.intervals import Interval
from draftconv.report.markdown import markdown_table
from draftconv.report.model import Comparison, Report
from draftconv.report.write import FILES

FOLDER = "parity"
"""Where a report lies beside the drafter that it is about."""

REPORTED = frozenset(f"{FOLDER}/{name}" for name in FILES)

DIGITS = 4
LONGEST = 200
"""Characters of what prompts are called."""


def card_section(report: Report, comparisons: Sequence[Comparison]) -> str:
    """Accept length with intervals and everything that the figures depend on, as Markdown.

    Args:
        comparisons: those that are about the drafter of the card.
    """
    blocks = [block for comparison in comparisons for block in _blocks(report, comparison)]
    whole = f"[The whole report]({FOLDER}/report.md); `{FOLDER}/records.jsonl` has the counts of every request."
    return "\n\n".join([*blocks, markdown_table(tables.settings(report)), whole]) + "\n"


def _blocks(report: Report, comparison: Comparison) -> Iterator[str]:
    verdict = comparison.verdict
    yield f"{SYMBOLS[verdict.outcome]} **{verdict.outcome}**: {plain(sentence(comparison))}"
    if verdict.estimate is not None:
        yield markdown_table(_figures(report, comparison))
    yield "\n".join(f"- {plain(line)}" for line in (*verdict.reasons, *verdict.notes))


def _figures(report: Report, comparison: Comparison) -> Table:
    """Both drafters, with what they were quantized to, or what was simulated."""

    def rows() -> Iterator[Sequence[object]]:
        if (estimate := comparison.verdict.estimate) is None:
            return
        for role, name, figure in (
            ("reference", comparison.reference, estimate.reference),
            ("this drafter", comparison.candidate, estimate.candidate),
        ):
            arm = report.arm(name)
            yield role, arm.source, arm.quantization, length(figure.value), _between(figure.interval)
        yield "ratio", "", "", f"{estimate.ratio:.4f}", _between(estimate.interval, 4)

    return table(
        "Accept length",
        "",
        ("", "drafter", "quantization", Column("accept length", figures=True), Column("95 % interval", figures=True)),
        rows(),
    )


def _between(interval: Interval, digits: int = 3) -> str:
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def model_index(report: Report, comparisons: Sequence[Comparison], name: str) -> list[dict[str, object]]:
    """`model-index` of the front matter; empty where a measurement is not to be trusted.

    Args:
        name: of the model.
    """
    results = [result for comparison in comparisons for result in _results(report, comparison)]
    return [{"name": name, "results": results}] if results else []


def _results(report: Report, comparison: Comparison) -> Iterator[dict[str, object]]:
    about, verdict = report.about, comparison.verdict
    estimate = verdict.estimate
    if verdict.outcome == "void" or estimate is None:
        return
    settings = f"{verdict.how}, {about.depth} drafted tokens per step"
    prompts = "".join(c if c.isprintable() else "?" for c in about.prompts)[:LONGEST]
    yield {
        "task": {"type": "text-generation"},
        "dataset": {"type": "prompts", "name": prompts, "args": {"sha256": about.prompts_sha256}},
        "metrics": [
            {
                "type": "accept_length",
                "value": round(estimate.candidate.value, DIGITS),
                "name": f"Accept length ({settings}; 95 % interval {_between(estimate.candidate.interval)})",
            },
            {
                "type": "accept_length_ratio",
                "value": round(estimate.ratio, DIGITS),
                "name": f"Accept length over the reference's ({settings}; 95 % interval "
                f"{_between(estimate.interval, DIGITS)})",
            },
        ],
    }
