"""Clients against servers that answer as documented, and in every broken way that could pass for an answer.

For SGLang and TensorRT-LLM this is all: they were not run on the engines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftconv import limits
from draftconv.engines.client import Client, RequestSettings
from draftconv.engines.http import Http
from draftconv.engines.sglang.client import SglangServer
from draftconv.engines.trtllm.client import TrtllmServer
from draftconv.engines.vllm.client import VllmServer
from draftconv.engines.vllm.counters import read_counters
from draftconv.errors import EngineError, UsageError, Void
from draftconv.live.capabilities import live_of
from draftconv.reference.accept_length import Counts
from draftconv.reference.sampling import Sampling
from tests.engines.stub import Reply, Stub, serving, steps, text

PROMPT, LENGTH = [3, 1, 4, 1, 5], 40
WAYS = {"vllm": {}, "vllm totals": {"per_request": False}, "sglang": {}, "trtllm": {}}


def stub(way: str, **changes: Any) -> Stub:
    engine: Any = way.split()[0]
    return Stub(engine, **{**WAYS[way], **changes})


def client(served: Stub, timeout: float = 5) -> Client:
    made = live_of(served.engine).connect(served.url, "--url", RequestSettings(3, LENGTH, timeout=timeout))
    if isinstance(made, VllmServer | TrtllmServer):
        made.settling, made.rest = 0.3, 0.05
    return made


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_has_text_and_counts_of_its_request(way: str) -> None:
    with serving(stub(way, lag=2)) as served:
        asked = client(served)
        told = asked.served(PROMPT)
        assert (told.target.rsplit("/")[-1], told.version) == ("llama", "9.9")
        assert told.alone == (way in ("vllm totals", "trtllm"))
        for prompt in (PROMPT, [7], PROMPT):
            answer, made = asked.ask(prompt), steps(prompt, LENGTH, 0.7, 3)
            if way == "trtllm":  # the last step is counted up to the end of the text
                made[-1] -= 1 + len(made) + sum(made) - LENGTH
            assert answer.tokens == tuple(text(prompt, LENGTH))
            assert answer.counts == Counts.of(made, 3)


@pytest.mark.parametrize("way", WAYS)
def test_requests_are_greedy_and_hold_the_very_ids(way: str) -> None:
    with serving(stub(way)) as served:
        asked = client(served)
        asked.served(PROMPT)
        asked.ask(PROMPT)
        body = served.asked[-1]
        sampling = body.get("sampling_params", body)
        assert (sampling["temperature"], sampling["ignore_eos"], sampling["repetition_penalty"]) == (0, True, 1)
        assert body.get("prompt", body.get("input_ids")) == PROMPT


@pytest.mark.parametrize("way", WAYS)
def test_drawn_text_is_asked_for_alike_on_every_arm(way: str) -> None:
    """The seed is the prompt's own, so that what shares a batch with it makes no difference."""
    warm = Sampling(0.7, top_p=0.9, seed=5)
    with serving(stub(way)) as served:
        asked = live_of(served.engine).connect(served.url, "--url", RequestSettings(3, LENGTH, sampling=warm))
        asked.served(PROMPT)
        asked.ask(PROMPT)
        body = served.asked[-1]
    sampling = body.get("sampling_params", body)
    assert (sampling["temperature"], sampling["top_p"], sampling["repetition_penalty"]) == (0.7, 0.9, 1)
    assert sampling["top_k"] == (-1 if way == "sglang" else 0)  # every token
    assert sampling["sampling_seed" if way == "sglang" else "seed"] == warm.seed_of(PROMPT)
    assert warm.seed_of(PROMPT) != replace(warm, seed=6).seed_of(PROMPT) != warm.seed_of([7])


@pytest.mark.parametrize(
    ("told", "room"),
    [
        ({}, 1020),  # a context of 1024, and drafts of one step
        ({"context_length": 1024}, 1020),
        ({"context_length": 4096}, 1022),  # the KV cache holds less
        ({"speculative_num_draft_tokens": 2}, 1022),
        ({"context_length": 1024, "max_req_input_len": None}, 1024),
        ({"max_req_input_len": None}, None),
    ],
)
def test_the_room_of_sglang_is_what_surely_fits(told: dict[str, object], room: int | None) -> None:
    with serving(Stub("sglang", info=told)) as served:
        assert client(served).served(PROMPT).room == room


