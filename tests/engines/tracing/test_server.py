"""The HTTP client against a local server that answers in vLLM's shapes, and in broken ones."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from draftconv.engines.vllm.tracing.server import Server, TracingServerInfo
from draftconv.errors import EngineError, UsageError, Void
from draftconv.reference.sampling import Sampling

from .stub import Stub, logprob, serving, text

PROMPT = (3, 1, 4)
SERVED = TracingServerInfo("tiny", 64, "0.32.0")


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with serving(tmp_path) as made:
        yield made


def client(stub: Stub, **settings: Any) -> Server:
    return Server(stub.url, "vllm serve tiny", **{"pause": 0.0, "timeout": 5.0, **settings})


def test_what_is_served(stub: Stub) -> None:
    assert client(stub).served() == SERVED


def test_a_completion(stub: Stub) -> None:
    answer = client(stub).complete(SERVED, PROMPT, 8)
    assert (answer.prompt, answer.generated) == (PROMPT, text(PROMPT, 8))
    assert Path(answer.file).parent == stub.storage


def test_a_request_says_all_that_shapes_the_text(stub: Stub) -> None:
    """What is left out would come from the target's generation_config.json."""
    client(stub).complete(SERVED, PROMPT, 8)
    assert stub.asked == [
        {
            "model": "tiny",
            "prompt": [3, 1, 4],
            "max_tokens": 8,
            "ignore_eos": True,
            "add_special_tokens": False,
            "return_token_ids": True,
            "kv_transfer_params": {"include_output_tokens": True},
            "temperature": 0,
            "top_p": 1,
            "top_k": 0,
            "min_p": 0,
            "repetition_penalty": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
        }
    ]


def test_drawn_text_is_asked_for_with_its_log_probabilities(stub: Stub) -> None:
    warm = Sampling(0.7, top_p=0.9, seed=5)
    answer = client(stub).complete(SERVED, PROMPT, 8, warm)
    assert answer.logprobs == tuple(logprob(i) for i in range(8))
    drawn = {"temperature": 0.7, "top_p": 0.9, "top_k": 0, "min_p": 0, "seed": warm.seed_of(PROMPT), "logprobs": 0}
    assert drawn.items() <= stub.asked[0].items()


@pytest.mark.parametrize(
    ("told", "kind", "what"),
    [
        (None, Void, "0 log-probabilities for 8 tokens"),
        ({"token_logprobs": [-0.5] * 7}, Void, "7 log-probabilities for 8 tokens"),
        ({"token_logprobs": [None] * 8}, EngineError, "token_logprobs is not a list of numbers"),
    ],
)
def test_log_probabilities_that_are_none(stub: Stub, told: object, kind: type[Exception], what: str) -> None:
    stub.answer = lambda reply: other(reply, logprobs=told)
    with pytest.raises(kind, match=what):
        client(stub).complete(SERVED, PROMPT, 8, Sampling(0.7))


def test_many_at_once_come_back_in_order(stub: Stub) -> None:
    prompts = [(i, 1) for i in range(12)]
    answers = list(client(stub).complete_all(SERVED, prompts, 5, None))
    assert [answer.prompt for answer in answers] == prompts
    assert len({answer.file for answer in answers}) == 12


@pytest.mark.parametrize("failures", [[0], [500], [503, 0, 429]])
def test_what_fails_on_the_way_is_sent_again(stub: Stub, failures: list[int]) -> None:
    stub.failures = failures
    assert client(stub).complete(SERVED, PROMPT, 8).prompt == PROMPT
    assert stub.failures == []


def test_after_the_last_attempt_the_fault_is_named(stub: Stub) -> None:
    stub.failures = [500] * 4
    with pytest.raises(EngineError, match=r"failed 4 times \(status 500: stubbed refusal\)"):
        client(stub).complete(SERVED, PROMPT, 8)


def test_a_refusal_is_not_sent_again(stub: Stub) -> None:
    stub.failures = [400]
    with pytest.raises(EngineError, match=r"refused /v1/completions \(status 400: stubbed refusal\)"):
        client(stub).complete(SERVED, PROMPT, 8)
    assert len(stub.asked) == 1


def test_one_failure_among_many_ends_them(stub: Stub) -> None:
    stub.failures = [400]
    with pytest.raises(EngineError, match="stubbed refusal"):
        list(client(stub).complete_all(SERVED, [(i,) for i in range(4)], 5, None))


def test_a_silent_server_runs_into_the_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(EngineError, match=r"failed 2 times \((ReadTimeout|Overdue)"):
            Server(url, "vllm serve tiny", timeout=0.1, attempts=2, pause=0.0).served()
        assert time.monotonic() - started < 2


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(EngineError, match="Connection refused") as caught:
        Server(url, "vllm serve tiny", attempts=2, pause=0.0).served()
    assert "vllm serve tiny" in caught.value.cure


def other(reply: dict[str, Any], **changes: object) -> dict[str, Any]:
    return {**reply, "choices": [{**reply["choices"][0], **changes}]}


STRANGE: dict[str, tuple[Callable[[dict[str, Any]], object], type[Exception], str]] = {
    "no hidden states": (
        lambda r: {k: v for k, v in r.items() if k != "kv_transfer_params"}, EngineError, "extracts no hidden states"),
    "null for hidden states": (
        lambda r: {**r, "kv_transfer_params": None}, EngineError, "extracts no hidden states"),
    "a path that is none": (
        lambda r: {**r, "kv_transfer_params": {"hidden_states_path": 3}}, EngineError, "does not answer as vLLM"),
    "no token ids": (
        lambda r: {**r, "choices": [{"text": "…"}]}, EngineError, "return_token_ids"),
    "no choices": (lambda r: {**r, "choices": []}, EngineError, "has no choices"),
    "tokens that are text": (
        lambda r: other(r, token_ids=["a"]), EngineError, "not a list of integers"),
    "a page": (lambda _: b"<html>", EngineError, "not valid JSON"),
    "bytes": (lambda _: b"\xff", EngineError, "not UTF-8"),
    "a list": (lambda _: [], EngineError, "not an object"),
    "another prompt": (
        lambda r: other(r, prompt_token_ids=[0, 3, 1, 4]), Void, "prompt of 4 tokens"),
    "a short text": (
        lambda r: other(r, token_ids=[1, 2]), Void, "generated 2 tokens, 8 were"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_answer(stub: Stub, name: str) -> None:
    stub.answer, kind, told = STRANGE[name]
    with pytest.raises(kind, match=told):
        client(stub).complete(SERVED, PROMPT, 8)


def test_a_server_without_extraction_is_told_how_to_start(stub: Stub) -> None:
    stub.answer = STRANGE["no hidden states"][0]
    with pytest.raises(EngineError) as caught:
        client(stub).complete(SERVED, PROMPT, 8)
    assert caught.value.cure == "start it with: vllm serve tiny"


@pytest.mark.parametrize("models", [{}, {"data": []}, {"data": [3]}, {"data": [{}]}, {"data": [{"id": 5}]}])
def test_a_server_that_is_no_vllm(stub: Stub, models: object) -> None:
    stub.models = models
    with pytest.raises(EngineError, match="does not answer as vLLM"):
        client(stub).served()


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://host", "http://", "http://host:port", "http://[", "file:///etc"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="no address"):
        Server(url, "vllm serve tiny")
