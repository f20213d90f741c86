"""Which layout a directory is in, how sure that is, and why; and what is no drafter at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from draftconv.drafter.drafter import Detection
from draftconv.errors import BadCheckpoint, NotADrafter, UsageError
from draftconv.layouts import MARK, layouts
from tests import tiny
from tests.layouts.spelled import ENGINE_LAYOUTS
from tests.opening import read
from tests.tiny import Tensor, floats, spell

# layout → confidence and, in order, a word from each reason
EXPECTED = {
    "safeailab": ("likely", ["LlamaForCausalLM", "draft_vocab_size", "midlayer."]),
    "specforge-sglang": ("likely", ["LlamaForCausalLMEagle3", "midlayer.", "d2t and t2d", "no embed_tokens"]),
    "specforge-hf": ("likely", ["LlamaForCausalLMEagle3", "midlayer.", "d2t and t2d", "embed_tokens is stored"]),
    "torchspec-native": ("certain", ["version mark"]),
    "torchspec-vllm": ("certain", ["version mark", "layers.0."]),
    "modelopt-midlayer": ("likely", ["use_last_layernorm", "no embed_tokens", "no t2d", "midlayer."]),
    "modelopt-layers": ("likely", ["use_last_layernorm", "no embed_tokens", "no t2d", "layers.0."]),
    "modelopt-megatron": ("likely", ["midlayer.{i}."]),
    "speculators": ("certain", ["speculators_model_type"]),
    "angelslim": ("likely", ["Eagle3LlamaForCausalLM"]),
    "automodel": ("certain", ["model.*"]),
    "quark-native": (
        "likely",
        ["has eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states", "fc_norm", "norm_output", "no eagle_config",
         "layers.0."],
    ),
}  # fmt: skip


def test_every_producer_is_expected() -> None:
    assert set(EXPECTED) == set(tiny.FIRST)
    raw = {"torchspec-raw", "modelopt-raw", "generic"}
    assert set(layouts()) == set(EXPECTED) | raw | set(ENGINE_LAYOUTS)


@pytest.mark.parametrize("layout", EXPECTED)
def test_each_layout_is_detected_with_its_reasons(layout: str, tmp_path: Path) -> None:
    variant = "reduced-plain-rope" if layout == "safeailab" else "llama"
    detection = read(spell(variant, layout).write(tmp_path / "x")).detection
    confidence, words = EXPECTED[layout]
    assert (detection.layout, detection.confidence) == (layout, confidence)
    assert len(detection.reasons) == len(words)
    for reason, word in zip(detection.reasons, words, strict=True):
        assert word in reason


def test_several_megatron_layers_are_numbered(tmp_path: Path) -> None:
    spelled = spell("two-layers", "modelopt-megatron")
    assert "midlayer.1.hidden_norm.weight" in spelled.tensors
    drafter = read(spelled.write(tmp_path / "x"))
    assert drafter.detection.layout == "modelopt-megatron"
    assert drafter.names["layers.1.input_layernorm.weight"] == "midlayer.1.hidden_norm.weight"


@pytest.mark.parametrize(
    ("layout", "prefix", "found"),
    [
        ("torchspec-native", "draft_model.", "torchspec-raw"),
        ("torchspec-native", "module.draft_model.", "torchspec-raw"),
        ("modelopt-layers", "eagle_module.", "modelopt-raw"),
    ],
)
def test_states_before_export_are_told_by_their_wrapper(layout: str, prefix: str, found: str, tmp_path: Path) -> None:
    spelled = spell("llama", layout).wrap(prefix)
    drafter = read(spelled.write(tmp_path / "x"))
    assert (drafter.detection.layout, drafter.detection.confidence) == (found, "likely")
    assert drafter.facts == spelled.facts
    assert dict(drafter.names) == spelled.canonical


def test_nobodys_fingerprint_is_generic(tmp_path: Path) -> None:
    spelled = spell("llama", "torchspec-native", ids=False)
    del spelled.config["_torchspec_version"]
    spelled.metadata = None
    detection = read(spelled.write(tmp_path / "x")).detection
    assert detection == Detection("generic", "weak", ("no producer's fingerprint fits",))


def test_a_person_overrules_the_fingerprint(tmp_path: Path) -> None:
    path = spell("3.1", "torchspec-native").write(tmp_path / "x")
    assert (read(path).facts.boundaries, read(path).facts.feedback) == ((2, 4, 5), "post-norm")
    told = read(path, "vllm")
    assert told.detection == Detection("vllm", "given", ("--from vllm",))
    assert told.facts.boundaries == (1, 3, 4)  # nested ids as vLLM V1 takes them
    told = read(path, "specforge")
    assert told.detection.layout == "specforge-hf"
    assert told.facts.feedback == "pre-norm"


def test_unknown_from_names_the_closest(tmp_path: Path) -> None:
    path = spell("llama", "torchspec-native").write(tmp_path / "x")
    with pytest.raises(UsageError) as caught:
        read(path, "torchspec-nativ")
    assert "torchspec-native" in caught.value.cure
    assert all(name in caught.value.why for name in EXPECTED)


def test_what_draftconv_wrote_says_so(tmp_path: Path) -> None:
    spelled = spell("llama", "torchspec-native")
    spelled.config[MARK] = "modelopt"
    detection = read(spelled.write(tmp_path / "x")).detection
    assert detection == Detection(
        "modelopt-layers", "certain", ("config.json says draftconv wrote it for modelopt-layers",)
    )


# ── strangers ──────────────────────────────────────────────────────────────────────


Row = tuple[str, tuple[int, ...]]


def weights(*rows: Row) -> dict[str, Tensor]:
    return {name: floats(name, shape, "BF16") for name, shape in rows}


def decoder_layer(stem: str, width: int = 16) -> list[tuple[str, tuple[int, ...]]]:
    h = 16
    attention = [(f"{stem}.self_attn.{p}_proj.weight", (h, width)) for p in "qkv"]
    mlp = [(f"{stem}.mlp.{p}_proj.weight", (32, h)) for p in ("gate", "up")]
    norms = [(f"{stem}.{n}_layernorm.weight", (h,)) for n in ("input", "post_attention")]
    return [
        *attention,
        (f"{stem}.self_attn.o_proj.weight", (h, h)),
        *mlp,
        (f"{stem}.mlp.down_proj.weight", (h, 32)),
        *norms,
    ]


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "num_attention_heads": 2,
         "intermediate_size": 32, "vocab_size": 40}  # fmt: skip
TABLES = [("model.embed_tokens.weight", (40, 16)), ("model.norm.weight", (16,)), ("lm_head.weight", (40, 16))]


def whole_llama() -> tuple[dict[str, object], dict[str, Tensor]]:
    layers = [row for i in range(6) for row in decoder_layer(f"model.layers.{i}")]
    return LLAMA, weights(*TABLES, *layers)


def whole_deepseek() -> tuple[dict[str, object], dict[str, Tensor]]:
    """With experts and, as published, the MTP head as its last layer."""
    layers = [row for i in range(6) for row in decoder_layer(f"model.layers.{i}")]
    experts = [(f"model.layers.3.mlp.experts.{e}.up_proj.weight", (8, 16)) for e in range(2)]
    head = [("model.layers.5.eh_proj.weight", (16, 32)), ("model.layers.5.enorm.weight", (16,))]
    config = LLAMA | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    return config, weights(*TABLES, *layers, *experts, *head)


def small_moe() -> tuple[dict[str, object], dict[str, Tensor]]:
    rows = [*TABLES, *decoder_layer("model.layers.0"), ("model.layers.0.mlp.experts.0.up_proj.weight", (8, 16))]
    return LLAMA, weights(*rows)


def eagle_1() -> tuple[dict[str, object], dict[str, Tensor]]:
    rows = [row for row in decoder_layer("layers.0") if "input_layernorm" not in row[0]]
    return LLAMA, weights(("embed_tokens.weight", (40, 16)), ("fc.weight", (16, 32)), ("fc.bias", (16,)), *rows)


def eagle_1_mla() -> tuple[dict[str, object], dict[str, Tensor]]:
    rows = [("layers.0.self_attn.q_a_proj.weight", (8, 16)), ("layers.0.self_attn.kv_a_proj_with_mqa.weight", (12, 16))]
    return LLAMA, weights(("fc.weight", (16, 32)), *rows)


def eagle_style() -> tuple[dict[str, object], dict[str, Tensor]]:
    config = LLAMA | {"eagle_config": {"use_aux_hidden_state": False}}
    return config, weights(*decoder_layer("layers.0"), ("norm.weight", (16,)))


def next_n() -> tuple[dict[str, object], dict[str, Tensor]]:
    """A NextN head on its own: one layer with the target's index."""
    stem = "model.layers.61"
    rows = [(f"{stem}.eh_proj.weight", (16, 32)), (f"{stem}.enorm.weight", (16,)), (f"{stem}.hnorm.weight", (16,)),
            (f"{stem}.shared_head.norm.weight", (16,))]  # fmt: skip
    config = LLAMA | {"architectures": ["DeepseekV3ForCausalLMNextN"], "model_type": "deepseek_v3"}
    return config, weights(*rows, *decoder_layer(stem))


