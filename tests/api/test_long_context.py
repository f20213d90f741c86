"""Texts that are held a few rows at a time: the figures are those of texts that are held as a whole.

96 tokens of prompt and 64 after them are what the drafters were trained on.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import draftconv
from draftconv.reference.accept_length import Counts
from draftconv.report.acceptance.model import AcceptanceReport
from draftconv.traces import spool, states, transformers_target
from draftconv.traces.states import StoredStates
from draftconv.traces.trace import Trace
from tests.reference.test_fixtures import DATA

DRAFTER = DATA / "drafters/llama-eagle3"
CONTEXTS = ["64 to 127", "128 to 255"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Held-out prompts with the first half of another behind them, and two short ones in between."""
    found = json.loads((DATA / "prompts.json").read_text())
    long = [[*found[i], *found[i + 1][:32]] for i in range(4)]
    (tmp_path / "prompts.json").write_text(json.dumps([long[0], found[9][:20], *long[1:], found[8][:7]]))
    return tmp_path / "prompts.json"


def traced(prompts: Path, out: Path) -> Trace:
    return draftconv.trace(
        DATA / "targets/llama",
        prompts,
        out,
        drafters=DRAFTER,
        max_tokens=64,
        num_speculative_tokens=4,
        batch=3,
        ignore_eos=True,
        device="cpu",
        dtype="float32",
    )


def accepted(trace: Trace) -> AcceptanceReport:
    return draftconv.accept(DRAFTER, trace=trace.directory)


def test_long_texts_a_few_rows_at_a_time(prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = traced(prompts, tmp_path / "whole")
    wanted = accepted(whole)
    monkeypatch.setattr(transformers_target, "ROWS_AT_ONCE", 48)
    for module in (states, spool):
        monkeypatch.setattr(module, "IN_MEMORY", 20 * 3 * 256 * 4)  # twenty rows
    blocks = traced(prompts, tmp_path / "blocks")
    assert [entry.tokens for entry in blocks.entries] == [entry.tokens for entry in whole.entries]
    assert isinstance(blocks.read(blocks.entries[0], (2, 4, 5)).states_TAW, StoredStates)
    assert sorted(path.name for path in blocks.directory.iterdir()) == sorted(p.name for p in whole.directory.iterdir())
    found = accepted(blocks)
    assert [record.accepted for record in found.records] == [record.accepted for record in wanted.records]


def test_accept_lengths_by_context_are_those_of_the_comparison(prompts: Path, tmp_path: Path) -> None:
    trace = traced(prompts, tmp_path / "trace")
    (drafter,) = accepted(trace).drafters
    compared = draftconv.parity(DRAFTER, DATA / "drafters/llama-eagle3.1", trace=trace.directory, margin=0.5)
    (comparison,) = compared.comparisons
    assert list(drafter.contexts)[-2:] == CONTEXTS == list(comparison.contexts)[-2:]
    ours = [record.contexts for record in compared.records if record.arm == DRAFTER.name]
    for context in CONTEXTS:
        counts = Counts.pooled(contexts[context] for contexts in ours if context in contexts)
        assert drafter.contexts[context].length.value == counts.accept_length
        assert drafter.contexts[context].steps == counts.steps
