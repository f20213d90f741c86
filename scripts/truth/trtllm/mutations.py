"""Drafters as draftconv writes them for TensorRT-LLM, each changed in one point.

A change that says something else than was trained is judged beside the drafter that was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch

from truth.drafts import IDS, Directory, some

Change = Callable[[Directory], Directory]

L, L31, REDUCED, M, M31 = "llama-eagle3", "llama-eagle3.1", "llama-eagle3-reduced", "mla-eagle3", "mla-eagle3.1"
LAYER = "midlayer."


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one drafter; `facts` and `known` as in `truth.loader_cases.Case`."""

    base: str
    what: str
    change: Change
    facts: Mapping[str, object] = field(default_factory=dict)
    known: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.base} --to trtllm, {self.what}"


def setting(**keys: object) -> Change:
    return lambda d: d.set(**keys)


def lacking(*keys: str) -> Change:
    return lambda d: d.unset(*keys)


def nested(**keys: object) -> Change:
    return lambda d: d.nest(**keys)


def without(part: str) -> Change:
    return lambda d: d.drop(part)


def called(old: str, new: str) -> Change:
    return lambda d: d.rename(lambda name: name.replace(old, new))


def holding(name: str, *shape: int) -> Change:
    return lambda d: d.put(name, some(*shape))


def declaring(**keys: object) -> Change:
    return lambda d: d.set(quantization_config=keys)


def beside(**keys: object) -> Change:
    """With hf_quant_config.json."""
    return lambda d: replace(
        d, sidecars={"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": keys}}
    )


def in_dtype(name: str, dtype: torch.dtype) -> Change:
    return lambda d: d.put(name, d.tensors[name].to(dtype))


def both(*changes: Change) -> Change:
    def change(d: Directory) -> Directory:
        for one in changes:
            d = one(d)
        return d

    return change


def each(bases: tuple[str, ...], *cases: tuple[str, Change], **more: Any) -> Iterator[Mutation]:
    for base in bases:
        for what, change in cases:
            yield Mutation(base, what, change, **more)


FP8_ROWS = {
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "input_activations": {"strategy": "token"},
}
INT8_ROWS = {
    "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
    "input_activations": {"strategy": "token"},
}
FP8_BLOCKS = {
    "weights": {"num_bits": 8, "type": "float", "strategy": "block"},
    "input_activations": {"strategy": "group", "group_size": 128},
}
NVFP4 = {
    "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    "input_activations": {"strategy": "tensor_group"},
}
YARN = MappingProxyType({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048})


def compressed(*groups: Mapping[str, object], **more: object) -> Change:
    config = {f"group_{i}": dict(group) for i, group in enumerate(groups)}
    return declaring(quant_method="compressed-tensors", config_groups=config, **{"ignore": [], **more})


def quantized_fp8(d: Directory, scales: bool = True) -> Directory:
    """Every projection in FP8 with one scale, as ModelOpt stores it."""
    for name in [name for name in d.tensors if name.endswith("_proj.weight")]:
        weight = d.tensors[name].float()
        scale = weight.abs().amax() / 448
        d = d.put(name, (weight / scale).to(torch.float8_e4m3fn))
        if scales:
            d = d.put(name.removesuffix("weight") + "weight_scale", scale)
    return d


def _plain_width(d: Directory) -> Directory:
    """Projections that take the state alone."""
    for part in "qkv":
        name = f"{LAYER}self_attn.{part}_proj.weight"
        d = d.put(name, d.tensors[name][:, -256:])
    return d


def _rows(d: Directory, axes: int) -> Directory:
    """FP8 with a scale per row, stored as `[rows]` or `[rows, 1]`."""
    for name in [name for name in d.tensors if name.endswith("_proj.weight")]:
        weight = d.tensors[name].float()
        scale = weight.abs().amax(1, keepdim=True) / 448
        d = d.put(name, (weight / scale).to(torch.float8_e4m3fn))
        d = d.put(name.removesuffix("weight") + "weight_scale", scale if axes == 2 else scale[:, 0])
    return beside(quant_algo="FP8_PER_CHANNEL_PER_TOKEN", exclude_modules=["lm_head", "model.fc"])(d)


