"""What an engine builds from config.json alone, before it looks at a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftconv.drafter.config import Config
from draftconv.drafter.facts import DEFAULT_EPS, AuxLayers, Facts, Fusion, Gqa, Mla
from draftconv.drafter.rope import read_rope

LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "vocab_size": 32000,
         "num_attention_heads": 32, "max_position_embeddings": 2048}  # fmt: skip
QWEN3 = {"hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "vocab_size": 151936,
         "num_attention_heads": 32, "head_dim": 128, "max_position_embeddings": 32768}  # fmt: skip
DEEPSEEK = {"hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61, "vocab_size": 129280,
            "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 4096}  # fmt: skip
"""Defaults of transformers 5.19 LlamaConfig, Qwen3Config and DeepseekV3Config, which all engines read through."""


def defaults(config: Config, *, mla: bool) -> Mapping[str, int]:
    """The class defaults behind a config's absent keys."""
    if mla:
        return DEEPSEEK
    return QWEN3 if config.text("model_type") == "qwen3" else LLAMA


def build(
    config: Config,
    *,
    mla: bool,
    qkv_bias: bool = False,
    o_bias: bool = False,
    qk_norm: bool = False,
) -> Facts:
    """Facts that every engine reads alike; the caller replaces what its own code decides.

    An absent size is the class default, so a tensor of another shape does not fit. An explicit
    null q_lora_rank means a plain query.
    """
    size = _size_reader(config, mla=mla)
    hidden, vocab = size("hidden_size"), size("vocab_size")
    draft_vocab = config.size("draft_vocab_size") or vocab
    attention = _mla(config, size) if mla else _gqa(config, size, Gqa(0, 0, 0, qkv_bias, o_bias, qk_norm))
    return Facts(
        attention=attention,
        layers=size("num_hidden_layers"),
        hidden=hidden,
        target_hidden=config.size("target_hidden_size") or hidden,
        intermediate=size("intermediate_size"),
        vocab=vocab,
        draft_vocab=draft_vocab,
        aux=3,
        boundaries=AuxLayers.UNKNOWN,
        rope=read_rope(config, mla=mla)[0],
        eps=DEFAULT_EPS if (eps := config.number("rms_norm_eps")) is None else eps,
        activation=config.text("hidden_act") or "silu",
        vocab_order="full" if draft_vocab == vocab else "unordered",
    )


def fusion(config: Config, *, per_state: bool, whole: bool) -> Fusion:
    """What vLLM and SGLang apply before fc: norms per state, one over the whole (`norm_before_fc`), or both in turn.

    Args:
        per_state: the flag for fc_norm, as the engine reads it.
        whole: whether the class knows norm_before_fc at all; eagle_config's flag wins over the top level's.
    """
    nested = config.section("eagle_config").flag("norm_before_fc")
    whole = whole and bool(nested if nested is not None else config.flag("norm_before_fc"))
    return "both" if per_state and whole else "fc_norm" if per_state else "norm_before_fc" if whole else "plain"


def without(config: Config, *keys: str) -> Config:
    """The config as an engine sees it that never reads these keys."""
    return Config({key: value for key, value in config.data.items() if key not in keys}, config.where)


def _size_reader(config: Config, *, mla: bool) -> Callable[[str], int]:
    table = defaults(config, mla=mla)
    return lambda key: config.size(key) or table[key]


def _mla(config: Config, size: Callable[[str], int]) -> Mla:
    plain = config.has("q_lora_rank") and config.raw("q_lora_rank") is None
    return Mla(
        size("num_attention_heads"),
        None if plain else size("q_lora_rank"),
        size("kv_lora_rank"),
        size("qk_nope_head_dim"),
        size("qk_rope_head_dim"),
        size("v_head_dim"),
    )


def _gqa(config: Config, size: Callable[[str], int], flags: Gqa) -> Gqa:
    heads = size("num_attention_heads")
    head_dim = config.size("head_dim") or defaults(config, mla=False).get("head_dim")
    return Gqa(
        heads,
        config.size("num_key_value_heads") or heads,
        head_dim or size("hidden_size") // heads,
        flags.qkv_bias,
        flags.o_bias,
        flags.qk_norm,
    )
