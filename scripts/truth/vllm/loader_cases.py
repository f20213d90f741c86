"""Checkpoints that vLLM loads, mis-reads or refuses: every rule of `draftconv.engines.vllm` at least once.

A case is a sound drafter and one change. Where the change hides what was trained (a lost flag), the
drafter that was changed says what is right; for the producers' own files the files themselves do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from draftconv.drafter.facts import Rope
from draftconv.quantization.formats.base import Weight
from draftconv.quantization.formats.gptq import gptq
from draftconv.quantization.rounding import quantize
from draftconv.quantization.scheme import WeightScheme
from truth.cases import Case, sound
from truth.drafts import IDS, LAYER, Change, Directory, some

L, L31, REDUCED = "llama-eagle3", "llama-eagle3.1", "llama-eagle3-reduced"
M, M31 = "mla-eagle3", "mla-eagle3.1"
NO_PLACE = "There is no module or parameter named"
BUILT_PLAIN = f"{NO_PLACE}|exceeds dimension size"
UNREGISTERED = "not supported|no supported|Model architectures|Cannot find model module|has no vLLM implementation"


def inner_config(d: Directory, *outer: str) -> Directory:
    """The same drafter in speculators' nested config."""
    keys = ("draft_vocab_size", "norm_before_residual", "fc_norm", "norm_output", "norm_before_fc", IDS, *outer)
    left_out = {*keys, "architectures", "torch_dtype", "eagle_config", "num_aux_hidden_states", "_draftconv_layout"}
    inner = {key: value for key, value in d.config.items() if key not in left_out}
    config = {key: d.config[key] for key in keys if key in d.config}
    return Directory(
        {**config, "speculators_config": {"algorithm": "eagle3"}, "speculators_model_type": "eagle3",
         "architectures": ["Eagle3DraftModel"], "transformer_layer_config": inner},
        d.tensors,
    )  # fmt: skip


def windowed(d: Directory) -> Directory:
    return d.set(sliding_window=64, layer_types=["sliding_attention"])


def wrapped(d: Directory, **outer: object) -> Directory:
    """The config inside the legacy EAGLE wrapper."""
    return Directory({"model_type": "eagle", **outer, "model": dict(d.config)}, d.tensors)


def first_layer(name: str) -> str:
    return name.replace(LAYER, "layers.0.")


SOUND: tuple[Case, ...] = (
    *(sound("as converted", name) for name in (L, REDUCED, L31, M, M31)),
    *(
        sound("as made", name)
        for name in (
            "llama-two-layers",
            "llama-biased",
            "llama-mlp-biased",
            "llama-query-norms",
            "llama-window",
            "llama-four-states",
            "llama-norm-before-fc",
            "llama-normed-residual",
            "mla-normed-residual",
            "mla-two-layers",
            "mla-four-states",
        )
    ),
    sound("layers.0 for midlayer", L, lambda d: d.rename(first_layer)),
    sound("layers.0 for midlayer", M, lambda d: d.rename(first_layer)),
    sound(
        "q, k and v in one tensor, gate and up too",
        L,
        lambda d: d.fuse("self_attn.qkv_proj", *(f"self_attn.{p}_proj" for p in "qkv")).fuse(
            "mlp.gate_up_proj", "mlp.gate_proj", "mlp.up_proj"
        ),
    ),
    sound("no embedding", L, lambda d: d.drop("embed_tokens"), facts={"own_embedding": False}),
    sound("no embedding", M, lambda d: d.drop("embed_tokens"), facts={"own_embedding": False}),
    *(
        sound("another one than the target's", f"{kind}-own-embedding", known=frozenset({"embedding-differs"}))
        for kind in ("llama", "mla")
    ),
    sound("t2d beside d2t", REDUCED, lambda d: d.put("t2d", torch.zeros(2048, dtype=torch.bool))),
    sound("d2t in int32", REDUCED, lambda d: d.put("d2t", d.tensors["d2t"].int())),
    sound("float32", L, lambda d: d.cast(torch.float32)),
    sound("rotary tables in the file", L, lambda d: d.put(f"{LAYER}self_attn.rotary_emb.inv_freq", some(32))),
    sound("input_norm without its flag", L, lambda d: d.put("input_norm.weight", some(768))),
    sound("LlamaForCausalLM", L, lambda d: d.set(architectures=["LlamaForCausalLM"])),
    sound("Eagle3LlamaForCausalLM", L, lambda d: d.set(architectures=["Eagle3LlamaForCausalLM"])),
    sound("DeepseekV3ForCausalLM", M, lambda d: d.set(architectures=["DeepseekV3ForCausalLM"])),
    sound("model_type deepseek_v2", M, lambda d: d.set(model_type="deepseek_v2")),
    sound("a window in the Llama class", L, windowed, facts={"window": 64}),
    sound("legacy wrapper", L, lambda d: wrapped(d, method="eagle3")),
    sound(
        "legacy wrapper around the class by its own name",
        L,
        lambda d: wrapped(d.set(architectures=["Eagle3LlamaForCausalLM"])),
    ),
    sound("speculators config", L, inner_config),
    sound("speculators config", L31, inner_config),
    sound("nested ids as boundaries, none above", L, lambda d: d.unset(IDS).nest(**{IDS: [2, 4, 5]})),
    sound("no ids at all", L, lambda d: d.unset(IDS).nest(**{IDS: None})),
    sound("ids in another order", L, lambda d: d.set(**{IDS: [5, 2, 4]})),
    sound(
        "norm switches of ModelOpt turned", L, lambda d: d.nest(use_last_layernorm=False), rules=("vllm-norm-switches",)
    ),
    sound("use_aux_hidden_state: false", M, lambda d: d.nest(use_aux_hidden_state=False)),
    sound("no qzeros", f"{L}@gptq-channel", lambda d: d.drop("qzeros")),
    sound("null draft_vocab_size", L, lambda d: d.set(draft_vocab_size=None)),
    sound(
        "few positions under YaRN",
        M,
        lambda d: d.set(max_position_embeddings=512),
        rules=("vllm-positions",),
        facts={"max_positions": 512},
    ),
    sound("trained with a double norm", L, rules=("vllm-double-norm",), facts={"double_norm": True}),
    sound(
        "keys that a speculators config loses",
        L,
        lambda d: inner_config(d, "num_aux_hidden_states", "eagle_config"),
        rules=("vllm-speculators-keys",),
    ),
    *(
        sound("quantized", f"{name}@{way}")
        for name in (L, M31)
        for way in (
            "ct-channel",
            "ct-g128",
            "gptq-channel",
            "gptq-g128",
            "awq-g128",
            "quark-reorder",
            "quark-order",
            "seed",
            "int-w4a8",
            "int-w8a8",
            "fp8",
        )
    ),
)


