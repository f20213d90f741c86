"""What recipes lost on the fixtures, as it is shipped."""

from __future__ import annotations

import pytest

from draftconv.quantization.fixture_losses import FixtureLoss, fixture_losses, fixture_losses_text
from draftconv.quantization.recipes import recipe_names


def test_losses_are_of_shipped_recipes_and_lie_in_their_intervals() -> None:
    losses = fixture_losses()
    assert set(losses) <= set(recipe_names())
    assert all(loss.low < loss.ratio < loss.high for loss in losses.values())
    assert all(loss.spread > 0 < loss.tokens for loss in losses.values())


def test_longer_texts_vary_less() -> None:
    loss = FixtureLoss(0.99, 0.98, 1.0, spread=0.02, tokens=320)
    assert loss.spread_at(320) == pytest.approx(0.02)
    assert loss.spread_at(80) == pytest.approx(0.04)
    assert loss.document() == {"ratio": 0.99, "low": 0.98, "high": 1.0}
    assert '"spread": 0.02' in fixture_losses_text({"fp8": loss})
