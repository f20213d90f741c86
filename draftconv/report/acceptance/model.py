"""A report of single drafters: their records, and the figures that follow from them.

The records are the baseline that a later candidate is compared with (`parity --baseline`); figures are computed from
them again whenever they are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from draftconv.display import Block, Displayed, named
from draftconv.reference.accept_length import Counts
from draftconv.report.acceptance.measure import AcceptLength, measure
from draftconv.report.acceptance.records import AcceptanceRecord
from draftconv.report.acceptance.speed import SpeedUnderLoad, StepCost, speed
from draftconv.report.contexts import ascending, context_of
from draftconv.report.model import WORST_FIRST, ArmInfo, RunInfo
from draftconv.report.statistics import FEWEST_CLUSTERS, one_category
from draftconv.report.verdict import EXIT_CODES, LEAST_FIRST, Outcome, percent

if TYPE_CHECKING:
    from draftconv.report.formatting import Decode

SHOWN = 5
"""Prompts that are named at each end, and tokens that cost most."""
LEAST_STEPS = 8
"""Verify steps of a prompt that is named: of fewer, chance alone makes the worst and the best."""

PerCluster = Mapping[str, Counts]


@dataclass(frozen=True, slots=True)
class CostlyToken:
    """A token that a vocabulary map lacks.

    Attributes:
        token: its id. `places`: how often the target wrote it where it could have been drafted.
        lost: drafted tokens that a perfect drafter with that map loses by it.
    """

    token: int
    places: int
    lost: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a vocabulary map leaves out of the target's text.

    Attributes:
        rows: tokens that can be drafted. `tokens`: of the text, that a drafter could be asked for.
        undraftable: how many of them the map lacks.
        perfect: of a drafter that is right wherever the map allows.
        costly: the most costly first.
    """

    rows: int
    tokens: int
    undraftable: int
    perfect: AcceptLength
    costly: tuple[CostlyToken, ...]


@dataclass(frozen=True, slots=True)
class PromptLength:
    """One prompt with all its turns."""

    id: str
    category: str
    steps: float
    length: float


