"""Figures and tokens as a person reads them, the same in every table, page and terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from draftconv.checkpoint.text import safe
from draftconv.report.intervals import Interval
from draftconv.report.model import Comparison, JoinedSample, Report, RunInfo, SimulatedArithmetic
from draftconv.report.statistics import FEWEST_CLUSTERS
from draftconv.report.verdict import Outcome, percent

Decode = Callable[[Sequence[int]], str]
"""Token ids to text; what a tokenizer does."""

MINUS = "\N{MINUS SIGN}"
SYMBOLS: Mapping[Outcome, str] = {"pass": "✓", "equivalent": "✓", "fail": "✗", "inconclusive": "?", "void": "∅"}
MEANINGS: Mapping[Outcome, str] = {
    "pass": "the loss that the gate forbids is ruled out",
    "equivalent": "the loss that the gate forbids is ruled out, and so is a gain of that size",
    "fail": "the candidate loses more than the gate allows",
    "inconclusive": "the run is too small to tell",
    "void": "the measurement itself is not to be trusted",
}


def length(value: float) -> str:
    """An accept length, in tokens per step."""
    return f"{value:.3f}"


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign; what rounds to zero has none."""
    text = f"{value:+.{digits}f}"
    return text.replace("-", MINUS) if text.strip("+-0.") else text[1:]


def change(ratio: float) -> str:
    """A ratio of accept lengths, less one, in percent."""
    return f"{signed(100 * (ratio - 1))} %"


def change_interval(interval: Interval) -> str:
    """An interval of that ratio, less one, in percent."""
    return f"{signed(100 * (interval.low - 1))} to {signed(100 * (interval.high - 1))} %"


def share(value: float) -> str:
    """A rate in percent."""
    return f"{100 * value:.2f} %"


def points(value: float) -> str:
    """A difference of rates, in percentage points."""
    return signed(100 * value)


def points_interval(interval: Interval) -> str:
    """The interval of a difference of rates, in percentage points."""
    return f"{points(interval.low)} to {points(interval.high)}"


def gate_label(comparison: Comparison) -> str:
    """What the gate wants."""
    margin = comparison.verdict.gate.margin
    return "equal counts" if margin is None else f"loss below {percent(margin)}"


def sentence(comparison: Comparison) -> str:
    """The verdict, for somebody who reads one sentence; names are as given, not made harmless."""
    verdict, name, reference = comparison.verdict, comparison.candidate, comparison.reference
    estimate, margin = verdict.estimate, verdict.gate.margin
    if verdict.outcome == "void" or estimate is None:
        return f"Nothing can be said about {name}: {verdict.reasons[0]}."
    if margin is None:
        if verdict.outcome == "pass":
            return (
                f"{name} drafts exactly as {reference} does: the counts of all {estimate.requests} requests are equal."
            )
        few = f"{len(verdict.differing)} of {estimate.requests} requests"
        return f"{name} does not draft as {reference} does: the counts differ in {few}."
    low, high = (f"{100 * bound:.2f}" for bound in (estimate.interval.low, estimate.interval.high))
    keeps = (
        f"{name} keeps {100 * estimate.ratio:.2f} % of {reference}'s accept length (95 % interval {low} to {high} %)"
    )
    lost = percent(margin)
    match verdict.outcome:
        case "pass":
            shift = f", and it is {verdict.shift}" if verdict.shift else ""
            return f"{keeps}: a loss of {lost} is ruled out{shift}."
        case "equivalent":
            shift = f"and {verdict.shift}" if verdict.shift else "and no difference is shown"
            return f"{keeps}: within {lost} either way, {shift}."
        case "fail" if estimate.interval.high < 1 - margin:
            return f"{keeps}: it loses more than the {lost} allowed."
        case "fail":
            return f"{keeps}, but {verdict.reasons[0]}."
        case _ if estimate.clusters < FEWEST_CLUSTERS:
            return f"{keeps}, but {estimate.clusters} prompts are too few to judge by."
        case _:
            return f"{keeps}: a loss of {lost} is neither shown nor ruled out."


