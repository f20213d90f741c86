"""An arm's requests: repeated, given up, several at a time; and what is kept of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.engines.client import ServerInfo
from draftconv.engines.request_output import RequestOutput
from draftconv.errors import BadReport, EngineError, UsageError, Void, WriteError
from draftconv.live.requests import LiveRequest, RetryPolicy, most_failures, send_requests
from draftconv.live.run_directory import ANSWERS, ArmSettings, RunDirectory, RunSettings
from draftconv.reference.accept_length import Counts

AT_ONCE = RetryPolicy(attempts=3, pause=0.0)
ANSWER = RequestOutput((5, 6, 7), Counts((1, 1, 0, 0)))
ASKS = [LiveRequest(str(number), str(number), "", (number,)) for number in range(40)]
TERMS = RunSettings("llama", "vllm", "launch", "prompts.json", "aa", 3, 3, ignore_eos=True)


class Fake:
    """A client whose answers a function gives."""

    def __init__(self, answer: Callable[[int], RequestOutput]) -> None:
        self.answer, self.calls, self.lock = answer, dict[int, int](), threading.Lock()
        self.lengths: set[int | None] = set()

    def served(self, prompt: Sequence[int]) -> ServerInfo:
        raise NotImplementedError(prompt)

    def ask(self, prompt: Sequence[int], length: int | None = None) -> RequestOutput:
        self.lengths.add(length)
        with self.lock:
            self.calls[prompt[0]] = self.calls.get(prompt[0], 0) + 1
        return self.answer(prompt[0])


def gather(client: Fake, *, allowed: int = 0, concurrency: int = 1) -> tuple[dict[str, RequestOutput], dict[str, str]]:
    kept: dict[str, RequestOutput] = {}
    failures = send_requests(
        client,
        ASKS,
        lambda ask, answer: kept.update({ask.id: answer}),
        allowed=allowed,
        concurrency=concurrency,
        patience=AT_ONCE,
    )
    return kept, dict(failures)


def test_a_request_that_fails_on_the_way_is_sent_again() -> None:
    def answer(number: int) -> RequestOutput:
        if client.calls[number] < 3:
            raise EngineError("reset by peer")
        return ANSWER

    client = Fake(answer)
    kept, failures = gather(client)
    assert (len(kept), failures) == (40, {})
    assert set(client.calls.values()) == {3}


def test_a_request_that_keeps_failing_is_given_up() -> None:
    def answer(number: int) -> RequestOutput:
        if number == 7:
            raise EngineError("reset by peer")
        return ANSWER

    client = Fake(answer)
    kept, failures = gather(client, allowed=2)
    assert (len(kept), failures, client.calls[7]) == (39, {"7": "reset by peer"}, AT_ONCE.attempts)


def test_wrong_counts_are_not_asked_again() -> None:
    def answer(number: int) -> RequestOutput:
        if number == 7:
            raise Void("wrong counts")
        return ANSWER

    client = Fake(answer)
    kept, failures = gather(client, allowed=2)
    assert (len(kept), failures, client.calls[7]) == (39, {"7": "wrong counts"}, 1)


def test_too_many_failures_end_the_arm() -> None:
    def answer(number: int) -> RequestOutput:
        if number % 10 == 3:
            raise EngineError("down", cure="start it")
        time.sleep(0.05 if number > 23 else 0)
        return ANSWER

    client = Fake(answer)
    with pytest.raises(Void, match="3 requests failed, the last one: down") as caught:
        gather(client, allowed=most_failures(len(ASKS)))
    assert caught.value.cure == "start it; the same command then goes on"
    assert 39 not in client.calls


def test_several_at_a_time() -> None:
    together = threading.Barrier(4, timeout=10)

    def answer(_: int) -> RequestOutput:
        together.wait()
        return ANSWER

    assert len(gather(Fake(answer), concurrency=4)[0]) == 40


def test_a_fault_of_ours_is_no_failed_request() -> None:
    with pytest.raises(ZeroDivisionError):
        gather(Fake(lambda number: RequestOutput((1 // number,), ANSWER.counts)), allowed=40)


def test_an_interrupted_run_does_not_wait_for_an_engine_that_hangs() -> None:
    def answer(number: int) -> RequestOutput:
        if number:
            time.sleep(30)
        return ANSWER

    def stop(_: LiveRequest, __: RequestOutput) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        send_requests(Fake(answer), ASKS, stop, allowed=0, concurrency=2)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(("requests", "most"), [(10, 0), (20, 1), (80, 4), (100, 5)])
def test_five_percent(requests: int, most: int) -> None:
    assert most_failures(requests) == most


# ── what is kept ───────────────────────────────────────────────────────────────────


def test_answers_come_back(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run", TERMS) as store:
        arm = store.arm(0)
        assert (arm.get(ASKS[0]), arm.finished, arm.terms(), arm.last_seen) == (None, False, None, ("", ""))
        arm.agree(ArmSettings("hash", "llama", "1.0", "per request"))
        arm.keep(ASKS[0], ANSWER)
        arm.seen("1", "drafter", finished=True)
    with RunDirectory(tmp_path / "run", TERMS) as store:
        arm = store.arm(0)
        assert (arm.get(ASKS[0]), arm.get(ASKS[1]), arm.finished) == (ANSWER, None, True)
        assert (arm.terms(), arm.last_seen) == (ArmSettings("hash", "llama", "1.0", "per request"), ("1", "drafter"))


def test_a_line_that_was_cut_short_is_dropped(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run", TERMS) as store:
        for ask in ASKS[:3]:
            store.arm(0).keep(ask, ANSWER)
        path = store.arm(0).directory / ANSWERS
        path.write_bytes(path.read_bytes()[:-9])
        arm = store.arm(0)
        assert [arm.get(ask) for ask in ASKS[:3]] == [ANSWER, ANSWER, None]
        arm.keep(ASKS[2], ANSWER)
        assert store.arm(0).get(ASKS[2]) == ANSWER


@pytest.mark.parametrize("line", [b"nonsense", b'{"id": "0"}', b'{"id":"0","prompt":"a","tokens":[1],"histogram":[1]}'])
def test_answers_that_were_edited(tmp_path: Path, line: bytes) -> None:
    with RunDirectory(tmp_path / "run", TERMS) as store:
        (store.arm(0).directory / ANSWERS).write_bytes(line + b"\n")
        with pytest.raises(BadReport, match="line 1"):
            store.arm(0)


def test_another_prompt_under_the_same_id(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run", TERMS) as store:
        store.arm(0).keep(ASKS[0], ANSWER)
        with pytest.raises(UsageError, match="asked with other tokens"):
            store.arm(0).get(replace(ASKS[0], tokens=(99,)))


def test_other_terms(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run", TERMS) as store:
        store.arm(0).agree(ArmSettings("hash", "llama", "1.0", "per request"))
        with pytest.raises(UsageError, match="begun with content hash, not other"):
            store.arm(0).agree(ArmSettings("other", "llama", "1.0", "per request"))
    with (
        pytest.raises(UsageError, match="begun with depth 3, not 4"),
        RunDirectory(tmp_path / "run", replace(TERMS, depth=4)),
    ):
        pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="something else"), RunDirectory(tmp_path / "other", TERMS):
        pass
    assert json.loads((tmp_path / "run" / "run.json").read_text())["depth"] == 3


def test_two_runs_at_once(tmp_path: Path) -> None:
    with (
        RunDirectory(tmp_path / "run", TERMS),
        pytest.raises(WriteError, match="right now"),
        RunDirectory(tmp_path / "run", TERMS),
    ):
        pass