@dataclass(frozen=True, slots=True)
class DrafterSummary:
    """What the records say of one drafter.

    Attributes:
        arm: its name. `outcome`: of the gate; pass where none was asked for. `reasons`: why.
        whole: None where no verify step was counted.
        lengths: with 1, 2 … drafted tokens per step.
        categories, languages, contexts: by name; contexts by tokens known when a step starts, ascending.
        coverage: None for a drafter that can draft every token.
        worst, best: prompts of at least `LEAST_STEPS` steps.
        speeds: under every load whose step times are known.
    """

    arm: str
    outcome: Outcome
    reasons: tuple[str, ...]
    whole: AcceptLength | None
    lengths: tuple[AcceptLength, ...] = ()
    categories: Mapping[str, AcceptLength] = field(default_factory=dict)
    languages: Mapping[str, AcceptLength] = field(default_factory=dict)
    contexts: Mapping[str, AcceptLength] = field(default_factory=dict)
    coverage: Coverage | None = None
    worst: tuple[PromptLength, ...] = ()
    best: tuple[PromptLength, ...] = ()
    speeds: tuple[SpeedUnderLoad, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class AcceptanceReport(Displayed):
    """Drafters, each on its own.

    Attributes:
        about: `depth` is the K that the figures are of, unless they say another.
        longest: the largest K that was replayed.
        min_al: what the whole interval of every drafter's accept length must lie above; None where nothing is asked.
        mapped: drafters that cannot draft every token → how many they can.
        costs: drafters whose steps have known times → under every load.
    """

    about: RunInfo
    longest: int
    min_al: float | None
    arms: tuple[ArmInfo, ...]
    mapped: Mapping[str, int]
    records: tuple[AcceptanceRecord, ...]
    drafters: tuple[DrafterSummary, ...]
    costs: Mapping[str, tuple[StepCost, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        about: RunInfo,
        longest: int,
        min_al: float | None,
        arms: Iterable[ArmInfo],
        mapped: Mapping[str, int],
        records: Iterable[AcceptanceRecord],
        costs: Mapping[str, tuple[StepCost, ...]] = MappingProxyType({}),
    ) -> AcceptanceReport:
        """Compute every figure.

        Raises:
            UsageError: a drafter has no records.
        """
        arms, records = tuple(arms), tuple(records)
        drafters = tuple(
            summarize(
                arm.name,
                [record for record in records if record.arm == arm.name],
                about.depth,
                longest,
                min_al,
                mapped.get(arm.name),
                costs.get(arm.name, ()),
            )
            for arm in arms
        )
        return cls(about, longest, min_al, arms, dict(mapped), records, drafters, dict(costs))

    @property
    def outcome(self) -> Outcome:
        """The worst of the drafters'."""
        outcomes = {drafter.outcome for drafter in self.drafters}
        return next(outcome for outcome in WORST_FIRST if outcome in outcomes)

    @property
    def passed(self) -> bool:
        """Whether every drafter keeps what was asked for: the command would end with 0."""
        return EXIT_CODES[self.outcome] == 0

    def brief(self) -> Iterator[str]:
        """Each drafter's accept length with its interval; the outcome where something was asked for."""
        if self.min_al is not None:
            yield f"{self.outcome}: AL above {self.min_al:g} asked for"
        for drafter in self.drafters:
            if (whole := drafter.whole) is None:
                yield f"{named(drafter.arm)}: no step"
            else:
                low, high = whole.length.interval.low, whole.length.interval.high
                yield f"{named(drafter.arm)} AL {whole.length.value:.3f} [{low:.3f}, {high:.3f}]"
        yield f"K = {self.about.depth}"

    def blocks(self) -> Iterator[Block]:
        """The accept lengths, then for each drafter how it fares by position, by kind of text, and by its map."""
        from draftconv.report.acceptance import tables

        yield tables.headline(self)
        for drafter in self.drafters:
            yield from tables.blocks(self, drafter)

    def details(self) -> Iterator[Block]:
        """Prompts at both ends, tokens that cost most, and what was run."""
        from draftconv.report.acceptance import tables

        for drafter in self.drafters:
            yield from tables.details(self, drafter, None)
        yield tables.settings(self)

    def save(self, out: str | Path, *, decode: Decode | None = None, overwrite: bool = False) -> None:
        """Write accept.json, accept.md, accept.html and junit.xml into the directory `out`.

        Args:
            decode: token ids to text, for the pages; they show ids without it.
            overwrite: replace a directory that holds such a report and nothing else.

        Raises:
            UsageError, WriteError: `out` may not be replaced or written to.
            BadReport: the report contradicts itself.
        """
        from draftconv.report.acceptance.write import write_acceptance

        write_acceptance(self, Path(out), decode=decode, overwrite=overwrite)

    def arm(self, name: str) -> ArmInfo:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)


def summarize(
    arm: str,
    records: Sequence[AcceptanceRecord],
    depth: int,
    longest: int,
    min_al: float | None,
    rows: int | None,
    costs: Sequence[StepCost] = (),
) -> DrafterSummary:
    """Every figure of one drafter.

    Args:
        depth: K of the figures. `longest`: the largest K of `lengths`.
        rows: tokens that it can draft; None where it can draft all.
        costs: what its steps cost, under every load that is looked at.

    Raises:
        UsageError: there are no records, or a prompt is in two categories.
    """
    category_of = one_category(records)
    if records and not any(record.accepted for record in records):
        return DrafterSummary(arm, *judge_length(None, min_al), None)
    slices: dict[tuple[str, str | int], PerCluster] = {
        ("length", k): _pooled((record.cluster, record.counts(k)) for record in records) for k in range(1, longest + 1)
    }
    for kind, label in LABELS.items():
        slices |= {(kind, name): part for name, part in _sliced(records, depth, label).items()}
    if rows is not None:
        slices["perfect", ""] = _pooled((record.cluster, _perfect_counts(record, depth)) for record in records)
    measured = measure(category_of, slices)
    whole = measured["length", depth]
    lengths = tuple(measured["length", k] for k in range(1, longest + 1))
    outcome, reasons = judge_length(whole, min_al)
    ranked = _ranked(slices["length", depth], category_of)
    return DrafterSummary(
        arm=arm,
        outcome=outcome,
        reasons=reasons,
        whole=whole,
        lengths=lengths,
        categories=_of_kind("category", measured),
        languages=_of_kind("language", measured),
        contexts={context: measured["context", context] for context in ascending(_of_kind("context", measured))},
        coverage=None if rows is None else _coverage(records, depth, rows, measured["perfect", ""]),
        worst=tuple(ranked[:SHOWN]),
        best=tuple(ranked[: -SHOWN - 1 : -1]),
        speeds=tuple(speed(cost, lengths) for cost in costs),
    )


def judge_length(whole: AcceptLength | None, min_al: float | None) -> tuple[Outcome, tuple[str, ...]]:
    """What a gate says of an accept length: pass only if its whole interval lies above `min_al`."""
    if whole is None:
        return "void", ("no verify step was counted",)
    notes = []
    if whole.reached[0].value < LEAST_FIRST:
        notes.append(
            f"{100 * whole.reached[0].value:.1f} % of its first drafted tokens are accepted, less than "
            f"{percent(LEAST_FIRST)}: look at its wiring (layer ids, vocabulary map, norms), and whether it is trained"
        )
    if min_al is None:
        return "pass", tuple(notes)
    low, high = whole.length.interval.low, whole.length.interval.high
    figures = f"accept length {whole.length.value:.3f} ({low:.3f} to {high:.3f}), more than {min_al:g} is asked for"
    if whole.prompts < FEWEST_CLUSTERS:
        few = f"{whole.prompts} prompts are too few to judge by, {FEWEST_CLUSTERS} the fewest"
        return "inconclusive", (figures, few, *notes)
    if low > min_al:
        return "pass", (figures, *notes)
    return ("fail" if high < min_al else "inconclusive"), (figures, *notes)


# ── slices ─────────────────────────────────────────────────────────────────────────


LABELS: Mapping[str, Callable[[AcceptanceRecord, int], str]] = {
    "category": lambda record, _: record.category,
    "language": lambda record, _: record.language,
    "context": lambda record, root: context_of(record.known(root)),
}
"""What steps are told apart by, from a record and the root of a step."""


def _sliced(
    records: Iterable[AcceptanceRecord], depth: int, label: Callable[[AcceptanceRecord, int], str]
) -> dict[str, PerCluster]:
    histograms: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0] * (depth + 1)))
    for record in records:
        for root, accepted, weight in record.steps(depth):
            histograms[label(record, root)][record.cluster][accepted] += weight
    return {
        name: {cluster: Counts(tuple(histogram)) for cluster, histogram in parts.items()}
        for name, parts in histograms.items()
    }


