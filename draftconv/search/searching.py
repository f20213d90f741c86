"""The search: every choice alone, a path of combinations, the few that are certified, and the one that is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from draftconv.quantization.fixture_losses import fixture_losses
from draftconv.report.certification import Certificate, certifiable_loss, certify, share_of
from draftconv.report.statistics import Estimate, Pair
from draftconv.search.choices import FOUND, HEAD, ROLES, Combination, RoleChoice, combination_name, only, recipe_of
from draftconv.search.measuring import Half, unsimulated
from draftconv.search.options import SlimOptions, Told
from draftconv.search.path import Measured, MeasuredChoice, search_path
from draftconv.search.planning import LeftOutChoice, PlannedDrafter, Planners
from draftconv.traces.trace import TraceEntry

NO_ROWS_YET = "GPTQ rounds a head that is there: prune it first, and search from that drafter"
"""Why a head of fewer rows is not rounded by GPTQ: which rows it has is known when the search begins."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One combination on the path.

    Attributes:
        searched: what the first half says of it. `certificate`: what the unseen half does, where it was asked.
    """

    planned: PlannedDrafter
    searched: Estimate
    certificate: Certificate | None = None


@dataclass(frozen=True, slots=True)
class PlannedChoices:
    """What the engine runs of the choices, each on its own, and what it does not.

    Attributes:
        alone: role → its choices with what each is on its own; the first leaves the role as it is.
    """

    alone: Mapping[str, Mapping[RoleChoice, PlannedDrafter]]
    left_out: tuple[LeftOutChoice, ...]

    @property
    def measured(self) -> Mapping[RoleChoice, PlannedDrafter]:
        """Those that are replayed; what a head of fewer rows in other numbers loses is the sum of both."""
        every = {choice: drafter for planned in self.alone.values() for choice, drafter in planned.items()}
        return {part: every[part] for choice in every for part in choice.parts}


def plan_alone(choices: Mapping[str, Sequence[RoleChoice]], planners: Planners) -> PlannedChoices:
    """Plan every choice on its own, and what is done to the head for every number of its rows."""
    alone: dict[str, dict[RoleChoice, PlannedDrafter]] = {}
    left_out: list[LeftOutChoice] = []

    def plan(choice: RoleChoice) -> None:
        match _plan(only(choice.role, choice), planners):
            case PlannedDrafter() as planned:
                alone[choice.role][choice] = planned
            case other:
                left_out.append(other)

    for role in ROLES:
        alone[role] = {}
        for choice in choices[role]:
            plan(choice)
    for choice in tuple(alone[HEAD]):
        for rows in filter(None, planners):
            if choice.scheme is not None and choice.scheme.rounding == "gptq":
                left_out.append(LeftOutChoice(combination_name(only(HEAD, replace(choice, rows=rows))), NO_ROWS_YET))
            else:
                plan(replace(choice, rows=rows))
    return PlannedChoices(alone, tuple(left_out))


def _plan(combination: Combination, planners: Planners) -> PlannedDrafter | LeftOutChoice:
    name = combination_name(combination)
    planned = planners[combination[HEAD].rows].plan(name, recipe_of(FOUND, combination))
    why = unsimulated(planned) if isinstance(planned, PlannedDrafter) else ""
    return LeftOutChoice(name, why) if why else planned


def measured_path(
    choices: PlannedChoices, planners: Planners, half: Half, depth: int, told: Told
) -> tuple[Candidate, ...]:
    """Combinations from the drafter as it is to the smallest that the engine runs, measured on the first half."""
    by_name = {role: {choice.name: choice for choice in planned} for role, planned in choices.alone.items()}
    losses: dict[RoleChoice, float] = {}
    for number, (choice, drafter) in enumerate(choices.measured.items(), 1):
        losses[choice] = 1 - half.estimate(drafter).ratio
        told("choices", number, len(choices.measured))
    roles = {
        role: [
            MeasuredChoice(role, choice.name, drafter.reads.per_step(depth), sum(losses[part] for part in choice.parts))
            for choice, drafter in planned.items()
        ]
        for role, planned in choices.alone.items()
    }

    def planned(at: Measured) -> PlannedDrafter | LeftOutChoice:
        return _plan({role: by_name[role][choice.name] for role, choice in at.items()}, planners)

    path = search_path(roles, lambda at: isinstance(planned(at), PlannedDrafter))
    drafters = [drafter for drafter in map(planned, path) if isinstance(drafter, PlannedDrafter)]
    found: list[Candidate] = []
    for number, drafter in enumerate(drafters, 1):
        found.append(Candidate(drafter, half.estimate(drafter)))
        told("combinations", number, len(drafters))
    return tuple(found)


def fixed(path: Sequence[Candidate], max_loss: float, most: int, depth: int) -> tuple[Candidate, ...]:
    """Who is certified, decided before the unseen half is opened: the smallest that lost no more than is allowed.

    The last of them is the one that lost least, so that a search that was too bold finds something nevertheless.
    """
    changed = [candidate for candidate in path if candidate.planned.changed]
    kept = [candidate for candidate in changed if 1 - candidate.searched.ratio <= max_loss]
    by_size = sorted(kept, key=lambda candidate: candidate.planned.reads.per_step(depth))
    if len(by_size) <= most:
        return tuple(by_size)
    safest = max(by_size[most - 1 :], key=lambda candidate: candidate.searched.ratio)
    return (*by_size[: most - 1], safest)


def certified(candidates: Sequence[Candidate], unseen: Half, options: SlimOptions, told: Told) -> tuple[Candidate, ...]:
    """The candidates with what the unseen half says of them."""
    if not candidates:
        return ()
    pairs: dict[str, Sequence[Pair]] = {}
    for number, candidate in enumerate(candidates, 1):
        pairs[candidate.planned.name] = unseen.pairs(candidate.planned)
        told("unseen half", number, len(candidates))
    found = certify(pairs, options.max_loss, alpha=options.alpha)
    return tuple(replace(candidate, certificate=found[candidate.planned.name]) for candidate in candidates)


def smallest_loss(path: Sequence[Candidate], unseen: int, options: SlimOptions) -> float:
    """The smallest loss that so many unseen prompts can certify of a drafter like those on the path.

    Source: `certifiable_loss`, with the median spread of the path.
    """
    spreads = sorted(candidate.searched.spread for candidate in path if candidate.planned.changed)
    level = share_of(options.alpha, options.candidates)
    return certifiable_loss(spreads[len(spreads) // 2], unseen, level) if spreads else 1.0


def foreseen_loss(entries: Sequence[TraceEntry], prompts: int, options: SlimOptions) -> float:
    """The same before anything is measured, of drafters that vary as those of the trained fixtures did.

    Args:
        entries: of the unseen half. `prompts`: how many of them there are, each with all its turns.
    """
    tokens = sum(entry.counted for entry in entries) / prompts
    spreads = sorted(loss.spread_at(tokens) for loss in fixture_losses().values())
    return certifiable_loss(spreads[len(spreads) // 2], prompts, share_of(options.alpha, options.candidates))


def smallest_passed(candidates: Sequence[Candidate], depth: int) -> Candidate | None:
    """The certified candidate that a draft step reads least of."""
    passed = [c for c in candidates if c.certificate is not None and c.certificate.passed]
    return min(passed, key=lambda candidate: candidate.planned.reads.per_step(depth), default=None)
