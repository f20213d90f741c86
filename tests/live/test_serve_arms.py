"""Who answers: servers that differ in more than their drafter, or are not those they should be, and switched ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftconv.api.live import LiveOptions, live_parity
from draftconv.drafter.targets import find_target
from draftconv.errors import EngineError, Void
from draftconv.live.arms import arms_of
from draftconv.report.verdict import Gate
from tests.keywords import keywords
from tests.live.asked import REF, TARGET, judged, served

# ── servers ────────────────────────────────────────────────────────────────────────


def test_one_way_of_counting_for_all_arms(options: LiveOptions, cand: Path) -> None:
    with (
        served("vllm", {}, {"per_request": False}) as (ref, other),
        pytest.raises(EngineError, match="served with way of counting"),
    ):
        judged(options, ref, other, cand)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"target": "mla"}, "served with target mla, the reference with llama"),
        ({"version": "9.10"}, "served with version 9.10"),
        ({"cache": "fp8"}, "served with server, cache_dtype fp8, the reference with auto"),
        ({"depth": 5}, "drafts 5 tokens per step, --num-speculative-tokens asks for 3"),
        ({"born": "1.0"}, "is the one that answered for llama-eagle3.1"),
    ],
)
def test_another_engine_behind_the_candidate(
    change: dict[str, Any], told: str, options: LiveOptions, cand: Path
) -> None:
    with served("vllm", {}, change) as (ref, other), pytest.raises(EngineError, match=told):
        judged(options, ref, other, cand)


def test_sglang_serves_the_same_drafter_twice(options: LiveOptions, cand: Path) -> None:
    with (
        served("sglang", {}, {"drafter": "ref"}) as (ref, other),
        pytest.raises(EngineError, match="is the one that answered for"),
    ):
        judged(replace(options, engine="sglang"), ref, other, cand)


def test_servers_in_the_wrong_order(options: LiveOptions, cand: Path) -> None:
    with (
        served("sglang", {"drafter": "cand"}, {"drafter": "llama-eagle3.1"}) as (ref, other),
        pytest.raises(EngineError, match="drafts with /models/cand, it should with llama"),
    ):
        judged(replace(options, engine="sglang"), ref, other, cand)


# ── switches ───────────────────────────────────────────────────────────────────────


def test_a_switch_is_refused_before_anything_starts(options: LiveOptions, cand: Path) -> None:
    faked = replace(options, launch=True, server_args=('--speculative-config={"synthetic_acceptance_length": 3}',))
    with pytest.raises(Void, match="synthetic_acceptance"):
        live_parity(REF, [cand], **keywords(faked))


@pytest.mark.parametrize("ours", [True, False], ids=["our environment", "an option"])
@pytest.mark.parametrize(("value", "on"), [("1", True), ("0.5", True), ("yes", True), ("0", False), ("-1", False)])
def test_a_server_that_would_be_started_inherits_what_we_have(
    ours: bool, value: str, on: bool, options: LiveOptions, cand: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = {"SGLANG_SIMULATE_ACC_LEN": value}
    if ours:
        monkeypatch.setenv(*next(iter(switch.items())))
    environment: Mapping[str, str] = {} if ours else switch
    launched = replace(options, launch=True, environment=environment, engine_python=Path("/nowhere/python"))
    with pytest.raises(Void if on else EngineError, match="SGLANG_SIMULATE_ACC_LEN" if on else "cannot be started"):
        live_parity(REF, [cand], **keywords(launched))


# ── arms ───────────────────────────────────────────────────────────────────────────


def test_arms_are_gated_as_live_ones(options: LiveOptions, cand: Path) -> None:
    """Two runs of an engine hardly count alike to the last step, so a conversion has a margin."""
    goal = find_target(str(TARGET), None)
    assert goal is not None
    url = replace(options, url="http://127.0.0.1:9")
    assert [arm.gate for arm in arms_of(REF, [cand], goal, url, None)] == [None, None, Gate(0.005)]
    wide = replace(url, margin=0.02)
    assert [arm.gate for arm in arms_of(REF, [cand], goal, wide, None)] == [None, None, Gate(0.02)]
