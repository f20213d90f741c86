"""config.json → the attributes that the model is built from, as transformers and TensorRT-LLM make them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from truth.trtllm.outcome import RaisedError
from truth.trtllm.source import (
    CONFIG_UTILS,
    DEEPSEEK_CONFIG,
    DIVIDED,
    MODEL_CONFIG,
    PHI3,
    SPECULATIVE,
    TRANSFORMERS,
    TRANSFORMERS_ROPE,
)

Fields = Mapping[str, tuple[str, object]]
"""Field → the types that its class allows, as transformers spells them, and its default."""

BASE: Fields = MappingProxyType({
    "architectures": ("list | None", None),
    "dtype": ("str | None", None),
    "is_encoder_decoder": ("bool", False),
    "chunk_size_feed_forward": ("int", 0),
})  # fmt: skip
"""Fields that every class checks."""

COMMON: Fields = MappingProxyType({
    "hidden_act": ("str", "silu"),
    "initializer_range": ("float", 0.02),
    "rms_norm_eps": ("float", 1e-6),
    "use_cache": ("bool", True),
    "tie_word_embeddings": ("bool", False),
    "rope_parameters": ("dict | None", None),
    "vocab_size": ("int", 32000),
    "hidden_size": ("int", 4096),
    "intermediate_size": ("int", 11008),
    "num_hidden_layers": ("int", 32),
    "num_attention_heads": ("int", 32),
    "num_key_value_heads": ("int | None", None),
    "max_position_embeddings": ("int", 2048),
})  # fmt: skip

LATENT: Fields = MappingProxyType({
    "kv_lora_rank": ("int", 512),
    "q_lora_rank": ("int | None", 1536),
    "qk_rope_head_dim": ("int", 64),
    "qk_nope_head_dim": ("int", 128),
    "v_head_dim": ("int", 128),
    "n_routed_experts": ("int", 64),
    "n_shared_experts": ("int", 2),
    "moe_intermediate_size": ("int", 1407),
    "routed_scaling_factor": ("float", 1.0),
    "attention_bias": ("bool", False),
})  # fmt: skip

TYPES: Mapping[str, Fields] = MappingProxyType({
    "llama": {
        **COMMON,
        "attention_bias": ("bool", False),
        "mlp_bias": ("bool", False),
        "head_dim": ("int | None", None),
        "pretraining_tp": ("int | None", 1),
    },
    "qwen2": {
        **COMMON,
        "vocab_size": ("int", 151936),
        "intermediate_size": ("int", 22016),
        "num_key_value_heads": ("int | None", 32),
        "max_position_embeddings": ("int", 32768),
        "use_sliding_window": ("bool", False),
        "sliding_window": ("int | None", 4096),
        "layer_types": ("list | None", None),
    },
    "qwen3": {
        **COMMON,
        "vocab_size": ("int", 151936),
        "intermediate_size": ("int", 22016),
        "num_key_value_heads": ("int | None", 32),
        "head_dim": ("int", 128),
        "max_position_embeddings": ("int", 32768),
        "use_sliding_window": ("bool", False),
        "sliding_window": ("int | None", 4096),
        "layer_types": ("list | None", None),
        "attention_bias": ("bool", False),
    },
    "mistral": {
        **COMMON,
        "intermediate_size": ("int", 14336),
        "num_key_value_heads": ("int", 8),
        "head_dim": ("int | None", None),
        "max_position_embeddings": ("int", 131072),
        "sliding_window": ("int | None", 4096),
    },
    "phi3": {
        **COMMON,
        "vocab_size": ("int", 32064),
        "hidden_size": ("int", 3072),
        "intermediate_size": ("int", 8192),
        "max_position_embeddings": ("int", 4096),
        "original_max_position_embeddings": ("int", 4096),
        "rms_norm_eps": ("float", 1e-5),
        "sliding_window": ("int | None", None),
    },
    "llama4_text": {
        **COMMON,
        "vocab_size": ("int", 202048),
        "hidden_size": ("int", 5120),
        "intermediate_size": ("int", 8192),
        "intermediate_size_mlp": ("int", 16384),
        "num_hidden_layers": ("int", 48),
        "num_attention_heads": ("int", 40),
        "num_key_value_heads": ("int", 8),
        "head_dim": ("int", 128),
        "max_position_embeddings": ("int", 131072),
        "rms_norm_eps": ("float", 1e-5),
        "layer_types": ("list | None", None),
        "attention_bias": ("bool", False),
    },
    "deepseek_v2": {
        **COMMON,
        **LATENT,
        "mlp_bias": ("bool", False),
        "head_dim": ("int | None", None),
        "first_k_dense_replace": ("int", 0),
    },
    "deepseek_v3": {
        **COMMON,
        **LATENT,
        "vocab_size": ("int", 129280),
        "hidden_size": ("int", 7168),
        "intermediate_size": ("int", 18432),
        "num_hidden_layers": ("int", 61),
        "num_attention_heads": ("int", 128),
        "num_key_value_heads": ("int | None", 128),
        "n_routed_experts": ("int", 256),
        "n_shared_experts": ("int", 1),
        "moe_intermediate_size": ("int", 2048),
        "routed_scaling_factor": ("float", 2.5),
        "v_head_dim": ("int | None", 128),
        "max_position_embeddings": ("int", 4096),
    },
})  # fmt: skip
"""model_type → fields of its class in transformers, those that a drafter's config can have. A class is strict: a value
of another type stops the load."""

OWN: Mapping[str, object] = MappingProxyType({
    name: default for name, (_, default) in {**TYPES["deepseek_v3"], "q_lora_rank": ("", 1536)}.items()
} | {"rope_theta": 10000.0, "num_nextn_predict_layers": 1, "first_k_dense_replace": 3})  # fmt: skip
"""Defaults of TensorRT-LLM's own DeepseekV3Config, which checks no types."""

