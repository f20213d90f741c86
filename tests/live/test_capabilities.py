"""Engines that cannot be asked, or not so: refused by name, before anything is read or started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.api.live import LiveOptions, live_parity, plan_live
from draftconv.engines import ENGINES
from draftconv.engines.live import Live
from draftconv.errors import UsageError
from draftconv.live.capabilities import generator_of, live_of, offline_of
from draftconv.live.forced_acceptance import refuse_switches, switches, variables
from tests.keywords import keywords


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> Callable[[Live | None], None]:
    """Makes SGLang an engine of which less is known."""
    return lambda live: monkeypatch.setitem(ENGINES.by_name, "sglang", replace(ENGINES["sglang"], live=live))


def bare() -> Live:
    return Live(live_of("sglang").connect)


def run(reference: str, candidates: list[str], options: LiveOptions) -> object:
    return live_parity(reference, candidates, **keywords(options))


@pytest.mark.parametrize("way", [{"launch": True}, {"offline": True}, {"url": "http://127.0.0.1:9"}])
def test_an_engine_without_a_client(mute: Callable[[Live | None], None], way: dict[str, object]) -> None:
    mute(None)
    options = LiveOptions(engine="sglang", target="none", run=Path("run"), **way)  # type: ignore[arg-type]
    for act in (run, plan_live):
        with pytest.raises(UsageError, match="what SGLang accepts cannot be counted live") as caught:
            act("ref", ["cand"], options)
        assert caught.value.why == "draftconv has no client for it"
        assert "--for vllm or trtllm" in caught.value.cure


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ({"offline": True}, "--offline has no meaning for sglang"),
        ({"launch": True, "also_speed": True}, "--also-speed has no meaning for sglang"),
    ],
)
def test_an_engine_that_only_has_a_client(
    mute: Callable[[Live | None], None], way: dict[str, object], told: str
) -> None:
    mute(bare())
    options = LiveOptions(engine="sglang", target="none", run=Path("run"), **way)  # type: ignore[arg-type]
    for act in (run, plan_live):
        with pytest.raises(UsageError, match=told):
            act("ref", ["cand"], options)
    for asked in (offline_of, generator_of):
        with pytest.raises(UsageError, match="has no meaning for sglang"):
            asked("sglang")


def test_switches_are_those_of_all_engines(mute: Callable[[Live | None], None]) -> None:
    assert list(variables()) == ["SGLANG_SIMULATE_ACC_LEN", "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"]
    whole = switches()
    mute(None)
    assert len(switches()) < len(whole)
    assert list(variables()) == ["TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"]
    refuse_switches((), {"SGLANG_SIMULATE_ACC_LEN": "2"})  # nobody knows what it is
