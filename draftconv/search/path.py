"""Which combinations of choices are worth measuring: a path from the drafter as it is to the smallest one.

Every role of a drafter's weights (its layers, its head, fc) is measured alone first. From the drafter as it is the
path goes on by the choice that saves most bytes per draft step for the accept length that it costs, one role at a
time, until no choice saves anything more. Losses of several roles are taken to add up for this; what each
combination really costs is measured afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LEAST_LOSS = 1e-4
"""Losses below this, gains among them, count as this much: a replay cannot tell them apart, and bytes decide."""


@dataclass(frozen=True, slots=True)
class MeasuredChoice:
    """One thing that may be done to one role.

    Attributes:
        bytes: of the role's weights that are read per draft step.
        loss: share of the accept length that it costs alone; below 0 where it gained.
    """

    role: str
    name: str
    bytes: float
    loss: float


Measured = Mapping[str, MeasuredChoice]
"""Role → what is done to it."""


def search_path(
    roles: Mapping[str, Sequence[MeasuredChoice]], runs: Callable[[Measured], bool] = lambda _: True
) -> tuple[Measured, ...]:
    """Combinations from the drafter as it is to the smallest, each smaller than the one before.

    Args:
        roles: role → its choices; the first of each leaves it as it is.
        runs: whether the engine runs a combination; one that it does not run is no step.
    """
    path: list[Measured] = [{role: choices[0] for role, choices in roles.items()}]
    while chosen := _best_step(roles, path[-1], runs):
        path.append({**path[-1], chosen.role: chosen})
    return tuple(path)


def _best_step(
    roles: Mapping[str, Sequence[MeasuredChoice]], now: Measured, runs: Callable[[Measured], bool]
) -> MeasuredChoice | None:
    smaller = (choice for role, choices in roles.items() for choice in choices if choice.bytes < now[role].bytes)
    best_first = sorted(smaller, key=lambda c: (-_worth(now[c.role], c), c.bytes, c.role, c.name))
    return next((choice for choice in best_first if runs({**now, choice.role: choice})), None)


def _worth(now: MeasuredChoice, choice: MeasuredChoice) -> float:
    """Bytes saved per share of accept length lost."""
    return (now.bytes - choice.bytes) / max(choice.loss - now.loss, LEAST_LOSS)