SIZES = (
    "hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps",
)  # fmt: skip
"""What the modules are built with, whatever the class lets through."""

OWN_TYPES = frozenset({"kimi_k2", "deepseek_v32", "glm_moe_dsa"})
"""CONFIG_UTILS._CONFIG_REGISTRY: model types that become that class."""

FAMILIAR = frozenset({"none", "linear", "dynamic", "longrope", "llama3", "yarn", "mrope"})

DTYPES = frozenset({"bfloat16", "float16", "float32", "float64", "half", "float", "double"})

NEEDED: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
})  # fmt: skip
"""Kind of rotary scaling → keys without which transformers' validation stops."""

INDEXED = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")


def attributes(config: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of the loaded config.

    Raises:
        RaisedError: the config cannot be loaded.
    """
    kind = config.get("model_type")
    where = CONFIG_UTILS.at("load_pretrained_config")
    if kind in OWN_TYPES:
        made = _own(config)
    elif isinstance(kind, str) and kind in TYPES:
        if "AutoConfig" in (config.get("auto_map") or {}):
            raise RaisedError("auto_map names code that is not in the directory", where)
        made = _strict(config, TYPES[kind])
    else:
        # AutoConfig.from_pretrained; it guesses from the directory's name no longer.
        raise RaisedError(f"model_type {kind!r} is unknown", where)
    _clear_plain_rope(made, config)
    _read_dtype(made)
    architectures = made.get("architectures")
    if not architectures:
        # pretrained_config.architectures[0], before anything else is looked at
        raise RaisedError(f"architectures is {architectures!r}", MODEL_CONFIG.at("ModelConfig.from_pretrained"))
    if architectures[0] in INDEXED and "index_n_heads" not in made:
        raise RaisedError("index_n_heads is missing", MODEL_CONFIG.at("ModelConfig.from_pretrained"))
    return made


def _strict(config: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    made: dict[str, Any] = {name: default for name, (_, default) in {**BASE, **fields}.items()}
    made.update(config)
    for name, (types, _) in {**BASE, **fields}.items():
        if not _allowed(made[name], types):
            raise RaisedError(f"{name} is {made[name]!r}", TRANSFORMERS.at("strict fields"))
    if made["model_type"] in ("deepseek_v2", "deepseek_v3"):
        made["head_dim"] = made["qk_rope_head_dim"]
    elif "head_dim" in made and made["head_dim"] is None:
        made["head_dim"] = made["hidden_size"] // made["num_attention_heads"]
    if made["num_key_value_heads"] is None:
        made["num_key_value_heads"] = made["num_attention_heads"]
    if (source := DIVIDED.get(made["model_type"])) and made["hidden_size"] % made["num_attention_heads"]:
        raise RaisedError("hidden_size is no multiple of num_attention_heads", source.at("validate_architecture"))
    rope = made.pop("rope_scaling", None) or made.get("rope_parameters") or {}
    made["rope_parameters"] = _standard_rope({**rope}, made, config)
    made.pop("rope_theta", None)
    return made


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    """As `DEEPSEEK_CONFIG`'s constructor has it, and the base class behind it."""
    made: dict[str, Any] = {**{name: default for name, (_, default) in BASE.items()}, **OWN, **config}
    for name, (types, _) in BASE.items():
        if not _allowed(made[name], types):
            raise RaisedError(f"{name} is {made[name]!r}", DEEPSEEK_CONFIG.at("DeepseekV3Config"))
    if made["num_key_value_heads"] is None:
        made["num_key_value_heads"] = made["num_attention_heads"]
    scaling = made.pop("rope_scaling", None) or {}
    standard = _standard_rope({**scaling}, made, config)
    # rope_parameters is a key like any other here: written over what was made of rope_scaling, and not completed
    written = config.get("rope_parameters")
    made["rope_parameters"] = standard if written is None else {**written}
    _validate_rope(made["rope_parameters"], made)
    for name in SIZES:
        if not isinstance(made[name], int | float):
            raise RaisedError(f"{name} is {made[name]!r}", SPECULATIVE.at("Eagle3DraftModel.__init__"))
    return made


def _allowed(value: object, types: str) -> bool:
    for name in types.split(" | "):
        match name:
            case "None":
                fits = value is None
            case "int":
                fits = isinstance(value, int) and not isinstance(value, bool)
            case "float":
                fits = isinstance(value, float)
            case "bool":
                fits = isinstance(value, bool)
            case "str":
                fits = isinstance(value, str)
            case "list":
                fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
            case "dict":
                fits = isinstance(value, dict)
            case _:
                raise ValueError(f"type {name} is not read")
        if fits:
            return True
    return False


def _standard_rope(rope: dict[str, Any], made: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """transformers' convert_rope_params_to_dict and standardize_rope_params."""
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    if (partial := config.get("partial_rotary_factor")) is not None:
        rope.setdefault("partial_rotary_factor", partial)
    elif made.get("model_type") == "phi3":
        rope.setdefault("partial_rotary_factor", 1.0)
    rope.setdefault("rope_type", rope.get("type", "default"))
    if rope["rope_type"] in ("llama3", "yarn", "longrope"):
        rope.setdefault("original_max_position_embeddings", made.get("max_position_embeddings"))
    if made.get("model_type") == "phi3" and rope["rope_type"] not in ("default", "longrope", "su", "yarn"):
        raise RaisedError(f"rope type {rope['rope_type']!r}", PHI3.at("Phi3Config.validate_rope"))
    _validate_rope(rope, made)
    return rope


def _validate_rope(rope: dict[str, Any], made: Mapping[str, Any]) -> None:
    rope.setdefault("rope_type", rope.get("type", "default"))
    for key in NEEDED.get(rope["rope_type"], ()):
        if key not in rope:
            raise RaisedError(f"rope_parameters lacks {key}", TRANSFORMERS_ROPE.at("validate_rope"))
    if rope["rope_type"] == "yarn":
        sizes = (made.get("max_position_embeddings"), rope["original_max_position_embeddings"])
        if not all(isinstance(size, int | float) and size for size in sizes):
            raise RaisedError(
                f"YaRN over {sizes[0]!r} positions of {sizes[1]!r}", TRANSFORMERS_ROPE.at("validate_rope")
            )


def _clear_plain_rope(made: dict[str, Any], config: Mapping[str, Any]) -> None:
    """load_pretrained_config: a rope of the default type is cleared, and its base becomes an attribute."""
    rope = made.get("rope_parameters")
    if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type")) != "default":
        return
    if any(key not in ("rope_type", "type", "rope_theta") for key in rope):
        return
    if (theta := rope.get("rope_theta")) is not None:
        written = config.get("rope_theta")
        made["rope_theta"] = theta if written is None else written
    made["rope_parameters"] = None


def _read_dtype(made: dict[str, Any]) -> None:
    """`dtype` wins over `torch_dtype`; a name that torch does not have is no dtype."""
    dtype = made.get("dtype")
    dtype = made.get("torch_dtype") if dtype is None else dtype
    if dtype is not None and dtype not in DTYPES:
        raise RaisedError(f"torch has no dtype {dtype!r}", TRANSFORMERS.at("PreTrainedConfig.__post_init__"))
    aliases: dict[object, object] = {"half": "float16", "float": "float32", "double": "float64"}
    made["torch_dtype"] = aliases.get(dtype, dtype)
