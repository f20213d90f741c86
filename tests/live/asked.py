"""Live runs against stubs of servers: what is asked, of which drafters, and by whom it is answered."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from draftconv.api.live import LiveOptions, live_parity
from draftconv.live.requests import RetryPolicy
from draftconv.report import Report
from tests.engines.stub import Stub, all_serving
from tests.keywords import keywords
from tests.reference.test_fixtures import DATA

TARGET, REF, OTHER = DATA / "targets/llama", DATA / "drafters/llama-eagle3.1", DATA / "drafters/llama-eagle3"
LENGTH = 48


@pytest.fixture
def cand(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REF, tmp_path / "cand"))


@pytest.fixture
def options(tmp_path: Path) -> LiveOptions:
    return LiveOptions(
        engine="vllm",
        target=str(TARGET),
        run=tmp_path / "run",
        prompts=str(DATA / "prompts.json"),
        max_tokens=LENGTH,
        timeout=10,
        patience=RetryPolicy(attempts=2, pause=0.0),
    )


@contextmanager
def served(engine: Any = "vllm", *changes: dict[str, Any]) -> Iterator[tuple[Stub, ...]]:
    """Servers of a reference and a candidate; `changes` to each."""
    both: list[dict[str, Any]] = [{"born": "1.0", "drafter": "ref"}, {"born": "2.0", "drafter": "cand"}]
    nothing: dict[str, Any] = {}
    told = [{**fields, **change} for fields, change in zip_longest(both, changes, fillvalue=nothing)]
    with all_serving(*(Stub(engine, **fields) for fields in told)) as stubs:
        yield stubs


def judged(options: LiveOptions, ref: Stub, cand: Stub, drafter: Path) -> Report:
    return live_parity(REF, [drafter], **keywords(replace(options, url_ref=ref.url, url_cand=(cand.url,))))
