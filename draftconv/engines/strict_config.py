"""What transformers asks of a config.json before an engine sees it: strict dataclass fields of its config classes."""

from __future__ import annotations

from collections.abc import Mapping

from draftconv.engines.checks import listed
from draftconv.engines.rules import SimulatedLoad

NOT_NULL = frozenset({
    "max_position_embeddings", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "vocab_size", "rms_norm_eps", "hidden_act", "attention_bias", "tie_word_embeddings", "initializer_range",
    "use_cache",
})  # fmt: skip
"""Keys that transformers 5.19 wants to have a value, if they are there at all (strict dataclass fields)."""

NOT_NULL_BY_TYPE: Mapping[str, frozenset[str]] = {
    "llama": frozenset({"mlp_bias"}),
    "qwen3": frozenset({"head_dim", "attention_dropout"}),
    "deepseek": frozenset({
        "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "n_routed_experts", "n_shared_experts",
        "moe_intermediate_size", "routed_scaling_factor",
    }),
}  # fmt: skip
"""More of them, by the start of model_type; kimi_k2 is read as deepseek_v3."""


def nulls(load: SimulatedLoad) -> str | None:
    """Keys that are present with the value null and must have one."""
    kind = load.model_type.replace("kimi", "deepseek").replace("glm_moe_dsa", "deepseek")
    more = [keys for start, keys in NOT_NULL_BY_TYPE.items() if kind.startswith(start)]
    keys = NOT_NULL.union(*more)
    return listed([f"{key}: null" for key, value in load.config.data.items() if value is None and key in keys])
