"""One thread: these models are tiny, and many threads only get in each other's way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import gettempdir

import pytest
import torch

from draftconv.traces.transformers_target import TransformersTarget, find_layers, load_model

DATA = Path(__file__).parents[1] / "data"
Fixture = Callable[..., TransformersTarget]


def pytest_configure() -> None:
    torch.set_num_threads(1)


@cache
def _loaded(name: str, dtype: str) -> TransformersTarget:
    model = load_model(DATA / "targets" / name, dtype=dtype, device="cpu", trust_remote_code=False)
    return TransformersTarget(model, find_layers(model, 8), (0, 2, 4, 5, 8), 12, 4, (), Path(gettempdir()))


@pytest.fixture
def live() -> Fixture:
    """`live("mla", "float64", eos=…)`: a trained fixture target in transformers, its model loaded once."""

    def build(name: str, dtype: str, **changes: object) -> TransformersTarget:
        return replace(_loaded(name, dtype), **changes)  # type: ignore[arg-type]

    return build