@pytest.mark.parametrize("way", WAYS)
def test_another_depth(way: str) -> None:
    with (
        serving(stub(way, depth=4)) as served,
        pytest.raises(EngineError, match="drafts 4 tokens per step, --num-speculative-tokens"),
    ):
        client(served).served(PROMPT)


def test_no_drafter() -> None:
    def bare(reply: Reply) -> Reply:
        kept = ("prompt_tokens", "finish_reason")
        return {**reply, "meta_info": {name: reply["meta_info"][name] for name in kept}}

    cases = [Stub("vllm", per_request=False), Stub("sglang", change=bare), Stub("trtllm")]
    for case in cases:
        with serving(case) as served:
            served.made = Deaf()
            with pytest.raises(Void, match="reports no drafts"):
                client(served).served(PROMPT)


class Deaf(list[int]):
    """Steps that never reach the counters."""

    def __iadd__(self, _: object) -> Deaf:  # type: ignore[override,misc]
        return self


def test_a_server_without_any_counters() -> None:
    with serving(Stub("vllm", per_request=False)) as served:
        served._counters = lambda: "vllm:num_requests_running 0.0"  # type: ignore[method-assign]
        with pytest.raises(Void, match="reports no drafts"):
            client(served).served(PROMPT)


def edit(*path: str | int, value: object = None, drop: bool = False) -> Callable[[Reply], Reply]:
    """Answers with one place changed."""

    def change(reply: Reply) -> Reply:
        place: Any = reply
        for key in path[:-1]:
            place = place[key]
        if drop:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        return reply

    return change


COUNTS, META = ("metrics", "speculative_decoding"), ("meta_info",)


