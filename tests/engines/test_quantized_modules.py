"""Names that engines match: what is built quantized and what plain, trap by trap."""

from __future__ import annotations

import pytest

from draftconv.drafter.facts import Facts, Gqa
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.module_names import modules
from draftconv.engines.quantized_modules import built
from draftconv.errors import BadCheckpoint
from tests.engines.cases import FC
from tests.engines.views import LLAMA, MLA, Header, vary

QWEN3 = vary(LLAMA, attention=Gqa(4, 2, 8, qk_norm=True))
TWO = vary(LLAMA, layers=2)
L = 8
LAYER = f"model.layers.{L}"
ALL = "all"

EIGHT_BIT = {"weight": {"dtype": "int8"}}


def compressed(*ignore: str, targets: tuple[str, ...] = ("Linear",)) -> dict[str, object]:
    groups = {"group_0": {"targets": list(targets)}}
    return {"quant_method": "compressed-tensors", "ignore": list(ignore), "config_groups": groups}


def quark(*exclude: str, **more: object) -> dict[str, object]:
    return {"quant_method": "quark", "exclude": list(exclude), "global_quant_config": EIGHT_BIT, **more}


def modelopt(*ignore: str, algorithm: str = "FP8", **more: object) -> dict[str, object]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": list(ignore), **more}


def gptq(*listed: object, **more: object) -> dict[str, object]:
    return {"quant_method": "gptq", "modules_in_block_to_quantize": list(listed), **more}


def awq(*plain: str, **more: object) -> dict[str, object]:
    return {"quant_method": "awq", "modules_to_not_convert": list(plain), **more}


def auto_round(**extra: object) -> dict[str, object]:
    return {"quant_method": "auto-round", "extra_config": extra}


def mixed(*listed: str) -> dict[str, object]:
    layers = {name: {"quant_algo": "FP8"} for name in listed}
    return modelopt(algorithm="MIXED_PRECISION", quantized_layers=layers)


def plain(spec: str, config: dict[str, object], facts: Facts = LLAMA, layers: int | None = L) -> set[str] | str:
    """Names of what is built plain, or the word for another outcome of the first module that has one."""
    found = built(parse_engine(spec), config, {}, facts, layers)
    assert found
    for made in found.values():
        if made.outcome in ("stops", "unknown"):
            return made.outcome
    return {module.name for module, made in found.items() if made.outcome == "plain"}


QKV, O, GATE_UP, DOWN = (  # noqa: E741
    f"{LAYER}.self_attn.qkv_proj", f"{LAYER}.self_attn.o_proj", f"{LAYER}.mlp.gate_up_proj", f"{LAYER}.mlp.down_proj",
)  # fmt: skip
HEAD = {"lm_head"}
BOTH = {"model.fc", "lm_head"}
LATENT = {f"{LAYER}.self_attn.{name}" for name in ("fused_qkv_a_proj", "q_b_proj", "kv_b_proj", "o_proj")}
TRT = "model.midlayer"


