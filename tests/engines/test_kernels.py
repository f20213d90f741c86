"""Which format serves a recipe where: a table without holes, and refusals that lead somewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftconv.engines import ENGINES, EngineSpec, parse_engine
from draftconv.engines.deployed import Deployment
from draftconv.engines.deployment import NEAREST, nearest, resolve, widest
from draftconv.engines.hardware import CHIPS, named
from draftconv.engines.kernels import Gap
from draftconv.errors import Refused, Undecided
from draftconv.quantization.recipes import FORMATS, Recipe, find_recipe, recipe_names
from draftconv.quantization.scheme import InputScheme, Scheme, WeightScheme
from tests.engines.views import LLAMA, MLA

CELLS = [(recipe, engine, hardware) for recipe in recipe_names() for engine in ENGINES for hardware in CHIPS]
CELLS = [cell for cell in CELLS if cell[2] in ENGINES[cell[1]].hardware]


def found(recipe: str, spec: str, *, allow_a16: bool = False) -> Deployment:
    return resolve(find_recipe(recipe), parse_engine(spec), allow_a16=allow_a16)


def refusal(recipe: str | Recipe, spec: str) -> Refused:
    with pytest.raises(Refused) as caught:
        resolve(find_recipe(recipe) if isinstance(recipe, str) else recipe, parse_engine(spec))
    return caught.value


@pytest.mark.parametrize("mla", [False, True])
@pytest.mark.parametrize(("recipe", "engine", "hardware"), CELLS)
def test_every_cell_is_served_or_leads_to_one_that_is(recipe: str, engine: str, hardware: str, mla: bool) -> None:
    spec, facts = EngineSpec(engine, "1", hardware), MLA if mla else LLAMA
    try:
        deployment = resolve(find_recipe(recipe), spec, facts=facts)
    except Refused as error:
        assert error.why
        name = nearest(find_recipe(recipe), engine, hardware, mla=mla)
        assert name is not None
        assert f"--recipe {name} " in error.cure
        assert resolve(find_recipe(name), spec, facts=facts)
    else:
        assert deployment.format in FORMATS
        assert deployment.style is None or deployment.style in FORMATS[deployment.format]
        assert deployment.scheme == find_recipe(recipe).scheme
        assert deployment.executed
        assert deployment.source


def test_hardware_is_what_the_engines_say() -> None:
    for engine in ENGINES.values():
        chips = {chip for kernel in engine.kernels for chip in kernel.chips}
        assert engine.hardware == named(*chips)


def test_every_row_is_reached() -> None:
    """A kernel behind another of the same form, or a gap behind a kernel, would be dead."""
    forms = [(engine.name, chip, kernel.format, kernel.style, held, kernel.inputs)
             for engine in ENGINES.values() for kernel in engine.kernels
             for chip in kernel.chips for held in kernel.holds]  # fmt: skip
    assert len(forms) == len(set(forms))
    names = {name for names in NEAREST.values() for name in names}
    assert names <= set(recipe_names())


@pytest.mark.parametrize(
    "gap",
    [pytest.param(gap, id=f"{name}-{gap.why[:30]}") for name, engine in ENGINES.items() for gap in engine.gaps],
)
def test_gaps_speak_of_schemes_that_there_are(gap: Gap) -> None:
    schemes = [find_recipe(name) for name in recipe_names()]
    schemes.append(own("int8", "group", group=32, rule="mse"))
    schemes.append(own("int4", "channel", "fp8", "tensor"))
    hit = [
        recipe.name for recipe in schemes for chip in set(CHIPS.values()) for mla in (False, True)
        if gap.holds(recipe.scheme, recipe.format, chip, mla=mla)
    ]  # fmt: skip
    assert hit


# ── the answers that were asked for ────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("recipe", "spec", "form", "words"),
    [
        ("w4a16", "vllm:mi325x", "compressed-pack", "16-bit arithmetic (TritonW4A16)"),
        ("w4a16", "sglang:b200", "compressed-pack", "16-bit arithmetic (Marlin)"),
        ("w4a8", "vllm:mi325x", "compressed-pack", "4-bit storage, 16-bit arithmetic"),
        ("w4a8", "vllm:b200", "compressed-pack", "ignores the activation scheme"),
        ("w4a8", "vllm:cpu", "compressed-int", "INT8 arithmetic"),
        ("w4a8-fp8", "vllm:h200", "compressed-pack", "FP8 arithmetic"),
        ("w4a8-awq", "trtllm:h200", "modelopt-awq", "FP8 arithmetic"),
        ("w4a16-awq", "trtllm:b200", "modelopt-awq", "16-bit arithmetic"),
        ("w4a16-g128", "trtllm:h100", "modelopt-awq", "16-bit arithmetic"),
        ("fp8", "sglang:mi325x", "compressed-float", "FP8 arithmetic"),
        ("fp8", "vllm:cpu", "compressed-float", "FP8 arithmetic"),
        ("fp8-tensor", "trtllm", "modelopt-fp8", "FP8 arithmetic"),
        ("nvfp4", "vllm:b200", "modelopt-nvfp4", "FP4 arithmetic"),
        ("nvfp4", "vllm:h200", "modelopt-nvfp4", "16-bit arithmetic"),
        ("mxfp4", "vllm:mi350", "quark-mxfp4", "MXFP4 weights times FP8"),
    ],
)
def test_what_is_executed(recipe: str, spec: str, form: str, words: str) -> None:
    deployment = found(recipe, spec)
    assert deployment.format == form
    assert words in deployment.executed


@pytest.mark.parametrize(
    ("recipe", "spec", "why", "name"),
    [
        ("w4a8", "trtllm:b200", "INT4 with static FP8", "w4a8-awq"),
        ("w4a8", "sglang:b200", "weight-only", "w4a16"),
        ("w4a8", "sglang:mi325x", "ROCm", "fp8"),
        ("w4a16", "sglang:mi325x", "ROCm", "fp8"),
        ("w4a16-g128", "sglang:mi350", "ROCm", "fp8"),
        ("w4a16", "trtllm:h200", "64 or 128", "w4a16-awq"),
        ("w4a16-awq", "vllm:h200", "rounded", "w4a16-g128"),
        ("w4a8-fp8", "vllm:b200", "Hopper only", "w4a16-g128"),
        ("w4a8-awq", "vllm:h200", "W4A8_AWQ", "w4a8-fp8"),
        ("nvfp4", "trtllm:h200", "Blackwell", "w4a8-awq"),
        ("nvfp4", "vllm:mi350", "emulated", "mxfp4"),
        ("mxfp4", "vllm:b200", "MI350 only", "nvfp4"),
        ("fp8", "trtllm:b200", "Hopper only", "fp8-tensor"),
        ("fp8-tensor", "sglang:mi325x", "ROCm", "fp8"),
        ("fp8-tensor", "vllm:cpu", "no silu_and_mul_quant", "fp8"),
    ],
)
def test_what_is_refused_and_what_is_nearest(recipe: str, spec: str, why: str, name: str) -> None:
    error = refusal(recipe, spec)
    assert why in error.why
    assert error.cure.startswith(f"--recipe {name} ")


def test_activations_are_dropped_only_when_allowed() -> None:
    assert "--allow-a16" in refusal("w4a8", "sglang:b200").cure
    deployment = found("w4a8", "sglang:b200", allow_a16=True)
    assert deployment.format == "compressed-pack"
    assert deployment.scheme == replace(find_recipe("w4a8").scheme, inputs=None)
    assert any("INT8 per token, dynamic was left out" in note for note in deployment.notes)
    assert "--allow-a16" not in refusal("w4a8", "sglang:mi325x").cure
    assert found("w4a8", "vllm:b200", allow_a16=True) == found("w4a8", "vllm:b200")


def test_the_seed_is_served_nowhere_and_repacked_where_its_integers_fit() -> None:
    for engine, form in (("vllm:mi325x", "compressed-pack"), ("sglang:h200", "compressed-pack"),
                         ("trtllm:b200", "modelopt-awq"), ("vllm", "compressed-pack")):  # fmt: skip
        name = engine.partition(":")[0]
        assert refusal("quark-w4a8", engine).cure.endswith(f"draftconv convert OUT OUT2 --to {name} --pack {form}")
    # no kernel for its integers there in any format: 16 bits again
    cure = refusal("quark-w4a8", "sglang:mi325x").cure
    assert cure.endswith("draftconv convert OUT OUT2 --to sglang --dequantize")
    assert "positive group_size" in refusal("quark-w4a8", "vllm:cpu").why
    assert widest(find_recipe("quark-w4a8")).format == "quark-int4"
    assert widest(find_recipe("quark-w4a8")).style == "reorder"


def test_nvfp4_is_not_for_latent_attention_on_sglang() -> None:
    spec = parse_engine("sglang:b200")
    assert resolve(find_recipe("nvfp4"), spec, facts=LLAMA).format == "modelopt-nvfp4"
    with pytest.raises(Refused, match="MLA drafter class"):
        resolve(find_recipe("nvfp4"), spec, facts=MLA)


def test_what_only_latent_attention_is_served_with() -> None:
    spec = parse_engine("vllm:cpu")
    assert resolve(find_recipe("fp8-tensor"), spec, facts=MLA).evidence == "run"
    with pytest.raises(Refused, match="has no form on vLLM on cpu"):
        resolve(find_recipe("fp8-tensor"), spec, facts=LLAMA)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("vllm:b200", None),
        ("vllm@0.33:b200", None),
        ("vllm@0.22:b200", "kernels are those of vLLM 0.33.0; 0.22 was not looked at"),
        ("vllm@0.22", "kernels are those of vLLM 0.33.0; 0.22 was not looked at"),
    ],
)
def test_kernels_of_another_release_are_not_claimed(spec: str, told: str | None) -> None:
    notes = [note for note in found("w4a8", spec).notes if "looked at" in note]
    assert notes == ([told] if told else [])


def test_what_was_run_is_not_cited_from_a_release_that_was_not() -> None:
    ran = [kernel.source for engine in ENGINES.values() for kernel in engine.kernels if kernel.evidence == "run"]
    assert ran
    assert all(source.endswith(", 0.32.0") for source in ran)


def test_tensorrt_llm_is_given_one_algorithm_in_every_format() -> None:
    """Under MIXED_PRECISION it builds every module of a drafter plain."""
    assert {kernel.style for kernel in ENGINES["trtllm"].kernels} == {"plain"}


class TestWithoutHardware:
    def test_one_form_for_all(self) -> None:
        deployment = found("w4a8", "vllm")
        assert deployment.format == "compressed-pack"
        for words in ("CPUWNA16", "h100, h200: ", "b200: ", "TritonW4A16"):
            assert words in deployment.executed
        assert deployment.evidence == "read"

    def test_a_choice_is_asked_for(self) -> None:
        with pytest.raises(Undecided) as caught:
            found("w4a8-fp8", "vllm")
        assert caught.value.cure == "name the hardware: vllm:h100, vllm:h200"
        assert "mi325x: none" in caught.value.why

    def test_hardware_that_would_drop_activations_is_not_mixed_with_one_that_keeps_them(self) -> None:
        with pytest.raises(Undecided):
            found("w4a8-fp8", "vllm", allow_a16=True)

    def test_none_at_all(self) -> None:
        assert refusal("mxfp4", "trtllm").cure.count("--recipe") == 2  # one for Hopper, one for Blackwell


class TestWidest:
    @pytest.mark.parametrize(
        ("recipe", "form"),
        [
            ("w4a16", "compressed-pack"), ("w4a16-g128", "compressed-pack"), ("w4a8", "compressed-pack"),
            ("w4a8-fp8", "compressed-pack"), ("w4a8-awq", "modelopt-awq"), ("w4a16-awq", "modelopt-awq"),
            ("fp8", "compressed-float"), ("fp8-tensor", "modelopt-fp8"), ("nvfp4", "modelopt-nvfp4"),
            ("mxfp4", "quark-mxfp4"),
        ],
    )  # fmt: skip
    def test_shipped(self, recipe: str, form: str) -> None:
        deployment = widest(find_recipe(recipe))
        assert deployment.format == form
        assert deployment.notes

    def test_a_scheme_without_kernels_still_has_a_format(self) -> None:
        deployment = widest(own("int8", "group", group=32, rule="mse"))
        assert (deployment.format, deployment.notes) == ("compressed-int", ())


# ── recipes of one's own ───────────────────────────────────────────────────────────


def own(dtype: str, granularity: str, inputs: str | None = None, of: str = "token", *, group: int | None = None,
        rule: str = "mse", form: str | None = None) -> Recipe:  # fmt: skip
    weights = WeightScheme(dtype, granularity, rule, "weight", group)  # type: ignore[arg-type]
    activations = InputScheme(inputs, of, of == "token") if inputs else None  # type: ignore[arg-type]
    return Recipe("mine", "", Scheme(weights, activations), ("lm_head", "fc"), form)


@pytest.mark.parametrize(
    ("recipe", "spec", "form"),
    [
        (own("int4", "channel", rule="max/7.5"), "vllm:mi325x", "compressed-pack"),
        (own("int4", "group", group=64), "trtllm:h200", "modelopt-awq"),
        (own("int4", "group", group=256), "vllm:mi325x", "compressed-pack"),
        (own("int8", "channel", "int8"), "vllm:h200", "compressed-int"),
        (own("int4", "group", group=128, form="quark-int4"), "vllm:mi325x", "quark-int4"),
        (own("int4", "channel", form="gptq"), "vllm:cpu", "gptq"),
        (own("int4", "group", group=128, form="autoawq"), "sglang:mi325x", "autoawq"),
    ],
)
def test_a_recipe_is_found_by_its_scheme(recipe: Recipe, spec: str, form: str) -> None:
    assert resolve(recipe, parse_engine(spec)).format == form


@pytest.mark.parametrize(
    ("recipe", "spec", "why"),
    [
        (own("int4", "group", group=256), "vllm:b200", "no kernel takes weights INT4 per group 256"),
        (own("int4", "group", "fp8", group=64), "vllm:h200", "groups of 128"),
        (own("int4", "group", group=32), "trtllm:h200", "no kernel takes"),
        (own("int4", "channel", form="quark-int4"), "vllm:h200", "positive group_size"),
        (own("int8", "channel", "int8"), "sglang:mi325x", "CUDA only"),
    ],
)
def test_a_group_or_format_without_a_kernel_is_refused(recipe: Recipe, spec: str, why: str) -> None:
    assert why in refusal(recipe, spec).why
