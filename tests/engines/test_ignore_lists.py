"""Lists written for an engine are matched by it as they were meant."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from draftconv.drafter.facts import Facts, Gqa
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import expected
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.ignore_lists import ignore_names, module_names, wide_modules, wide_names
from draftconv.engines.quantized_modules import built
from draftconv.engines.rules import EngineSpec
from draftconv.errors import Refused, Undecided
from draftconv.quantization.exclusions import select
from draftconv.quantization.recipes import FormatName, Recipe, find_recipe
from tests.engines.views import FACTS, KIMI_TARGET, LLAMA, LLAMA_TARGET, MLA, vary

RECIPE = find_recipe("w4a16")
VARIANTS = {
    "llama": LLAMA,
    "qwen3": vary(LLAMA, attention=Gqa(4, 2, 8, qk_norm=True)),
    "two layers": FACTS["llama, two layers"],
    "mla": MLA,
}
PAIRS: list[tuple[str, FormatName]] = list(
    dict.fromkeys((name, kernel.format) for name, engine in ENGINES.items() for kernel in engine.kernels)
)


def declared(
    engine: str, form: FormatName, ignore: tuple[str, ...], listed: tuple[str, ...]
) -> tuple[Mapping[str, object], Mapping[str, Mapping[str, object]]]:
    """quantization_config and sidecars that carry these lists."""
    config: dict[str, object]
    match form.split("-")[0]:
        case "compressed":
            config = {"quant_method": "compressed-tensors", "ignore": list(ignore),
                      "config_groups": {"group_0": {"targets": ["Linear"]}}}  # fmt: skip
        case "quark":
            config = {"quant_method": "quark", "exclude": list(ignore), "global_quant_config": {"weight": {"a": 1}}}
        case "gptq":
            rules: dict[str, object] = {rule: {} for rule in ignore}
            config = {"quant_method": "gptq", "modules_in_block_to_quantize": list(listed), "dynamic": rules}
        case "autoawq" if engine == "sglang":
            config = {"quant_method": "auto-round", "extra_config": {name: {"bits": 16} for name in ignore}}
        case "autoawq":
            config = {"quant_method": "awq", "modules_to_not_convert": list(ignore)}
        case _ if listed and engine != "trtllm":  # it is given one algorithm for all
            layers = {name: {"quant_algo": "FP8"} for name in listed}
            section = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "exclude_modules": list(ignore)}
            return {}, {"hf_quant_config.json": {"quantization": section}}
        case _:
            config = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": list(ignore)}
    return config, {}


def lists(
    spec: EngineSpec, form: FormatName, facts: Facts, recipe: Recipe, target: Target | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    selection = select(recipe, facts)
    return (
        ignore_names(spec, form, facts, selection.kept, target),
        module_names(spec, form, facts, selection.quantized, target),
    )


@pytest.mark.parametrize("exclude", [(), ("layers.*.mlp.down_proj",), ("layers.*.self_attn.*",), ("layers.0.mlp.*",)])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("engine", "form"), PAIRS)
def test_what_is_written_is_what_is_matched(
    engine: str, form: FormatName, variant: str, exclude: tuple[str, ...]
) -> None:
    facts, spec = VARIANTS[variant], parse_engine(engine)
    target = KIMI_TARGET if variant == "mla" else LLAMA_TARGET
    recipe = Recipe("mine", "", RECIPE.scheme, (*RECIPE.exclude, *exclude))
    quantized = {name.removesuffix(".weight") for name in select(recipe, facts).quantized}
    try:
        ignore, listed = lists(spec, form, facts, recipe, target)
    except Refused:
        # SGLang's two layers have one name
        assert (engine, variant, exclude) == ("sglang", "two layers", ("layers.0.mlp.*",))
        return
    config, sidecars = declared(engine, form, ignore, listed)
    for module, made in built(spec, config, sidecars, facts, target.layers).items():
        parts = set(module.parts)
        assert made.outcome == ("quantized" if parts <= quantized else "plain"), (module.name, made, ignore)
        assert parts <= quantized or parts.isdisjoint(quantized)


def test_names_as_they_should_be() -> None:
    def ignored(spec: str, form: FormatName, facts: Facts) -> tuple[str, ...]:
        return lists(parse_engine(spec), form, facts, RECIPE, None)[0]

    assert ignored("vllm", "compressed-pack", LLAMA) == (r"re:.*\bfc$", "lm_head")
    assert ignored("vllm", "quark-int4", MLA) == (
        r"re:.*\bfc$", r"re:.*\bself_attn\.fused_qkv_a_proj$", r"re:.*\bself_attn\.kv_b_proj$",
    )  # fmt: skip
    assert ignored("sglang", "compressed-pack", LLAMA) == ("lm_head",)
    assert ignored("trtllm", "modelopt-awq", MLA) == (
        "model.fc", "lm_head", "model.midlayer.self_attn.kv_a_proj_with_mqa", "model.midlayer.self_attn.kv_b_proj",
    )  # fmt: skip
    assert ignored("vllm", "gptq", LLAMA) == ()
    assert lists(parse_engine("vllm"), "gptq", LLAMA, RECIPE, None)[1] == (
        "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj",
    )  # fmt: skip
    listed = lists(parse_engine("trtllm"), "modelopt-awq", LLAMA, RECIPE, None)[1]
    assert listed[:4] == tuple(f"model.midlayer.self_attn.{part}_proj" for part in "qkvo")
    assert len(listed) == 7


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", sorted({form for _, form in PAIRS}))
def test_no_list_holds_names_of_the_checkpoint(form: FormatName, variant: str) -> None:
    """What no matcher finds: midlayer outside TensorRT-LLM, layer 0 anywhere."""
    facts = VARIANTS[variant]
    selection = select(RECIPE, facts)
    for engine in (engine for engine, other in PAIRS if other == form):
        ignore, listed = lists(parse_engine(engine), form, facts, RECIPE, None)
        names = " ".join((*ignore, *listed))
        assert not re.search(r"(^|[ .])layers\.0\.", names)
        assert engine == "trtllm" or "midlayer" not in names
        assert set(ignore) <= set(wide_names(form, facts, selection.kept))


@pytest.mark.parametrize(("engine", "form"), [("vllm", "compressed-pack"), ("sglang", "compressed-pack"),
                                              ("vllm", "modelopt-fp8"), ("sglang", "modelopt-fp8"),
                                              ("trtllm", "modelopt-fp8")])  # fmt: skip
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_wide_list_serves_each_of_its_engines(engine: str, form: FormatName, variant: str) -> None:
    facts = VARIANTS[variant]
    selection = select(RECIPE, facts)
    config, sidecars = declared(engine, form, wide_names(form, facts, selection.kept), ())
    for module, made in built(parse_engine(engine), config, sidecars, facts, 8).items():
        kept = not {f"{part}.weight" for part in module.parts} & set(selection.quantized)
        assert (made.outcome == "plain") == kept, (module, made)


def test_the_wide_list_of_modules_is_that_of_whoever_reads_one() -> None:
    quantized = select(RECIPE, LLAMA).quantized
    readers: tuple[tuple[FormatName, str], ...] = (("gptq", "vllm"), ("modelopt-awq", "trtllm"))
    for form, engine in readers:
        assert wide_modules(form, LLAMA, quantized) == module_names(parse_engine(engine), form, LLAMA, quantized) != ()
    assert wide_modules("compressed-pack", LLAMA, quantized) == ()


def test_of_several_schemes_each_lists_its_modules() -> None:
    quantized = select(RECIPE, LLAMA).quantized

    def listed(engine: str, form: FormatName, target: Target | None = LLAMA_TARGET) -> tuple[str, ...]:
        return module_names(parse_engine(engine), form, LLAMA, quantized, target, parted=True)

    assert listed("vllm", "compressed-pack", None)[0] == r"re:.*\bself_attn\.qkv_proj$"
    assert listed("sglang", "compressed-pack", None)[0] == r"re:.*\bqkv_proj$"
    assert listed("vllm", "modelopt-fp8")[0] == "model.layers.8.self_attn.qkv_proj"
    assert listed("trtllm", "modelopt-fp8", None)[0] == "model.midlayer.self_attn.q_proj"
    with pytest.raises(Undecided, match="depends on the target"):
        listed("vllm", "modelopt-fp8", None)
    both = wide_modules("compressed-pack", LLAMA, quantized, parted=True)
    assert set(both) == {*listed("vllm", "compressed-pack"), *listed("sglang", "compressed-pack")}


def test_layers_that_differ_need_the_target_in_vllm() -> None:
    facts = FACTS["llama, two layers"]
    kept = [name for name in expected(facts) if name.startswith("layers.0.mlp.")]
    with pytest.raises(Undecided, match="--target"):
        ignore_names(parse_engine("vllm"), "compressed-pack", facts, kept)
    assert ignore_names(parse_engine("vllm"), "compressed-pack", facts, kept, LLAMA_TARGET) == (
        r"re:.*\bmodel\.layers\.8\.mlp\.gate_up_proj$", r"re:.*\bmodel\.layers\.8\.mlp\.down_proj$",
    )  # fmt: skip
    with pytest.raises(Refused, match=r"one name to sglang: model\.gate_up_proj"):
        ignore_names(parse_engine("sglang"), "compressed-pack", facts, kept)


def test_a_torn_group_is_refused() -> None:
    with pytest.raises(Refused, match="quantize both or neither"):
        module_names(parse_engine("vllm"), "gptq", LLAMA, ["layers.0.self_attn.q_proj.weight"])
