"""How text is drawn: what is kept of a distribution, and that draws follow it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftconv.errors import UsageError
from draftconv.reference.processors import drawn, log_probs
from draftconv.reference.sampling import Sampling

LOGITS = torch.tensor([[2.0, 1.0, 0.5, 0.5, -1.0, -torch.inf]])


def probabilities(sampling: Sampling, logits_RV: Tensor = LOGITS) -> list[float]:
    row: list[float] = log_probs(logits_RV, sampling)[0].exp().tolist()
    return row


def test_temperature_alone_is_a_softmax() -> None:
    weights = [math.exp(x / 0.7) for x in LOGITS[0].tolist()]
    assert probabilities(Sampling(0.7)) == pytest.approx([w / sum(weights) for w in weights], abs=1e-6)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(1.0, top_k=1), {0}),
        (Sampling(1.0, top_k=2), {0, 1}),
        (Sampling(1.0, top_k=3), {0, 1, 2, 3}),  # the third and the fourth are equally likely
        (Sampling(1.0, top_k=6), {0, 1, 2, 3, 4}),
        (Sampling(1.0, top_p=0.3), {0}),
        (Sampling(1.0, top_p=0.6), {0, 1}),
        (Sampling(1.0, top_p=0.8), {0, 1, 2}),  # of two equally likely ones that of the lower id
        (Sampling(1.0, top_p=0.99), {0, 1, 2, 3, 4}),
        (Sampling(1.0, min_p=0.3), {0, 1}),
        (Sampling(2.0, min_p=0.3), {0, 1, 2, 3}),  # after the temperature
        (Sampling(1.0, top_k=2, top_p=0.7), {0}),  # top_p is of what top_k leaves
    ],
)
def test_what_is_kept(sampling: Sampling, kept: set[int]) -> None:
    found = probabilities(sampling)
    assert {token for token, share in enumerate(found) if share > 0} == kept
    assert sum(found) == pytest.approx(1)
    plain = probabilities(Sampling(sampling.temperature))
    of_kept = sum(plain[token] for token in kept)
    assert [found[token] for token in kept] == pytest.approx([plain[token] / of_kept for token in kept], abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=12),
    st.floats(0.05, 1),
    st.floats(0.2, 2),
)
def test_top_p_keeps_the_fewest_that_reach_it(logits: list[float], top_p: float, temperature: float) -> None:
    row = torch.tensor([logits], dtype=torch.float64)
    plain = log_probs(row, Sampling(temperature))[0].exp()
    found = log_probs(row, Sampling(temperature, top_p=top_p))[0].exp()
    kept = found > 0
    assert float(plain[kept].sum()) >= top_p - 1e-9
    assert float(plain[kept].sum() - plain[kept].min()) < top_p + 1e-9
    if not kept.all():
        assert float(plain[kept].min()) >= float(plain[~kept].max())


def test_draws_follow_the_distribution() -> None:
    times = 4000
    log_RV = log_probs(LOGITS, Sampling(1.0, top_k=3)).expand(1, -1)
    generator = torch.Generator().manual_seed(7)
    seen = [int(drawn(log_RV, [generator])[0]) for _ in range(times)]
    shares = log_RV[0].exp().tolist()
    chi = sum((seen.count(t) - times * p) ** 2 / (times * p) for t, p in enumerate(shares) if p)
    assert {*seen} == {0, 1, 2, 3}
    assert chi < 16.3  # 3 degrees of freedom, one run in a thousand


def test_a_row_draws_by_its_own_generator() -> None:
    log_RV = log_probs(torch.randn(3, 50), Sampling(1.0))
    alone = [int(drawn(log_RV[i : i + 1], [torch.Generator().manual_seed(i)])[0]) for i in range(3)]
    assert drawn(log_RV, [torch.Generator().manual_seed(i) for i in range(3)]).tolist() == alone


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0),
        ("temperature", -1.0),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("temperature", 101.0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.0),
        ("min_p", -0.1),
        ("seed", -1),
        ("seed", 1 << 63),
    ],
)
def test_numbers_out_of_range(name: str, value: float) -> None:
    numbers: dict[str, float] = {"temperature": 1.0, name: value}
    with pytest.raises(UsageError, match=name.replace("_", "-")):
        Sampling(**numbers)  # type: ignore[arg-type]


def test_in_words() -> None:
    assert str(Sampling(0.7)) == "temperature 0.7, seed 0"
    assert str(Sampling(1, 0.9, 20, 0.1, 5)) == "temperature 1, top_p 0.9, top_k 20, min_p 0.1, seed 5"
