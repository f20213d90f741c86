"""Where no engine is named: an output is for as many as one directory can serve, and says why it is not for others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.api.convert import convert
from draftconv.api.convert import prepare as plan_convert
from draftconv.api.inspect import inspect
from draftconv.api.quantize import Quantization, prepare
from draftconv.api.verify import verify
from draftconv.conversion import quantization_plan
from draftconv.conversion.calibration import Calibration
from draftconv.conversion.options import ConvertOptions, QuantizeOptions
from draftconv.conversion.readers import LeftOut, for_most, portable_engines
from draftconv.drafter.boundaries import IDS as KEY
from draftconv.drafter.facts import Gqa, Mla
from draftconv.engines import ENGINES, Engine
from draftconv.engines.rules import Rule
from draftconv.errors import Refused, Undecided
from draftconv.layouts.base import Writing
from draftconv.layouts.config_json import explicit_config
from draftconv.quantization.recipes import recipe_names
from tests import quantized, tiny
from tests.api.test_convert import portable_spelling
from tests.quantized import Written
from tests.traces.recorded import Recorded

ALL = {"vllm", "sglang", "trtllm"}


@pytest.fixture
def uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes with static activations are planned as if they had been calibrated."""
    monkeypatch.setattr(quantization_plan, "_refuse_uncalibrated", lambda *_: None)
    monkeypatch.setattr(quantization_plan, "calibrate", lambda *_: Calibration())


def grown(name: str, path: Path) -> Path:
    """A variant whose weights are of whole groups, as headers that draftconv's own layout spells."""
    variant = tiny.VARIANTS[name]
    facts = variant.facts
    match facts.attention:
        case Gqa() as attention:
            wider: Gqa | Mla = replace(attention, head_dim=32)
        case attention:
            wider = replace(attention, q_lora=attention.q_lora and 128, kv_lora=128, nope=24, v=32)
    sizes = {"hidden": 128, "target_hidden": 2 * facts.target_hidden, "intermediate": 256}
    facts = replace(facts, attention=wider, **sizes)  # type: ignore[arg-type]
    spelled = portable_spelling(replace(variant, facts=facts))
    written = Writing(facts, facts.boundaries or None, None, {}, "bfloat16")  # type: ignore[arg-type]
    config = dict(explicit_config(written)) | {"_draftconv_layout": "vllm", KEY: spelled.config[KEY]}
    return replace(spelled, config=config).write(path)


def split(found: Quantization) -> tuple[set[str], set[str]]:
    """The engines that it is for, and the others."""
    verdicts = found.conversion.verdicts
    assert all(verdict.status == "loads" for verdict in verdicts)
    assert all(left.why for left in found.conversion.left_out)
    return {verdict.spec.name for verdict in verdicts}, {left.engine for left in found.conversion.left_out}


VLLM, SGLANG, TRTLLM = {"vllm"}, {"sglang"}, {"trtllm"}
READ: Mapping[str, set[str]] = {
    "fp8": VLLM | SGLANG,
    **dict.fromkeys(("fp8-all", "int8-all", "w4a16-g128-all"), VLLM | SGLANG),
    "fp8-tensor": ALL,
    "mxfp4": VLLM,
    "nvfp4": ALL,
    "quark-w4a8": set(),
    "w4a16": VLLM | SGLANG,
    "w4a16-awq": TRTLLM,
    "w4a16-g128": VLLM | SGLANG,
    "w4a16-g128-gptq": VLLM | SGLANG,
    "w4a16-gptq": VLLM | SGLANG,
    "w4a8": VLLM,
    "w4a8-awq": TRTLLM,
    "w4a8-fp8": VLLM,
}
"""Recipe → the engines with a kernel for the form that most of them read."""

HELD: Mapping[str, set[str]] = {
    **dict.fromkeys(("bias", "qkv-bias", "mlp-bias"), VLLM | TRTLLM),
    **dict.fromkeys(("qk-norm", "three-layers-qk-norm", "window", "norm-before-residual"), VLLM),
    "fc-bias": TRTLLM,
    **dict.fromkeys(("mla-reduced", "mla-frequency"), VLLM | SGLANG),
    "mla-plain-q": set(),
}
"""Drafter → the engines that can hold it; all where it is not named."""