def _of_kind(kind: str, measured: Mapping[tuple[str, str | int], AcceptLength]) -> dict[str, AcceptLength]:
    """The slices of a kind in alphabetical order."""
    return {str(name): measured[kind, name] for of, name in sorted(measured, key=str) if of == kind}


def _pooled(counts: Iterable[tuple[str, Counts]]) -> dict[str, Counts]:
    parts: dict[str, list[Counts]] = defaultdict(list)
    for cluster, part in counts:
        parts[cluster].append(part)
    return {cluster: Counts.pooled(group) for cluster, group in parts.items()}


def _perfect_counts(record: AcceptanceRecord, depth: int) -> Counts:
    return Counts.of((accepted for _, accepted, _ in record.perfect_steps(depth)), depth)


def _coverage(records: Sequence[AcceptanceRecord], depth: int, rows: int, perfect: AcceptLength) -> Coverage:
    places: dict[int, int] = defaultdict(int)
    lost: dict[int, int] = defaultdict(int)
    for record in records:
        for i, token in record.unmapped:
            places[token] += i < record.roots
        for _, accepted, token_ended in record.perfect_steps(depth):
            if token_ended is not None:
                lost[token_ended] += depth - accepted
    costly = sorted(
        (CostlyToken(token, count, lost[token]) for token, count in places.items()),
        key=lambda row: (-row.lost, -row.places, row.token),
    )
    return Coverage(
        rows=rows,
        tokens=sum(record.roots for record in records),
        undraftable=sum(record.undraftable() for record in records),
        perfect=perfect,
        costly=tuple(costly[: 2 * SHOWN]),
    )


def _ranked(of_prompts: PerCluster, category_of: Mapping[str, str]) -> list[PromptLength]:
    """Prompts with enough steps, the worst first."""
    rows = [
        PromptLength(cluster, category_of[cluster], counts.steps, counts.accept_length)
        for cluster, counts in of_prompts.items()
        if counts.steps >= LEAST_STEPS
    ]
    return sorted(rows, key=lambda row: (row.length, row.id))