def peagle_speculators() -> tuple[dict[str, object], dict[str, Tensor]]:
    spelled = spell("llama", "speculators")
    return spelled.config | {"speculators_model_type": "peagle"}, spelled.tensors


def peagle_mask() -> tuple[dict[str, object], dict[str, Tensor]]:
    spelled = spell("llama", "specforge-hf")
    return spelled.config, spelled.tensors | weights(("mask_hidden", (1, 1, 192)))


def peagle_named() -> tuple[dict[str, object], dict[str, Tensor]]:
    spelled = spell("llama", "specforge-hf")
    return spelled.config | {"architectures": ["PEagleDraftModel"]}, spelled.tensors


def peagle_automodel() -> tuple[dict[str, object], dict[str, Tensor]]:
    spelled = spell("llama", "automodel")
    return spelled.config | {"parallel_drafting": True}, spelled.tensors


def block_drafter(*heads: Row, **config: object) -> tuple[dict[str, object], dict[str, Tensor]]:
    """What SpecForge and z-lab write: five plain layers, fc and its norm before them, no embedding and no head."""
    rows: list[Row] = [("fc.weight", (16, 80)), ("hidden_norm.weight", (16,)), ("norm.weight", (16,))]
    for i in range(5):
        rows += [
            (f"layers.{i}.input_layernorm.weight", (16,)),
            (f"layers.{i}.post_attention_layernorm.weight", (16,)),
            *((f"layers.{i}.self_attn.{n}_proj.weight", (16, 16)) for n in "qkvo"),
            *((f"layers.{i}.self_attn.{n}_norm.weight", (4,)) for n in "qk"),
            *((f"layers.{i}.mlp.{n}_proj.weight", (16, 16)) for n in ("gate", "up", "down")),
        ]
    base = {"model_type": "qwen3", "hidden_size": 16, "num_hidden_layers": 5, "num_attention_heads": 4,
            "num_key_value_heads": 4, "head_dim": 4, "intermediate_size": 16, "vocab_size": 40}  # fmt: skip
    return {**base, **config}, weights(*rows, *heads)