EVIDENCE = {"run": "run", "read": "read, not run on hardware", "inferred": "inferred, not run on hardware"}

CHOSEN_BY = {"draftconv.json": "named in its draftconv.json", "the candidates": "like the candidates"}


def arithmetics(report: Report) -> Iterator[str]:
    """What was multiplied in place of each quantized drafter's file, a sentence each; the reference once more is not
    told."""
    again = {comparison.again for comparison in report.comparisons}
    for arm in report.arms:
        if arm.arithmetic is not None and arm.name not in again:
            yield arithmetic(arm.name, arm.arithmetic)


def arithmetic(name: str, told: SimulatedArithmetic) -> str:
    """How a quantized drafter was multiplied, as which engine, and who named that; the name is as given."""
    by = f" ({CHOSEN_BY.get(told.chosen_by, told.chosen_by)})" if told.chosen_by else ""
    if told.executed:
        known = f" [{EVIDENCE.get(told.evidence, told.evidence)}]"
        notes = "".join(f"; {note}" for note in told.notes)
        return (
            f"{name} was multiplied as {told.engine} does{by}: {told.executed}; activations {told.activations}"
            f"{known}{notes}."
        )
    says = f"{name} was multiplied as it says itself{'' if told.undecided else by}: activations {told.activations}"
    if not told.undecided:
        return f"{says}."
    asked = f" on {told.engine}{by}" if told.engine else ""
    return f"{says}. What an engine multiplies is undecided{asked}: {told.undecided}."


def verdict_details(comparison: Comparison) -> Iterator[str]:
    """What the verdict's sentence leaves out."""
    verdict = comparison.verdict
    match verdict.outcome:
        case "void":
            yield from verdict.reasons[1:]
        case "fail" if verdict.gate.margin is None:
            yield from verdict.reasons
        case "fail":
            yield from verdict.reasons[1:-1]  # further categories; the last is the figures
        case "inconclusive":
            yield verdict.reasons[-1]  # the outlook
    yield from verdict.notes


SAMPLES = ("extended report", "added to it")
"""The two samples of an extended report."""
SHOWN = 12
"""Digits of a hash that a sentence shows."""


def named_samples(about: RunInfo) -> Iterator[tuple[str, JoinedSample]]:
    """The samples of an extended report under their names; nothing of any other."""
    return zip(SAMPLES, about.joined, strict=False)


def joined(sample: JoinedSample) -> str:
    """Who took part in a sample, and where its requests are from."""
    trace = f", trace {sample.trace[:SHOWN]}" if sample.trace else ""
    return (
        f"reference {drafter(sample.reference, sample.reference_content)}, "
        f"candidate {drafter(sample.candidate, sample.candidate_content)}, "
        f"{sample.requests} requests of {sample.prompts} (sha256 {sample.prompts_sha256[:SHOWN]}){trace}"
    )


def drafter(name: str, content: str) -> str:
    """An arm by name and by what it holds."""
    return f"{name} (content {content[:SHOWN]})"


def controls(report: Report) -> str:
    """What the negative controls say together."""
    if void := next((control for control in report.controls if control.outcome == "void"), None):
        return f"The broken drafters tell nothing: {void.note}."
    missed = [control.name for control in report.controls if control.caught is False]
    return f"Not noticed: {', '.join(missed)}." if missed else "Every broken drafter was noticed."


def token(decode: Decode | None, number: int) -> str:
    """One token on one line, with blanks at its ends shown; its id where nothing can decode it."""
    if decode is None:
        return str(number)
    text = decode([number])
    inner = text.strip(" ")
    if not inner:
        return "␣" * len(text) or f"({number})"
    leading = len(text) - len(text.lstrip(" "))
    return "␣" * leading + _visible(inner) + "␣" * (len(text) - leading - len(inner))


def passage(decode: Decode | None, tokens: Sequence[int]) -> str:
    """Tokens as running text, control characters escaped; ids where nothing can decode them."""
    return " ".join(map(str, tokens)) if decode is None else _visible(decode(tokens))


def _visible(text: str) -> str:
    return "".join({"\n": "↵", "\t": "⇥"}.get(character) or safe(character) for character in text)