@pytest.mark.parametrize(
    ("way", "change", "kind", "told"),
    [
        ("vllm", edit(*COUNTS, "acceptance_histogram", value=[1, 1, 1, 1]), Void, "its histogram 4 and 6"),
        ("vllm", edit(*COUNTS, "acceptance_histogram", value=[0, 0, 0, 0, 9]), Void, "steps with 4 accepted"),
        ("vllm", edit(*COUNTS, "num_spec_steps", value=999), Void, "999 steps"),
        ("vllm", edit(*COUNTS, "num_accepted_draft_tokens", drop=True), EngineError, "no metrics.speculative_decoding"),
        ("vllm", edit("choices", 0, "token_ids", drop=True), EngineError, "no token_ids"),
        ("vllm", edit("choices", 0, "token_ids", value=[1, 2]), EngineError, "generated 2 tokens, 40"),
        ("vllm", edit("choices", 0, "prompt_token_ids", value=[1]), Void, "another prompt"),
        ("vllm", edit("choices", value=[]), EngineError, "has no choices"),
        ("vllm", lambda _: b"<html>", EngineError, "does not answer as vLLM does"),
        ("sglang", edit(*META, "spec_correct_drafts_histogram", value=[1]), Void, "its histogram 1 and 0"),
        ("sglang", edit(*META, "spec_correct_drafts_histogram", value=[0] * 5 + [8]), Void, "steps with 5 accepted"),
        ("sglang", edit(*META, "spec_num_correct_drafts", value=0), Void, "0 accepted tokens, its histogram"),
        ("sglang", edit(*META, "spec_correct_drafts_histogram", drop=True), EngineError, "before mid-2026"),
        ("sglang", edit(*META, "prompt_tokens", value=6), Void, "a prompt of 6 tokens"),
        ("sglang", edit("output_ids", drop=True), EngineError, "no output_ids"),
        ("trtllm", edit("choices", 0, "token_ids", drop=True), EngineError, "no token_ids"),
        ("trtllm", edit("usage", "prompt_tokens", value=4), Void, "a prompt of 4 tokens"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none(way: str, change: Callable[[Reply], object], kind: type[Exception], told: str) -> None:
    with serving(stub(way)) as served:
        asked = client(served)
        asked.served(PROMPT)
        served.change = change
        with pytest.raises(kind, match=told):
            asked.ask(PROMPT)


@pytest.mark.parametrize("way", ["vllm", "vllm totals", "sglang"])
def test_a_text_of_one_token_has_no_steps(way: str) -> None:
    """The target ends at once; SGLang then leaves every count out."""

    def ended(reply: Reply) -> Reply:
        for place in (reply, *reply.get("choices", [])):
            for name in {"token_ids", "output_ids"} & {*place}:
                place[name] = place[name][:1]
        if counts := (reply.get("metrics") or {}).get("speculative_decoding"):
            counts |= {"acceptance_histogram": [0] * 4, "num_spec_steps": 0, "num_accepted_draft_tokens": 0}
        if meta := reply.get("meta_info"):
            reply["meta_info"] = {
                **{k: v for k, v in meta.items() if "spec" not in k},
                "finish_reason": {"type": "stop"},
            }
        return reply

    with serving(stub(way)) as served:
        asked = live_of(served.engine).connect(
            served.url, "--url", RequestSettings(3, LENGTH, ignore_eos=False, timeout=5)
        )
        asked.served(PROMPT)
        probe = served.asked[-1]
        assert probe.get("sampling_params", probe)["ignore_eos"] is True  # or it might show no draft
        served.change, served.made = ended, Deaf()
        if isinstance(asked, VllmServer):
            asked.seen = None
        answer = asked.ask(PROMPT)
        assert (len(answer.tokens), answer.counts) == (1, Counts((0, 0, 0, 0)))


@pytest.mark.parametrize(("finish", "taken"), [("stop", True), ("length", False)])
def test_a_token_is_hidden_only_where_it_stopped_the_text(finish: str, taken: bool) -> None:
    """Counts that make one token more than the last step can accept beyond the end: SGLang keeps the one that ends."""
    histogram = (0, 0, 1, 10)

    def one_more(reply: Reply) -> Reply:
        counts = {"spec_verify_ct": 11, "spec_num_correct_drafts": 32, "spec_correct_drafts_histogram": [*histogram]}
        return {**reply, "meta_info": {**reply["meta_info"], **counts, "finish_reason": {"type": finish}}}

    with serving(stub("sglang")) as served:
        asked = client(served)
        asked.served(PROMPT)
        served.change = one_more
        assert 1 + Counts(histogram).steps + Counts(histogram).accepted == LENGTH + 3 + 1
        if taken:
            assert asked.ask(PROMPT).counts == Counts(histogram)
        else:
            with pytest.raises(Void, match="make 44 tokens, the text has 40"):
                asked.ask(PROMPT)


def test_iterations_of_before_are_not_anybody_elses() -> None:
    with serving(stub("trtllm")) as served:
        served.made += [1, 2, 3]
        asked = client(served)
        asked.served(PROMPT)
        assert asked.ask(PROMPT).tokens == tuple(text(PROMPT, LENGTH))


def test_more_accepted_than_reported_as_drafted() -> None:
    """TensorRT-LLM leaves token 0 out of the drafted ones."""
    with serving(stub("trtllm")) as served:
        iterations = served._iterations

        def fewer() -> list[Reply]:
            found = iterations()
            for row in found:
                stats = row["specDecodingStats"]
                stats["numDraftTokens"] = min(1, stats["numDraftTokens"])
            return found

        asked = client(served)
        asked.served(PROMPT)
        expected = asked.ask(PROMPT)
        served._iterations = fewer  # type: ignore[method-assign]
        assert asked.ask(PROMPT) == expected


def test_records_that_something_else_takes_away() -> None:
    with serving(stub("trtllm")) as served:
        asked = client(served)
        asked.served(PROMPT)
        iterations = served._iterations
        served._iterations = lambda: iterations()[::2]  # type: ignore[method-assign]
        with pytest.raises(Void, match="records account for") as caught:
            asked.ask(PROMPT)
        assert "return_perf_metrics" in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"[" * 100_000, "/metrics is nested too deeply"),
        (b'[{"a": 1, "a": 2}]', "/metrics has the key a twice"),
        (b"\xff", "/metrics is not UTF-8 text"),
        (b"", "/metrics is not valid JSON"),
        (b"{}", "/metrics is no list of iterations"),
    ],
)
def test_records_that_are_none(raw: bytes, what: str) -> None:
    with serving(stub("trtllm")) as served:
        served._iterations = lambda: raw  # type: ignore[method-assign, assignment, return-value]
        with pytest.raises(EngineError) as caught:
            client(served).served(PROMPT)
        assert what in str(caught.value)


