"""From any spelling of a tensor name to the canonical one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.drafter.names import canonical_name, sort_names
from draftconv.errors import BadCheckpoint
from tests import tiny

NAMES = sorted({name for variant in tiny.VARIANTS.values() for name in tiny.build(variant)})


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("midlayer.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight"),
        ("midlayer.2.hidden_norm.weight", "layers.2.hidden_norm.weight"),
        ("model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("model.midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("model.d2t", "d2t"),
        ("eagle_module.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("eagle_module.input_embeds_norm.weight", "layers.0.input_layernorm.weight"),
        ("eagle_module.eagle_lm_head.weight", "lm_head.weight"),
        ("out_norm.weight", "norm.weight"),
        ("aux_norm_mid.weight", "fc_norm.1.weight"),
        ("module.draft_model.midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("model.draft_model.model.fc.weight", "fc.weight"),
        ("modelling.fc.weight", "modelling.fc.weight"),
        ("midlayers.0.x", "midlayers.0.x"),
    ],
)
def test_spellings(name: str, canonical: str) -> None:
    assert canonical_name(name) == canonical


@given(st.sampled_from(NAMES), st.lists(st.sampled_from(["model.", "eagle_module.", "draft_model."]), max_size=3))
def test_prefixes_come_off_and_canonical_names_stay(name: str, prefixes: list[str]) -> None:
    assert canonical_name("".join(prefixes) + name) == name
    assert canonical_name(canonical_name(name)) == canonical_name(name)


@pytest.mark.parametrize("layout", tiny.FIRST)
def test_every_producers_names_are_understood(layout: str) -> None:
    for where, variant in tiny.PAIRS:
        if where == layout:
            spelled = tiny.spell(variant, layout)
            names = sort_names(spelled.tensors)
            assert dict(names.canonical) == spelled.canonical
            assert (names.stale, names.qparams) == ({}, {})
            assert bool(names.prefixed) == (layout == "automodel")


@pytest.mark.parametrize(
    ("names", "both"),
    [
        (["midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"], "layers.0.hidden_norm.weight"),
        (["fc.weight", "model.fc.weight"], "fc.weight"),
        (["aux_norm_low.weight", "fc_norm.0.weight"], "fc_norm.0.weight"),
    ],
)
def test_one_tensor_under_two_names(names: list[str], both: str) -> None:
    with pytest.raises(BadCheckpoint) as caught:
        sort_names(names)
    assert all(name in caught.value.what for name in (*names, both))


@pytest.mark.parametrize(
    "name",
    ["verifier_lm_head.weight", "verifier_norm.weight", "verifier_embed_tokens.weight",
     "midlayer.self_attn.rotary_emb.inv_freq", "rotary_emb.cos_cached", "model.target_model.lm_head.weight"],
)  # fmt: skip
def test_leftovers_of_training(name: str) -> None:
    found = sort_names([name, "fc.weight"])
    assert (set(found.stale), set(found.canonical)) == ({name}, {"fc.weight"})


@pytest.mark.parametrize(
    "suffix",
    ["weight_scale", "weight_scale_2", "weight_zero_point", "weight_packed", "weight_shape", "weight_g_idx",
     "weight_global_scale", "input_global_scale", "input_scale", "pre_quant_scale", "qweight", "qzeros", "scales",
     "g_idx", "k_scale", "output_scale"],
)  # fmt: skip
def test_qparams_of_quantized_weights(suffix: str) -> None:
    found = sort_names([f"midlayer.self_attn.k_proj.{suffix}"])
    assert dict(found.qparams) == {f"layers.0.self_attn.k_proj.{suffix}": f"midlayer.self_attn.k_proj.{suffix}"}


@given(st.lists(st.text(max_size=30), unique=True, max_size=6))
def test_any_text_is_sorted_or_refused(names: list[str]) -> None:
    try:
        found = sort_names(names)
    except BadCheckpoint:
        return
    assert sorted([*found.canonical.values(), *found.qparams.values(), *found.stale]) == sorted(names)
