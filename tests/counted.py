"""Counts to prune the trained fixtures by: files of token ids, of nobody's language."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conversion.pruning.made import zipf
from tests.reference.test_fixtures import DATA

LLAMA = DATA / "drafters/llama-eagle3"
VOCAB = 2048
"""Of the fixtures' targets."""

Counts = Callable[..., str]


def target(drafter: Path) -> str:
    """The target of a fixture."""
    return str(DATA / "targets" / drafter.name.partition("-")[0])


@pytest.fixture(scope="session")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    """`counts(seed, tokens)`: a file of token ids, written once."""
    root = tmp_path_factory.mktemp("counts")

    def write(seed: int = 1, tokens: int = 40_000, vocab: int = VOCAB) -> str:
        path = root / f"{seed}-{tokens}-{vocab}.jsonl"
        if not path.exists():
            path.write_text("".join(json.dumps(ids) + "\n" for ids in zipf(seed, tokens, vocab)))
        return str(path)

    return write
