"""Rotary tables against published numbers and simple truths."""

import math
from types import MappingProxyType
from typing import Literal

import pytest
import torch

from draftconv.drafter.facts import Rope
from draftconv.errors import Undecided, UsageError
from draftconv.reference.rope import inverse_frequencies, rotate, softmax_multiplier, table_multiplier


def scaled(kind: str, theta: float = 50000.0, **scaling: float) -> Rope:
    return Rope(theta=theta, pairs="halves", kind=kind, scaling=MappingProxyType(scaling))


KIMI = {"factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0}
MODELOPT = {"factor": 32.0, "original_max_position_embeddings": 2048}


def test_kimi_scales_the_softmax_and_leaves_the_tables() -> None:
    rope = scaled("yarn", **KIMI, mscale=1.0, mscale_all_dim=1.0)
    assert table_multiplier(rope, latent=True) == table_multiplier(rope, latent=False) == 1.0
    assert softmax_multiplier(rope) == pytest.approx(2.00474, abs=5e-6)
    assert 192**-0.5 * softmax_multiplier(rope) == pytest.approx(0.144680, abs=5e-7)


def test_yarn_without_mscale_keys() -> None:
    rope = scaled("yarn", **MODELOPT)
    assert table_multiplier(rope, latent=False) == pytest.approx(1.34657, abs=5e-6)
    assert table_multiplier(rope, latent=True) == pytest.approx(1.34657, abs=5e-6)
    assert softmax_multiplier(rope) == 1.0


def test_explicit_attention_factor_wins_in_llama_style_only() -> None:
    rope = scaled("yarn", **MODELOPT, attention_factor=1.0)
    assert table_multiplier(rope, latent=False) == 1.0
    assert table_multiplier(rope, latent=True) != 1.0


def test_default_frequencies() -> None:
    found = inverse_frequencies(scaled("default", theta=100.0), 4)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([1.0, 0.1])


def test_linear_rope_slows_every_pair() -> None:
    found = inverse_frequencies(scaled("linear", theta=100.0, factor=4.0), 4)
    assert found.tolist() == pytest.approx([0.25, 0.025])


@pytest.mark.parametrize(
    ("pairs", "turned"), [("halves", [-3.0, -4.0, 1.0, 2.0]), ("interleaved", [-2.0, 1.0, -4.0, 3.0])]
)
def test_a_quarter_turn(pairs: Literal["halves", "interleaved"], turned: list[float]) -> None:
    """Of (a, b) it is (-b, a), whichever elements are a pair."""
    quarter = torch.tensor([math.pi / 2] * 2, dtype=torch.float64)
    x_BTND = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
    found = rotate(x_BTND, torch.tensor([1]), quarter, pairs=pairs, multiplier=1.0)
    assert found.flatten().tolist() == pytest.approx(turned)


def test_yarn_keeps_fast_pairs_and_slows_the_others() -> None:
    plain = inverse_frequencies(scaled("default"), 64)
    ratio = plain / inverse_frequencies(scaled("yarn", **KIMI), 64)
    assert ratio[:9].tolist() == pytest.approx([1.0] * 9)
    assert ratio[20:].tolist() == pytest.approx([64.0] * 12)
    assert bool((ratio.diff() >= -1e-9).all())


def test_untruncated_yarn_band_differs() -> None:
    truncated = inverse_frequencies(scaled("yarn", **KIMI), 64)
    assert not torch.equal(truncated, inverse_frequencies(scaled("yarn", **KIMI, truncate=False), 64))


def test_llama3_ends_of_the_band() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = scaled("llama3", 500000.0, **scaling, original_max_position_embeddings=8192)
    ratio = inverse_frequencies(scaled("default", 500000.0), 128) / inverse_frequencies(rope, 128)
    assert ratio[0].item() == 1.0
    assert ratio[-1].item() == pytest.approx(8.0)


@pytest.mark.parametrize("pairs", ["halves", "interleaved"])
def test_only_distance_matters(pairs: str) -> None:
    x, y = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    frequency = inverse_frequencies(scaled("default"), 8)

    def product(i: int, j: int) -> float:
        a, b = (
            rotate(v, torch.tensor([at]), frequency, pairs=pairs, multiplier=1.0)  # type: ignore[arg-type]
            for v, at in ((x, i), (y, j))
        )
        return float((a * b).sum())

    assert product(7, 3) == pytest.approx(product(104, 100))
    assert not math.isclose(product(7, 3), product(8, 3))


def test_multiplier_scales_the_rotated_vector() -> None:
    x = torch.ones(1, 1, 1, 4, dtype=torch.float64)
    turned = rotate(x, torch.tensor([5]), inverse_frequencies(scaled("default"), 4), pairs="halves", multiplier=1.5)
    assert float(turned.norm()) == pytest.approx(3.0)


def test_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'longrope' has no reference forward"):
        inverse_frequencies(scaled("longrope"), 8)


def test_missing_parameter_is_named() -> None:
    with pytest.raises(Undecided, match="needs the number 'factor'"):
        inverse_frequencies(scaled("linear"), 8)