KEPT = ["lm_head", "model.fc"]
LATENT_KEPT = [*KEPT, "model.midlayer.self_attn.kv_a_proj_with_mqa", "model.midlayer.self_attn.kv_b_proj"]
PROJECTIONS = tuple(f"self_attn.{p}_proj" for p in "qkvo") + tuple(f"mlp.{p}_proj" for p in ("gate", "up", "down"))
EACH_FP8 = {f"model.midlayer.{name}": {"quant_algo": "FP8"} for name in PROJECTIONS}

BOTH = (L, M)
ALL = (L, L31, REDUCED, M, M31)

MUTATIONS: tuple[Mutation, ...] = (
    # ids: they are read nowhere, so that none of these changes anything
    *each(
        BOTH,
        ("no ids", lambda d: d.unset(IDS, "eagle_config")),
        ("ids above", setting(**{IDS: [1, 3, 4]})),
        ("ids null", nested(**{IDS: None})),
        ("ids empty", nested(**{IDS: []})),
        ("two ids", nested(**{IDS: [1, 3]})),
        ("ids as text", nested(**{IDS: "1,3,4"})),
    ),
    # nulls and keys that are gone
    *each(
        BOTH,
        *(
            (f"{key}: null", setting(**{key: None}))
            for key in (
                "architectures",
                "torch_dtype",
                "max_position_embeddings",
                "rms_norm_eps",
                "num_key_value_heads",
                "draft_vocab_size",
                "vocab_size",
                "intermediate_size",
                "tie_word_embeddings",
                "rope_theta",
                "target_hidden_size",
                "eagle_config",
                "hidden_act",
                "attention_bias",
                "mlp_bias",
                "quantization_config",
                "model_type",
                "num_hidden_layers",
                "norm_output",
                "fc_norm",
                "bias",
            )
        ),
        *(
            (f"no {key}", lacking(key))
            for key in (
                "architectures",
                "torch_dtype",
                "model_type",
                "draft_vocab_size",
                "num_key_value_heads",
                "rms_norm_eps",
                "max_position_embeddings",
            )
        ),
    ),
    Mutation(L, "head_dim: null", setting(head_dim=None)),
    Mutation(M, "q_lora_rank: null", setting(q_lora_rank=None)),
    Mutation(M, "kv_lora_rank: null", setting(kv_lora_rank=None)),
    Mutation(M, "kv_lora_rank: 0", setting(kv_lora_rank=0)),
    Mutation(M, "no v_head_dim", lacking("v_head_dim")),
    Mutation(M, "n_routed_experts: null", setting(n_routed_experts=None)),
    # types of values
    *each(
        (L,),
        ("rms_norm_eps: 1", setting(rms_norm_eps=1)),
        ("vocab_size: 2048.0", setting(vocab_size=2048.0)),
        ("attention_bias: 0", setting(attention_bias=0)),
        ("hidden_act: true", setting(hidden_act=True)),
        ("torch_dtype: bf16", setting(torch_dtype="bf16")),
        ("torch_dtype: auto", setting(torch_dtype="auto")),
        ("num_attention_heads: 3", setting(num_attention_heads=3)),
        ("eagle_config: true", setting(eagle_config=True)),
    ),
    *each(
        BOTH,
        ("torch_dtype: float16", setting(torch_dtype="float16")),
        ("dtype beside torch_dtype", setting(dtype="bfloat16")),
        ("dtype alone", lambda d: d.unset("torch_dtype").set(dtype="bfloat16")),
    ),
    # architectures and model types
    *each(
        BOTH,
        ("architectures empty", setting(architectures=[])),
        ("another architecture", setting(architectures=["SomethingElse"])),
        ("the second architecture is known", setting(architectures=["Foo", "EAGLE3LlamaForCausalLM"])),
        ("architectures: a word", setting(architectures="LlamaForCausalLMEagle3")),
        ("DeepseekV32ForCausalLM", setting(architectures=["DeepseekV32ForCausalLM"])),
        *(
            (f"model_type {kind}", setting(model_type=kind))
            for kind in (
                "qwen2",
                "qwen3",
                "mistral",
                "phi3",
                "llama4_text",
                "deepseek_v2",
                "deepseek_v3",
                "kimi_k2",
                "kimi_k25",
                "eagle3",
                "speculator_model",
                "llama",
            )
        ),
    ),
    Mutation(M, "auto_map", setting(auto_map={"AutoConfig": "configuration_x.X"})),
    Mutation(L, "llama4_text with its intermediate size", setting(model_type="llama4_text", intermediate_size_mlp=384)),
    *(
        Mutation(
            L, f"model_type {kind} without attention_bias", both(setting(model_type=kind), lacking("attention_bias"))
        )
        for kind in ("qwen2", "mistral", "phi3", "qwen3", "llama")
    ),
    Mutation(L, "qwen2 with attention_bias: false", setting(model_type="qwen2", attention_bias=False)),
    # vocabulary, head, embedding
    *each(ALL, ("tie_word_embeddings: true", setting(tie_word_embeddings=True))),
    *each(
        (L, L31, REDUCED),
        ("no lm_head", without("lm_head")),
        ("draft_vocab_size is vocab_size", lambda d: d.set(draft_vocab_size=d.config["vocab_size"])),
        ("a smaller draft_vocab_size", setting(draft_vocab_size=512)),
        ("lm_head too short", lambda d: d.put("lm_head.weight", d.tensors["lm_head.weight"][:100])),
        ("lm_head of one row", lambda d: d.put("lm_head.weight", d.tensors["lm_head.weight"][:1])),
        ("verifier_lm_head beside it", holding("verifier_lm_head.weight", 8, 8)),
        ("lm_head under verifier_lm_head", called("lm_head", "verifier_lm_head")),
        ("an embedding of its own", holding("embed_tokens.weight", 2048, 256)),
    ),
    *each(
        (L,),
        ("no embedding", lambda d: d.drop("embed_tokens") if "embed_tokens.weight" in d.tensors else d),
        ("a map of zeros", lambda d: d.put("d2t", torch.zeros(2048, dtype=torch.int64))),
    ),
    Mutation(L, "another embedding", lambda d: d, known=frozenset({"embedding-differs"})),
    *each(
        (REDUCED,),
        ("no d2t", without("d2t")),
        ("d2t in int32", in_dtype("d2t", torch.int32)),
        ("d2t in float32", in_dtype("d2t", torch.float32)),
        ("a short d2t", lambda d: d.put("d2t", d.tensors["d2t"][:100])),
        ("a long d2t", lambda d: d.put("d2t", torch.cat([d.tensors["d2t"]] * 2))),
        ("d2t of one number", lambda d: d.put("d2t", d.tensors["d2t"][:1])),
        ("model.d2t", called("d2t", "model.d2t")),
        ("t2d beside it", lambda d: d.put("t2d", torch.zeros(2048, dtype=torch.bool))),
    ),
    Mutation(
        M,
        "a reduced vocabulary",
        lambda d: (
            d.set(draft_vocab_size=512)
            .put("d2t", torch.zeros(512, dtype=torch.int64))
            .put("lm_head.weight", some(512, 256))
        ),
        facts={"draft_vocab": 512, "vocab_order": "ascending"},
    ),
    Mutation(L, "another vocab_size", setting(vocab_size=4096, draft_vocab_size=4096)),
    # names
    *each(
        BOTH,
        ("layers.0", called(LAYER, "layers.0.")),
        ("layers.1", called(LAYER, "layers.1.")),
        ("midlayer.0", called(LAYER, "midlayer.0.")),
        ("layers", called(LAYER, "layers.")),
        ("model.", lambda d: d.rename(lambda name: f"model.{name}")),
        ("eagle_module.", lambda d: d.rename(lambda name: f"eagle_module.{name}")),
        ("model.lm_head", called("lm_head", "model.lm_head")),
        (
            "both spellings of down_proj",
            lambda d: d.put("layers.0.mlp.down_proj.weight", d.tensors[f"{LAYER}mlp.down_proj.weight"]),
        ),
        *(
            (f"no {part}", without(part))
            for part in (
                "fc.weight",
                "hidden_norm",
                "input_layernorm",
                "post_attention_layernorm",
                "o_proj",
                "down_proj",
                "up_proj",
            )
        ),
        ("no norm", lambda d: d.rename(lambda name: "last_norm.weight" if name == "norm.weight" else name)),
        ("a tensor of another model", holding("extra.weight", 3, 3)),
        ("a norm of queries", holding(f"{LAYER}self_attn.q_norm.weight", 64)),
        ("a table of rotations", holding(f"{LAYER}self_attn.rotary_emb.inv_freq", 32)),
        ("a scale of the cache", lambda d: d.put(f"{LAYER}self_attn.k_proj.k_scale", torch.tensor(1.0))),
    ),
    Mutation(L, "no q_proj", without("q_proj")),
    Mutation(L31, "no fc", without("fc.weight")),
    Mutation(L31, "no fc_norm.0", without("fc_norm.0")),
    Mutation(L31, "no fc_norm at all", without("fc_norm.")),
    Mutation(M31, "no fc_norm.0", without("fc_norm.0")),
    *(
        (Mutation(M, f"no {part}", without(part)))
        for part in ("q_a_proj", "kv_a_proj", "q_a_layernorm", "kv_b_proj", "q_b_proj")
    ),
    # shapes
    *each(
        (L,),
        ("half the intermediate size", setting(intermediate_size=192)),
        ("twice the head_dim", setting(head_dim=128)),
        ("one key head", setting(num_key_value_heads=1)),
        ("fc for four states", holding("fc.weight", 256, 1024)),
        ("fc of one column", holding("fc.weight", 256, 1)),
        ("a norm of one element", holding("norm.weight", 1)),
        ("q_proj without the state", holding(f"{LAYER}self_attn.q_proj.weight", 256, 256)),
        ("q, k and v of plain width", _plain_width),
        ("target_hidden_size 128", setting(target_hidden_size=128)),
        ("target_hidden_size 256", setting(target_hidden_size=256)),
        ("two layers declared", setting(num_hidden_layers=2)),
        ("no layers", setting(num_hidden_layers=0)),
        (
            "gate and up swapped in size",
            lambda d: d.put(f"{LAYER}mlp.gate_proj.weight", some(256, 256)).put(
                f"{LAYER}mlp.up_proj.weight", some(512, 256)
            ),
        ),
    ),
    *each(
        (M,),
        ("one head", setting(num_attention_heads=1)),
        ("one key head", setting(num_key_value_heads=1)),
        ("a longer q_lora", setting(q_lora_rank=256)),
        ("a shorter q_lora", setting(q_lora_rank=64)),
        ("kv_lora 256", setting(kv_lora_rank=256)),
        ("rope 32", setting(qk_rope_head_dim=32)),
    ),
    # flags of eagle_config, and of 3.1
    *each(
        BOTH,
        ("eh_proj_before_attn", nested(eh_proj_before_attn=True)),
        (
            "eh_proj_before_attn with its tensors",
            both(nested(eh_proj_before_attn=True), holding("eh_proj.weight", 256, 512), holding("enorm.weight", 256)),
        ),
        ("next_layer_regular: false", nested(next_layer_regular=False)),
        ("return_hidden_post_norm", nested(return_hidden_post_norm=True)),
        ("norm_output", setting(norm_output=True)),
        ("nested norm_output", nested(norm_output=True)),
        ("norm_before_fc above", setting(norm_before_fc=True)),
        ("norm_before_fc below", nested(norm_before_fc=True)),
        ("norm_before_residual", setting(norm_before_residual=True)),
        ("fc_norm", setting(fc_norm=True)),
        ("nested fc_norm", nested(fc_norm=True)),
        ("fc_norm: 0", setting(fc_norm=0)),
        ("use_last_layernorm: false", nested(use_last_layernorm=False)),
        ("use_aux_hidden_state: false", nested(use_aux_hidden_state=False)),
    ),
    *each(
        (L31, M31),
        ("fc_norm lost", lacking("fc_norm")),
        ("norm_output lost", lacking("norm_output")),
        ("norm_output: false", setting(norm_output=False)),
        ("post norm below instead", lambda d: d.unset("norm_output").nest(return_hidden_post_norm=True)),
        ("norm_before_fc too", nested(norm_before_fc=True)),
    ),
    # biases
    *each(
        BOTH,
        ("attention_bias", setting(attention_bias=True)),
        ("mlp_bias", setting(mlp_bias=True)),
        ("bias", setting(bias=True)),
        ("a bias of fc", holding("fc.bias", 256)),
        (
            "a bias of fc and its flag",
            both(setting(bias=True), holding("fc.bias", 256)),
        ),
        ("a bias of o_proj", holding(f"{LAYER}self_attn.o_proj.bias", 256)),
        ("a bias of down_proj", holding(f"{LAYER}mlp.down_proj.bias", 256)),
    ),
    # rope
    *each(
        (L,),
        (
            "rope_parameters",
            lambda d: d.unset("rope_theta", "rope_scaling").set(
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0}
            ),
        ),
        (
            "another base in rope_parameters",
            lambda d: d.unset("rope_theta", "rope_scaling").set(
                rope_parameters={"rope_type": "default", "rope_theta": 5e5}
            ),
        ),
        ("two bases", setting(rope_theta=10000.0, rope_parameters={"rope_type": "default", "rope_theta": 5e5})),
        ("another base", setting(rope_theta=5e5)),
        ("linear", setting(rope_scaling={"type": "linear", "factor": 2.0})),
        ("YaRN", setting(rope_scaling=dict(YARN))),
        ("YaRN without a factor", setting(rope_scaling={"rope_type": "yarn"})),
        ("dynamic", setting(rope_scaling={"type": "dynamic", "factor": 2.0})),
        (
            "llama3",
            setting(
                rope_scaling={
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 1024,
                }
            ),
        ),
        ("an unknown kind", setting(rope_scaling={"rope_type": "spiral", "factor": 2.0})),
        ("mrope", setting(rope_scaling={"rope_type": "mrope", "mrope_section": [8, 12, 12]})),
        ("default with a section", setting(rope_scaling={"rope_type": "default", "mrope_section": [8, 12, 12]})),
        ("half of a head turned", setting(partial_rotary_factor=0.5)),
        ("the base as text", setting(rope_theta="10000")),
    ),
    *each(
        (M,),
        ("no scaling", setting(rope_scaling=None)),
        (
            "YaRN in rope_parameters",
            lambda d: d.unset("rope_theta", "rope_scaling").set(
                rope_parameters={
                    **(d.config.get("rope_scaling") or d.config["rope_parameters"]),
                    "rope_type": "yarn",
                    "rope_theta": 50000.0,
                }
            ),
        ),
        (
            "no mscale_all_dim",
            lambda d: d.set(rope_scaling={k: v for k, v in d.config["rope_scaling"].items() if k != "mscale_all_dim"}),
        ),
        (
            "no mscale",
            lambda d: d.set(rope_scaling={k: v for k, v in d.config["rope_scaling"].items() if k != "mscale"}),
        ),
        ("half the factor", lambda d: d.set(rope_scaling={**d.config["rope_scaling"], "factor": 32.0})),
        ("rope_interleave: false", setting(rope_interleave=False)),
    ),
    *each(BOTH, ("another eps", setting(rms_norm_eps=1e-4)), ("gelu", setting(hidden_act="gelu"))),
    Mutation(L, "trained with gelu", lambda d: d, facts={"activation": "gelu"}),
    Mutation(L, "trained with a window", lambda d: d, facts={"window": 64}),
    Mutation(L, "trained on a normed residual", lambda d: d, facts={"norm_before_residual": True}),
    Mutation(L, "trained on other layers", lambda d: d, facts={"boundaries": (1, 4, 8)}),
    Mutation(L, "trained from boundary 0", lambda d: d, facts={"boundaries": (0, 4, 5)}),
    # dtypes of tensors
    *each(
        BOTH,
        ("fc in float32", in_dtype("fc.weight", torch.float32)),
        ("fc in float16", in_dtype("fc.weight", torch.float16)),
        ("fc in FP8", in_dtype("fc.weight", torch.float8_e4m3fn)),
        ("fc in int8", in_dtype("fc.weight", torch.int8)),
        ("down_proj in FP8", in_dtype(f"{LAYER}mlp.down_proj.weight", torch.float8_e4m3fn)),
        ("a norm in FP8", in_dtype("norm.weight", torch.float8_e4m3fn)),
        ("everything in float32", lambda d: d.cast(torch.float32)),
    ),
    # quantization_config beside weights that are plain
    *each(
        BOTH,
        ("an empty quantization_config", declaring()),
        *(
            (f"{method} over plain weights", declaring(quant_method=method))
            for method in ("quark", "gptq", "awq", "fbgemm_fp8", "bitsandbytes")
        ),
        ("dynamic fp8 over plain weights", declaring(quant_method="fp8", activation_scheme="dynamic")),
        ("static fp8 over plain weights", declaring(quant_method="fp8", activation_scheme="static")),
        ("fp8 in small blocks", declaring(quant_method="fp8", weight_block_size=[64, 64])),
        ("mxfp4", declaring(quant_method="mxfp4")),
        ("nvfp4 over plain weights", declaring(quant_method="nvfp4")),
        ("compressed without groups", declaring(quant_method="compressed-tensors")),
        ("compressed FP8 rows", compressed(FP8_ROWS, ignore=["lm_head", "model*"])),
        ("compressed INT8 rows", compressed(INT8_ROWS, ignore=["lm_head", "model*"])),
        ("compressed FP8 blocks", compressed(FP8_BLOCKS, ignore=["lm_head", "model*"])),
        ("compressed NVFP4", compressed(NVFP4, ignore=["lm_head", "model*"])),
        ("compressed in two groups", compressed(FP8_ROWS, NVFP4)),
        (
            "ModelOpt FP8, everything excluded",
            declaring(quant_method="modelopt", quant_algo="FP8", ignore=["lm_head", "model*"]),
        ),
        ("ModelOpt without an algorithm", declaring(quant_method="modelopt", ignore=[])),
        ("ModelOpt with an unknown one", declaring(quant_method="modelopt", quant_algo="INT4_AWQ", ignore=[])),
        ("ModelOpt SmoothQuant", declaring(quant_method="modelopt", quant_algo="W8A8_SQ_PER_CHANNEL", ignore=[])),
        ("ModelOpt mixed, no layers", beside(quant_algo="MIXED_PRECISION", exclude_modules=KEPT)),
        ("a sidecar without an algorithm", beside(quant_algo=None, exclude_modules=KEPT)),
    ),
    # FP8 as ModelOpt stores it
    *each(
        (L,),
        (
            "FP8",
            both(quantized_fp8, beside(quant_algo="FP8", exclude_modules=KEPT)),
        ),
        ("FP8 inline", both(quantized_fp8, declaring(quant_method="modelopt", quant_algo="FP8", ignore=KEPT))),
        ("FP8, fc not excluded", both(quantized_fp8, beside(quant_algo="FP8", exclude_modules=["lm_head"]))),
        ("FP8, model* excluded", both(quantized_fp8, beside(quant_algo="FP8", exclude_modules=["lm_head", "model*"]))),
        ("FP8 in upper and lower case", both(quantized_fp8, beside(quant_algo="fp8", exclude_modules=KEPT))),
        (
            "FP8 without scales",
            both(lambda d: quantized_fp8(d, scales=False), beside(quant_algo="FP8", exclude_modules=KEPT)),
        ),
        (
            "FP8 without one scale",
            both(quantized_fp8, without("k_proj.weight_scale"), beside(quant_algo="FP8", exclude_modules=KEPT)),
        ),
        ("FP8 that nothing declares", quantized_fp8),
        ("FP8 under dynamic fp8", both(quantized_fp8, declaring(quant_method="fp8", activation_scheme="dynamic"))),
        (
            "FP8 module by module",
            both(quantized_fp8, beside(quant_algo="MIXED_PRECISION", exclude_modules=KEPT, quantized_layers=EACH_FP8)),
        ),
        ("FP8 rows of one axis", lambda d: _rows(d, 1)),
        ("FP8 rows of two axes", lambda d: _rows(d, 2)),
        facts={"quantization": "modelopt"},
    ),
    *each(
        (M,),
        ("FP8, a-projections and kv_b too", both(quantized_fp8, beside(quant_algo="FP8", exclude_modules=KEPT))),
        ("FP8 declared, kept by name", beside(quant_algo="FP8", exclude_modules=LATENT_KEPT)),
        facts={"quantization": "modelopt"},
    ),
)