@pytest.mark.parametrize(
    ("spec", "facts", "config", "expected"),
    [
        # vLLM, compressed-tensors: equality or re:, no suffix
        ("vllm", LLAMA, compressed("lm_head", FC), BOTH),
        ("vllm", LLAMA, compressed("lm_head", "fc"), HEAD),
        ("vllm", LLAMA, compressed("*fc"), HEAD),
        ("vllm", LLAMA, compressed("model.fc"), BOTH),
        ("vllm", LLAMA, compressed("re:fc$"), HEAD),  # re: matches from the start
        ("vllm", LLAMA, compressed(FC, "midlayer.mlp.down_proj", "layers.0.mlp.down_proj"), BOTH),
        ("vllm", LLAMA, compressed(FC, DOWN), BOTH | {DOWN}),
        ("vllm", LLAMA, compressed(FC, r"re:.*\.(q|k|v)_proj$"), BOTH),  # no map of fused modules
        ("vllm", LLAMA, compressed(FC, "re:.*(q|k|v)_proj$"), BOTH | {QKV}),  # but qkv_proj ends in v_proj
        ("vllm", LLAMA, compressed(FC, "re:.*qkv_proj$"), BOTH | {QKV}),
        ("vllm", LLAMA, compressed(targets=(r"re:.*self_attn\..*_proj$", r"re:.*mlp\..*_proj$")), BOTH),
        ("vllm", LLAMA, compressed(targets=("re:midlayer.*",)), BOTH | {QKV, O, GATE_UP, DOWN}),
        ("vllm", LLAMA, compressed(FC, targets=("Linear", "re:.*lm_head$")), {"model.fc"}),
        ("vllm", LLAMA, compressed(FC, targets=("linear",)), BOTH),
        ("vllm", QWEN3, compressed(FC, "re:.*self_attn.*"), BOTH | {O}),  # its qkv_proj has no self_attn
        ("vllm", MLA, compressed(FC, "re:.*q_a_proj$"), {"model.fc"}),  # the fused name ends in qkv_a_proj
        ("vllm", MLA, compressed(FC, "re:.*qkv_a_proj$"), {"model.fc", f"{LAYER}.self_attn.fused_qkv_a_proj"}),
        # vLLM, Quark: no globs; the head never
        ("vllm", LLAMA, quark("*fc", "*lm_head"), HEAD),
        ("vllm", LLAMA, quark("fc", "lm_head"), HEAD),
        ("vllm", LLAMA, quark("re:.*fc$"), BOTH),
        ("vllm", LLAMA, quark(FC, layer_quant_config={"*down_proj": EIGHT_BIT}), BOTH),
        # vLLM, ModelOpt: part of the name, glob; the head too
        ("vllm", LLAMA, modelopt(), set()),
        ("vllm", LLAMA, modelopt("fc", "lm_head"), BOTH),
        ("vllm", LLAMA, modelopt("lm_head", "model*"), BOTH | {QKV, O, GATE_UP, DOWN}),
        ("vllm", LLAMA, modelopt("lm_head", "eagle_module.fc"), HEAD),
        ("vllm", LLAMA, modelopt("lm_head", "*.fc"), BOTH),
        ("vllm", LLAMA, modelopt("mlp"), {GATE_UP, DOWN}),
        ("vllm", LLAMA, mixed(f"{LAYER}.self_attn.q_proj", DOWN), BOTH | {O, GATE_UP}),
        ("vllm", LLAMA, mixed("model.midlayer.mlp.down_proj"), BOTH | {QKV, O, GATE_UP, DOWN}),
        # vLLM, GPTQ: parts of the fused names
        ("vllm", LLAMA, gptq("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"), BOTH),
        ("vllm", LLAMA, gptq(["self_attn.qkv_proj"], ["self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"]), BOTH),
        ("vllm", LLAMA, gptq("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj"),
         BOTH | {QKV, O, GATE_UP}),
        ("vllm", LLAMA, gptq(), HEAD),  # no list and no tensors to read one off
        ("vllm", LLAMA, gptq(lm_head=True, dynamic={"-:.*fc$": {}}), {"model.fc"}),
        # vLLM, AWQ
        ("vllm", LLAMA, awq("fc"), BOTH),
        ("vllm", LLAMA, awq("proj", "fc"), BOTH | {QKV, O, GATE_UP, DOWN}),
        ("vllm", LLAMA, awq("midlayer.mlp"), HEAD),
        # SGLang: other names; suffixes count
        ("sglang", LLAMA, compressed("lm_head"), HEAD),
        ("sglang", MLA, compressed("fc"), BOTH),
        ("sglang", MLA, compressed("re:.*kv_b_proj$", FC), BOTH | {"model.self_attn.kv_b_proj"}),
        ("sglang", LLAMA, compressed("mlp.down_proj"), HEAD),
        ("sglang", LLAMA, compressed("down_proj"), HEAD | {"model.down_proj"}),
        ("sglang", LLAMA, compressed("own_proj", "v_proj"), HEAD),  # of whole parts
        ("sglang", LLAMA, compressed(targets=(r"re:.*self_attn.*proj$",)), "stops"),
        ("sglang", LLAMA, compressed(targets=("Linear", "lm_head")), set()),
        ("sglang", MLA, quark("fc"), HEAD),
        ("sglang", MLA, quark("re:.*fc$"), BOTH),
        ("sglang", LLAMA, quark("re:.*gate_proj$", "re:.*up_proj$"), HEAD | {"model.gate_up_proj"}),
        ("sglang", LLAMA, quark("re:.*gate_proj$"), "stops"),
        ("sglang", LLAMA, quark("re:.*_proj_is_not_there", "re:.*q_proj$"), HEAD),
        ("sglang", LLAMA, modelopt("lm_head", "model*"), HEAD | {"model.qkv_proj", "model.self_attn.o_proj",
                                                               "model.gate_up_proj", "model.down_proj"}),
        ("sglang", MLA, modelopt("fc", "lm_head"), BOTH),
        ("sglang", MLA, modelopt("lm_head", "x.q_a_proj"), HEAD),  # the fused name holds kv_a_proj, no q_a_proj
        ("sglang", MLA, modelopt("lm_head", "x.kv_a_proj_with_mqa"),
         HEAD | {"model.self_attn.fused_qkv_a_proj_with_mqa"}),
        ("sglang", LLAMA, modelopt("lm_head", "model.q_proj"), "stops"),
        ("sglang", LLAMA, mixed("model.down_proj"), "unknown"),
        ("sglang", LLAMA, awq("o_proj"), HEAD | {"model.self_attn.o_proj"}),
        ("sglang", MLA, auto_round(**{"model.fc": {"bits": 16}}), BOTH),
        ("sglang", MLA, auto_round(**{".*fc": {"bits": 16}}), BOTH),
        ("sglang", MLA, auto_round(fc={"bits": 16}), HEAD),
        ("sglang", LLAMA, gptq("self_attn.q_proj"), HEAD),  # lists of modules are not read
        # TensorRT-LLM: midlayer, fnmatch
        ("trtllm", LLAMA, modelopt("lm_head", "model.fc"), BOTH),
        ("trtllm", LLAMA, modelopt("lm_head", "fc"), HEAD),
        ("trtllm", LLAMA, modelopt("lm_head", "*fc"), BOTH),
        ("trtllm", LLAMA, modelopt("lm_head", "re:.*fc"), BOTH),
        ("trtllm", LLAMA, modelopt("lm_head", "model.midlayer.mlp"), HEAD | {f"{TRT}.mlp.gate_up_proj",
                                                                           f"{TRT}.mlp.down_proj"}),
        ("trtllm", LLAMA, modelopt("lm_head", "model.midlayer.mlp.*"), HEAD | {f"{TRT}.mlp.gate_up_proj",
                                                                             f"{TRT}.mlp.down_proj"}),
        ("trtllm", LLAMA, modelopt("lm_head", "layers.0.*"), HEAD),
        ("trtllm", LLAMA, modelopt("lm_head", "*q_proj"), HEAD | {f"{TRT}.self_attn.qkv_proj"}),
        ("trtllm", LLAMA, mixed(f"{TRT}.self_attn.q_proj", f"{TRT}.self_attn.o_proj", f"{TRT}.mlp.gate_proj",
                                f"{TRT}.mlp.down_proj"), ALL),
        ("trtllm", LLAMA, mixed("midlayer.mlp.down_proj", "layers.0.self_attn.q_proj"), ALL),
        ("trtllm@1.2", LLAMA, modelopt("lm_head"), BOTH),  # fc takes no quantization there
        ("trtllm@1.2", LLAMA, modelopt("lm_head", "re:.*down_proj", "model.midlayer.mlp"), BOTH),
        ("trtllm@1.2", LLAMA, modelopt("lm_head", "*down_proj"), BOTH | {f"{TRT}.mlp.down_proj"}),
        ("trtllm", TWO, modelopt("lm_head", "model.fc", "model.midlayer.1.*"),
         BOTH | {f"{TRT}.1.{name}" for name in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj",
                                                "mlp.down_proj")}),
    ],
)  # fmt: skip
def test_what_is_built_plain(spec: str, facts: Facts, config: dict[str, object], expected: set[str] | str) -> None:
    if expected == ALL:
        expected = {module.name for module in modules(parse_engine(spec), facts, L)}
    assert plain(spec, config, facts) == expected