APART = {"two-layers": (VLLM, TRTLLM), "every-bias": (VLLM, TRTLLM)}
"""Drafters that engines can hold, each under names of its own: the first that has a kernel is written for."""


def readers(name: str, recipe: str) -> set[str]:
    rounded = name == "f32" and recipe.startswith("w4a16")  # scales like the weights, and SGLang has the model's own
    switched_off = name.startswith("mla") and recipe == "nvfp4"
    read = READ[recipe] - (SGLANG if rounded or switched_off else set())
    if recipe.endswith("-all"):  # vLLM's MLA class has a plain head, SGLang's Llama class a plain fc
        read = SGLANG if name.startswith("mla") else VLLM
    if name in APART:
        return next((engine for engine in APART[name] if engine <= read), set())
    return HELD.get(name, ALL) & read


@pytest.mark.usefixtures("uncalibrated")
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_every_recipe_is_written_for_those_that_read_it(name: str, tmp_path: Path) -> None:
    source = grown(name, tmp_path / "source")
    for recipe in recipe_names():
        wanted = readers(name, recipe)
        if not wanted and (READ[recipe] or not HELD.get(name, ALL)):
            with pytest.raises(Refused) as caught:
                prepare(source, QuantizeOptions(recipe=recipe))
            assert caught.value.cure, recipe
            continue
        found = prepare(source, QuantizeOptions(recipe=recipe))
        assert split(found) == (wanted, ALL - wanted), recipe
        if name not in HELD and name not in APART:  # nothing but the weights speaks against any engine
            assert found.conversion.layout.id == "portable", recipe
        assert [line for line in found.warnings if line.startswith("not for ")] == [
            f"not for {ENGINES[left.engine].title}: {left.why}" for left in found.conversion.left_out
        ]


def test_who_does_not_read_it_is_printed_recorded_and_on_the_card(tmp_path: Path) -> None:
    source = grown("mla-reduced", tmp_path / "source")
    with pytest.raises(Refused, match="TensorRT-LLM cannot load a reduced vocabulary beside MLA"):
        plan_convert(source, ConvertOptions(to="portable"))
    done = convert(source, tmp_path / "out")
    why = done.left_out[0].why
    assert [(left.engine, why.partition(":")[0]) for left in done.left_out] == [
        ("trtllm", "TensorRT-LLM cannot load a reduced vocabulary beside MLA")
    ]
    assert f"Warning: not for TensorRT-LLM: {why}" in [*done.blocks()]
    record = json.loads((tmp_path / "out/draftconv.json").read_text())
    assert record["left_out"] == [{"engine": "trtllm", "why": why}]
    assert record["options"]["to"] == record["layout"] == "portable"
    card = (tmp_path / "out/README.md").read_text()
    assert "trtllm does not read it: TensorRT-LLM cannot load" in card
    assert "--for vllm" in card
    assert "--for trtllm" not in card
    statuses = {v.spec.name: v.status for v in inspect(tmp_path / "out").verdicts}
    assert statuses == {"vllm": "loads", "sglang": "loads", "trtllm": "refused"}
    assert verify(tmp_path / "out", source).engines == tuple(verdict.spec for verdict in done.verdicts)


def test_what_every_engine_reads_is_what_portable_writes(tmp_path: Path) -> None:
    source = grown("llama", tmp_path / "source")
    for name, options in (("named", {"to": "portable"}), ("not", {})):
        assert convert(source, tmp_path / name, **options).left_out == ()  # type: ignore[arg-type]
    for file in (tmp_path / "named").iterdir():
        assert file.read_bytes() == (tmp_path / "not" / file.name).read_bytes(), file.name


def test_several_engines_that_are_named_need_not_suit_a_third(tmp_path: Path) -> None:
    source = grown("mla-reduced", tmp_path / "source")
    found = prepare(source, QuantizeOptions(recipe="w4a16", engines=("vllm:h100", "sglang:h100")))
    assert split(found) == (VLLM | SGLANG, set())