def dflash_specforge() -> tuple[dict[str, object], dict[str, Tensor]]:
    section = {"mask_token_id": 39, "target_layer_ids": [1, 9, 17, 25, 33]}
    return block_drafter(architectures=["DFlashDraftModel"], block_size=16, dflash_config=section)


def dflash_without_a_word() -> tuple[dict[str, object], dict[str, Tensor]]:
    return block_drafter(architectures=["Qwen3ForCausalLM"])


def dflash_by_its_section() -> tuple[dict[str, object], dict[str, Tensor]]:
    config, tensors = block_drafter(dflash_config={"mask_token_id": 39})
    return config, {name: tensor for name, tensor in tensors.items() if name != "hidden_norm.weight"}


def dflash_speculators() -> tuple[dict[str, object], dict[str, Tensor]]:
    tables = [("embed_tokens.weight", (40, 16)), ("lm_head.weight", (40, 16)), ("verifier_norm.weight", (16,))]
    return block_drafter(
        *tables,
        architectures=["DFlashSpeculator"],
        speculators_model_type="dflash",
        speculators_config={"algorithm": "dflash"},
        aux_hidden_state_layer_ids=[2, 10, 18],
    )


def dflash() -> tuple[dict[str, object], dict[str, Tensor]]:
    spelled = spell("llama", "speculators")
    return spelled.config | {"speculators_model_type": "dflash"}, spelled.tensors


