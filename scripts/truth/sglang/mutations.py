"""Checkpoints changed by rule rather than by example: every key lost or null, every tensor lost, cut or renamed.

What vLLM's table asks by hand is a few dozen traps that somebody met. These are the ones that nobody has met yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from truth.cases import Case
from truth.drafts import IDS, Change, Directory

L, L31, REDUCED, M, M31 = "llama-eagle3", "llama-eagle3.1", "llama-eagle3-reduced", "mla-eagle3", "mla-eagle3.1"

LAYER = "midlayer."
BOTH_KEYS = (
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "vocab_size", "draft_vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings",
    "attention_bias", "rope_theta", "rope_scaling", "rope_parameters", "eagle_config", "torch_dtype", "dtype",
    "num_aux_hidden_states", "norm_output", "fc_norm", "norm_before_fc", IDS, "target_hidden_size", "bias", "mlp_bias",
    "use_cache", "initializer_range", "sliding_window",
)  # fmt: skip
KEYS: Mapping[str, Sequence[str]] = {
    L: (*BOTH_KEYS, "head_dim", "num_key_value_heads"),
    M31: (
        *BOTH_KEYS, "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        "n_routed_experts", "moe_layer_freq", "first_k_dense_replace", "num_key_value_heads",
    ),
}  # fmt: skip
"""Base → keys of config.json that are taken away and made null, one at a time."""

TENSORS: Mapping[str, Sequence[str]] = {
    L: (
        "fc", "midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.self_attn.q_proj",
        "midlayer.self_attn.k_proj", "midlayer.self_attn.v_proj", "midlayer.self_attn.o_proj", "midlayer.mlp.gate_proj",
        "midlayer.mlp.up_proj", "midlayer.mlp.down_proj", "midlayer.post_attention_layernorm", "norm", "lm_head",
    ),
    M31: (
        "fc", "fc_norm.0", "midlayer.hidden_norm", "midlayer.input_layernorm",
        "midlayer.self_attn.q_a_proj", "midlayer.self_attn.q_a_layernorm", "midlayer.self_attn.q_b_proj",
        "midlayer.self_attn.kv_a_proj_with_mqa", "midlayer.self_attn.kv_a_layernorm", "midlayer.self_attn.kv_b_proj",
        "midlayer.self_attn.o_proj", "midlayer.mlp.gate_proj", "midlayer.mlp.up_proj", "midlayer.mlp.down_proj",
        "midlayer.post_attention_layernorm", "norm", "lm_head",
    ),
}  # fmt: skip


# ── changes ────────────────────────────────────────────────────────────────────────


def _reshaped(d: Directory, name: str, axis: int, by: float) -> Directory:
    """A tensor with fewer rows or columns, or with more, and then those that it was trained with last."""
    tensor = d.tensors[name]
    size = max(1, int(tensor.shape[axis] * by))
    longer = torch.cat((tensor.flip(axis), tensor), dim=axis)
    return d.put(name, longer.narrow(axis, longer.shape[axis] - size, size))


def _renamed(d: Directory, old: str, new: str) -> Directory:
    return d.rename(lambda name: new + name.removeprefix(old) if name.startswith(f"{old}.") else name)


def _d2t(d: Directory, how: str) -> Directory:
    d2t = d.tensors["d2t"]
    rows = torch.arange(len(d2t))
    match how:
        case "in int32":
            return d.put("d2t", d2t.int())
        case "in float32":
            return d.put("d2t", d2t.float())
        case "in bfloat16":
            return d.put("d2t", d2t.bfloat16())
        case "as ids":
            return d.put("d2t", d2t + rows)
        case "too short":
            return d.put("d2t", d2t[: len(d2t) // 2])
        case "too long":
            return d.put("d2t", torch.cat((d2t, d2t[-1:].repeat(8))))
        case _:
            raise ValueError(how)


D2T: Mapping[str, frozenset[str]] = {
    "in int32": frozenset(),
    "in float32": frozenset({"d2t-dtype"}),
    "in bfloat16": frozenset({"d2t-dtype", "d2t-rounded"}),
    "as ids": frozenset({"d2t-absolute"}),
    "too short": frozenset(),
    "too long": frozenset(),
}
"""How d2t is stored, and what `inspect` says of its values; that all are one off cannot be told from a file."""

IDS_ARE: Sequence[object] = (
    [], None, [1], [1, 3], [0, 3, 4], [1, 3, 7], [1, 3, 8], [1, 3, 9], [-1, 3, 4], [4, 3, 1], [1, 3, 3], [1, 3, 4, 5],
    [2, 4, 5], [3, 5, 6],
)  # fmt: skip
"""What stands at eagle_config's layer ids."""