def half_of_each_head(d: Directory) -> Directory:
    return d.set(rope_parameters={**d.config["rope_parameters"], "partial_rotary_factor": 0.5})


def linear_rope(d: Directory) -> Directory:
    """Two spellings that contradict each other: transformers keeps rope_scaling."""
    return d.set(rope_scaling={"rope_type": "linear", "factor": 2.0})


def ignoring(*entries: str) -> Change:
    return lambda d: d.quantization(ignore=list(entries))


def excluding(*entries: str) -> Change:
    return lambda d: d.quantization(exclude=list(entries))


def quark_weight(**keys: object) -> Change:
    def change(d: Directory) -> Directory:
        section = d.config["quantization_config"]["global_quant_config"]
        return d.quantization(global_quant_config={**section, "weight": {**section["weight"], **keys}})

    return change


def quark_inputs(d: Directory) -> Directory:
    section = d.config["quantization_config"]["global_quant_config"]
    inputs = {"dtype": "int8", "qscheme": "per_tensor", "is_dynamic": True, "symmetric": True, "ch_axis": None}
    return d.quantization(global_quant_config={**section, "input_tensors": inputs})


def dynamic(rule: str) -> Change:
    return lambda d: d.quantization(dynamic={rule: {}})


WEIGHTLESS: Mapping[str, object] = {"weight": None, "input_tensors": None, "output_tensors": None, "bias": None}


def quark_layer(name: str) -> Change:
    """A layer that Quark's declaration names, and says nothing of its weights."""
    return lambda d: d.quantization(layer_quant_config={name: dict(WEIGHTLESS)})


def quark_weightless(d: Directory) -> Directory:
    return d.quantization(global_quant_config=dict(WEIGHTLESS))


def modelopt(algorithm: str, *ignored: str) -> Change:
    config = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": list(ignored or ("fc",))}
    return lambda d: d.set(quantization_config=config)


def undeclared(key: str) -> Change:
    """Without one key of the declaration."""
    return lambda d: d.set(quantization_config={k: v for k, v in d.config["quantization_config"].items() if k != key})


def group_weights(**keys: object) -> Change:
    """With other words about the weights of compressed-tensors."""

    def change(d: Directory) -> Directory:
        group = d.config["quantization_config"]["config_groups"]["group_0"]
        return d.quantization(config_groups={"group_0": {**group, "weights": {**group["weights"], **keys}}})

    return change


def with_fp8_inputs(d: Directory) -> Directory:
    """The same INT4 weights, declared to meet FP8 activations."""
    group = d.config["quantization_config"]["config_groups"]["group_0"]
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
    return d.quantization(config_groups={"group_0": {**group, "input_activations": inputs}})


def projections(d: Directory) -> list[str]:
    return [name.removesuffix(".weight") for name in d.tensors if name.endswith("_proj.weight")]