@pytest.mark.parametrize("way", ["vllm totals", "trtllm"])
def test_a_request_that_broke_off_spoils_no_other(way: str) -> None:
    """Its steps are still counted when it is sent again."""
    with serving(stub(way)) as served:
        asked = client(served)
        asked.served(PROMPT)
        expected = asked.ask(PROMPT)
        served.failures = [0]
        with pytest.raises(EngineError, match="failed"):
            asked.ask(PROMPT)
        served.made += [1, 1]
        assert asked.ask(PROMPT) == expected


def test_a_router_that_knows_no_version() -> None:
    with serving(stub("vllm")) as served:
        get = served.get
        served.get = lambda path: None if path == "/version" else get(path)  # type: ignore[method-assign]
        assert client(served).served(PROMPT).version == "of unknown version"


def test_counters_that_do_not_tell_when_they_were_created() -> None:
    line = 'vllm:spec_decode_num_{}{{engine="0"}} 0.0'
    lines = [line.format("drafts_total"), line.format("accepted_tokens_total")]
    found = read_counters("\n".join([*lines, "process_start_time_seconds 1763.5"]))
    assert found
    assert found.born == "1763.5"


@pytest.mark.parametrize("way", ["vllm totals", "trtllm"])
def test_somebody_else_uses_the_server(way: str) -> None:
    with serving(stub(way)) as served:
        asked = client(served)
        asked.served(PROMPT)
        served.made.append(2)
        with pytest.raises(Void, match="drafted between two requests"):
            asked.ask(PROMPT)

        def crowd(reply: Reply) -> Reply:
            served.made += [1] * 9
            return reply

        served.change = crowd
        with pytest.raises(Void, match=r"steps with .* accepted tokens make"):
            asked.ask(PROMPT)


def test_a_server_that_was_started_again() -> None:
    with serving(stub("vllm totals")) as served:
        asked = client(served)
        asked.served(PROMPT)
        served.made.clear()
        for _ in range(2):  # whatever it is asked then, it may hold another drafter
            with pytest.raises(Void, match="counters went backwards"):
                asked.ask(PROMPT)
        asked.served(PROMPT)
        served.born = "2.0"
        with pytest.raises(Void, match="counters went backwards"):
            asked.ask(PROMPT)


def test_counters_of_several_engines_are_added() -> None:
    lines = []
    for engine in (0, 1):
        names = (("num_drafts_total", "", 5), ("num_accepted_tokens_total", "", 6),
                 ("num_accepted_tokens_per_pos_total", ',position="0"', 4),
                 ("num_accepted_tokens_per_pos_total", ',position="1"', 2))  # fmt: skip
        lines += [f'vllm:spec_decode_{name}{{engine="{engine}"{label}}} {n}.0' for name, label, n in names]
    found = read_counters("\n".join(lines))
    assert found
    assert (found.drafts, found.accepted, found.reached) == (10, 12, (8, 4))
    assert found.since(found) == Counts((0, 0, 0))
    assert read_counters("vllm:other{} 1.0") is None


