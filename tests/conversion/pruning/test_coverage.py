"""Coverage of text that chose nothing, how it grows with the text, and how much a mixture is worth."""

from __future__ import annotations

import numpy as np
import pytest

from draftconv.conversion.pruning.coverage import (
    by_weight,
    chooser,
    coverage_of,
    effective_tokens,
    learning_curve,
    missing_share,
    mixed_missing,
)
from tests.conversion.pruning.made import VOCAB, domain, zipf


def test_a_share_is_counted_in_tokens() -> None:
    counts_V = np.array([6, 0, 3, 1], np.int64)
    assert missing_share(counts_V, (0, 2)) == pytest.approx(0.1)
    assert missing_share(counts_V, ()) == 1.0
    assert missing_share(np.zeros(4, np.int64), (0,)) == 0.0


def test_domains_are_told_apart_and_mixed_by_weight() -> None:
    code, prose = domain("code", zipf(1, 20_000), 3.0), domain("prose", zipf(2, 20_000))
    kept = tuple(range(0, VOCAB, 2))
    found = coverage_of([code, prose], kept)
    assert [row.name for row in found] == ["code", "prose"]
    for row, counted in zip(found, (code, prose), strict=True):
        assert row.covered == pytest.approx(counted.held_V[::2].sum() / counted.held_V.sum())
        assert (row.tokens, row.held) == (counted.tokens, counted.held_tokens)
    assert mixed_missing([code, prose], kept) == pytest.approx(
        0.75 * (1 - found[0].covered) + 0.25 * (1 - found[1].covered)
    )


def test_more_text_chooses_better_and_text_of_another_kind_worse() -> None:
    code, prose = domain("code", zipf(1, 3_000)), domain("prose", zipf(2, 3_000))
    curve = list(learning_curve([code], chooser(range(VOCAB), (), 128)))
    assert [point.tokens for point in curve] == sorted(point.tokens for point in curve)
    assert curve[-1].tokens == code.tokens
    assert curve[-1].missing < curve[0].missing
    foreign = chooser(range(VOCAB), (), 128)(by_weight([prose]))
    assert missing_share(prose.held_V, foreign) < 0.5
    assert missing_share(code.held_V, foreign) > 2 * curve[-1].missing


@pytest.mark.parametrize(
    ("tokens", "weights", "worth"),
    [((1000,), (1.0,), 1000), ((1000,), (7.0,), 1000), ((1000, 1000), (1.0, 1.0), 2000),
     ((1000, 3000), (1.0, 3.0), 4000), ((1_000_000, 10_000), (1.0, 1.0), 39_603), ((1000, 0), (1.0, 1.0), 3)],
)  # fmt: skip
def test_a_mixture_is_worth_what_its_scarcest_domain_allows(
    tokens: tuple[int, ...], weights: tuple[float, ...], worth: int
) -> None:
    domains = [
        domain(str(i), [[0] * count, [0]], weight)
        for i, (count, weight) in enumerate(zip(tokens, weights, strict=True))
    ]
    assert effective_tokens(domains) == worth