def dflash2() -> tuple[dict[str, object], dict[str, Tensor]]:
    return block_drafter(("layers.0.attention_conv.base_kernel", (2, 2, 16)), architectures=["DFlash2DraftModel"])


def dspark_specforge() -> tuple[dict[str, object], dict[str, Tensor]]:
    heads = [("markov_head.markov_w1.weight", (40, 4)), ("confidence_head.proj.weight", (1, 16))]
    return block_drafter(*heads, architectures=["DSparkDraftModel"], dflash_config={"projector_type": "dspark"})


def dspark_by_its_head() -> tuple[dict[str, object], dict[str, Tensor]]:
    return block_drafter(("markov_head.markov_w1.weight", (40, 4)), architectures=["DFlashDraftModel"])


def dspark_speculators() -> tuple[dict[str, object], dict[str, Tensor]]:
    return block_drafter(architectures=["DSparkSpeculator"], speculators_model_type="dspark", markov_rank=4)


def domino() -> tuple[dict[str, object], dict[str, Tensor]]:
    return block_drafter(("prefix_gru.weight_ih_l0", (48, 16)), dflash_config={"projector_type": "domino"})


def xpress() -> tuple[dict[str, object], dict[str, Tensor]]:
    return block_drafter(("refiner_head.token_embed.weight", (40, 4)), speculators_model_type="xpress")


def hydra() -> tuple[dict[str, object], dict[str, Tensor]]:
    return LLAMA, weights(("hydra_mlp.0.0.linear.weight", (16, 32)), ("hydra_lm_head.0.weight", (40, 16)))


def mlp_speculator() -> tuple[dict[str, object], dict[str, Tensor]]:
    return {"model_type": "mlp_speculator"}, weights(("speculator.emb.0.weight", (40, 16)))


def mtp_qwen() -> tuple[dict[str, object], dict[str, Tensor]]:
    rows = [("mtp.fc.weight", (16, 32)), ("mtp.pre_fc_norm_hidden.weight", (16,)),
            ("mtp.layers.0.self_attn.q_proj.weight", (16, 16))]  # fmt: skip
    return LLAMA, weights(*rows)


def mtp_speculators() -> tuple[dict[str, object], dict[str, Tensor]]:
    return {**LLAMA, "speculators_model_type": "mtp"}, weights(("mtp_layers.0.input_proj.weight", (16, 32)))


def medusa() -> tuple[dict[str, object], dict[str, Tensor]]:
    rows = [(f"{head}.0.linear.weight", (16, 16)) for head in range(3)] + [
        (f"{head}.1.weight", (40, 16)) for head in range(3)
    ]
    return {"medusa_num_heads": 3, "medusa_num_layers": 1, "model_type": "medusa"}, weights(*rows)