ARCHITECTURES: Sequence[object] = (
    ["LlamaForCausalLMEagle3"], ["Eagle3DeepseekV2ForCausalLM"], ["LlamaForCausalLM"], ["Eagle3LlamaForCausalLM"],
    ["LlamaForCausalLMEagle"], ["Foo", "LlamaForCausalLMEagle3"], ["LlamaForCausalLMEagle3", "Foo"],
    ["llamaforcausallmeagle3"], [], ["DeepseekV3ForCausalLM"], ["Qwen3ForCausalLM"],
    ["Foo", "Eagle3DeepseekV2ForCausalLM"], ["Eagle3Qwen3ForCausalLM"], ["EagleDeepSeekMTPModel"],
)  # fmt: skip

ROPES: Mapping[str, Mapping[str, object]] = {
    "linear, in rope_scaling": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "linear, by the old key": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        }
    },
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}},
    "yarn without the original length": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "deepseek_yarn": {
        "rope_scaling": {
            "rope_type": "deepseek_yarn", "factor": 4.0, "original_max_position_embeddings": 512, "mscale": 1.0,
            "mscale_all_dim": 1.0,
        }
    },
    "an unknown type": {"rope_scaling": {"rope_type": "spiral", "factor": 2.0}},
    "default": {"rope_scaling": {"rope_type": "default"}},
    "empty": {"rope_scaling": {}},
    "another base in rope_parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "another base beside them": {"rope_theta": 5e5},
    "two bases": {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 7e5}},
    "both, not the same": {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "half of each head": {"partial_rotary_factor": 0.5},
    "half of each head, nested": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    },
    "all of each head": {"partial_rotary_factor": 1.0},
    "interleaved": {"rope_interleave": True},
    "not interleaved": {"rope_interleave": False},
    "sections of a picture": {"rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}},
}  # fmt: skip

FLAGS: Mapping[str, Sequence[object]] = {
    "tie_word_embeddings": (True,),
    "attention_bias": (True,),
    "mlp_bias": (True,),
    "bias": (True,),
    "norm_output": (True, False),
    "fc_norm": (True, False),
    "use_aux_norm": (True,),
    "norm_before_fc": (True,),
    "norm_before_residual": (True, False),
    "num_aux_hidden_states": (1, 2, 4),
    "num_hidden_layers": (2,),
    "num_key_value_heads": (1, 4),
    "num_attention_heads": (2, 8),
    "head_dim": (32, 128),
    "intermediate_size": (256, 1024),
    "hidden_size": (128,),
    "vocab_size": (1024, 4096),
    "draft_vocab_size": (1024, 4096),
    "max_position_embeddings": (1024, 2047, 2048, 1 << 20),
    "rms_norm_eps": (1e-6, 1e-3, 0.0),
    "hidden_act": ("gelu", "relu", "swiglu", "SiLU"),
    "model_type": ("llama", "qwen3", "mistral", "deepseek_v3", "kimi_k2", "llama4_text", "eagle3", "gpt_oss"),
    "target_hidden_size": (256, 512),
    "sliding_window": (4,),
    "dtype": ("float16",),
    "torch_dtype": ("float16",),
    "max_model_len": (64,),
    "model_max_length": (64,),
    "seq_length": (64,),
    "quantization_config": ({}, {"quant_method": "foo"}, {"bits": 4}),
}
"""Key → values that are set, one at a time."""


# ── the cases ──────────────────────────────────────────────────────────────────────