@pytest.mark.parametrize("form", ["compressed-pack", "gptq", "modelopt-awq"])
def test_portable_packs_only_what_every_engine_has_a_kernel_for(form: str, written: Written) -> None:
    name = "llama-eagle3-reduced"
    source, target = written(name, "quark-w4a8"), str(quantized.DATA / "targets/llama")
    with pytest.raises(Refused, match="would not read these quantized weights") as caught:
        plan_convert(source, ConvertOptions(to="portable", pack=form, target=target, allow_lossy=True))
    assert "one directory for every engine" in caught.value.why
    assert "--dequantize" in caught.value.cure
    found = plan_convert(source, ConvertOptions(pack=form, target=target, allow_lossy=True))
    kept = {verdict.spec.name for verdict in found.verdicts}
    assert kept == (TRTLLM if form == "modelopt-awq" else VLLM | SGLANG)
    assert {left.engine for left in found.left_out} == ALL - kept


def test_what_every_engine_has_a_kernel_for_is_packed_for_all(tmp_path: Path, recorded: Recorded) -> None:
    name, target = "llama-eagle3-reduced", str(quantized.DATA / "targets/llama")
    quantized.write(tmp_path / "fp8", name, "fp8-tensor", "trtllm:h100", trace=recorded("llama", count=2, length=8))
    found = plan_convert(tmp_path / "fp8", ConvertOptions(to="portable", pack="modelopt-fp8", target=target))
    assert {verdict.spec.name: verdict.status for verdict in found.verdicts} == dict.fromkeys(ALL, "loads")


def test_the_most_engines_are_kept_and_the_reason_is_of_those_kept() -> None:
    tried: list[str] = []

    def plan(engines: Sequence[Engine], left_out: tuple[LeftOut, ...]) -> tuple[str, ...]:
        tried.append("+".join(engine.name for engine in engines))
        if "vllm" in tried[-1]:
            raise Refused("vLLM stops", why=f"in {tried[-1]}")
        return tuple(map(str, left_out))

    assert for_most(portable_engines(), plan) == ("not for vLLM: vLLM stops: in vllm+sglang+trtllm",)
    assert tried == ["vllm+sglang+trtllm", "vllm+sglang", "vllm+trtllm", "sglang+trtllm"]


def test_each_engine_is_left_out_for_its_own_reason() -> None:
    def plan(engines: Sequence[Engine], left_out: tuple[LeftOut, ...]) -> tuple[str, ...]:
        if engines[0].name != "trtllm":
            raise Refused(f"{engines[0].title} stops")
        return tuple(map(str, left_out))

    assert for_most(portable_engines(), plan) == ("not for vLLM: vLLM stops", "not for SGLang: SGLang stops")


def test_a_fault_that_is_of_no_engine_is_told_as_it_is() -> None:
    def broken(_engines: Sequence[Engine], _left_out: tuple[LeftOut, ...]) -> None:
        raise Refused("the drafter is broken", cure="mend it")

    with pytest.raises(Refused, match=r"^the drafter is broken\nmend it$"):
        for_most(portable_engines(), broken)

    def apart(engines: Sequence[Engine], _left_out: tuple[LeftOut, ...]) -> None:
        raise Refused(f"{engines[0].title} stops", cure="mend it")

    with pytest.raises(Refused, match="no engine reads this drafter so written") as caught:
        for_most(portable_engines(), apart)
    assert caught.value.why.startswith("not for vLLM: vLLM stops; not for SGLang: SGLang stops; ")


def test_what_the_target_would_tell_stops_and_leaves_nobody_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rule = Rule("sglang-toss", "undecided", "the target decides", "a coin", "inferred", lambda _: "heads or tails")
    monkeypatch.setitem(ENGINES.by_name, "sglang", replace(ENGINES["sglang"], rules=(rule,)))
    source = tiny.spell("llama", "torchspec-native").write(tmp_path / "source")
    target = tiny.write_target(tmp_path / "target")
    with pytest.raises(Undecided, match="the target decides: heads or tails") as caught:
        plan_convert(source)
    assert caught.value.cure == "give --target"
    assert [left.engine for left in plan_convert(source, ConvertOptions(target=str(target))).left_out] == ["sglang"]
