"""Every layout with every variant that its producer can train: facts, boundaries and bytes come out exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftconv.drafter.boundaries import Convention
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.facts import AuxLayers, Gqa, Mla
from draftconv.drafter.targets import Target
from draftconv.errors import BadCheckpoint
from draftconv.layouts import MARK
from tests import tiny
from tests.opening import codes, read
from tests.tiny import DEFAULT, IDS, PAIRS, VARIANTS, Spelled, build, spell

ONE_OF_EACH = dict(reversed(PAIRS))
KIMI = Target("kimi", 61, "deepseek", "kimi_k25", hidden=64, vocab=tiny.VOCAB)


def same_facts(found: object, wanted: object) -> None:
    """Equal field by field, so that a failure names the field."""
    for item in fields(wanted):  # type: ignore[arg-type]
        assert getattr(found, item.name) == getattr(wanted, item.name), item.name


def test_every_layout_and_every_variant_is_covered() -> None:
    assert {layout for layout, _ in PAIRS} == set(tiny.FIRST)
    assert {name for _, name in PAIRS} | {"fc-bias"} == set(VARIANTS)  # fc.bias: hand-made files only


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no-ids"])
@pytest.mark.parametrize(("layout", "name"), PAIRS)
def test_facts_and_bytes(layout: str, name: str, ids: bool, tmp_path: Path) -> None:
    spelled = spell(name, layout, ids=ids)
    drafter = read(spelled.write(tmp_path / "x"))
    assert drafter.detection.layout == layout
    same_facts(drafter.facts, spelled.facts)
    built = build(VARIANTS[name])
    identity = {"d2t", "t2d"} if drafter.facts.vocab_order == "full" else set()
    wanted = {canonical: file for canonical, file in spelled.canonical.items() if canonical not in identity}
    assert dict(drafter.names) == wanted
    for canonical, ref in drafter.tensors.items():
        assert (ref.dtype, ref.shape, ref.read()) == built[canonical], canonical
    assert {drafter.dropped[name] for name in identity & set(spelled.canonical)} <= {
        "identity map of a full vocabulary"
    }
    errors = [problem for problem in check_drafter(drafter, None, level="deep").problems if problem.severity == "error"]
    assert errors == []


@pytest.mark.parametrize("layout", tiny.FIRST)
def test_shards_with_an_index(layout: str, tmp_path: Path) -> None:
    spelled = spell(ONE_OF_EACH[layout], layout)
    whole, parts = read(spelled.write(tmp_path / "whole")), read(spelled.write(tmp_path / "parts", shards=3))
    assert len(list((tmp_path / "parts").glob("*-of-00003.*"))) == 3
    assert (whole.facts, whole.detection) == (parts.facts, parts.detection)
    assert {n: r.read() for n, r in whole.tensors.items()} == {n: r.read() for n, r in parts.tensors.items()}


@pytest.mark.parametrize("name", ["mixed", "f16", "f32", "reduced", "mla-reduced"])
def test_torch_archives(name: str, tmp_path: Path) -> None:
    spelled = spell(name, "torchspec-native")
    spelled.torch_bin = True
    drafter = read(spelled.write(tmp_path / "x", shards=2))
    same_facts(drafter.facts, spelled.facts)
    built = build(VARIANTS[name])
    assert {n: (r.dtype, r.shape, r.read()) for n, r in drafter.tensors.items()} == built


def test_a_single_weights_file_stands_for_its_directory(tmp_path: Path) -> None:
    spelled = spell("llama", "torchspec-native")
    same_facts(read(spelled.write(tmp_path / "x") / "model.safetensors").facts, spelled.facts)


def test_every_inference_has_a_reason(tmp_path: Path) -> None:
    for layout in tiny.FIRST:
        reasons = read(spell(ONE_OF_EACH[layout], layout).write(tmp_path / layout)).reasons
        assert {"boundaries", "rope", "feedback", "fusion", "norm_before_residual", "eps", "aux"} <= set(reasons)
        assert all(reasons.values())


# ── other spellings of the same tensors ────────────────────────────────────────────


def fused(spelled: Spelled) -> Spelled:
    """q, k, v and gate, up as one tensor each, as vLLM saves them."""
    for stem, parts, whole in (("self_attn", "qkv", "qkv_proj"), ("mlp", ("gate", "up"), "gate_up_proj")):
        names = [f"layers.0.{stem}.{part}_proj.weight" for part in parts]
        stored = [spelled.tensors[spelled.file(name)] for name in names]
        rows = sum(tensor.shape[0] for tensor in stored)
        spelled.remove(*names)
        data = b"".join(tensor.data for tensor in stored)
        spelled.put(f"layers.0.{stem}.{whole}.weight", tiny.Tensor(stored[0].dtype, (rows, stored[0].shape[1]), data))
    return spelled


def test_fused_projections_are_row_ranges(tmp_path: Path) -> None:
    spelled = fused(spell("head-dim", "torchspec-vllm"))
    drafter = read(spelled.write(tmp_path / "x"))
    same_facts(drafter.facts, spelled.facts)
    built = build(VARIANTS["head-dim"])
    assert {name: (ref.shape, ref.read()) for name, ref in drafter.tensors.items()} == {
        name: (tensor.shape, tensor.data) for name, tensor in built.items()
    }
    assert codes(tmp_path / "x") == codes(spell("head-dim", "torchspec-vllm").write(tmp_path / "plain"))


def test_fused_beside_plain_projections_are_refused(tmp_path: Path) -> None:
    spelled = fused(spell("llama", "torchspec-vllm"))
    spelled.put("layers.0.self_attn.k_proj.weight", build(VARIANTS["llama"])["layers.0.self_attn.k_proj.weight"])
    with pytest.raises(BadCheckpoint, match=r"both hold layers\.0\.self_attn\.k_proj\.weight"):
        read(spelled.write(tmp_path / "x"))


def test_fused_rows_that_do_not_split(tmp_path: Path) -> None:
    spelled = spell("llama", "torchspec-vllm").put(
        "layers.0.mlp.gate_up_proj.weight", tiny.floats("x", (7, 64), "BF16")
    )
    with pytest.raises(BadCheckpoint, match=r"\[7, 64\].*gate_proj, up_proj"):
        read(spelled.write(tmp_path / "x"))


def test_first_eagle_31_names(tmp_path: Path) -> None:
    """aux_norm_low, mid and high: SGLang 0.5.23 still accepts them, with use_aux_norm as their flag."""
    spelled = spell("3.1", "torchspec-vllm")
    for index, legacy in enumerate(("aux_norm_low", "aux_norm_mid", "aux_norm_high")):
        spelled.tensors[f"{legacy}.weight"] = spelled.tensors.pop(f"fc_norm.{index}.weight")
    spelled.config["use_aux_norm"] = spelled.config.pop("fc_norm")
    drafter = read(spelled.write(tmp_path / "x"))
    same_facts(drafter.facts, spelled.facts)
    assert drafter.names["fc_norm.2.weight"] == "aux_norm_high.weight"


def test_later_layers_have_one_norm(tmp_path: Path) -> None:
    spelled = spell("two-layers", "speculators")
    spelled.tensors["layers.1.hidden_norm.weight"] = tiny.floats("unused", (64,), "BF16")
    drafter = read(spelled.write(tmp_path / "x"))
    same_facts(drafter.facts, spelled.facts)
    assert "unused" in drafter.dropped["layers.1.hidden_norm.weight"]


# ── quantized drafters ─────────────────────────────────────────────────────────────


def packed(spelled: Spelled, *modules: str, name: str = "weight", columns: int = 8) -> Spelled:
    """Replace weights by words of eight 4-bit values with a scale per row; the values do not matter here."""
    for module in modules:
        weight = spelled.tensors.pop(spelled.file(f"{module}.weight"))
        stem = spelled.canonical.pop(f"{module}.weight").removesuffix("weight")
        shape = (weight.shape[0], weight.shape[1] // columns)
        data = np.arange(shape[0] * shape[1], dtype="<i4").tobytes()
        spelled.tensors[f"{stem}{name}"] = tiny.Tensor("I32", shape, data)
        spelled.tensors[f"{stem}weight_scale"] = tiny.floats(f"{module}.norm_scale", (shape[0],), "F16")
    return spelled


QUARK = {"quant_method": "quark", "export": {"pack_method": "reorder"},
         "global_quant_config": {"weight": {"dtype": "int4", "qscheme": "per_channel"}}}  # fmt: skip
PROGRESSIVE = QUARK | {"global_quant_config": {"weight": [{"dtype": "fp8_e4m3"}, {"dtype": "int4"}]}}
CT = {"quant_method": "compressed-tensors", "format": "pack-quantized"}


@pytest.mark.parametrize("fc", [False, True], ids=["fc-kept", "fc-packed"])
@pytest.mark.parametrize(
    ("config", "tensor", "told"),
    [
        (QUARK, "weight", "quark int4 per_channel reorder (I32 weights)"),
        (PROGRESSIVE, "weight", "quark int4 reorder (I32 weights)"),
        (CT, "weight_packed", "compressed-tensors pack-quantized"),
    ],
    ids=["quark", "progressive", "compressed-tensors"],
)
@pytest.mark.parametrize("name", ["llama", "mla", "four-aux", "reduced"])
def test_packed_weights_change_no_other_fact(
    name: str, config: dict[str, Any], tensor: str, told: str, fc: bool, tmp_path: Path
) -> None:
    spelled = spell(name, "torchspec-native")
    modules = [n.removesuffix(".weight") for n in spelled.canonical if n.endswith("_proj.weight") or "mqa.weight" in n]
    modules += ["fc"] if fc else []
    packed(spelled, *modules, name=tensor).config["quantization_config"] = config
    path = spelled.write(tmp_path / "x")
    drafter = read(path)
    same_facts(drafter.facts, replace(spelled.facts, quantization=told))
    found = check_drafter(drafter, None, level="sample")
    assert [problem for problem in found.problems if problem.severity == "error"] == []
    assert "shapes and values of quantized weights" in found.not_made


def test_float8_weights_keep_their_shapes(tmp_path: Path) -> None:
    spelled = spell("head-dim", "torchspec-native")
    name = spelled.file("layers.0.mlp.gate_proj.weight")
    spelled.tensors[name] = tiny.Tensor("F8_E4M3", (96, 64), bytes(96 * 64))
    spelled.tensors[name + "_scale"] = tiny.floats("s", (96,), "F32")
    spelled.config |= {
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"},
        "intermediate_size": 97,
    }
    drafter = read(spelled.write(tmp_path / "x"))
    assert drafter.facts.quantization == "modelopt FP8 (F8_E4M3 weights)"
    assert drafter.facts.intermediate == 96  # the tensor's word against the config's 97


# ── config.json against the tensors ────────────────────────────────────────────────

Facet = tuple[str, dict[str, Any], str, str, object]
TENSORS_WIN: tuple[Facet, ...] = (
    # variant, config keys, problem, fact, what the tensors say
    ("llama", {"hidden_size": 128}, "tensor-shape", "hidden", 64),
    ("llama", {"intermediate_size": 128}, "tensor-shape", "intermediate", 96),
    ("llama", {"vocab_size": 161}, "tensor-shape", "vocab", 160),
    ("llama", {"num_hidden_layers": 24}, "layers-config", "layers", 1),
    ("llama", {"head_dim": 32}, "tensor-shape", "attention", Gqa(4, 2, 16)),
    ("llama", {"num_key_value_heads": 4}, "tensor-shape", "attention", Gqa(4, 2, 16)),
    ("head-dim", {"head_dim": None}, "head-dim-missing", "attention", Gqa(4, 2, 24)),
    ("reduced", {"draft_vocab_size": 64}, "head-rows", "draft_vocab", len(tiny.ASCENDING)),
    ("llama", {"draft_vocab_size": 64}, "head-rows", "draft_vocab", 160),
    ("3.1", {"fc_norm": False}, "norm-without-flag", "fusion", "fc_norm"),
    ("mla", {"kv_lora_rank": 31}, "tensor-shape", "attention", Mla(4, 24, 32, 16, 8, 12)),
    ("mla", {"q_lora_rank": 23}, "tensor-shape", "attention", Mla(4, 24, 32, 16, 8, 12)),
    ("mla", {"q_lora_rank": None}, "tensor-shape", "attention", Mla(4, 24, 32, 16, 8, 12)),
    ("mla-plain-q", {"q_lora_rank": 24}, "tensor-shape", "attention", Mla(4, None, 32, 16, 8, 12)),
    ("3.1-wide", {"target_hidden_size": 64}, "fc-width", "target_hidden", 96),
    ("3.1-wide", {"num_aux_hidden_states": 3, "eagle_config": {}}, "", "aux", 4),
    ("wide-target", {"target_hidden_size": None}, "fc-width", "target_hidden", 96),
    ("bias", {}, "", "attention", Gqa(4, 2, 16, qkv_bias=True, o_bias=True)),
)  # fmt: skip


@pytest.mark.parametrize(("name", "keys", "code", "fact", "value"), TENSORS_WIN)
def test_tensors_win_and_contradictions_are_told(
    name: str, keys: dict[str, Any], code: str, fact: str, value: object, tmp_path: Path
) -> None:
    layout = "modelopt-layers" if name == "bias" else "torchspec-native"
    healthy = codes(spell(name, layout).write(tmp_path / "healthy"))
    spelled = spell(name, layout)
    spelled.config |= keys
    path = spelled.write(tmp_path / "x")
    assert getattr(read(path).facts, fact) == value
    assert code not in healthy
    assert not code or code in codes(path)


def test_flags_are_looked_for_in_both_places(tmp_path: Path) -> None:
    """norm_before_fc and the feedback stand at the top, in eagle_config, or in both."""
    for at in ("top", "nested"):
        spelled = spell("norm-before-fc", "speculators")
        flags: dict[str, object] = {"norm_before_fc": True}
        del spelled.config["norm_before_fc"]
        spelled.config |= flags if at == "top" else {"eagle_config": flags}
        path = spelled.write(tmp_path / at)
        assert read(path).facts.fusion == "norm_before_fc"
        assert "norm-without-flag" not in codes(path)


@pytest.mark.parametrize("top", [True, False])
def test_two_places_that_contradict_each_other_about_the_feedback(top: bool, tmp_path: Path) -> None:
    spelled = spell("llama", "speculators")
    for nested in (top, not top):
        spelled.config |= {"norm_output": top, "eagle_config": {"return_hidden_post_norm": nested}}
        assert ("feedback-contradiction" in codes(spelled.write(tmp_path / str(nested)))) is (nested is not top)


def test_a_wider_target_is_found_by_the_ids_or_by_the_target(tmp_path: Path) -> None:
    """H 64, Ht 128: without the key, fc's 384 columns look like six states of 64."""
    wide = tiny.Variant("wide", replace(tiny.BASE, target_hidden=128))
    spelled = spell(wide, "torchspec-native")
    del spelled.config["target_hidden_size"]
    path = spelled.write(tmp_path / "ids")
    assert (read(path).facts.target_hidden, read(path).facts.aux) == (128, 3)
    assert "fc-width" in codes(path)
    spelled = spell(wide, "torchspec-native", ids=False)
    del spelled.config["target_hidden_size"]
    path = spelled.write(tmp_path / "none")
    target = Target("t", 8, "llama", hidden=128, vocab=tiny.VOCAB)
    assert (read(path, target=target).facts.target_hidden, read(path, target=target).facts.aux) == (128, 3)
    assert "aux-default-off" in codes(path)
    assert read(path).facts.boundaries is AuxLayers.UNKNOWN


