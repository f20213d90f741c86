"""The verdict: is the candidate as good as the reference?

An exact gate asks for equal counts, request by request. A margin gate is a test of
non-inferiority: the candidate passes when the whole interval of the ratio of accept lengths lies
above 1 - δ, and fails when it lies below. A point rule ("within 2 %") cannot tell no loss from
too little data; this one can, and calls the latter inconclusive.

The interval is 95 %, two-sided, so a candidate that is just as bad as the margin passes one look
in forty at most. That pays for a second look: one extension of the sample, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts
from draftconv.report.statistics import (
    FEWEST_CLUSTERS,
    Estimate,
    Pair,
    by_category,
    called,
    estimate,
    more_prompts,
)

Outcome = Literal["pass", "equivalent", "fail", "inconclusive", "void"]
How = Literal["replay", "live"]
"""Replay computes both arms on one stored text; live arms are two runs of an engine."""
Kind = Literal["conversion", "8-bit", "4-bit"]
"""What was done to the candidate: other names for the same bits, or weights of so many bits (W4A8 is 4-bit)."""

EXIT_CODES: Mapping[Outcome, int] = {"pass": 0, "equivalent": 0, "fail": 1, "inconclusive": 3, "void": 4}

CATEGORY_FLOOR = 0.95
"""A category fails the run only if all of its interval is below. A stricter guard would fail good
candidates: eight categories of ten prompts have wide intervals."""
MOST_ERRORS = 0.05
LEAST_FIRST = 0.3
"""A reference whose first drafted token is accepted less often is wired wrongly; that is no drafter to compare with."""
NAMED = 3
"""Requests named in a reason."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What is asked of the candidate: a loss below `margin` (0.02 is 2 %), or equal counts when it is None."""

    margin: float | None

    def __post_init__(self) -> None:
        if self.margin is not None and not 0 < self.margin < 1:
            raise UsageError(f"margin {self.margin:g} is not between 0 and 1", cure="give a share: 0.02 allows 2 %")

    @property
    def text(self) -> str:
        return "equal counts, request by request" if self.margin is None else f"a loss below {percent(self.margin)}"


EXACT = Gate(None)
GATES: Mapping[tuple[Kind, How], Gate] = {
    ("conversion", "replay"): EXACT,
    ("conversion", "live"): Gate(0.005),
    ("8-bit", "replay"): Gate(0.01),
    ("8-bit", "live"): Gate(0.01),
    ("4-bit", "replay"): Gate(0.02),
    ("4-bit", "live"): Gate(0.02),
}
"""What is asked where nobody says otherwise."""
CONTROL_MARGIN = 0.02
"""Of the gate that the table of negative controls shows beside the exact one."""


@dataclass(frozen=True, slots=True)
class ParityVerdict:
    """An outcome with everything it rests on.

    Attributes:
        reasons: why, in sentences without a final period; the first decides.
        notes: what else to know; changes nothing.
        estimate: None where no request has a step on both arms.
        categories: each on its own; empty where there is only one.
        aa: reference against reference, where it was run.
        thin: categories too small to say that they keep 95 %.
        differing: pairs with other counts, the most different first; exact gate only.
        more_prompts: how many would settle an inconclusive result; None if it is not
            inconclusive, was extended already, or cannot be settled by prompts.
    """

    outcome: Outcome
    gate: Gate
    how: How
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    estimate: Estimate | None = None
    categories: Mapping[str, Estimate] = field(default_factory=dict)
    aa: Estimate | None = None
    thin: tuple[str, ...] = ()
    differing: tuple[Pair, ...] = ()
    more_prompts: int | None = None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def shift(self) -> Literal["measurably lower", "measurably higher", ""]:
        """What a gate that is passed leaves unsaid: the whole interval may lie on one side of no change."""
        if self.gate.margin is None or self.estimate is None:
            return ""
        if self.estimate.interval.high < 1:
            return "measurably lower"
        return "measurably higher" if self.estimate.interval.low > 1 else ""


def judge(
    pairs: Sequence[Pair],
    gate: Gate,
    *,
    how: How,
    aa: Sequence[Pair] | None = None,
    errors: int = 0,
    extended: bool = False,
) -> ParityVerdict:
    """Judge the candidate.

    Args:
        pairs: every request that both arms answered.
        aa: the reference as both arms; required live, where it tells the noise of the measurement.
        errors: requests that an arm failed to answer. A pair in which only one arm has a step counts as one too.
        extended: the pairs were extended once, so an inconclusive result stays so.

    Raises:
        UsageError: pairs that cannot be compared, as `estimate`.
    """
    counted = [pair for pair in pairs if pair.counted]
    halves = sum(bool(pair.reference.steps) != bool(pair.candidate.steps) for pair in pairs)
    basis = ParityVerdict(
        "void",
        gate,
        how,
        reasons=(
            *_unmeasured(counted),
            *_errored(errors + halves, len(pairs) + errors),
            *_noise(aa, gate, how),
        ),
        estimate=estimate(counted) if counted else None,
        categories=by_category(counted) if len({pair.category for pair in counted}) > 1 else {},
        aa=_estimate(aa),
    )
    if basis.reasons or basis.estimate is None:
        return basis
    if gate.margin is None:
        return _equality(basis, pairs)
    return _inferiority(basis, basis.estimate, gate.margin, extended=extended)


# ── void: the measurement itself is not to be trusted ──────────────────────────────


