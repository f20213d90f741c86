"""Accept length by context: a step counts under the number of tokens that are known when it starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from draftconv.reference.accept_length import Counts


def context_of(known: int) -> str:
    """Between which powers of two a number of tokens lies, both ends included."""
    low = 1 << (known.bit_length() - 1)
    return f"{low} to {2 * low - 1}"


def ascending(contexts: Iterable[str]) -> list[str]:
    """Each of them once, the shortest context first."""
    return sorted(set(contexts), key=lambda context: int(context.split()[0]))


def by_context(steps: Iterable[tuple[int, int, float]], depth: int) -> dict[str, Counts]:
    """Counts in each context, ascending.

    Args:
        steps: tokens known when a step starts, tokens that it accepted, and its probability, 1 if it was counted.
    """
    histograms: dict[str, list[float]] = defaultdict(lambda: [0] * (depth + 1))
    for known, accepted, weight in steps:
        histograms[context_of(known)][accepted] += weight
    return {context: Counts(tuple(histograms[context])) for context in ascending(histograms)}
