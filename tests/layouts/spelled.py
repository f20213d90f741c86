"""What each writable layout must look like on disk, as literals: no expectation here comes from draftconv's writers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from draftconv.drafter.facts import AuxLayers, Facts, Gqa, Mla
from draftconv.layouts import writable
from draftconv.layouts.base import Writer
from tests import tiny
from tests.tiny import Tensor

WRITABLE = tuple(writable())
"""By the name that `--to` takes; what a layout looks like that is not in these tables, `spelled_here` asks for."""

KEY = "eagle_aux_hidden_state_layer_ids"
FLAGS = ("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual")
ENGINE_LAYOUTS = tuple(name for name, found in writable().items() if found.writer and found.writer.serves)
IDS = {
    "torchspec": "torchspec-native",
    "specforge": "specforge-hf",
    "modelopt": "modelopt-layers",
}
"""`--to` name → layout id, where they differ."""

LAYER_0 = {
    "vllm": "midlayer.",
    "sglang": "midlayer.",
    "trtllm": "midlayer.",
    "portable": "midlayer.",
    "torchspec": "midlayer.",
    "specforge": "midlayer.",
    "modelopt": "layers.0.",
    "speculators": "layers.0.",
}
HIDDEN_NORM_LATER = ("sglang", "trtllm")
WITH_T2D = ("torchspec", "specforge", "speculators")
ASCENDING = ("torchspec", "specforge", "speculators")
ONE_BIAS_FLAG = ("vllm", "trtllm", "speculators", "modelopt")

REFUSED: Mapping[str, Mapping[str, str]] = {
    "vllm": {"mla-plain-q": "uncompressed query"},
    "sglang": {
        "norm-before-residual": "norm_before_residual: true",
        "bias": "q/k/v biases",
        "qkv-bias": "q/k/v biases",
        "every-bias": "q/k/v biases",
        "qk-norm": "q_norm and k_norm",
        "three-layers-qk-norm": "q_norm and k_norm",
        "window": "q_norm and k_norm",
        "mlp-bias": "MLP biases",
        "mla-plain-q": "uncompressed query",
    },
    "trtllm": {
        "norm-before-residual": "norm_before_residual: true",
        "qk-norm": "q_norm and k_norm",
        "three-layers-qk-norm": "q_norm and k_norm",
        "window": "q_norm and k_norm",
        "mla-plain-q": "uncompressed query",
        "mla-reduced": "reduced vocabulary beside MLA",
        "mla-frequency": "reduced vocabulary beside MLA",
    },
    "portable": {
        "norm-before-residual": "norm_before_residual: true",
        "bias": "attention_bias means o_proj alone to one engine",
        "qkv-bias": "q/k/v biases",
        "every-bias": "several layers",
        "qk-norm": "q_norm and k_norm",
        "two-layers": "several layers",
        "three-layers-qk-norm": "several layers",
        "window": "q_norm and k_norm",
        "mlp-bias": "MLP biases",
        "mla-plain-q": "uncompressed query",
        "mla-reduced": "reduced vocabulary beside MLA",
        "mla-frequency": "reduced vocabulary beside MLA",
    },
    "torchspec": {
        "two-layers": "one layer only",
        "three-layers-qk-norm": "one layer only",
        "norm-before-residual": "norm_before_residual: true",
        "norm-before-fc": "norm_before_fc",
        "bias": "q/k/v biases",
        "qkv-bias": "q/k/v biases",
        "every-bias": "one layer only",
        "qk-norm": "q_norm and k_norm",
        "window": "q_norm and k_norm",
        "mlp-bias": "MLP biases",
    },
    "specforge": {
        "two-layers": "one layer only",
        "three-layers-qk-norm": "one layer only",
        "norm-before-residual": "norm_before_residual: true",
        "norm-before-fc": "norm_before_fc",
        "3.1": "pre-norm state",
        "3.1-wide": "pre-norm state",
        "post-norm": "pre-norm state",
        "bias": "q/k/v biases",
        "qkv-bias": "q/k/v biases",
        "every-bias": "one layer only",
        "qk-norm": "q_norm and k_norm",
        "window": "q_norm and k_norm",
        "mlp-bias": "MLP biases",
        "four-aux": "exactly three captured states",
        **{name: "MLA" for name in tiny.VARIANTS if name.startswith("mla")},
    },
    "modelopt": {
        "norm-before-residual": "norm_before_residual: true",
        "norm-before-fc": "norm_before_fc",
        "3.1": "EAGLE-3.1 norms",
        "3.1-wide": "EAGLE-3.1 norms",
        "fc-norm": "EAGLE-3.1 norms",
        "mla-3.1": "EAGLE-3.1 norms",
        "post-norm": "pre-norm state",
        "qk-norm": "q_norm and k_norm",
        "three-layers-qk-norm": "q_norm and k_norm",
        "window": "q_norm and k_norm",
        "mlp-bias": "MLP biases",
        "every-bias": "MLP biases",
        "wide-target": "not as wide as the target's",
        "mla-plain-q": "compresses the query",
    },
    "speculators": {
        "wide-target": "as wide as its target",
        "3.1-wide": "as wide as its target",
        **{name: "MLA" for name in tiny.VARIANTS if name.startswith("mla")},
    },
}
"""`--to` → variant → words of the one reason for which it is refused, whoever trained it."""


def start_for(to: str) -> str:
    """ModelOpt takes only what it trained itself."""
    return "modelopt-layers" if to == "modelopt" else "torchspec-native"


NO_TABLE = "must store embed_tokens"


def spelled_here(to: str) -> None:
    """Fail where nobody wrote down what a layout looks like: a round trip alone passes for any consistent mistake."""
    if to not in REFUSED:
        pytest.fail(f"{to} is writable, and nothing in tests/layouts/spelled.py says what it must look like on disk")


def refusal(to: str, variant: str, facts: Facts) -> str | None:
    """Words of the reason for which a drafter of this variant is refused without a target; None when it converts.

    Of a layout that is not in `REFUSED`, its own word is taken, so that it is sent there and back in any case.
    """
    if to not in REFUSED:
        limits = writer_of(to).refuses
        return next((re.escape(limit.what) for limit in limits if limit.holds(facts)), None)
    if variant in REFUSED[to]:
        return REFUSED[to][variant]
    if to == "modelopt" and not facts.double_norm:
        return "normalise the state twice"
    if to in ("speculators", "torchspec") and not facts.own_embedding:
        return NO_TABLE
    return None


def writer_of(to: str) -> Writer:
    writer = writable()[to].writer
    assert writer is not None
    return writer


def check_config(config: dict[str, Any], facts: Facts, to: str) -> None:
    """The emission rules, from the facts alone."""
    spelled_here(to)
    unnamed = to == "speculators" and not config["speculators_config"]["verifier"]["name_or_path"]
    assert nulls(config) == (["/speculators_config/verifier/name_or_path"] if unnamed else [])
    assert "auto_map" not in keys(config)
    flat = config | config.get("transformer_layer_config", {})
    sizes = {"hidden_size": facts.hidden, "intermediate_size": facts.intermediate, "num_hidden_layers": facts.layers,
             "vocab_size": facts.vocab, "draft_vocab_size": facts.draft_vocab, "rms_norm_eps": facts.eps,
             "rope_theta": facts.rope.theta, "tie_word_embeddings": False}  # fmt: skip
    assert {key: flat.get(key) for key in sizes} == sizes
    assert flat.get("max_position_embeddings") == facts.max_positions
    assert config.get("target_hidden_size") == (None if facts.target_hidden == facts.hidden else facts.target_hidden)
    match facts.attention:
        case Gqa(heads, kv_heads, head_dim, qkv_bias, o_bias, qk_norm):
            wanted = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
                      "attention_bias": qkv_bias or o_bias, "model_type": "qwen3" if qk_norm else "llama"}  # fmt: skip
            architecture = "Eagle3Qwen3ForCausalLM" if qk_norm else "LlamaForCausalLMEagle3"
        case Mla(heads, q_lora, kv_lora, nope, rope, v):
            wanted = {"num_attention_heads": heads, "kv_lora_rank": kv_lora, "qk_nope_head_dim": nope,
                      "qk_rope_head_dim": rope, "v_head_dim": v, "model_type": "kimi_k2"}  # fmt: skip
            wanted |= {} if q_lora is None else {"q_lora_rank": q_lora}
            architecture = "Eagle3DeepseekV2ForCausalLM"
    assert {key: flat.get(key) for key in wanted} == wanted
    assert config["architectures"] == ["Eagle3DraftModel" if to == "speculators" else architecture]
    if facts.rope.kind != "default":
        scaling = {"type": facts.rope.kind, "rope_type": facts.rope.kind, **facts.rope.scaling}
        assert flat["rope_scaling"] == scaling
    else:
        assert "rope_scaling" not in flat
    if to in (*ENGINE_LAYOUTS, "specforge", "speculators"):
        modern = {"rope_type": facts.rope.kind, "rope_theta": facts.rope.theta, **facts.rope.scaling}
        assert flat["rope_parameters"] == modern
    if to in (*ENGINE_LAYOUTS, "speculators"):
        flags = {
            "fc_norm": facts.fusion == "fc_norm",
            "norm_before_fc": facts.fusion == "norm_before_fc",
            "norm_output": facts.feedback == "post-norm",
            "norm_before_residual": facts.norm_before_residual,
        }
        assert {key: config[key] for key in FLAGS} == flags
    if to in ENGINE_LAYOUTS:
        assert config["num_aux_hidden_states"] == facts.aux
        assert config["eagle_config"]["norm_before_fc"] is (facts.fusion == "norm_before_fc")
        assert config["eagle_config"]["return_hidden_post_norm"] is (facts.feedback == "post-norm")
    match to:
        case "specforge":
            assert config["norm_output"] is True  # its own sense: the final norm is applied
        case "torchspec":
            assert config["norm_output"] is (facts.feedback == "post-norm")
        case "modelopt":
            assert "norm_output" not in config
    check_ids(config, facts, to)


def check_ids(config: dict[str, Any], facts: Facts, to: str) -> None:
    """Without a target: the numbers every family reads alike, or none for the default triple."""
    top, nested = config.get(KEY), config.get("eagle_config", {}).get(KEY)
    if facts.boundaries is AuxLayers.DEFAULT:
        assert (top, nested) == (None, None)
        return
    assert isinstance(facts.boundaries, tuple)
    before, after = list(facts.boundaries), [b - 1 for b in facts.boundaries]
    wanted = (before, after) if to in ENGINE_LAYOUTS else (before, None) if to == "speculators" else (None, after)
    assert (top, nested) == wanted


def file_name(canonical: str, to: str, layers: int) -> str:
    """How a canonical tensor is called in this layout."""
    spelled_here(to)
    if not canonical.startswith("layers."):
        return canonical
    _, number, rest = canonical.split(".", 2)
    if number != "0" and to in HIDDEN_NORM_LATER:
        rest = rest.replace("input_layernorm", "hidden_norm")
    if to == "trtllm" and layers > 1:
        return f"midlayer.{number}.{rest}"
    return f"{LAYER_0[to]}{rest}" if number == "0" else f"layers.{number}.{rest}"


def stored(spelled: tiny.Spelled, to: str) -> dict[str, Tensor]:
    """File name → tensor that a conversion to this layout must hold, bit for bit."""
    facts = spelled.facts
    tensors = {name: spelled.tensors[file] for name, file in spelled.canonical.items()}
    target_ids = ids_of(tensors, facts)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    if to == "modelopt":
        tensors.pop("embed_tokens.weight", None)
    if target_ids is not None and to in ASCENDING:
        order = sorted(range(len(target_ids)), key=target_ids.__getitem__)
        tensors["lm_head.weight"] = rows(tensors["lm_head.weight"], order)
        target_ids = tuple(sorted(target_ids))
    if target_ids is None and to == "specforge":
        target_ids = tuple(range(facts.vocab))
    if target_ids is not None:
        both = tiny.maps(target_ids, facts.vocab)
        tensors |= both if to in WITH_T2D else {"d2t": both["d2t"]}
    match facts.attention:
        case Gqa(qkv_bias=True, o_bias=False) if to in ONE_BIAS_FLAG:
            for layer in range(facts.layers):
                dtype = tensors[f"layers.{layer}.self_attn.o_proj.weight"].dtype
                zeros = Tensor(dtype, (facts.hidden,), bytes(facts.hidden * tiny.BITS[dtype].itemsize))
                tensors[f"layers.{layer}.self_attn.o_proj.bias"] = zeros
    return {file_name(name, to, facts.layers): tensor for name, tensor in tensors.items()}


def ids_of(tensors: Mapping[str, Tensor], facts: Facts) -> tuple[int, ...] | None:
    """Target ids of a reduced vocabulary; None for the whole one, also when a map of zeros is stored."""
    if "d2t" not in tensors or facts.draft_vocab == facts.vocab:
        return None
    return tuple(i + int(offset) for i, offset in enumerate(tensors["d2t"].numpy()))


def rows(tensor: Tensor, order: list[int]) -> Tensor:
    size = len(tensor.data) // tensor.shape[0]
    return Tensor(tensor.dtype, tensor.shape, b"".join(tensor.data[r * size : (r + 1) * size] for r in order))


def on_disk(path: Path) -> dict[str, Tensor]:
    """Every tensor of a written directory, read by the safetensors library's own header and these few lines."""
    found: dict[str, Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "np") as opened:
            names = set(opened.keys())
        raw = file.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        assert header.pop("__metadata__")["format"] == "pt"
        assert set(header) == names
        for name, row in header.items():
            start, stop = row["data_offsets"]
            found[name] = Tensor(row["dtype"], tuple(row["shape"]), raw[8 + size + start : 8 + size + stop])
    return found


def document(path: Path, name: str) -> Any:
    return json.loads((path / name).read_text())


def nulls(value: object, path: str = "") -> list[str]:
    """Paths of every null in a JSON document."""
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in nulls(item, f"{path}/{key}")]
    if isinstance(value, list):
        return [found for i, item in enumerate(value) for found in nulls(item, f"{path}/{i}")]
    return [path] if value is None else []


def keys(value: object) -> set[str]:
    """Every key at any depth."""
    if isinstance(value, dict):
        return set(value) | {found for item in value.values() for found in keys(item)}
    if isinstance(value, list):
        return {found for item in value for found in keys(item)}
    return set()