UNSEEN = frozenset({(M31, "vocab_size")})
"""What one rank does not show: the MLA class is built with an embedding of another size, which is replaced; on several
ranks its ranges of ids would be wrong."""


def _keys() -> Iterator[Case]:
    for base, keys in KEYS.items():
        for key in keys:
            if (base, key) in UNSEEN:
                continue
            yield Case(f"{key}: null", base, _change(_set, key, None))
            yield Case(f"without {key}", base, _change(Directory.unset, key))
    for base in (L, L31, M31):
        for key, values in FLAGS.items():
            for value in () if (base, key) in UNSEEN else values:
                yield Case(f"{key}: {value}", base, _change(_set, key, value))


def _set(d: Directory, key: str, value: object) -> Directory:
    return d.set(**{key: value})


def _nest_ids(d: Directory, ids: object) -> Directory:
    return d.nest(**{IDS: ids})


def _tensors() -> Iterator[Case]:
    for base, stems in TENSORS.items():
        for stem in stems:
            name = f"{stem}.weight"
            yield Case(f"without {name}", base, _change(_without, name))
            yield Case(f"model.{name}", base, _change(_renamed, stem, f"model.{stem}"))
            layers = stem.replace("midlayer", "layers.0")
            if layers != stem:
                yield Case(f"{layers}.weight", base, _change(_renamed, stem, layers))
            for axis in range(1 if "norm" in stem else 2):
                side = ("rows", "columns")[axis]
                yield Case(f"half the {side} of {name}", base, _change(_reshaped, name, axis, 0.5))
                yield Case(f"more {side} in {name}", base, _change(_reshaped, name, axis, 1.5))


def _without(d: Directory, name: str) -> Directory:
    return replace(d, tensors={known: tensor for known, tensor in d.tensors.items() if known != name})


def _change(function: Callable[..., Directory], *args: object) -> Change:
    return lambda d: function(d, *args)


def _ids() -> Iterator[Case]:
    for base in (L, M31):
        for ids in IDS_ARE:
            yield Case(f"nested ids {ids}", base, _change(_nest_ids, ids))
        for ids in ([2, 4, 5], [1, 3, 4]):
            yield Case(f"only top-level ids {ids}", base, _change(_top_only, ids))
        yield Case("eagle_config is empty", base, lambda d: d.set(eagle_config={}))


def _top_only(d: Directory, ids: list[int]) -> Directory:
    return d.unset("eagle_config").set(**{IDS: ids})


def _others() -> Iterator[Case]:
    for base in (L, M31):
        for names in ARCHITECTURES:
            yield Case(f"architectures: {names}", base, _change(_set, "architectures", names))
        for what, keys in ROPES.items():
            if (base, what) == (M31, "not interleaved"):
                continue  # the CPU's path of that rotary embedding has a fault of its own
            yield Case(f"rope {what}", base, _change(_rope, keys))
        for dtype in (torch.float32, torch.float64):
            yield Case(f"stored in {str(dtype).removeprefix('torch.')}", base, _change(Directory.cast, dtype))
    for how, known in D2T.items():
        yield Case(f"d2t {how}", REDUCED, _change(_d2t, how), known=known)
    yield Case("a t2d of another length", REDUCED, lambda d: d.put("t2d", torch.ones(7, dtype=torch.bool)))
    yield Case("a d2t called hot_token_id", REDUCED, _change(_renamed_whole, "d2t", "hot_token_id"))
    yield Case("a d2t inside the model", REDUCED, _change(_renamed_whole, "d2t", "model.d2t"))


def _renamed_whole(d: Directory, old: str, new: str) -> Directory:
    return d.rename(lambda name: new if name == old else name)


def _rope(d: Directory, keys: Mapping[str, object]) -> Directory:
    """The given spelling alone: what the directory said before is taken away, but for what the keys leave open."""
    names = {"rope_scaling", "rope_parameters"}
    return d.unset(*(names if names & keys.keys() else ())).set(**keys)


CASES: tuple[Case, ...] = (*_keys(), *_tensors(), *_ids(), *_others())
