"""Requests as a trace holds them, through the stub server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from draftconv.engines import ENGINES
from draftconv.engines.tracing import Extracted, Extraction
from draftconv.errors import UsageError, Void
from draftconv.traces.engine_target import ExtractedTarget, cut
from tests.engines.tracing.stub import BOUNDARIES, VOCAB, WIDTH, Stub, serving, states, text


def target(stub: Stub, **changes: Any) -> ExtractedTarget:
    tracing = ENGINES["vllm"].tracing
    assert tracing
    extraction = Extraction("tiny", BOUNDARIES, WIDTH, stub.storage, "bfloat16", 64)
    settings: dict[str, Any] = {"max_tokens": 10, "depth": 3, "eos": ()} | changes
    return ExtractedTarget(tracing.served(extraction, stub.url), **settings)


def test_requests_without_an_end(tmp_path: Path) -> None:
    prompts, told = [[3, 1], [4, 1, 5]], list[int]()
    with serving(tmp_path) as stub:
        found = target(stub).capture(prompts, told.append)
    for prompt, captured in zip(prompts, found, strict=True):
        tokens = (*prompt, *text(tuple(prompt), 13))
        assert (captured.prompt, captured.counted) == (len(prompt), 10)
        assert captured.tokens_N.tolist() == list(tokens)
        assert torch.equal(captured.states_TAW[:], states(tokens))
    assert told == [13, 13]
    assert list(tmp_path.iterdir()) == []


def test_a_text_is_cut_beyond_its_end(tmp_path: Path) -> None:
    eos = text((3, 1), 13)[4]
    with serving(tmp_path) as stub:
        (captured,) = target(stub, eos=(eos, VOCAB + 1)).capture([[3, 1]], lambda _: None)
    assert (captured.counted, len(captured.tokens_N), len(captured.states_TAW)) == (5, 2 + 5 + 3, 2 + 5 + 3 - 1)


@pytest.mark.parametrize(("eos", "counted"), [((7,), 1), ((8,), 2), ((10,), 4), ((11,), 4), ((8, 7), 1), ((), 4)])
def test_where_the_counted_text_ends(eos: tuple[int, ...], counted: int) -> None:
    """EOS counts; one beyond `max_tokens` does not end anything."""
    extracted = Extracted((1, 2, 3), (7, 8, 9, 10, 11, 12), torch.arange(8.0)[:, None, None])
    found = cut(extracted, eos, 4, 2)
    assert (found.prompt, found.counted) == (3, counted)
    assert found.tokens_N.tolist() == [1, 2, 3, 7, 8, 9, 10, 11, 12][: 3 + counted + 2]
    assert found.states_TAW[:].flatten().tolist() == list(range(3 + counted + 2 - 1))


def test_a_prompt_that_leaves_no_room(tmp_path: Path) -> None:
    with serving(tmp_path) as stub, pytest.raises(UsageError, match="do not fit into the engine's 64"):
        target(stub).capture([[1], [2] * 52], lambda _: None)
    assert stub.asked == []


def test_one_broken_file_voids_the_trace(tmp_path: Path) -> None:
    with serving(tmp_path) as stub:
        stub.change = lambda tensors: {**tensors, "token_ids": tensors["token_ids"].roll(1)}
        with pytest.raises(Void, match="at position 0"):
            target(stub).capture([[3, 1], [4, 1, 5]], lambda _: None)
