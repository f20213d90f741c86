"""Conversions on tiny drafters: written for real, without waiting for the disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests import tiny
from tests.counted import counts as counts
from tests.live.asked import cand as cand
from tests.live.asked import options as options
from tests.quantized import written as written
from tests.searched import halves as halves
from tests.searched import written_text as written_text
from tests.traces.recorded import recorded as recorded

Source = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durability is tested in the checkpoint room; here it would be most of the time."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """`source(layout, variant)`: a producer's directory, written once and never changed."""
    root = tmp_path_factory.mktemp("sources")

    @cache
    def write(layout: str, variant: str, *, shards: int = 1, ids: bool = True) -> Path:
        path = root / f"{layout}-{variant}-{shards}{'' if ids else '-bare'}"
        return tiny.spell(variant, layout, ids=ids).write(path, shards=shards)

    return write