def test_another_target_is_told_whatever_its_width_divides(tmp_path: Path) -> None:
    path = spell("llama", "torchspec-native").write(tmp_path / "x")
    for hidden in (32, 96, 128, 192):
        target = Target("t", 8, "llama", hidden=hidden, vocab=tiny.VOCAB)
        assert read(path, target=target).facts.target_hidden == 64
        assert "hidden-target" in codes(path, target=target)


def test_missing_sizes_name_the_key(tmp_path: Path) -> None:
    for name, key in (("llama", "num_attention_heads"), ("mla", "num_attention_heads")):
        spelled = spell(name, "torchspec-native")
        del spelled.config[key]
        with pytest.raises(BadCheckpoint, match=f"no {key}") as caught:
            read(spelled.write(tmp_path / name))
        assert key in caught.value.cure


@pytest.mark.parametrize("key", ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"])
def test_latent_widths_follow_from_the_tensors(key: str, tmp_path: Path) -> None:
    spelled = spell("mla", "torchspec-native")
    wrong = spelled.config.pop(key) + 8
    assert read(spelled.write(tmp_path / "absent")).facts == spelled.facts
    spelled.config[key] = wrong
    assert "tensor-shape" in codes(spelled.write(tmp_path / "wrong"))


def test_layers_of_both_kinds_of_attention_are_refused(tmp_path: Path) -> None:
    spelled = spell("window", "speculators")
    spelled.config["transformer_layer_config"]["layer_types"] = ["sliding_attention", "full_attention"]
    with pytest.raises(BadCheckpoint, match="layer_types mixes"):
        read(spelled.write(tmp_path / "x"))


# ── captured layers ────────────────────────────────────────────────────────────────


def with_keys(layout: str, name: str = "llama", *, keys: dict[str, Any]) -> Spelled:
    spelled = spell(name, layout)
    spelled.config |= keys
    return spelled


@pytest.mark.parametrize(
    ("layout", "nested", "aux", "target", "boundaries", "code"),
    [
        # TorchSpec may capture through SGLang: only a first id of 1 means the same either way
        ("torchspec-native", [1, 3, 4], None, None, DEFAULT, None),
        ("torchspec-native", [2, 3, 5], None, None, AuxLayers.UNKNOWN, "aux-unknown"),
        ("torchspec-native", [2, 3, 5], "after", None, (3, 4, 6), None),
        ("torchspec-native", [2, 3, 5], "before", None, (2, 3, 5), None),
        ("torchspec-native", [2, 3, 5], None, Target("q", 8, "llama"), (3, 4, 6), None),
        ("torchspec-native", [2, 3, 5], None, KIMI, AuxLayers.UNKNOWN, "aux-unknown"),
        ("torchspec-native", [1, 29, 57], None, KIMI, (2, 30, 58), None),
        # SpecForge always does
        ("specforge-hf", [1, 29, 57], None, KIMI, (2, 30, 58), None),
        ("specforge-hf", [2, 30, 58], None, KIMI, (2, 30, 58), None),
        ("specforge-hf", [2, 3, 5], None, None, AuxLayers.UNKNOWN, "aux-unknown"),
        ("specforge-hf", [2, 3, 5], None, Target("q", 8, "llama"), (3, 4, 6), None),
        ("specforge-hf", [1, 4, 8], None, Target("g", 8, "gpt-oss"), (1, 4, 8), None),
        ("specforge-hf", [1, 4, 7], None, Target("g", 8, "gpt-oss"), (2, 5, 8), None),
        # ModelOpt hooks layers itself, whatever the target
        ("modelopt-layers", [2, 30, 58], None, KIMI, (3, 31, 59), "aux-other-triple"),
        ("modelopt-layers", [3, 30, 58], None, KIMI, (4, 31, 59), None),
        ("modelopt-layers", [1, 29, 57], None, None, (2, 30, 58), None),
        # by the user's word
        ("modelopt-layers", [2, 30, 58], "before", KIMI, (2, 30, 58), None),
        # from the end
        ("modelopt-layers", [1, 3, -1], None, None, AuxLayers.UNKNOWN, "aux-unknown"),
        ("modelopt-layers", [1, 3, -1], None, Target("t", 8), (2, 4, 8), None),
        # order
        ("modelopt-layers", [4, 3, 1], None, None, (5, 4, 2), "aux-order"),
        ("modelopt-layers", [1, 3, 3], None, None, (2, 4, 4), "aux-order"),
        ("modelopt-layers", [1, 3, 9], None, Target("t", 8), (2, 4, 10), "aux-order"),
        ("modelopt-layers", [1, 3, -9], None, Target("t", 8), (2, 4, 0), "aux-order"),
        ("modelopt-layers", [1, 3], None, None, (2, 4), "fc-width"),
    ],
)  # fmt: skip
def test_nested_ids(
    layout: str,
    nested: list[int],
    aux: Convention | None,
    target: Target | None,
    boundaries: object,
    code: str | None,
    tmp_path: Path,
) -> None:
    spelled = spell("llama", layout)
    spelled.config["eagle_config"][IDS] = nested
    drafter = read(spelled.write(tmp_path / "x"), aux=aux, target=target)
    assert drafter.facts.boundaries == boundaries
    assert drafter.reasons["boundaries"]
    found = {problem.code for problem in drafter.problems} & {
        "aux-unknown",
        "aux-order",
        "aux-other-triple",
        "fc-width",
    }
    assert found == ({code} if code else set())


@pytest.mark.parametrize(
    ("layout", "top", "nested", "boundaries", "code"),
    [
        ("vllm", [2, 4, 5], [1, 3, 4], (2, 4, 5), None),
        ("vllm", [2, 4, 5], [2, 4, 5], (2, 4, 5), None),
        ("torchspec-native", [2, 4, 5], [1, 3, 4], (2, 4, 5), None),
        ("torchspec-native", [1, 3, 4], [1, 3, 4], (2, 4, 5), None),  # the producer's numbering twice
        ("torchspec-native", [1, 3, 4], [2, 4, 5], AuxLayers.UNKNOWN, "aux-contradiction"),
        ("modelopt-layers", [2, 4, 5], [1, 2, 4], AuxLayers.UNKNOWN, "aux-contradiction"),
    ],
)
def test_ids_in_both_places(
    layout: str, top: list[int], nested: list[int], boundaries: object, code: str | None, tmp_path: Path
) -> None:
    spelled = spell("llama", "modelopt-layers" if layout == "modelopt-layers" else "torchspec-native")
    spelled.config |= {IDS: top}
    spelled.config["eagle_config"][IDS] = nested
    drafter = read(spelled.write(tmp_path / "x"), layout if layout == "vllm" else None)
    assert drafter.facts.boundaries == boundaries
    assert [problem.code for problem in drafter.problems if problem.code.startswith("aux")] == ([code] if code else [])


def test_the_target_that_the_config_names_decides(tmp_path: Path) -> None:
    """SpecForge writes target_model_type for some targets; ids captured there follow its family."""
    for model_type, boundaries in (("deepseek_v3", (2, 4, 6)), ("gemma3_text", (3, 5, 7))):
        spelled = with_keys("specforge-hf", keys={"target_model_type": model_type, "eagle_config": {IDS: [2, 4, 6]}})
        drafter = read(spelled.write(tmp_path / model_type))
        assert (drafter.detection.layout, drafter.facts.boundaries) == ("specforge-hf", boundaries)


@pytest.mark.parametrize(
    ("target", "nested", "boundaries"),
    [
        (Target("q", 8, "llama"), [2, 4, 6], (3, 5, 7)),
        (KIMI, [2, 30, 58], (2, 30, 58)),
        (KIMI, [1, 29, 57], (2, 30, 58)),
        (Target("g", 8, "gpt-oss"), [0, 4, 8], (0, 4, 8)),
        (None, [1, 3, 4], (2, 4, 5)),
        (None, [2, 4, 6], AuxLayers.UNKNOWN),
    ],
)
def test_files_for_sglang_count_as_sglang_does(
    target: Target | None, nested: list[int], boundaries: object, tmp_path: Path
) -> None:
    spelled = spell("llama", "torchspec-native")
    spelled.config["eagle_config"][IDS] = nested
    assert read(spelled.write(tmp_path / "x"), "sglang", target=target).facts.boundaries == boundaries


def test_ids_that_draftconv_wrote_need_no_target(tmp_path: Path) -> None:
    spelled = spell("llama", "torchspec-native")
    spelled.config |= {MARK: "torchspec-native", "eagle_config": {IDS: [2, 3, 5]}}
    drafter = read(spelled.write(tmp_path / "x"))
    assert (drafter.facts.boundaries, drafter.problems) == ((3, 4, 6), ())


@pytest.mark.parametrize(
    ("ids", "target", "boundaries"),
    [
        ([2, 30, 58], None, (2, 30, 58)),
        ([1, 29, 57], None, (2, 30, 58)),
        ([2, 30, 58], KIMI, (2, 30, 58)),
        ([2, 4, 5], KIMI, AuxLayers.UNKNOWN),  # the default triple of another target
        ([3, 30, 58], None, AuxLayers.UNKNOWN),
    ],
)
def test_unknown_producers_are_believed_for_default_triples_only(
    ids: list[int], target: Target | None, boundaries: object, tmp_path: Path
) -> None:
    spelled = with_keys("torchspec-native", keys={"eagle_config": {IDS: ids}})
    del spelled.config["_torchspec_version"]
    spelled.metadata = None
    drafter = read(spelled.write(tmp_path / "x"), target=target)
    assert drafter.detection.layout == "generic"
    assert drafter.facts.boundaries == boundaries
    assert ("aux-unknown" in {problem.code for problem in drafter.problems}) == (boundaries is AuxLayers.UNKNOWN)


def test_kimi_ids_by_torchspec_version(tmp_path: Path) -> None:
    """The vLLM export adds one for model_type kimi_k2 only; producers.md, section 5."""
    for layout, ids in (("torchspec-native", [1, 3, 4]), ("torchspec-vllm", [2, 4, 5])):
        spelled = spell("mla", layout)
        assert spelled.config["eagle_config"][IDS] == ids
        assert read(spelled.write(tmp_path / layout)).facts.boundaries == DEFAULT
    spelled = spell("llama", "torchspec-vllm")
    assert spelled.config["eagle_config"][IDS] == [1, 3, 4]
    assert read(spelled.write(tmp_path / "llama")).facts.boundaries == DEFAULT


def test_quark_ids_count_from_the_end_of_its_own_target(tmp_path: Path) -> None:
    spelled = with_keys("quark-native", keys={IDS: [2, -3, -1], "target_num_hidden_layers": 8})
    assert read(spelled.write(tmp_path / "x")).facts.boundaries == (3, 6, 8)
    del spelled.config["target_num_hidden_layers"]
    drafter = read(spelled.write(tmp_path / "y"))
    assert drafter.facts.boundaries is AuxLayers.UNKNOWN
    assert [p.code for p in drafter.problems] == ["aux-unknown"]


def test_quark_without_ids_is_not_the_default_triple(tmp_path: Path) -> None:
    spelled = spell("llama", "quark-native")
    del spelled.config[IDS]
    drafter = read(spelled.write(tmp_path / "x"), "quark-native")
    assert drafter.facts.boundaries is AuxLayers.UNKNOWN
    assert [p.code for p in drafter.problems] == ["aux-unknown"]


def test_default_boundaries_of_a_named_target(tmp_path: Path) -> None:
    path = spell("llama", "torchspec-native", ids=False).write(tmp_path / "x")
    assert read(path, target=KIMI).facts.boundaries == (2, 30, 58)
    shallow = read(path, target=Target("t", 4))
    assert shallow.facts.boundaries == (2, 2, 1)
    assert [p.code for p in shallow.problems] == ["aux-order"]


# ── double normalisation ───────────────────────────────────────────────────────────


def newer(spelled: Spelled) -> Spelled:
    spelled.config["eagle_config"] |= {"next_layer_regular": True}
    return spelled


def raw_040(spelled: Spelled) -> Spelled:
    """0.40 and earlier keep the state's norm outside the layer until export."""
    name = spelled.file("layers.0.hidden_norm.weight")
    spelled.tensors["hidden_norm.weight"] = spelled.tensors.pop(name)
    return spelled.wrap("eagle_module.")


@pytest.mark.parametrize(
    ("layout", "change", "double"),
    [
        ("modelopt-midlayer", lambda spelled: spelled, False),
        ("modelopt-midlayer", newer, True),
        ("modelopt-layers", lambda spelled: spelled, True),
        ("modelopt-megatron", lambda spelled: spelled, False),
        ("modelopt-midlayer", raw_040, False),
        ("modelopt-layers", lambda spelled: spelled.wrap("eagle_module."), True),
        ("specforge-hf", lambda spelled: spelled, False),
    ],
)
def test_double_norm_by_version(
    layout: str, change: Callable[[Spelled], Spelled], double: bool, tmp_path: Path
) -> None:
    path = change(spell("llama", layout)).write(tmp_path / "x")
    assert read(path).facts.double_norm is double
    assert ("double-norm" in codes(path)) is double
