"""Positions are those asked for, or the target's where it has more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.api.convert import ConvertOptions, convert
from draftconv.api.verify import verify
from tests import tiny
from tests.api.conftest import Source
from tests.keywords import evidence, keywords
from tests.layouts.spelled import document


@pytest.mark.parametrize(
    ("asked", "target", "wanted"), [(None, None, 32768), (65536, None, 65536), (None, 262144, 262144),
                                    (4096, 262144, 4096), (None, 8192, 32768)]
)  # fmt: skip
def test_positions(asked: int | None, target: int | None, wanted: int, source: Source, tmp_path: Path) -> None:
    spec = str(tiny.write_target(tmp_path / "target", max_position_embeddings=target)) if target else None
    path = source("torchspec-native", "llama")
    options = ConvertOptions(to="torchspec", max_positions=asked, target=spec)
    if asked and target and asked < target:
        convert(path, tmp_path / "out", **keywords(options))
    else:
        convert(path, tmp_path / "out", **keywords(replace(options, to="vllm")))
    assert document(tmp_path / "out", "config.json")["max_position_embeddings"] == wanted
    assert verify(tmp_path / "out", path, **evidence(options)).passed
    assert verify(tmp_path / "out", path).result == ("pass" if wanted == 32768 else "claimed")
