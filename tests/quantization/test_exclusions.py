"""What a recipe quantizes in a drafter, tensor by tensor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftconv.drafter.facts import Facts, Gqa
from draftconv.errors import Refused, UsageError
from draftconv.quantization.exclusions import chosen, fused_with, refuse_nearest_head, select
from draftconv.quantization.recipes import Recipe, find_recipe
from draftconv.quantization.scheme import Scheme, WeightScheme
from tests.reference.variants import LLAMA, MLA, MLA_SHAPE

KEEP = ("embed", "lm_head", "fc", "norms")
SCHEME = Scheme(WeightScheme("int4", "channel", "mse", "weight"))
MIDDLE = "layers.0"
INT8 = Scheme(WeightScheme("int8", "channel", "max/127", "F32"))
LLAMA_WEIGHTS = (
    *(f"{MIDDLE}.self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"{MIDDLE}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
)


def recipe(*exclude: str, group: int | None = None) -> Recipe:
    weights = WeightScheme("int4", "group", "mse", "weight", group) if group else SCHEME.weights
    return Recipe("mine", "", Scheme(weights), exclude)


def short(names: tuple[str, ...]) -> list[str]:
    return [name.removesuffix(".weight").rpartition(".")[2] for name in names]


def test_llama() -> None:
    selection = select(recipe(*KEEP), LLAMA)
    assert selection.quantized == LLAMA_WEIGHTS
    assert selection.kept == {
        "embed_tokens.weight": "embed",
        "fc.weight": "fc",
        "layers.0.hidden_norm.weight": "norms",
        "layers.0.input_layernorm.weight": "norms",
        "layers.0.post_attention_layernorm.weight": "norms",
        "norm.weight": "norms",
        "lm_head.weight": "lm_head",
    }
    assert {choice.shape for choice in selection.choices if choice.name.endswith("q_proj.weight")} == {(16, 32)}


def test_mla() -> None:
    every = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert short(select(find_recipe("fp8"), MLA).quantized) == every
    assert short(select(recipe(*KEEP, "kv_b", "a_projections"), MLA).quantized) == [
        "q_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]  # fmt: skip
    plain = replace(MLA, attention=replace(MLA_SHAPE, q_lora=None))
    assert short(select(recipe(*KEEP, "kv_b", "a_projections"), plain).quantized)[:2] == ["q_proj", "o_proj"]


def test_a_head_of_4_bits_is_not_rounded_to_nearest() -> None:
    refuse_nearest_head(recipe(*KEEP), select(recipe(*KEEP), LLAMA))
    whole = recipe("embed", "fc", "norms")
    with pytest.raises(Refused, match=r"rounds lm_head\.weight to the nearest of 4 bits") as caught:
        refuse_nearest_head(whole, select(whole, LLAMA))
    assert "0.957 to 1.012" in caught.value.why and "--force" in caught.value.cure
    eight = replace(whole, roles={"lm_head": INT8})
    refuse_nearest_head(eight, select(eight, LLAMA))
    by_gptq = replace(whole, scheme=replace(whole.scheme, rounding="gptq"))
    refuse_nearest_head(by_gptq, select(by_gptq, LLAMA))


def test_what_a_drafter_borrows_is_not_its_own() -> None:
    selection = select(recipe(*KEEP), replace(LLAMA, own_embedding=False, own_head=False))
    assert not {"embed_tokens.weight", "lm_head.weight"} & {choice.name for choice in selection.choices}


def test_biases_and_maps_are_no_weights() -> None:
    facts = replace(LLAMA, attention=Gqa(4, 4, 4, qkv_bias=True), fc_bias=True, draft_vocab=20, vocab_order="ascending")
    names = {choice.name for choice in select(recipe(*KEEP), facts).choices}
    assert all(name.endswith(".weight") for name in names)


def test_fc_and_head_are_quantized_when_nothing_keeps_them() -> None:
    quantized = select(recipe("embed", "norms"), LLAMA).quantized
    assert {"fc.weight", "lm_head.weight"} < set(quantized)


@pytest.mark.parametrize(
    "pattern", ["layers.0.mlp.down_proj", "layers.0.mlp.down_proj.weight", "layers.*.down_proj", "*.d[o]wn_proj"]
)
def test_patterns_match_with_and_without_their_ending(pattern: str) -> None:
    selection = select(recipe(*KEEP, pattern), LLAMA)
    assert selection.kept["layers.0.mlp.down_proj.weight"] == pattern
    assert len(selection.quantized) == 6


@pytest.mark.parametrize("layers", [1, 2])
def test_a_later_layer_is_told_from_the_first(layers: int) -> None:
    facts = replace(LLAMA, layers=layers)
    if layers == 1:
        with pytest.raises(UsageError, match="matches no weight"):
            select(recipe(*KEEP, "layers.1.*"), facts)
    else:
        assert select(recipe(*KEEP, "layers.1.*"), facts).quantized == LLAMA_WEIGHTS


@pytest.mark.parametrize("pattern", ["midlayer.*", "model.fc", "*kv_b_proj", "layers.0.mlp.dwon_proj.weight"])
def test_a_pattern_that_matches_nothing_is_an_error(pattern: str) -> None:
    with pytest.raises(UsageError, match="matches no weight of this drafter") as caught:
        select(recipe(*KEEP, pattern), LLAMA)
    assert "would be quantized" in caught.value.why
    assert "embed_tokens.weight" in caught.value.cure or "did you mean" in caught.value.cure


@pytest.mark.parametrize(
    ("facts", "pattern", "torn"),
    [
        (LLAMA, "*.v_proj", "v_proj"),
        (LLAMA, "*.q_proj", "q_proj"),
        (LLAMA, "layers.0.mlp.up_proj", "up_proj"),
        (replace(LLAMA, layers=2), "layers.1.self_attn.k_proj", "layers.1.self_attn.k_proj"),
        (MLA, "*.q_a_proj", "q_a_proj"),
    ],
)
def test_a_fused_group_is_all_or_nothing(facts: Facts, pattern: str, torn: str) -> None:
    with pytest.raises(UsageError, match="but keeps") as caught:
        select(recipe(*KEEP, "kv_b", pattern), facts)
    assert torn in caught.value.what.partition("but keeps")[2]
    assert pattern in caught.value.cure


def test_a_whole_fused_group_may_stay() -> None:
    assert short(select(recipe(*KEEP, "*.[qkv]_proj"), LLAMA).quantized) == [
        "o_proj", "gate_proj", "up_proj", "down_proj"]  # fmt: skip


@pytest.mark.parametrize(
    ("exclude", "what", "cure"),
    [
        (("norms",), "would quantize embed_tokens.weight", "add embed"),
        (("embed",), "would quantize layers.0.hidden_norm.weight", "add norms"),
        (("*.*",), "excludes every weight", "exclude less"),
    ],
)
def test_a_recipe_that_cannot_be_meant(exclude: tuple[str, ...], what: str, cure: str) -> None:
    with pytest.raises(UsageError) as caught:
        select(recipe(*exclude), LLAMA)
    assert what in caught.value.what
    assert cure in caught.value.cure


def test_groups_have_to_fit() -> None:
    assert select(recipe(*KEEP, group=8), LLAMA).quantized == LLAMA_WEIGHTS
    with pytest.raises(Refused, match=r"down_proj\.weight has 24 inputs, which is no multiple of the group of 16"):
        select(recipe(*KEEP, group=16), LLAMA)
    assert len(select(recipe(*KEEP, "*.down_proj", group=16), LLAMA).quantized) == 6


def test_some_of_the_quantized() -> None:
    selection = select(recipe(*KEEP), LLAMA)
    assert chosen(selection, LLAMA_WEIGHTS[:1]) == LLAMA_WEIGHTS[:1]
    with pytest.raises(UsageError, match=r"fc\.weight is kept by exclude: fc"):
        chosen(selection, ["fc.weight"])
    with pytest.raises(UsageError, match=r"has no weight layers\.0\.mlp\.dwon_proj") as caught:
        chosen(selection, ["layers.0.mlp.dwon_proj.weight"])
    assert caught.value.cure == "did you mean layers.0.mlp.down_proj.weight?"


def test_what_is_fused_with_what() -> None:
    two = select(recipe(*KEEP), replace(LLAMA, layers=2)).quantized
    assert fused_with("layers.1.self_attn.k_proj.weight", two) == tuple(
        f"layers.1.self_attn.{name}_proj.weight" for name in "qkv"
    )
    assert fused_with("layers.0.self_attn.o_proj.weight", two) == ("layers.0.self_attn.o_proj.weight",)


# ── roles ──────────────────────────────────────────────────────────────────────────


def test_the_first_role_that_names_a_weight_counts() -> None:
    roles = {"fc": INT8, "layers.*.mlp.*": SCHEME, "*": INT8}
    found = select(replace(recipe("embed", "norms"), roles=roles), LLAMA).roles
    assert {name: role for name, role in found.items() if role != "*"} == {
        "fc.weight": "fc", **{name: "layers.*.mlp.*" for name in LLAMA_WEIGHTS if ".mlp." in name}
    }  # fmt: skip
    assert found["lm_head.weight"] == "*"
    assert set(select(recipe("embed", "norms"), LLAMA).roles.values()) == {""}


def test_a_role_that_names_nothing_is_refused_if_it_is_a_pattern() -> None:
    with pytest.raises(UsageError, match=r"roles: layers\.7\.\* matches no weight"):
        select(replace(recipe(*KEEP), roles={"layers.7.*": INT8}), LLAMA)
    select(replace(recipe(*KEEP), roles={"kv_b": INT8}), LLAMA)  # a drafter without latent attention has none


def test_joined_weights_have_one_scheme() -> None:
    with pytest.raises(UsageError, match=r"gives .*q_proj\.weight and .*k_proj\.weight different schemes"):
        select(replace(recipe(*KEEP), roles={"*.k_proj": INT8}), LLAMA)
    both = {"*.k_proj": INT8, "*.q_proj": INT8, "*.v_proj": INT8}
    assert len(set(select(replace(recipe(*KEEP), roles=both), LLAMA).roles.values())) == 4


def test_groups_are_those_of_the_role() -> None:
    grouped = Scheme(WeightScheme("int4", "group", "mse", "weight", 40))
    with pytest.raises(Refused, match=r"fc\.weight has .* inputs, which is no multiple of the group of 40"):
        select(replace(recipe("embed", "norms"), roles={"fc": grouped, "lm_head": SCHEME}), replace(LLAMA, hidden=32))
