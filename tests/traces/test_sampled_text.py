"""Traces of drawn text: what the target drew, and how likely it was, is kept whole and never confused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.errors import BadCheckpoint, UsageError, Void
from draftconv.reference.processors import log_probs
from draftconv.reference.sampling import Sampling
from draftconv.traces.options import TraceOptions
from draftconv.traces.trace import INDEX, Trace, TraceInfo, open_trace
from draftconv.traces.writer import CapturedText
from tests.traces import made
from tests.traces.conftest import Fixture
from tests.traces.test_transformers_target import captured, prompts, reference

WARM = Sampling(0.7, top_p=0.9, seed=3)
ABOUT = replace(made.ABOUT, sampling=WARM)


def text(index: int, about: TraceInfo = ABOUT) -> CapturedText:
    whole = made.captured(index, about)
    drawn = len(whole.tokens_N) - whole.prompt
    return replace(whole, logprobs_N=-torch.arange(drawn, dtype=torch.float32) / 8)


def trace(out: Path, about: TraceInfo = ABOUT) -> Trace:
    with made.writer(out, about) as writer:
        for index in range(len(made.SLOTS)):
            writer.write(index, text(index))
        return writer.finish()


# ── files ──────────────────────────────────────────────────────────────────────────


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    found = trace(tmp_path / "out")
    assert found.about.sampling == WARM
    for index, entry in enumerate(found.entries):
        request, wanted = found.read(entry, (2, 5)), text(index)
        assert request.logprobs_N is not None
        assert wanted.logprobs_N is not None
        assert request.logprobs_N.tolist() == wanted.logprobs_N.tolist()
        assert request.tokens_N.tolist() == wanted.tokens_N.tolist()


def test_greedy_traces_are_as_they_were(tmp_path: Path) -> None:
    """Neither a key nor a tensor more, and the hash that an earlier draftconv gave them."""
    greedy = made.trace(tmp_path / "out")
    document = json.loads((tmp_path / "out" / INDEX).read_text())
    assert "sampling" not in document
    assert {*document["requests"][0]} == {"id", "cluster", "category", "file", "prompt", "counted", "tokens", "states"}
    assert greedy.digest == DIGEST


DIGEST = "fdffa142a391f2a1c8c2480161124075234615537711ae66604e53bc4015c164"
"""Of `made.trace`, by draftconv before texts could be drawn."""


@pytest.mark.parametrize("other", [None, replace(WARM, temperature=0.8), replace(WARM, seed=4)])
def test_how_it_was_drawn_is_part_of_the_hash(tmp_path: Path, other: Sampling | None) -> None:
    found = trace(tmp_path / "out")
    assert replace(found, about=replace(found.about, sampling=other)).digest != found.digest
    entries = (replace(found.entries[0], logprobs="a" * 64), *found.entries[1:])
    assert replace(found, entries=entries).digest != found.digest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update(logprobs=t["logprobs"] - 1), "does not hold the log-probabilities"),
        (lambda t: t.update(logprobs=t["logprobs"][1:].clone()), "logprobs is F32"),
        (lambda t: t.update(logprobs=t["logprobs"].double()), "logprobs is F64"),
        (lambda t: t.pop("logprobs"), "holds hidden_states"),
    ],
)
def test_an_edited_request_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str) -> None:
    found = trace(tmp_path / "out")
    file = tmp_path / "out/requests/000001.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(BadCheckpoint, match=said):
        found.read(found.entries[1], (2, 4, 5))


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"temperature": 0, "top_p": 1.0}, "--temperature"),
        ({"temperature": 1.0, "top_p": 2.0}, "--top-p"),
        ({}, "--temperature"),
        ("warm", "sampling is"),
    ],
)
def test_an_edited_index_is_refused(tmp_path: Path, sampling: object, said: str) -> None:
    trace(tmp_path / "out")
    index = tmp_path / "out" / INDEX
    index.write_text(json.dumps({**json.loads(index.read_text()), "sampling": sampling}))
    with pytest.raises(BadCheckpoint, match=said):
        open_trace(tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"logprobs_N": None}, "no log-probabilities"),
        ({"logprobs_N": torch.zeros(2)}, "not one for each"),
        ({"logprobs_N": torch.full((4,), 0.5)}, "that are none"),
        ({"logprobs_N": torch.full((4,), -torch.inf)}, "that are none"),
        ({"logprobs_N": torch.zeros(4, dtype=torch.float64)}, "that are none"),
    ],
)
def test_what_does_not_fit_is_void(tmp_path: Path, changes: Mapping[str, Any], said: str) -> None:
    with made.writer(tmp_path / "out", ABOUT) as writer, pytest.raises(Void, match=said):
        writer.write(0, replace(text(0), **changes))


def test_greedy_text_has_none(tmp_path: Path) -> None:
    with made.writer(tmp_path / "out") as writer, pytest.raises(Void, match="log-probabilities for greedy text"):
        writer.write(0, text(0, made.ABOUT))


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    whole = trace(tmp_path / "whole")
    with made.writer(tmp_path / "out", ABOUT) as writer:
        writer.write(0, text(0))
    with made.writer(tmp_path / "out", ABOUT) as writer:
        assert writer.held(0) is not None
        for index in (1, 2):
            writer.write(index, text(index))
        assert writer.finish().digest == whole.digest
    with made.writer(tmp_path / "other", ABOUT):
        pass
    with pytest.raises(UsageError, match="sampling"), made.writer(tmp_path / "other", made.ABOUT):
        pass


# ── the target ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["llama", "mla"])
def test_log_probabilities_are_the_target_s(live: Fixture, name: str) -> None:
    model = reference(name, torch.float64)
    found = captured(live(name, "float64", sampling=WARM), prompts())
    greedy = captured(live(name, "float64"), prompts())
    assert [one.tokens_N.tolist() for one in found] != [one.tokens_N.tolist() for one in greedy]
    for one in found:
        assert one.logprobs_N is not None
        with torch.no_grad():
            logits_TV = model(one.tokens_N[None, :-1]).logits[0, one.prompt - 1 :]
        wanted_N = log_probs(logits_TV, WARM).gather(1, one.tokens_N[one.prompt :, None])[:, 0]
        assert torch.allclose(one.logprobs_N.double(), wanted_N, atol=1e-4)


def test_a_request_draws_alone(live: Fixture) -> None:
    """By the seed and its prompt: neither its batch nor its place in it changes a token."""
    target = live("llama", "float64", sampling=WARM)
    together = [one.tokens_N.tolist() for one in captured(target, prompts())]
    assert [captured(target, [prompt])[0].tokens_N.tolist() for prompt in prompts()] == together
    assert [one.tokens_N.tolist() for one in reversed(captured(target, prompts()[::-1]))] == together
    other = live("llama", "float64", sampling=replace(WARM, seed=4))
    assert [one.tokens_N.tolist() for one in captured(other, prompts())] != together


# ── options ────────────────────────────────────────────────────────────────────────


def test_options() -> None:
    assert TraceOptions().sampling is None
    assert TraceOptions(temperature=0.7).sampling == Sampling(0.7)
    assert TraceOptions(temperature=0.7, top_p=0.9, seed=3).sampling == WARM
    for more in ({"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"seed": 1}):
        with pytest.raises(UsageError, match="without --temperature"):
            _ = TraceOptions(**more).sampling