def test_names_per_engine() -> None:
    def names(spec: str, facts: Facts) -> list[str]:
        return [module.name for module in modules(parse_engine(spec), facts, 61)]

    assert names("vllm", MLA) == ["model.fc", *(f"model.layers.61.{name}" for name in (
        "self_attn.fused_qkv_a_proj", "self_attn.q_b_proj", "self_attn.kv_b_proj", "self_attn.o_proj",
        "mlp.gate_up_proj", "mlp.down_proj"))]  # fmt: skip
    assert names("sglang", LLAMA) == [
        "lm_head", "model.qkv_proj", "model.self_attn.o_proj", "model.gate_up_proj", "model.down_proj",
    ]  # fmt: skip
    assert names("vllm", TWO)[-1] == "model.layers.62.mlp.down_proj"
    shared = next(m for m in modules(parse_engine("sglang"), TWO, 61) if m.name == "model.down_proj")
    assert shared.parts == ("layers.0.mlp.down_proj", "layers.1.mlp.down_proj")
    assert not any("midlayer" in name for spec in ("vllm", "sglang") for name in names(spec, TWO))


def test_lists_read_off_the_tensors() -> None:
    """vLLM makes its own list from a file that has none; its names are the file's, so nothing is matched."""
    tensors = {f"midlayer.{part}.qweight": Header("I32", (1, 1)) for part in ("self_attn.q_proj", "mlp.down_proj")}
    tensors |= {"fc.weight": Header("BF16", (1, 1)), "midlayer.input_layernorm.weight": Header("BF16", (1,))}
    spec = parse_engine("vllm")
    made = built(spec, {"quant_method": "gptq"}, {}, LLAMA, L, tensors)
    assert {built.outcome for built in made.values()} == {"plain"}
    made = built(spec, {"quant_method": "awq"}, {}, LLAMA, L, tensors)
    assert [module.name for module, built in made.items() if built.outcome == "plain"] == ["model.fc", "lm_head"]