@pytest.mark.parametrize("line", ["vllm:spec_decode_num_drafts_total{} NaN", "vllm:spec_decode_num_drafts_total{} 1.5"])
def test_a_count_that_is_none(line: str) -> None:
    with serving(Stub("vllm", per_request=False)) as served:
        served._counters = lambda: line  # type: ignore[method-assign]
        with pytest.raises(EngineError, match="a count of"):
            client(served).served(PROMPT)


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ({"speculative_algorithm": "EAGLE"}, "speculative_algorithm is EAGLE, not EAGLE3"),
        ({"speculative_algorithm": None}, "not EAGLE3"),
        ({"speculative_eagle_topk": 4}, "speculative_eagle_topk 4"),
        ({"speculative_accept_threshold_acc": 0.5}, "threshold_acc 0.5"),
        ({"speculative_adaptive": True}, "speculative_adaptive True"),
        ({"speculative_use_block_verification": True}, "block_verification True"),
    ],
)
def test_an_sglang_server_that_drafts_otherwise(info: dict[str, object], told: str) -> None:
    with serving(Stub("sglang", info=info)) as served, pytest.raises(EngineError, match=told):
        client(served).served(PROMPT)


def test_sglang_under_its_older_address() -> None:
    with serving(Stub("sglang")) as served:
        get = served.get
        served.get = lambda path: get(path.replace("/get_", "/")) if "get_" in path else None  # type: ignore[method-assign]
        assert isinstance(asked := client(served), SglangServer)
        assert asked.served(PROMPT).drafter == "/models/drafter"


@pytest.mark.parametrize(
    ("stats", "told"),
    [
        ({"numRequestsWithDraftTokens": 2}, "drafted for 2 requests"),
        ({"numAcceptedTokens": -1}, "accepted -1 tokens"),
        ({"numAcceptedTokens": None}, "lacks drafted tokens"),
    ],
)
def test_trtllm_records_that_are_not_one_requests(stats: dict[str, object], told: str) -> None:
    record = {"numDraftTokens": 3, "numAcceptedTokens": 1, "numRequestsWithDraftTokens": 1, **stats}
    with serving(Stub("trtllm")) as served:
        served._iterations = lambda: [{"specDecodingStats": record}]  # type: ignore[method-assign]
        with pytest.raises((Void, EngineError), match=told):
            client(served).served(PROMPT)


def test_trtllm_needs_fixed_lengths_that_it_remembers() -> None:
    http = Http("http://127.0.0.1:1")
    with pytest.raises(UsageError, match="--natural-stop cannot be measured"):
        TrtllmServer(http, RequestSettings(3, 64, ignore_eos=False))
    with pytest.raises(UsageError, match="remembers 1000"):
        TrtllmServer(http, RequestSettings(3, 1001))


def test_counters_are_waited_for_as_long_as_the_table_says() -> None:
    for engine in ("vllm", "trtllm"):
        made = live_of(engine).connect("http://127.0.0.1:1", "--url", RequestSettings(3, 16))
        assert made.settling == limits.COUNTERS.value  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_hangs(way: str) -> None:
    with serving(stub(way)) as served:
        asked = client(served, timeout=0.3)
        asked.served(PROMPT)
        served.hang = 2.0
        with pytest.raises(EngineError, match=r"ReadTimeout|took more than 0\.3 s"):
            asked.ask(PROMPT)


def test_a_server_that_wants_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(stub("vllm", key="secret")) as served:
        with pytest.raises(EngineError, match="status 401") as caught:
            client(served).served(PROMPT)
        assert "DRAFTCONV_API_KEY" in caught.value.cure
        monkeypatch.setenv("DRAFTCONV_API_KEY", "secret")
        assert client(served).served(PROMPT).version == "9.9"


def test_an_address_as_other_clients_want_it() -> None:
    with serving(stub("vllm")) as served:
        asked = live_of("vllm").connect(f"{served.url}/v1", "--url", RequestSettings(3, LENGTH))
        with pytest.raises(EngineError, match="status 404") as caught:
            asked.served(PROMPT)
    assert caught.value.cure == "leave /v1 out of the address"


def test_nobody_listens() -> None:
    asked = live_of("vllm").connect("http://127.0.0.1:9", "--url-ref", RequestSettings(3, LENGTH))
    with pytest.raises(EngineError, match="Connection refused"):
        asked.served(PROMPT)
    with pytest.raises(UsageError, match="--url holds a name or a password") as caught:
        live_of("vllm").connect("http://me:secret@127.0.0.1:9", "--url", RequestSettings(3, LENGTH))
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="--url-ref nonsense is no address"):
        live_of("vllm").connect("nonsense", "--url-ref", RequestSettings(3, LENGTH))