def mxfp4(d: Directory) -> Directory:
    """Every projection in Quark's MXFP4 beside static FP8 activations; all of them are zero."""
    for module in projections(d):
        rows, columns = d.tensors[f"{module}.weight"].shape
        d = d.put(f"{module}.weight", torch.zeros(rows, columns // 2, dtype=torch.uint8))
        d = d.put(f"{module}.weight_scale", torch.full((rows, columns // 32), 127, dtype=torch.uint8))
        d = d.put(f"{module}.input_scale", torch.tensor(0.01))
    weight = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1, "is_dynamic": False,
              "scale_format": "e8m0", "symmetric": None}  # fmt: skip
    inputs = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True, "ch_axis": None}
    section = {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None}
    export = {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"}
    return d.set(
        quantization_config={"quant_method": "quark", "export": export, "global_quant_config": section,
                             "layer_quant_config": {}, "layer_type_quant_config": {}, "exclude": ["re:.*fc$"]}
    )  # fmt: skip


def static_fp8(*, shared: bool) -> Change:
    """FP8 as ModelOpt has it, activations under a fixed scale: weights under one for all, or under one each."""

    def change(d: Directory) -> Directory:
        scales = {name.removesuffix("_scale"): d.tensors[name] for name in d.tensors if name.endswith(".weight_scale")}
        weights = {name: d.tensors[name].float() * scale.float() for name, scale in scales.items()}
        largest = max(weight.abs().amax() for weight in weights.values())
        for name, weight in weights.items():
            scale = (largest if shared else weight.abs().amax()) / 448
            d = d.put(name, (weight / scale).to(torch.float8_e4m3fn)).put(f"{name}_scale", scale)
            d = d.put(f"{name.removesuffix('weight')}input_scale", torch.tensor(0.05))
        return modelopt("FP8", "model.fc", "lm_head", "*kv_b_proj")(d)

    return change


TENSOR_FP8: Mapping[str, object] = {
    "num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True,
}  # fmt: skip
QUARK_FP8: Mapping[str, object] = {
    "dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True, "ch_axis": None,
}  # fmt: skip
PLAIN = (r"re:.*\bfc$", "lm_head", "re:.*kv_b_proj$")


def compressed_fp8(d: Directory) -> Directory:
    """Static FP8 under one scale, declared as compressed-tensors has it."""
    group = {"targets": ["Linear"], "weights": dict(TENSOR_FP8), "input_activations": dict(TENSOR_FP8)}
    return static_fp8(shared=True)(d).set(
        quantization_config={
            "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group},
            "quantization_status": "compressed", "ignore": list(PLAIN),
        }
    )  # fmt: skip


def quark_fp8(d: Directory) -> Directory:
    """The same, declared as Quark has it."""
    section = {"weight": dict(QUARK_FP8), "input_tensors": dict(QUARK_FP8), "output_tensors": None, "bias": None}
    export = {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"}
    return static_fp8(shared=True)(d).set(
        quantization_config={
            "quant_method": "quark", "export": export, "global_quant_config": section, "layer_quant_config": {},
            "layer_type_quant_config": {}, "exclude": list(PLAIN),
        }
    )  # fmt: skip


SPARSE = {"format": "sparse-24-bitmask", "sparsity_structure": "2:4", "targets": ["Linear"], "ignore": []}


def plain_key(d: Directory) -> Directory:
    """k_proj as floats, q and v quantized."""
    return d.drop("k_proj").put(f"{LAYER}self_attn.k_proj.weight", some(128, 512))


def dropped_bias(d: Directory) -> Directory:
    """Biases of q, k and v alone: the flag builds that of o too."""
    return d.drop("o_proj.bias")


DOWN = f"{LAYER}mlp.down_proj"
FIRST_NORMS = {f"fc_norm.{i}.weight": f"aux_norm_{name}.weight" for i, name in enumerate(("low", "mid", "high"))}


def prefixed(prefix: str) -> Change:
    return lambda d: d.rename(lambda n: f"{prefix}{n}")


def renamed(name: str, new: str) -> Change:
    """One tensor under another name."""
    return lambda d: d.rename(lambda n: new if n == name else n)


def lacking(part: str) -> Change:
    return lambda d: d.drop(part)


def named(rule: str, name: str, new: str, *bases: str) -> tuple[Case, ...]:
    """A tensor under a name that a training wrapper gave it, or a hand-made script."""
    return tuple(Case(f"{name} as {new}", base, renamed(name, new), (rule,), NO_PLACE) for base in bases)


SYNONYMS: tuple[Case, ...] = (
    *(
        Case(f"prefix {prefix}", base, prefixed(prefix), ("vllm-unknown-tensor",), NO_PLACE)
        for prefix in ("eagle_module.", "draft_model.") for base in (L, M)
    ),
    *(
        case
        for name, new, *bases in (
            (f"{LAYER}hidden_norm.weight", "hidden_norm.weight", L, M),
            (f"{LAYER}input_layernorm.weight", "input_embeds_norm.weight", L, M),
            ("norm.weight", "out_norm.weight", L, M),
            ("lm_head.weight", "eagle_lm_head.weight", L, REDUCED, M),
            ("lm_head.weight", "eagle_module.lm_head.weight", L, M),
            ("embed_tokens.weight", "eagle_module.embed_tokens.weight", L, M),
            ("fc.weight", "eagle_module.fc.weight", L, M),
            (f"{LAYER}mlp.up_proj.weight", f"eagle_module.{LAYER}mlp.up_proj.weight", L, M),
            (f"{LAYER}mlp.up_proj.weight", f"{LAYER}0.mlp.up_proj.weight", L, M),
            ("d2t", "eagle_module.d2t", REDUCED),
            (f"{LAYER}self_attn.q_proj.bias", f"eagle_module.{LAYER}self_attn.q_proj.bias", "llama-biased"),
            (f"{LAYER}mlp.up_proj.bias", f"{LAYER}1.mlp.up_proj.bias", "llama-mlp-biased"),
            (f"{DOWN}.weight_packed", f"eagle_module.{DOWN}.weight_packed", f"{L}@ct-channel"),
            (f"{DOWN}.weight_scale", f"eagle_module.{DOWN}.weight_scale", f"{L}@ct-channel", f"{M31}@fp8"),
        )
        for case in named("vllm-unknown-tensor", name, new, *bases)
    ),
    *(
        Case("the first names of fc_norm", base,
             lambda d: d.rename(lambda n: FIRST_NORMS.get(n, n)), ("vllm-unknown-tensor",), NO_PLACE)
        for base in (L31, M31)
    ),
    *named("vllm-prefix", "lm_head.weight", "model.lm_head.weight", L, M),
    Case("norm under a second name", L, lambda d: d.put("out_norm.weight", d.tensors["norm.weight"]),
         ("vllm-unknown-tensor",), NO_PLACE),
)  # fmt: skip


def rounded(name: str) -> Change:
    """One plain tensor as FP8 with a scale per row beside it."""

    def change(d: Directory) -> Directory:
        weight = d.tensors[f"{name}.weight"].float()
        scale = weight.abs().amax(1, keepdim=True) / 448
        return d.put(f"{name}.weight", (weight / scale).to(torch.float8_e4m3fn)).put(f"{name}.weight_scale", scale)

    return change


UNASKED: tuple[Case, ...] = tuple(
    Case(f"{name} quantized", f"{base}@fp8", rounded(name), ("vllm-excluded",), NO_PLACE)
    for base, name in ((L, "embed_tokens"), (L, "lm_head"), (L, "fc"), (M31, "lm_head"), (M31, "fc"))
)
"""Modules that are built plain, whatever is declared or because nothing names them."""


def unnamed(name: str) -> Change:
    """A module that no group names, of a drafter whose groups have schemes of their own."""

    def change(d: Directory) -> Directory:
        groups = d.config["quantization_config"]["config_groups"]
        left = {
            number: {**group, "targets": [target for target in group["targets"] if name not in target]}
            for number, group in groups.items()
        }
        return d.quantization(config_groups=left)

    return change


def gptq_head(d: Directory) -> Directory:
    """The head in GPTQ's words too, as the format stores any weight."""
    head = d.tensors["lm_head.weight"]
    rounded_head = quantize(head, WeightScheme("int4", "group", "mse", "weight", 128))
    stored = gptq.store(Weight(rounded_head, "BF16"))
    listed = d.config["quantization_config"]["modules_in_block_to_quantize"]
    plain = d.drop("lm_head.weight")
    headed = replace(plain, tensors={**plain.tensors, **{f"lm_head.{name}": t for name, t in stored.items()}})
    return headed.quantization(lm_head=True, modules_in_block_to_quantize=[*listed, "lm_head"])


HEADS: tuple[Case, ...] = (
    *(sound(f"{way}", f"{base}@{way}") for base in (L, M31) for way in ("g128-all", "fp8-all", "int8-all")),
    *(sound(f"{way}", f"{L}@{way}") for way in ("ct-head", "awq-head")),
    *(Case(f"{way}, no group names the head", f"{L}@{way}", unnamed("lm_head"), ("vllm-excluded",), NO_PLACE)
      for way in ("g128-all", "fp8-all", "ct-head")),
    Case("no group names fc", f"{L}@g128-all", unnamed("fc"), ("vllm-other-scheme",), NO_PLACE),
    Case("no group names fc", f"{M31}@g128-all", unnamed("fc"), ("vllm-other-scheme",), NO_PLACE),
    Case("a head in GPTQ's words", f"{L}@gptq-g128", gptq_head, ("vllm-head-order",), NO_PLACE),
)  # fmt: skip
"""Heads and fc with schemes of their own, and what an engine would not find of them."""

LACKING: tuple[Case, ...] = (
    Case("mlp_bias without biases", "llama-mlp-biased", lambda d: d.drop(".bias"), ("vllm-bias-half",)),
    Case("no up_proj.bias", "llama-mlp-biased", lambda d: d.drop("up_proj.bias"), ("vllm-bias-half",)),
    *(
        Case(f"no {name}", f"{base}@{way}", lacking(name), ("vllm-scales-missing",))
        for base, way, name in (
            (L, "ct-channel", "down_proj.weight_scale"),
            (M31, "ct-channel", "o_proj.weight_scale"),
            (L, "fp8", "down_proj.weight_scale"),
            (L, "fp8", "q_proj.weight_scale"),
            (L, "int-w8a8", "up_proj.weight_scale"),
            (L, "gptq-channel", "down_proj.scales"),
            (L, "awq-g128", "down_proj.scales"),
            (L, "awq-g128", "down_proj.qzeros"),
            (L, "quark-order", "down_proj.weight_scale"),
        )
    ),
    Case("no input_scale", f"{M}@fp8", lambda d: static_fp8(shared=True)(d).drop("down_proj.input_scale"),
         ("vllm-scales-missing",)),
)  # fmt: skip
"""Modules that get nothing: what is declared is not stored, or under a name that is passed over."""

REFUSED: tuple[Case, ...] = (
    Case(
        "unregistered architecture",
        L,
        lambda d: d.set(architectures=["Eagle3Speculator"]),
        ("vllm-architecture",),
        UNREGISTERED,
    ),
    Case(
        "TorchSpec's DeepSeekForCausalLMEagle3",
        M,
        lambda d: d.set(architectures=["DeepSeekForCausalLMEagle3"]),
        ("vllm-architecture",),
        UNREGISTERED,
    ),
    Case("legacy wrapper without a method", L, wrapped, ("vllm-architecture",), "EagleLlamaForCausalLMEagle3"),
    Case(
        "speculators config around MLA",
        M,
        inner_config,
        ("vllm-architecture",),
        "Unsupported|not supported|deepseek|kimi",
    ),
    Case("the MLA class", L, lambda d: d.set(architectures=["Eagle3DeepseekV2ForCausalLM"]), ("vllm-class",)),
    Case("the Llama class", M, lambda d: d.set(architectures=["LlamaForCausalLMEagle3"]), ("vllm-class",)),
    Case("no model_type", L, lambda d: d.unset("model_type"), ("vllm-model-type",), "model_type"),
    Case("model_type eagle3", L, lambda d: d.set(model_type="eagle3"), ("vllm-model-type",), "eagle3"),
    Case("model_type deepseek_v3", M, lambda d: d.set(model_type="deepseek_v3"), ("vllm-mtp",), "MTP"),
    Case(
        "max_position_embeddings: null",
        L,
        lambda d: d.set(max_position_embeddings=None),
        ("vllm-null",),
        "max_position_embeddings",
    ),
    Case("mlp_bias: null", L, lambda d: d.set(mlp_bias=None), ("vllm-null",), "mlp_bias"),
    Case("n_routed_experts: null", M, lambda d: d.set(n_routed_experts=None), ("vllm-null",), "n_routed_experts"),
    Case("gelu", L, lambda d: d.set(hidden_act="gelu"), ("vllm-activation",), "silu"),
    Case("gelu", M, lambda d: d.set(hidden_act="gelu"), ("vllm-activation",), "silu"),
    Case("prefix model.", L, lambda d: d.rename(lambda n: f"model.{n}"), ("vllm-prefix",), f"{NO_PLACE} 'model'"),
    Case("prefix model.", M, lambda d: d.rename(lambda n: f"model.{n}"), ("vllm-prefix",), f"{NO_PLACE} 'model'"),
    Case("model.d2t", REDUCED, lambda d: d.rename(lambda n: n.replace("d2t", "model.d2t")), ("vllm-prefix",)),
    Case(
        "a verifier's head left over",
        L,
        lambda d: d.put("verifier_lm_head.weight", some(8, 8)),
        ("vllm-unknown-tensor",),
        NO_PLACE,
    ),
    Case(
        "query norms in the Llama class",
        "llama-query-norms",
        lambda d: d.set(architectures=["LlamaForCausalLMEagle3"], model_type="llama"),
        ("vllm-unknown-tensor",),
        f"{NO_PLACE} 'layers.0.self_attn.[qk]_norm",
    ),
    Case("input_norm", M, lambda d: d.put("input_norm.weight", some(768)), ("vllm-unknown-tensor",), NO_PLACE),
    Case(
        "experts",
        M,
        lambda d: d.put(f"{LAYER}mlp.experts.0.up_proj.weight", some(8, 8)),
        ("vllm-unknown-tensor",),
        NO_PLACE,
    ),
    Case(
        "fc_norm without its flag",
        L31,
        lambda d: d.unset("fc_norm"),
        ("vllm-fc-norm-unflagged",),
        f"{NO_PLACE} 'fc_norm",
    ),
    Case(
        "fc_norm without its flag",
        M31,
        lambda d: d.unset("fc_norm"),
        ("vllm-fc-norm-unflagged",),
        f"{NO_PLACE} 'fc_norm",
    ),
    Case(
        "a map of zeros on the whole vocabulary",
        L,
        lambda d: d.put("d2t", torch.zeros(2048, dtype=torch.int64)),
        ("vllm-d2t-full",),
        "draft_id_to_target_id",
    ),
    Case(
        "a map of zeros on the whole vocabulary",
        M,
        lambda d: d.put("d2t", torch.zeros(2048, dtype=torch.int64)),
        ("vllm-d2t-full",),
        "draft_id_to_target_id",
    ),
    Case("another intermediate_size", L, lambda d: d.set(intermediate_size=512), ("vllm-shape",)),
    Case("no q_lora_rank: 1536", M, lambda d: d.unset("q_lora_rank"), ("vllm-shape",)),
    Case("heads too large", L, lambda d: d.set(head_dim=128), ("vllm-shape",)),
    Case(
        "a short embedding",
        L,
        lambda d: d.put("embed_tokens.weight", d.tensors["embed_tokens.weight"][:2000]),
        ("vllm-shape",),
    ),
    Case(
        "four states, counted above only",
        "llama-four-states",
        lambda d: d.unset("num_aux_hidden_states").nest(**{IDS: None}),
        ("vllm-shape",),
    ),
    Case(
        "q_lora_rank: null",
        M,
        lambda d: d.set(q_lora_rank=None).drop("q_a", "q_b").put(f"{LAYER}self_attn.q_proj.weight", some(256, 512)),
        ("vllm-plain-query",),
    ),
    Case(
        "fc for another target",
        L,
        lambda d: d.set(target_hidden_size=128).put("fc.weight", some(256, 384)),
        ("vllm-target-width",),
        facts={"target_hidden": 128},
        run=True,
    ),
    Case(
        "boundary 0",
        M,
        lambda d: d.set(**{IDS: [0, 4, 5]}),
        ("vllm-zero-boundary",),
        facts={"boundaries": (0, 4, 5)},
        run=True,
    ),
    Case(
        "a boundary twice",
        L,
        lambda d: d.set(**{IDS: [2, 2, 5]}),
        ("vllm-duplicate-id",),
        facts={"boundaries": (2, 2, 5)},
        run=True,
    ),
    Case("four boundaries for three states", L, lambda d: d.set(**{IDS: [2, 4, 5, 7]}), ("vllm-aux-count",), run=True),
    Case("four boundaries for three states", M, lambda d: d.set(**{IDS: [2, 4, 5, 7]}), ("vllm-aux-count",), run=True),
    Case(
        "index_topk",
        M,
        lambda d: d.set(index_topk=2048, index_n_heads=2, index_head_dim=64),
        ("vllm-indexer-cpu",),
        "Sparse",
    ),
    Case(
        "Quark INT4 per channel",
        f"{L}@quark-reorder",
        quark_weight(group_size=None, qscheme="per_channel"),
        ("vllm-quark-per-channel",),
        "group_size",
    ),
    Case(
        "Quark INT4 per channel",
        f"{M31}@quark-reorder",
        quark_weight(group_size=None, qscheme="per_channel"),
        ("vllm-quark-per-channel",),
        "group_size",
    ),
    Case(
        "Quark INT4 with INT8 activations",
        f"{L}@quark-reorder",
        quark_inputs,
        ("vllm-quark-activations",),
        "NotImplementedError|No quark",
    ),
    Case(
        "ModelOpt INT4_AWQ",
        f"{L}@ct-channel",
        modelopt("INT4_AWQ"),
        ("vllm-modelopt",),
        "ModelOpt currently only supports",
    ),
    Case(
        "ModelOpt W4A8_AWQ",
        f"{M31}@ct-channel",
        modelopt("W4A8_AWQ"),
        ("vllm-modelopt",),
        "ModelOpt currently only supports",
    ),
    *(
        Case(
            "NVFP4",
            f"{name}@ct-channel",
            modelopt("NVFP4"),
            ("vllm-kernel-cpu",),
            "kernel that can implement the NVFP4",
        )
        for name in (L, M31)
    ),
    *(
        Case("INT4 with FP8 activations", f"{name}@ct-g128", with_fp8_inputs, ("vllm-kernel-cpu",), "No compressed")
        for name in (L, M31)
    ),
    Case("MXFP4", L, mxfp4, ("vllm-kernel-cpu",), "amd-quark"),
    Case(
        "FP8 with a scale for each of q, k and v",
        f"{L}@fp8",
        static_fp8(shared=False),
        ("vllm-joined-fp8-cpu",),
        "static_scaled_fp8_quant",
        known=frozenset({"joined-fp8-scales"}),
    ),
    Case(
        "FP8 with a scale for each of gate and up",
        f"{M}@fp8",
        static_fp8(shared=False),
        ("vllm-joined-fp8-cpu",),
        "static_scaled_fp8_quant",
        known=frozenset({"joined-fp8-scales"}),
    ),
    *(
        Case(f"one FP8 scale, {what}", f"{base}@fp8", change, ("vllm-tensor-fp8-cpu",), "static_scaled_fp8_quant")
        for base in (L, M)
        for what, change in (("compressed-tensors", compressed_fp8), ("Quark", quark_fp8))
    ),
    Case("static FP8", f"{L}@fp8", static_fp8(shared=True), ("vllm-static-fp8-cpu",), "silu_and_mul_quant", run=True),
    Case("no quant_method", f"{L}@ct-channel", undeclared("quant_method"), ("vllm-quant-method",), BUILT_PLAIN),
    Case("no quant_method", f"{M31}@quark-reorder", undeclared("quant_method"), ("vllm-quant-method",), BUILT_PLAIN),
    Case("no export section", f"{L}@quark-reorder", undeclared("export"), ("vllm-quark-export",), "export"),
    Case(
        "inputs in another order",
        f"{L}@ct-g128",
        group_weights(actorder="group"),
        ("vllm-compressed-variant",),
        "actorder",
    ),
    Case("sparse", f"{L}@ct-channel", lambda d: d.quantization(sparsity_config=SPARSE), ("vllm-compressed-variant",)),
    Case(
        "rows declared as groups", f"{L}@ct-channel", group_weights(strategy="group", group_size=128), ("vllm-scales",)
    ),
    Case(
        "groups declared as rows",
        f"{M31}@ct-g128",
        group_weights(strategy="channel", group_size=None),
        ("vllm-scales",),
    ),
    Case("GPTQ groups declared as rows", f"{L}@gptq-g128", lambda d: d.quantization(group_size=-1), ("vllm-scales",)),
    Case("AWQ groups twice as long", f"{L}@awq-g128", lambda d: d.quantization(group_size=256), ("vllm-scales",)),
    Case(
        "packed and undeclared",
        f"{L}@ct-channel",
        lambda d: d.unset("quantization_config"),
        ("vllm-packed-undeclared",),
        NO_PLACE,
    ),
    Case(
        "packed and undeclared",
        f"{M31}@gptq-g128",
        lambda d: d.unset("quantization_config"),
        ("vllm-packed-undeclared",),
        NO_PLACE,
    ),
    Case(
        "fc excluded by its file name",
        f"{L}@ct-channel",
        ignoring("fc", "lm_head"),
        ("vllm-not-excluded",),
        f"{NO_PLACE} 'fc",
    ),
    Case(
        "fc excluded by its file name",
        f"{M31}@ct-g128",
        ignoring("fc", "re:.*fused_qkv_a_proj$", "re:.*kv_b_proj$"),
        ("vllm-not-excluded",),
        f"{NO_PLACE} 'fc",
    ),
    Case("fc excluded by a glob", f"{L}@quark-reorder", excluding("*fc", "lm_head"), ("vllm-not-excluded",)),
    Case(
        "kv_b not excluded",
        f"{M31}@ct-channel",
        ignoring("re:.*fc$", "re:.*fused_qkv_a_proj$"),
        ("vllm-not-excluded",),
        "kv_b_proj",
    ),
    Case(
        "the a-projections excluded unfused",
        f"{M31}@ct-channel",
        ignoring("re:.*fc$", r"re:.*\.(q_a|kv_a)_proj.*", "re:.*kv_b_proj$"),
        ("vllm-not-excluded",),
    ),
    *(
        Case(what, f"{base}@{way}", change, ("vllm-lists",), says)
        for base in (L, M31)
        for what, way, change, says in (
            ("ignore: no regular expression", "ct-channel", ignoring("re:(down_proj"), "error: missing"),
            ("exclude: no regular expression", "quark-reorder", excluding("re:(down_proj"), "error: missing"),
            ("dynamic: no regular expression", "gptq-channel", dynamic("-:(down_proj"), "error: missing"),
            ("Quark's config of a layer without weights", "quark-reorder", quark_layer("*down_proj"), "No quark"),
            ("Quark's config without weights", "quark-reorder", quark_weightless, "No quark"),
        )
    ),
    Case(
        "down_proj excluded and packed",
        f"{L}@ct-channel",
        ignoring("re:.*fc$", "re:.*down_proj$"),
        ("vllm-excluded",),
        NO_PLACE,
    ),
    Case(
        "targets by file names",
        f"{L}@ct-g128",
        lambda d: d.quantization(
            config_groups={
                "group_0": {**d.config["quantization_config"]["config_groups"]["group_0"], "targets": ["re:midlayer.*"]}
            }
        ),
        ("vllm-excluded",),
    ),
    Case(
        "GPTQ without a list",
        f"{L}@gptq-channel",
        lambda d: d.set(
            quantization_config={
                k: v for k, v in d.config["quantization_config"].items() if k != "modules_in_block_to_quantize"
            }
        ),
        ("vllm-excluded",),
    ),
    Case(
        "GPTQ with unfused names",
        f"{L}@gptq-g128",
        lambda d: d.quantization(
            modules_in_block_to_quantize=[f"self_attn.{p}_proj" for p in "qkvo"]
            + ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
        ),
        ("vllm-excluded",),
    ),
    Case("k_proj as floats among packed ones", f"{L}@ct-channel", plain_key, ("vllm-torn",)),
)


YARN: Mapping[str, float] = {
    "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0,
    "mscale_all_dim": 1.0,
}  # fmt: skip
"""How the MLA fixtures stretch their positions."""


MISREAD: tuple[Case, ...] = (
    Case("fc not excluded", f"{L}@fp8", ignoring("lm_head"), ("vllm-cast",)),
    Case("half the head_dim", L, lambda d: d.set(head_dim=32), ("vllm-cut",)),
    Case("half the intermediate_size", L, lambda d: d.set(intermediate_size=192), ("vllm-cut",)),
    Case("half the intermediate_size", M, lambda d: d.set(intermediate_size=128), ("vllm-cut",)),
    Case("one key head of two", L, lambda d: d.set(num_key_value_heads=1), ("vllm-cut",)),
    Case("one head of two", M, lambda d: d.set(num_attention_heads=1, num_key_value_heads=1), ("vllm-cut",)),
    Case("fc not excluded", f"{L}@int-w8a8", ignoring("lm_head"), ("vllm-cast",)),
    Case("fc not excluded", f"{M31}@int-w8a8", ignoring("re:.*fused_qkv_a_proj$", "re:.*kv_b_proj$"), ("vllm-cast",)),
    Case("no hidden_norm", L, lambda d: d.drop("hidden_norm"), ("vllm-missing-tensor",)),
    Case("no hidden_norm", M, lambda d: d.drop("hidden_norm"), ("vllm-missing-tensor",)),
    Case("no fc", L, lambda d: d.drop("fc.weight"), ("vllm-missing-tensor",)),
    Case("no q_a_layernorm", M, lambda d: d.drop("q_a_layernorm"), ("vllm-missing-tensor",)),
    Case("no fc_norm.1", L31, lambda d: d.drop("fc_norm.1"), ("vllm-missing-tensor",)),
    Case(
        "the norm of the second layer called hidden_norm",
        "llama-two-layers",
        lambda d: d.rename(lambda n: n.replace("layers.1.input_layernorm", "layers.1.hidden_norm")),
        ("vllm-later-norm",),
    ),
    Case("no d2t", REDUCED, lambda d: d.drop("d2t"), ("vllm-d2t-missing",)),
    Case("no lm_head", REDUCED, lambda d: d.drop("lm_head"), ("vllm-head-missing",)),
    Case("biases without their flag", "llama-biased", lambda d: d.set(attention_bias=False), ("vllm-bias-dropped",)),
    Case("a bias of fc", "llama-fc-bias", lambda d: d.unset("bias"), ("vllm-bias-dropped",)),
    Case("biases of q, k and v only", "llama-biased", dropped_bias, ("vllm-bias-half",)),
    Case("attention_bias without biases", L, lambda d: d.set(attention_bias=True), ("vllm-bias-half",)),
    Case("nested ids of the layers after", L, lambda d: d.unset(IDS), ("vllm-taps-v1",)),
    Case("nested ids of the layers after", M, lambda d: d.unset(IDS).nest(**{IDS: [1, 3, 4]}), ("vllm-taps-v1",)),
    Case("ids of the layers after", M31, lambda d: d.set(**{IDS: [1, 3, 4]}), ("vllm-taps-v1",)),
    Case("use_aux_hidden_state: false", L, lambda d: d.nest(use_aux_hidden_state=False), ("vllm-last-state",)),
    Case("norm_output lost", L31, lambda d: d.unset("norm_output"), ("vllm-norm-output",)),
    Case("norm_output lost", M31, lambda d: d.unset("norm_output"), ("vllm-norm-output",)),
    Case("norm_output set", L, lambda d: d.set(norm_output=True), ("vllm-norm-output",)),
    Case(
        "norm_before_fc off",
        "llama-norm-before-fc",
        lambda d: d.set(norm_before_fc=False).nest(norm_before_fc=False),
        ("vllm-fusion",),
    ),
    Case(
        "norm_before_fc off in eagle_config",
        "llama-norm-before-fc",
        lambda d: d.nest(norm_before_fc=False),
        ("vllm-fusion",),
    ),
    Case(
        "norm_before_residual lost",
        "llama-normed-residual",
        lambda d: d.unset("norm_before_residual"),
        ("vllm-residual",),
    ),
    Case(
        "norm_before_residual lost",
        "mla-normed-residual",
        lambda d: d.unset("norm_before_residual"),
        ("vllm-residual",),
    ),
    Case(
        "speculators config without norm_before_residual",
        L,
        lambda d: inner_config(d.unset("norm_before_residual")),
        ("vllm-residual",),
    ),
    Case("another rope base", L, lambda d: d.unset("rope_parameters").set(rope_theta=1e6), ("vllm-rope",)),
    Case(
        "no YaRN",
        M,
        lambda d: d.unset("rope_scaling").set(rope_parameters={"rope_type": "default", "rope_theta": 50000.0}),
        ("vllm-rope",),
    ),
    Case(
        "trained on halves",
        M,
        rules=("vllm-rope",),
        facts={
            "rope": Rope(50000.0, "halves", "yarn", YARN),
        },
    ),
    Case(
        "attention_factor 1",
        M,
        lambda d: d.unset("rope_scaling").set(rope_parameters={**d.config["rope_parameters"], "attention_factor": 1.0}),
        ("vllm-attention-factor",),
    ),
    Case(
        "attention_factor 1, trained so",
        M,
        lambda d: d.unset("rope_scaling").set(rope_parameters={**d.config["rope_parameters"], "attention_factor": 1.0}),
        ("vllm-attention-factor",),
        facts={"rope": Rope(50000.0, "interleaved", "yarn", {**YARN, "attention_factor": 1.0})},
    ),
    sound(
        "attention_factor 1.5, which MLA does not read",
        M,
        lambda d: d.unset("rope_scaling").set(rope_parameters={**d.config["rope_parameters"], "attention_factor": 1.5}),
    ),
    Case("half of each head", L, lambda d: d.set(partial_rotary_factor=0.5), ("vllm-rope",)),
    Case("half of each head", M31, lambda d: d.set(partial_rotary_factor=0.5), ("vllm-rope",)),
    Case("half of each head, nested", L, half_of_each_head, ("vllm-rope",)),
    Case("rope_scaling beside other rope_parameters", L, linear_rope, ("vllm-rope",)),
    Case("no base beside rope_scaling", M31, lambda d: d.unset("rope_theta"), ("vllm-rope",)),
    Case("rms_norm_eps 0", L, lambda d: d.set(rms_norm_eps=0.0), ("vllm-eps",)),
    Case("is_causal: false", L, lambda d: d.set(is_causal=False), ("vllm-causal",)),
    Case("another eps", L, lambda d: d.set(rms_norm_eps=1e-3), ("vllm-eps",)),
    Case("another eps", M31, lambda d: d.set(rms_norm_eps=1e-3), ("vllm-eps",)),
    Case("a window that it was not trained with", L, windowed, ("vllm-window",)),
    Case("no layer_types", "llama-window", lambda d: d.unset("layer_types"), ("vllm-window",)),
    Case("no use_sliding_window", "llama-window", lambda d: d.unset("use_sliding_window"), ("vllm-window",)),
    Case("its own vocabulary", "llama-small-vocabulary", rules=("vllm-vocab",)),
)

CASES: Sequence[Case] = (
    *SOUND,
    sound("static FP8", f"{M}@fp8", static_fp8(shared=True), run=True),
    *REFUSED,
    *SYNONYMS,
    *UNASKED,
    *HEADS,
    *MISREAD,
    *LACKING,
)


def fixed() -> frozenset[str]:
    """Names of the cases that every test run asks vLLM: each rule once per attention, each base and form once."""
    chosen: dict[tuple[str, ...], str] = {}
    for case in CASES:
        plain, _, way = case.base.partition("@")
        kind = "mla" if plain.startswith("mla") else "llama"
        keys: list[tuple[str, ...]] = [(rule, kind) for rule in case.rules]
        for key in keys or [("sound", plain, way)]:
            chosen.setdefault(key, case.name)
    return frozenset(chosen.values())