def _unmeasured(counted: Sequence[Pair]) -> Iterator[str]:
    if not counted:
        yield "no verify step was counted"
    elif (first := Counts.pooled(pair.reference for pair in counted).reached(1)) < LEAST_FIRST:
        yield (
            f"the reference gets {100 * first:.1f} % of its first drafted tokens accepted, less than "
            f"{percent(LEAST_FIRST)}: that is wrong wiring (layer ids, vocabulary map, norms), not quantization"
        )


def _errored(errors: int, requests: int) -> Iterator[str]:
    if errors > MOST_ERRORS * requests:
        yield f"{errors} of {requests} requests failed, more than {percent(MOST_ERRORS)}"


def _noise(aa: Sequence[Pair] | None, gate: Gate, how: How) -> Iterator[str]:
    """What comparing the reference with itself says against the measurement."""
    if aa is None:
        if how == "live":
            yield "the reference was not run twice, so the noise of the measurement is unknown"
    elif how == "replay" or gate.margin is None:
        if different := sum(not pair.equal for pair in aa):
            yield f"the reference differs from itself in {different} of {len(aa)} requests"
    elif (result := _estimate(aa)) is None:
        yield "no verify step was counted when the reference was run twice"
    elif not 1 - gate.margin < result.interval.low <= result.interval.high < 1 + gate.margin:
        yield (
            f"the reference differs from itself by as much as the margin: {_within(result)}, "
            f"and all of it should lie within {percent(gate.margin)} of 1"
        )


def _estimate(aa: Sequence[Pair] | None) -> Estimate | None:
    counted = [pair for pair in aa or () if pair.counted]
    return estimate(counted) if counted else None


# ── the exact gate ─────────────────────────────────────────────────────────────────


def _equality(basis: ParityVerdict, pairs: Sequence[Pair]) -> ParityVerdict:
    differing = sorted((pair for pair in pairs if not pair.equal), key=lambda pair: (-_difference(pair), pair.id))
    if not differing:
        return replace(basis, outcome="pass", reasons=(f"the counts of all {len(pairs)} requests are equal",))
    named = "; ".join(f"{pair.id}: {_counts(pair)}" for pair in differing[:NAMED])
    reason = f"{len(differing)} of {len(pairs)} requests have other counts, most of all {named}"
    return replace(basis, outcome="fail", reasons=(reason,), differing=tuple(differing))


def _difference(pair: Pair) -> float:
    """Steps that would have to be counted elsewhere for the histograms to be equal."""
    ours, theirs = pair.candidate.histogram, pair.reference.histogram
    return sum(abs(a - b) for a, b in zip_longest(ours, theirs, fillvalue=0))


def _counts(pair: Pair) -> str:
    reference, candidate = pair.reference, pair.candidate
    return (
        f"{reference.accepted} tokens accepted in {reference.steps} steps became "
        f"{candidate.accepted} in {candidate.steps}"
    )


# ── the margin gate ────────────────────────────────────────────────────────────────


def _inferiority(basis: ParityVerdict, result: Estimate, margin: float, *, extended: bool) -> ParityVerdict:
    floor = category_floor(margin)
    failed = [name for name, part in basis.categories.items() if part.interval.high < floor]
    thin = [name for name, part in basis.categories.items() if part.interval.low <= floor <= part.interval.high]
    low, high = result.interval.low, result.interval.high
    reasons = [f"accept length {_within(result)}; the gate is {1 - margin:g}"]
    more: int | None = None
    outcome: Outcome
    if result.clusters < FEWEST_CLUSTERS:
        outcome = "inconclusive"
        reasons.append(f"{result.clusters} prompts are too few to judge by, {FEWEST_CLUSTERS} the fewest")
    elif high < 1 - margin:
        outcome = "fail"
    elif failed:
        outcome = "fail"
        reasons[:0] = [f"category {called(n)} is below {floor:g}: {_within(basis.categories[n])}" for n in failed]
    elif low > 1 - margin:
        outcome = "equivalent" if high < 1 + margin else "pass"
    else:
        outcome = "inconclusive"
    if outcome == "inconclusive":
        more = None if extended else more_prompts(result, margin)
        reasons.append(_outlook(result, margin, more, extended=extended))
    return replace(
        basis,
        outcome=outcome,
        reasons=tuple(reasons),
        notes=(*_doubts(result), *(f"category {called(n)} is thin: {_within(basis.categories[n])}" for n in thin)),
        thin=tuple(thin),
        more_prompts=more,
    )


def _outlook(result: Estimate, margin: float, more: int | None, *, extended: bool) -> str:
    if extended:
        return "the sample was extended once, and a second look more is not allowed: judge a new, larger sample"
    if more is None:
        return "this cannot be settled by more prompts at this ratio: it sits on the margin"
    outcome = "pass" if result.ratio > 1 - margin else "fail"
    prompts = "1 more prompt" if more == 1 else f"{more} more prompts"
    return f"about {prompts} would settle it, as a {outcome} if the ratio stays what it is"


def category_floor(margin: float) -> float:
    """What a category must keep of its accept length."""
    return min(CATEGORY_FLOOR, 1 - margin)


def _doubts(result: Estimate) -> Iterator[str]:
    if result.disagree:
        yield "bootstrap and delta method disagree by more than a quarter: there are too few prompts"


def _within(result: Estimate) -> str:
    return f"ratio {result.ratio:.4f} ({result.interval.low:.4f} to {result.interval.high:.4f})"


def percent(share: float) -> str:
    """A margin as it was given: 0.02 is 2 %."""
    return f"{100 * share:.10g} %"