def lora() -> tuple[dict[str, object], dict[str, Tensor]]:
    stem = "base_model.model.model.layers.0.self_attn.q_proj"
    return LLAMA, weights((f"{stem}.lora_A.weight", (4, 16)), (f"{stem}.lora_B.weight", (16, 4)))


STRANGERS: dict[Callable[[], tuple[dict[str, object], dict[str, Tensor]]], str] = {
    whole_llama: "a whole model",
    whole_deepseek: "a whole model",
    small_moe: "a mixture-of-experts model",
    eagle_1: "an EAGLE-1/2 drafter",
    eagle_1_mla: "an EAGLE-1/2 drafter",
    eagle_style: "an EAGLE-1-style head",
    next_n: "a multi-token-prediction head",
    peagle_speculators: "a P-EAGLE drafter",
    peagle_mask: "a P-EAGLE drafter",
    peagle_named: "a P-EAGLE drafter",
    peagle_automodel: "a P-EAGLE drafter",
    dflash_specforge: "a DFlash drafter",
    dflash_without_a_word: "a DFlash drafter",
    dflash_by_its_section: "a DFlash drafter",
    dflash_speculators: "a DFlash drafter",
    dflash: "a DFlash drafter",
    dflash2: "a DFlash2 drafter",
    dspark_specforge: "a DSpark drafter",
    dspark_by_its_head: "a DSpark drafter",
    dspark_speculators: "a DSpark drafter",
    domino: "a Domino drafter",
    xpress: "an XPress drafter",
    hydra: "a set of Hydra heads",
    mlp_speculator: "an MLP speculator",
    mtp_qwen: "a multi-token-prediction head",
    mtp_speculators: "a multi-token-prediction head",
    medusa: "a set of Medusa heads",
    lora: "a LoRA adapter",
}


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda stranger: stranger.__name__)
def test_strangers_are_named(
    stranger: Callable[[], tuple[dict[str, object], dict[str, Tensor]]], tmp_path: Path
) -> None:
    config, tensors = stranger()
    spelled = tiny.Spelled("", tiny.BASE, tensors, dict(config), {})
    with pytest.raises(NotADrafter) as caught:
        read(spelled.write(tmp_path / "x"))
    assert caught.value.what.startswith(f"this is {STRANGERS[stranger]}")
    assert caught.value.why
    assert caught.value.cure


def test_a_norm_before_all_layers_alone_is_no_dflash(tmp_path: Path) -> None:
    """ModelOpt up to 0.40 wrote hidden_norm so too; its first layer reads the token beside the state."""
    spelled = spell("llama", "specforge-hf")
    name = next(name for name in spelled.tensors if name.endswith("hidden_norm.weight"))
    spelled.tensors["hidden_norm.weight"] = spelled.tensors.pop(name)
    assert read(spelled.write(tmp_path / "x")).kind.title == "EAGLE-3"


def test_a_drafter_of_two_states_without_its_norm_is_not_eagle_1(tmp_path: Path) -> None:
    """fc is [H, 2H] there too, but attention reads 2H: a broken EAGLE-3 drafter, to be reported as one."""
    variant = tiny.Variant("two", tiny.replace(tiny.BASE, aux=2, boundaries=(2, 5)))
    spelled = spell(variant, "speculators").remove("layers.0.hidden_norm.weight")
    drafter = read(spelled.write(tmp_path / "x"))
    assert (drafter.detection.layout, drafter.facts.aux) == ("speculators", 2)


def test_a_directory_that_only_has_an_adapter_config(tmp_path: Path) -> None:
    _, tensors = lora()
    path = tiny.Spelled("", tiny.BASE, tensors, {}, {}).write(tmp_path / "x")
    (path / "config.json").rename(path / "adapter_config.json")
    with pytest.raises(BadCheckpoint, match=r"no config\.json"):
        read(path)
    assert json.loads((path / "adapter_config.json").read_text()) == {}