def test_the_sidecar_wins_in_tensorrt_llm_only() -> None:
    sidecars = {"hf_quant_config.json": {"quantization": {"quant_algo": "FP8", "exclude_modules": ["model.fc"]}}}
    config = modelopt("*down_proj")
    for name, fc in (("trtllm", "plain"), ("vllm", "quantized"), ("sglang", "quantized")):
        made = built(parse_engine(name), config, sidecars, MLA, L)
        assert {built.outcome for module, built in made.items() if module.name == "model.fc"} == {fc}
    made = built(parse_engine("vllm"), {}, sidecars, LLAMA, L)
    assert [module.name for module, built in made.items() if built.outcome == "plain"] == ["model.fc"]


def nested(*exclude: str, algorithm: str = "FP8", **more: object) -> dict[str, object]:
    """What ModelOpt 0.47 puts into config.json of a drafter: the legacy file's header."""
    return {"producer": {"name": "modelopt"}, **more,
            "quantization": {"quant_algo": algorithm, "exclude_modules": list(exclude)}}  # fmt: skip


def test_sglang_loses_the_list_of_a_nested_header() -> None:
    """Where it names the method after the algorithm itself; a method that is written leaves the header as it is."""
    everything = ("lm_head", "model*")
    projections = {"model.qkv_proj", "model.self_attn.o_proj", "model.gate_up_proj", "model.down_proj"}
    assert plain("sglang", nested(*everything)) == set()
    assert plain("sglang", nested(*everything, quant_method="modelopt")) == set()
    assert plain("sglang", nested(*everything, ignore=["lm_head"])) == HEAD
    assert plain("sglang", nested(*everything, quant_method="modelopt_fp8")) == HEAD | projections
    assert plain("sglang", nested(*everything, algorithm="NVFP4")) == set()
    assert plain("sglang", nested(*everything, algorithm="NVFP4", quant_method="modelopt_fp4")) == HEAD | projections
    assert plain("vllm", nested(*everything)) == BOTH | {QKV, O, GATE_UP, DOWN}


def test_nothing_is_said_of_methods_without_a_rule() -> None:
    for name in ENGINES:
        assert built(parse_engine(name), {"quant_method": "strange"}, {}, LLAMA, L) == {}
        assert built(parse_engine(name), {}, {}, LLAMA, L) == {}


@pytest.mark.parametrize("config", [quark(), {"quant_method": "bitsandbytes"}, {"quant_method": "gptq"}])
def test_methods_that_have_no_branch_in_tensorrt_llm(config: dict[str, object]) -> None:
    parts = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    assert plain("trtllm", config) == BOTH | {f"{TRT}.{part}" for part in parts}


@pytest.mark.parametrize("pattern", ["(a+)+$", "(.*)*x", ".*.*.*.*.*x", "a?a?a?a?a?b", r"(.)\1", "x" * 2000])
def test_patterns_that_could_take_for_ever_are_not_tried(pattern: str) -> None:
    assert plain("vllm", compressed(f"re:{pattern}")) == "unknown"
    assert plain("vllm", compressed("re:.*(q|k|v)?_proj.*$", FC)) != "unknown"


@pytest.mark.parametrize(
    ("engine", "config", "made"),
    [
        ("vllm", compressed("re:("), "stops"),
        ("vllm", compressed("re:.*", "re:("), BOTH | {QKV, O, GATE_UP, DOWN}),  # matched before it is tried
        ("vllm", quark("re:("), "stops"),
        ("vllm", {**quark(FC), "global_quant_config": {"weight": None}}, "stops"),
        ("sglang", compressed("re:("), "stops"),
        ("sglang", auto_round(**{"(fc": {"bits": 16}}), HEAD),  # passed over
        ("sglang", {**quark(), "layer_quant_config": {"*down_proj": {"weight": None}}}, "stops"),
        ("sglang", {**quark(), "layer_quant_config": {"*nothing": {"weight": None}}}, HEAD),
        ("trtllm", modelopt("re:("), "stops"),
    ],
)
def test_what_no_engine_can_follow(engine: str, config: dict[str, object], made: set[str] | str) -> None:
    assert plain(engine, config) == made


def test_a_list_of_something_else_is_an_error() -> None:
    with pytest.raises(BadCheckpoint, match="ignore is not a list of names"):
        plain("vllm", {**compressed(), "ignore": [1]})


def test_a_reason_is_given() -> None:
    made = built(parse_engine("vllm"), compressed(FC), {}, LLAMA, L)
    reasons = {module.name: built.because for module, built in made.items()}
    assert reasons["model.fc"] == f"ignore: {FC}"
    assert reasons["lm_head"] == "no target matches it"
    assert reasons[DOWN] == "targets: Linear"
