"""Names of engines, and promises that hold for every rule of every engine."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from dataclasses import replace
from typing import get_args

import pytest

from draftconv.drafter.kinds.eagle3 import KIND as EAGLE3
from draftconv.engines import ENGINES, EngineSpec, ServeRequest, parse_engine
from draftconv.engines.engine import UNQUANTIZED, Engine
from draftconv.engines.module_names import ModuleNames
from draftconv.engines.replays import Misreading, NoReplay
from draftconv.engines.rules import Rule
from draftconv.errors import Refused, UsageError
from tests.engines.cases import judged
from tests.engines.views import LLAMA, LLAMA_TARGET, FakeView, written

RULES = [(engine.name, rule) for engine in ENGINES.by_name.values() for rule in engine.rules]


def test_engines_in_order() -> None:
    assert list(ENGINES) == ["vllm", "sglang", "trtllm"]
    assert list(ENGINES.by_name) == [*ENGINES, "llamacpp"]


@pytest.mark.parametrize("text", ["llamacpp", "llama.cpp", "LLAMACPP@10158"])
def test_one_that_is_only_named_is_parsed_for_a_verdict_alone(text: str) -> None:
    assert parse_engine(text, reading=True).name == "llamacpp"
    with pytest.raises(UsageError, match="for `inspect --for` alone") as caught:
        parse_engine(text)
    assert "one of vllm, sglang, trtllm here" in str(caught.value.cure)


def test_an_engine_that_is_only_named_is_in_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES.by_name, "toy", toy(UNQUANTIZED))
    assert list(ENGINES)[-1] == "toy"
    monkeypatch.setitem(ENGINES.by_name, "toy", replace(toy(UNQUANTIZED), only_named=True))
    assert ("toy" in list(ENGINES), len(ENGINES), ENGINES["toy"].title) == (False, 3, "Toy")


def test_an_engine_without_a_command_or_names() -> None:
    engine = Engine("toy", "Toy", 99, "1.0", "1.0", (), (KEPT,), ENGINES["vllm"].read)
    with pytest.raises(Refused, match="how toy is started is not known"):
        engine.command(ServeRequest("out", LLAMA, LLAMA_TARGET), EngineSpec("toy", "1.0"))
    assert (engine.names.layer, engine.names.once) == ({"llama": ()}, {"llama": ()})


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("vllm", EngineSpec("vllm", "0.33.0")),
        ("vllm@0.22", EngineSpec("vllm", "0.22")),
        ("vllm:cpu", EngineSpec("vllm", "0.33.0", "cpu")),
        ("trtllm@1.2:b200", EngineSpec("trtllm", "1.2", "b200")),
        ("sglang:mi325x", EngineSpec("sglang", "0.5.23", "mi325x")),
    ],
)
def test_parse(text: str, spec: EngineSpec) -> None:
    assert parse_engine(text) == spec
    assert parse_engine(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vlm", "did you mean vllm"),
        ("vllm@latest", "not a version"),
        ("sglang:cpu", "not known to run on cpu"),
        ("vllm:", "not known to run on nothing"),
    ],
)
def test_parse_errors(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_engine(text)


BESIDE_MISREADINGS = {"vllm-indexer-cpu": "refused"}
"""Rules that stand where their kin do, with another effect."""


@pytest.mark.parametrize("engine", ENGINES.by_name)
@pytest.mark.parametrize(
    ("part", "effects"), [("refusals", {"refused"}), ("misreadings", {"mis-read"}), ("notes", {"note", "undecided"})]
)
def test_a_rule_has_the_effect_of_the_list_it_stands_in(engine: str, part: str, effects: set[str]) -> None:
    rules = list(importlib.import_module(f"draftconv.engines.{engine}.{part}").RULES)
    others = {rule.code: rule.effect for rule in rules if rule.effect not in effects}
    assert rules
    assert others.items() <= BESIDE_MISREADINGS.items()


def test_versions_compare_by_number() -> None:
    assert parse_engine("vllm@0.9").before(0, 22)
    assert not parse_engine("vllm@0.22").before(0, 22)
    assert not parse_engine("vllm@0.22.1").before(0, 22)
    assert parse_engine("trtllm@1.2.1").before(1, 3)


def test_codes_are_unique_and_name_their_engine() -> None:
    codes = [rule.code for _, rule in RULES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(rf"{engine}-[a-z0-9-]+", rule.code) for engine, rule in RULES)


@pytest.mark.parametrize("rule", [rule for _, rule in RULES], ids=lambda rule: rule.code)
def test_a_rule_cites_a_file_and_a_version(rule: Rule) -> None:
    assert re.search(r"\d", rule.source), rule.source
    assert re.search(r"\.py|/|transformers", rule.source), rule.source
    assert not rule.says.endswith(".")
    assert rule.since < rule.until or not (rule.since and rule.until)


def test_the_worst_effect_is_the_status() -> None:
    view = written(LLAMA, "vllm", LLAMA_TARGET)
    assert judged("vllm", view, LLAMA, LLAMA_TARGET).status == "loads"
    view = view.set(rms_norm_eps=1e-6)
    assert judged("vllm", view, LLAMA, LLAMA_TARGET).status == "mis-read"
    view = view.set(architectures=["Unknown"])
    assert judged("vllm", view, LLAMA, LLAMA_TARGET).status == "refused"


def toy(*covers: str) -> Engine:
    """An engine whose one rule is never broken and that reads a directory as vLLM does."""
    vllm = ENGINES["vllm"]
    methods = {method: vllm.methods["modelopt"] for method in covers if method != UNQUANTIZED}
    return Engine(
        "toy", "Toy", 99, "1.0", "1.0", ("cpu",), (KEPT,), vllm.read, vllm.command, vllm.names, (EAGLE3,), covers,
        methods=methods,
    )  # fmt: skip


KEPT = Rule("toy-kept", "refused", "it is always kept", "toy.py, 1.0", "run", lambda _: None)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "ac:me"}, "a name is small letters"),
        ({"version": "1.0rc1"}, "version is numbers and dots, not '1.0rc1'"),
        ({"version": None}, "version is numbers and dots, not None"),
        ({"hardware": "cpu"}, "hardware is a tuple of str"),
        ({"hardware": ("cpu", "tpu9")}, "hardware has no tpu9"),
        ({"kinds": EAGLE3}, "kinds is a tuple of DrafterKind"),
        ({"covers": "fp8"}, "covers is a tuple of str"),
        (
            {"covers": (UNQUANTIZED, "fp8"), "methods": {}},
            "it covers fp8, and methods does not say how its lists match",
        ),
        ({"methods": {"fp8": print}}, "methods are of the class Method"),
        ({"kernels": (ENGINES["vllm"].kernels[0],)}, "a kernel for gfx942, which no hardware of it has"),
        ({"layouts": ("vllm",)}, "layouts is a tuple of Layout"),
        ({"replaces": "embed_tokens"}, "replaces is a str"),
        ({"live": print}, "live is a builtin_function_or_method"),
        ({"names": ModuleNames("layers.{}", {}, {})}, "names have a row for llama"),
        ({"only_named": True, "live": ENGINES["vllm"].live}, "it is only_named, and has layouts, kernels, live"),
        ({"rules": ()}, "it covers drafters and has no rule"),
        (
            {"rules": (replace(KEPT, effect="misread"),)},  # type: ignore[arg-type]
            "rule toy-kept has effect 'misread'",
        ),
        ({"rules": (replace(KEPT, evidence="seen"),)}, "and evidence 'seen'"),  # type: ignore[arg-type]
        ({"rules": (KEPT, KEPT)}, "a code starts with the engine's name, and stands for one rule"),
        ({"rules": (replace(KEPT, code="vllm-kept"),)}, "rule vllm-kept: a code starts with the engine's name"),
    ],
)
def test_an_engine_that_contradicts_itself_is_none(changes: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        replace(toy(UNQUANTIZED), **changes)  # type: ignore[arg-type]


def declared(method: str) -> FakeView:
    """FP8 weights that a method is declared for."""
    view = written(LLAMA, "vllm", LLAMA_TARGET).retype("F8_E4M3", "mlp.down_proj")
    return view.set(quantization_config={"quant_method": method})


@pytest.mark.parametrize(
    ("covers", "stored", "status"),
    [
        ((), None, "undecided"),
        ((UNQUANTIZED,), None, "loads"),
        ((UNQUANTIZED,), "fp8", "undecided"),
        (("fp8",), "fp8", "loads"),
        (("fp8",), None, "undecided"),
    ],
)
def test_what_an_engine_does_not_cover_is_undecided(covers: tuple[str, ...], stored: str | None, status: str) -> None:
    view = declared(stored) if stored else written(LLAMA, "vllm", LLAMA_TARGET)
    truth = replace(LLAMA, quantization=stored)
    verdict = toy(*covers).check(view, truth, LLAMA_TARGET, EngineSpec("toy", "1.0"))
    assert verdict.status == status
    assert [line.rule.code for line in verdict.lines] == ["toy-uncovered"] * (status == "undecided")


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_a_method_without_rules_does_not_load(engine: Engine) -> None:
    verdict = judged(engine.name, declared("bitsandbytes"), replace(LLAMA, quantization="bitsandbytes"), LLAMA_TARGET)
    assert verdict.status != "loads"
    assert UNQUANTIZED in engine.covers


def test_what_is_refused_is_not_undecided_too() -> None:
    view = declared("bitsandbytes").set(architectures=["Unknown"])
    verdict = judged("vllm", view, replace(LLAMA, quantization="bitsandbytes"), LLAMA_TARGET)
    assert verdict.status == "refused"
    assert "vllm-uncovered" not in {line.rule.code for line in verdict.lines}


def test_a_verdict_lists_the_rules_of_its_version_only() -> None:
    view = written(LLAMA, "vllm", LLAMA_TARGET)
    new = {rule.code for rule in judged("vllm", view, LLAMA, LLAMA_TARGET, "@0.33").rules}
    old = {rule.code for rule in judged("vllm", view, LLAMA, LLAMA_TARGET, "@0.21").rules}
    assert "vllm-eagle31" in old - new
    assert "vllm-norm-output" in new - old


def test_judging_needs_no_heavy_library() -> None:
    code = "import sys, draftconv.engines; print({'torch', 'numpy', 'yaml', 'huggingface_hub'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


# ── what a mis-reading computes ────────────────────────────────────────────────────

MISREAD = [rule for _, rule in RULES if rule.effect == "mis-read"]


@pytest.mark.parametrize("rule", MISREAD, ids=lambda rule: rule.code)
def test_a_rule_that_misreads_says_what_is_then_computed(rule: Rule) -> None:
    match rule.replay:
        case NoReplay(why):
            assert why
        case names:
            assert names
            assert set(names) <= set(get_args(Misreading))


def test_nothing_but_a_misreading_has_a_replay() -> None:
    assert {rule.effect for _, rule in RULES if rule.replay} == {"mis-read"}


def test_an_engine_that_declares_no_replay_is_an_engine() -> None:
    """Of a package of somebody else, written before there were any."""
    assert toy(UNQUANTIZED).rules[0].replay == ()


def test_a_replay_that_is_none_is_refused() -> None:
    unknown = replace(MISREAD[0], code="toy-odd", replay=("nobody's",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='rule toy-odd is replayed as "nobody\'s", which is no mis-reading'):
        replace(toy(UNQUANTIZED), rules=(KEPT, unknown))
