"""The one extension that an inconclusive sample may have.

Looking at a result, adding prompts until it passes and looking again would pass any drafter in
the end. The 95 % intervals pay for two looks, so an inconclusive report can be extended once, by
prompts that it does not hold, with everything else as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from draftconv.errors import UsageError
from draftconv.report.statistics import Pair
from draftconv.report.verdict import Gate, How, Outcome


@dataclass(frozen=True, slots=True)
class ExtensionTerms:
    """What has to stay the same: the two arms, what activations become before they meet their weights, the target (name
    with revision or hash), K, the gate, how."""

    reference: str
    candidate: str
    target: str
    depth: int
    gate: Gate
    how: How
    activations: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """What `judge` looks at, and how it came about.

    Attributes:
        tokens: id of each request to a hash of its token ids, so that the same text under another id is known.
        aa: the reference run twice; None where it was not.
        errors: requests that an arm failed to answer.
    """

    terms: ExtensionTerms
    pairs: tuple[Pair, ...]
    tokens: Mapping[str, str] = field(default_factory=dict)
    aa: tuple[Pair, ...] | None = None
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Earlier:
    """A sample that was judged; `extended` if it was itself an extension."""

    sample: Sample
    outcome: Outcome
    extended: bool


def extend(earlier: Earlier, new: Sample) -> Sample:
    """Both samples as one, to be judged as extended.

    Raises:
        UsageError: the earlier sample was extended before or is settled, the terms differ, or a
            request or its text is in both.
    """
    refuse_settled(earlier)
    old = earlier.sample
    _same_terms(old.terms, new.terms)
    _refuse_repeats("request", {pair.id: pair.id for pair in old.pairs}, {pair.id: pair.id for pair in new.pairs})
    _refuse_repeats("prompt", {p.cluster: p.cluster for p in old.pairs}, {p.cluster: p.cluster for p in new.pairs})
    _refuse_repeats("the text of request", _names_by_text(old), _names_by_text(new))
    return Sample(
        new.terms,
        (*old.pairs, *new.pairs),
        {**old.tokens, **new.tokens},
        None if old.aa is None or new.aa is None else (*old.aa, *new.aa),
        old.errors + new.errors,
    )


def refuse_settled(earlier: Earlier) -> None:
    """Refuse a sample that cannot be extended, whatever the new one is.

    Raises:
        UsageError: it was extended before, or is not inconclusive.
    """
    if earlier.extended:
        raise UsageError(
            "the report was extended before",
            why="each further look gives a bad drafter another chance to pass, and the intervals pay for two",
            cure="judge a new, larger sample of other prompts",
        )
    if earlier.outcome != "inconclusive":
        raise UsageError(
            f"the report is {earlier.outcome}, not inconclusive",
            why="one could add prompts until the answer pleases",
            cure="run parity without --extend",
        )


def _same_terms(old: ExtensionTerms, new: ExtensionTerms) -> None:
    for item in fields(ExtensionTerms):
        was, now = getattr(old, item.name), getattr(new, item.name)
        if was != now:
            was, now = (value.text if isinstance(value, Gate) else value for value in (was, now))
            raise UsageError(
                f"the report has {item.name} {was}, this run has {now}",
                why="an extension adds prompts and changes nothing else",
                cure="repeat the options of the report",
            )


def _refuse_repeats(what: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Keys are what must not be in both; values are what to call them."""
    if both := sorted(name for key, name in new.items() if key in old):
        raise UsageError(
            f"{what} {both[0]} is in the report already" + (f", and {len(both) - 1} more are" if both[1:] else ""),
            why="the same evidence counted twice would make the interval too narrow",
            cure="give other prompts",
        )


def _names_by_text(sample: Sample) -> dict[str, str]:
    return {digest: name for name, digest in sample.tokens.items()}
