"""Which tokens are kept: forced ones, then by weighted share, ties by id."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.conversion.pruning.choice import WeightedCounts, choose, scores
from draftconv.errors import UsageError


def counts(*values: int) -> WeightedCounts:
    return WeightedCounts(np.array(values, np.int64))


def test_a_weight_is_a_share_whatever_the_amount_of_text() -> None:
    code, prose = np.array([900, 100, 0], np.int64), np.array([0, 1, 9], np.int64)
    assert scores([WeightedCounts(code, 3.0), WeightedCounts(prose, 1.0)]).tolist() == pytest.approx(
        [0.75 * 0.9, 0.75 * 0.1 + 0.25 * 0.1, 0.25 * 0.9]
    )
    assert scores([WeightedCounts(code, 6.0), WeightedCounts(prose, 2.0), counts(0, 0, 0)]).tolist() == pytest.approx(
        scores([WeightedCounts(code, 3.0), WeightedCounts(prose, 1.0)]).tolist()
    )
    with pytest.raises(UsageError, match="no tokens to choose rows by"):
        scores([counts(0, 0, 0)])


def test_the_most_written_stay_and_ties_go_to_the_lower_id() -> None:
    score_V = scores([counts(5, 1, 7, 1, 1, 0, 0)])
    assert choose(score_V, range(7), (), 2) == (0, 2)
    assert choose(score_V, range(7), (), 4) == (0, 1, 2, 3)
    assert choose(score_V, range(7), (), 6) == (0, 1, 2, 3, 4, 5)
    assert choose(score_V, range(7), {6, 5}, 3) == (2, 5, 6)
    assert choose(score_V, (1, 3, 4, 6), {6, 5}, 3) == (1, 3, 6)  # a forced token without a row is none


@pytest.mark.parametrize(("forced", "vocab"), [({0, 1, 2}, 2), ((), 8), (set(range(7)), 6)])
def test_what_cannot_be_is_refused(forced: set[int], vocab: int) -> None:
    with pytest.raises(
        UsageError, match=rf"--vocab {vocab}: {len(forced)} tokens have to stay, and the head has 7 rows"
    ):
        choose(scores([counts(1, 1, 1, 1, 1, 1, 1)]), range(7), forced, vocab)


@given(
    st.lists(st.integers(0, 5), min_size=4, max_size=30).filter(any),
    st.sets(st.integers(0, 29)),
    st.integers(0, 30),
)
def test_a_choice_is_plainly_the_best(values: list[int], forced: set[int], more: int) -> None:
    forced = {token for token in forced if token < len(values)}
    vocab = min(len(values), len(forced) + more)
    kept = choose(scores([counts(*values)]), range(len(values)), forced, vocab)
    assert list(kept) == sorted({*kept})
    assert len(kept) == vocab
    assert forced <= {*kept}
    ranked = sorted({*range(len(values))} - forced, key=lambda token: (-values[token], token))
    assert {*kept} == forced | {*ranked[: vocab - len(forced)]}
