"""What stops SGLang: rules in the order in which the first broken one is the reason."""

from __future__ import annotations

from collections.abc import Mapping

from draftconv.checkpoint.dtypes import FLOATS
from draftconv.engines import checks, quantization_config, strict_config
from draftconv.engines.checks import listed
from draftconv.engines.module_names import ROW
from draftconv.engines.quantization_mismatch import QuantizationMismatch, mismatch, mismatches
from draftconv.engines.quantized_modules import named
from draftconv.engines.rope_config import handed_over
from draftconv.engines.rules import Check, Rules, SimulatedLoad
from draftconv.engines.sglang import quantized_loading
from draftconv.engines.sglang.aux_layers import captured, lone_state
from draftconv.engines.sglang.loading import CLASSES, CUT, architecture, derived_context
from draftconv.engines.sglang.sources import BOTH, CAPTURE, CONFIG, LLAMA, MATCHED, MLA, QUANT

RULES = Rules()


RULES.row("sglang-model-type", "refused", "transformers must know the model_type; speculators configs have none",
          "srt/utils/hf_transformers_utils.py, 0.5.23; issue 18216", "run", checks.unresolved_type)  # fmt: skip
RULES.row("sglang-null", "refused", "transformers 5 rejects a null here",
          "transformers 5.19 LlamaConfig, Qwen3Config and DeepseekV3Config, through SGLang 0.5.23", "run",
          strict_config.nulls)  # fmt: skip


@RULES.add("sglang-null-theta", "refused", "a null rope_theta is taken for the base where the section that "
           "transformers keeps has none",
           "transformers 5.19 modeling_rope_utils.py, through SGLang 0.5.23", "run")  # fmt: skip
def _null_theta(load: SimulatedLoad) -> str | None:
    based = handed_over(load.config).section("rope_parameters").number("rope_theta")
    return checks.null_keys("rope_theta")(load) if based is None else None


@RULES.add("sglang-context", "refused", "a drafter with a shorter context than the target's stops the start, unless "
           "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 is set", CONFIG, "run")  # fmt: skip
def _context(load: SimulatedLoad) -> str | None:
    """The drafter's context as SGLang derives it (positions times rope factor), below the target's."""
    target = load.target
    if target is None or not target.max_positions:
        return None
    limit, absent = derived_context(load)
    if limit >= target.max_positions:
        return None
    return f"max_position_embeddings gives {limit}{absent}, {target.name} has {target.max_positions}"


METHODS = frozenset({
    "auto-round", "auto-round-int8", "awq", "awq_marlin", "bitsandbytes", "blockwise_int8", "compressed-tensors", "fp8",
    "gguf", "gptq", "gptq_marlin", "humming", "minimax_m3_nvfp4", "modelopt", "modelopt_fp4", "modelopt_fp8",
    "modelopt_mixed", "modelslim", "moe_wna16", "mxfp4", "mxfp8", "mxfp_w4a8", "nvfp4_online", "petit_nvfp4", "quark",
    "quark_int4fp8_moe", "quark_mxfp4", "w4afp8", "w8a8_fp8", "w8a8_int8",
})  # fmt: skip
"""quant_methods that are known on GPUs (srt/layers/quantization/__init__.py, 0.5.23; gptq becomes gptq_marlin)."""


NAMED_BY_ALGORITHM = frozenset({"FP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "MIXED_PRECISION", "MXFP8"})
"""ModelOpt's algorithms that say the method where quant_method is absent."""


@RULES.add("sglang-quant-method", "refused", "a quantization_config needs a quant_method that is known, even beside "
           "weights that are not quantized", CONFIG, "run")  # fmt: skip
def _method(load: SimulatedLoad) -> str | None:
    section = load.config.section("quantization_config")
    if load.config.raw("quantization_config") is None:
        return None
    named = section.section("quantization").text("quant_algo") or section.text("quant_algo") or ""
    if not section.has("quant_method") and named in NAMED_BY_ALGORITHM:
        return None
    method = checks.quant_method(load)
    return None if method.lower() in METHODS else f"quant_method: {method or 'absent'}"


MTP_NAMES = frozenset({"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Qwen3MoeForCausalLM"})
"""Draft architectures that are rewritten to a multi-token-prediction class (srt/configs/model_config.py)."""


@RULES.add("sglang-architecture", "refused", "only LlamaForCausalLMEagle3 and Eagle3DeepseekV2ForCausalLM exist, by "
           "exact name; others fall to the Transformers backend and die there",
           "srt/models/registry.py, 0.5.23", "run")  # fmt: skip
def _unknown_class(load: SimulatedLoad) -> str | None:
    name = architecture(load.config)
    return None if name in CLASSES or name in MTP_NAMES else f"architectures: {load.config.raw('architectures')}"


ROPE_KINDS = frozenset({"deepseek_yarn", "default", "dynamic", "linear", "llama3", "longrope", "proportional", "yarn"})
"""Of srt/layers/rotary_embedding/factory.py, 0.5.23."""


@RULES.add("sglang-rope-kind", "refused", "a rope_type must be known, and deepseek_yarn does not turn the joined heads "
           "of the Llama class", "srt/layers/rotary_embedding/factory.py, 0.5.23", "run")  # fmt: skip
def _rope_kind(load: SimulatedLoad) -> str | None:
    kind = load.built.rope.kind
    if load.mla:  # DeepseekV2AttentionMLA overwrites the kind
        return None
    return f"rope_type: {kind}" if kind not in ROPE_KINDS or kind == "deepseek_yarn" else None


@RULES.add("sglang-mtp", "refused", "this draft architecture is rewritten to a multi-token-prediction class",
           CONFIG, "run")  # fmt: skip
def _mtp(load: SimulatedLoad) -> str | None:
    name = architecture(load.config)
    return f"architectures: {name}" if name in MTP_NAMES else None


@RULES.add("sglang-class", "refused", "the architecture decides between the Llama and the MLA class; the MLA class "
           "cannot be built from the config of a Llama-style drafter",
           "srt/models/registry.py, 0.5.23", "run")  # fmt: skip
def _wrong_class(load: SimulatedLoad) -> str | None:
    return None if load.mla else checks.wrong_kind(load, CLASSES.get(architecture(load.config)))


@RULES.add("sglang-null-width", "refused", "target_hidden_size is tested for existence, so a null breaks the width of "
           "fc", LLAMA, "run")  # fmt: skip
def _null_width(load: SimulatedLoad) -> str | None:
    return None if load.mla else checks.null_keys("target_hidden_size")(load)


@RULES.add("sglang-draft-vocab", "refused", "the Llama class needs the key draft_vocab_size to exist (AttributeError)",
           LLAMA, "run")  # fmt: skip
def draft_vocab_absent(load: SimulatedLoad) -> str | None:
    absent = not load.mla and not load.config.has("draft_vocab_size")
    return "draft_vocab_size is absent" if absent else None


RULES.row("sglang-activation", "refused", "the MLP is silu(gate) * up; any other hidden_act is refused",
          "srt/models/{llama,deepseek_v2}.py, 0.5.23", "run", checks.other_activation)  # fmt: skip


@RULES.add("sglang-one-mla-layer", "refused", "`EAGLE3 currently only supports 1 layer`", MLA, "run")
def _several_mla(load: SimulatedLoad) -> str | None:
    return f"num_hidden_layers: {load.built.layers}" if load.mla and load.built.layers != 1 else None


RULES.row("sglang-plain-query", "refused", "q_lora_rank null raises ValueError", MLA, "run", checks.plain_query)
RULES.row("sglang-shape", "refused", "modules are built from config.json; a tensor of another shape stops the load, "
          "lm_head with another number of rows by an assertion", BOTH, "run", CUT.misfit)  # fmt: skip


@RULES.add("sglang-d2t-short", "refused", "a draft id behind the end of a d2t that is shorter than the head stops the "
           "server when it is drafted", "srt/speculative/eagle_worker_v2.py, 0.5.23", "run")  # fmt: skip
def _short_map(load: SimulatedLoad) -> str | None:
    stored = load.tensor("d2t")
    short = stored is not None and stored.shape[:1] < (load.built.draft_vocab,)
    return f"d2t has {stored.shape[0]} entries, lm_head {load.built.draft_vocab} rows" if stored and short else None


RULES.row("sglang-target-width", "refused", "fc must fit the target's hidden states",
          BOTH, "run", checks.wrong_width)  # fmt: skip


@RULES.add("sglang-aux-count", "refused", "as many states must be captured as fc is built for; boundary L is captured "
           "for gpt-oss only", CAPTURE, "run")  # fmt: skip
def _count(load: SimulatedLoad) -> str | None:
    return None if lone_state(load) else checks.wrong_count(captured(load), load)


@RULES.add("sglang-quark-int4", "refused", "Quark INT4 has no scheme for dense layers",
           f"{QUANT}/quark/quark.py, 0.5.23", "run")  # fmt: skip
def _quark_int4(load: SimulatedLoad) -> str | None:
    return "Quark INT4" if checks.quark_int4(load) else None


@RULES.add("sglang-quark-scheme", "refused", "of Quark's schemes dense layers have FP8 beside FP8 activations and "
           "MXFP4 beside MXFP4 ones", f"{QUANT}/quark/quark.py, 0.5.23", "run")  # fmt: skip
def _quark_scheme(load: SimulatedLoad) -> str | None:
    section = load.config.section("quantization_config").section("global_quant_config")
    weight, inputs = section.section("weight"), section.section("input_tensors")
    if checks.quant_method(load) != "quark" or not weight.data or checks.quark_int4(load):
        return None
    kind, meets = weight.text("dtype"), inputs.text("dtype")
    schemes = ("per_tensor", "per_channel", "per_block")
    if kind == meets == "fp4" or (kind == meets == "fp8_e4m3" and weight.text("qscheme") in schemes):
        return None
    return f"{kind} {weight.text('qscheme') or ''} weights, {meets or '16-bit'} activations"


@RULES.add("sglang-compressed-scheme", "refused", "compressed-tensors declares what cannot be built: a group without a "
           "size, an order of inputs without groups, integers that are not packed and have no INT8 activations, "
           "sparse linears that are not quantized",
           f"{QUANT}/compressed_tensors/compressed_tensors.py, 0.5.23", "run")  # fmt: skip
def _compressed_scheme(load: SimulatedLoad) -> str | None:
    section = load.config.section("quantization_config")
    found = []
    for weights, inputs, form in checks.compressed_groups(load):
        strategy, order, size = weights.text("strategy"), weights.text("actorder"), weights.size("group_size")
        if strategy == "group" and not size:
            found.append("group without group_size")
        if order in ("group", "dynamic") and strategy not in ("group", "tensor_group"):
            found.append(f"actorder: {order} beside strategy: {strategy}")
        if weights.text("type") == "int" and not inputs.data and form != "pack-quantized":
            found.append(f"format: {form}")
        if inputs.data and weights.integer("num_bits") == 8 and section.section("sparsity_config").data:
            found.append("sparsity_config beside 8-bit activations")
    if found or section.section("sparsity_config").text("sparsity_structure") != "2:4":
        return listed(found)
    plain = [m.name for m, b in quantized_loading.quantized_as(load).items() if b.outcome == "plain" and not m.head]
    return listed([f"sparsity_config, {name} not quantized" for name in plain])


MODELOPT_ALGORITHMS = frozenset({"FP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "MIXED_PRECISION"})


@RULES.add("sglang-modelopt", "refused", "of ModelOpt's algorithms only FP8 and NVFP4 kinds are known, no INT4",
           f"{QUANT}/modelopt_quant.py, 0.5.23", "run")  # fmt: skip
def _unknown_algorithm(load: SimulatedLoad) -> str | None:
    kind = quantized_loading.algorithm(load)
    if not kind and checks.quant_method(load).startswith("modelopt"):
        return "no quant_algo"
    return f"quant_algo: {kind}" if kind and kind not in MODELOPT_ALGORITHMS else None


@RULES.add("sglang-mla-nvfp4", "refused", "NVFP4 is switched off for the MLA class, so packed weights do not fit",
           MLA, "run")  # fmt: skip
def _mla_nvfp4(load: SimulatedLoad) -> str | None:
    kind = quantized_loading.algorithm(load)
    return f"quant_algo: {kind}" if load.mla and "NVFP4" in kind else None


MARLIN_GROUPS = (-1, 32, 64, 128)


@RULES.add("sglang-gptq", "refused", "GPTQ is read by Marlin alone: 4 or 8 bits, symmetric, groups of 32, 64, 128 or a "
           "row, each of the keys written, and not packed for Marlin beforehand",
           f"{QUANT}/gptq/gptq.py, 0.5.23", "run")  # fmt: skip
def _gptq(load: SimulatedLoad) -> str | None:
    section = load.config.section("quantization_config")
    if checks.quant_method(load) != "gptq":
        return None
    absent = [key for key in ("bits", "group_size", "sym", "desc_act") if section.raw(key) is None]
    if absent:
        return listed([f"no {key}" for key in absent])
    wrong = {
        "bits": section.integer("bits") not in (4, 8), "sym": not section.flag("sym"),
        "group_size": section.integer("group_size") not in MARLIN_GROUPS,
        "checkpoint_format": section.text("checkpoint_format") == "marlin",
    }  # fmt: skip
    return listed([f"{key}: {section.raw(key)}" for key, is_wrong in wrong.items() if is_wrong])


@RULES.add("sglang-awq", "refused", "AWQ has 4 bits; what Marlin does not take of it (no zero points, other groups, "
           "ROCm) is read in float16 alone; bits, group_size and zero_point have to be written",
           f"{QUANT}/awq/awq.py, 0.5.23", "run")  # fmt: skip
def _awq(load: SimulatedLoad) -> str | None:
    section = load.config.section("quantization_config")
    if checks.quant_method(load) != "awq":
        return None
    absent = [key for key in ("bits", "group_size", "zero_point") if section.raw(key) is None]
    if absent:
        return listed([f"no {key}" for key in absent])
    if section.integer("bits") != 4:
        return f"bits: {section.raw('bits')}"
    marlin = section.flag("zero_point") and section.integer("group_size") in MARLIN_GROUPS and not load.on_amd
    dtype = load.config.text("dtype") or load.config.text("torch_dtype") or "float32"
    return None if marlin or dtype in ("float16", "float32") else f"{dtype}, where only float16 is read"


AUTO_ROUND: Mapping[str, tuple[object, ...]] = {
    "bits": (2, 3, 4, 8),
    "data_type": ("int", None),
    "packing_format": ("auto_round:auto_gptq", "auto_round:auto_awq", None),
    "backend": ("auto", "gptq", "gptq:marlin", "awq", "awq:marlin", "marlin", None),
}
"""Key of an auto-round declaration → values that are taken; None: it may be absent."""


@RULES.add("sglang-auto-round", "refused", "auto-round: bits, group_size and sym have to be written, and of data_type, "
           "packing_format and backend few values are taken; what is packed as GPTQ has to fit Marlin",
           f"{QUANT}/auto_round.py, 0.5.23", "run")  # fmt: skip
def _auto_round(load: SimulatedLoad) -> str | None:
    section = load.config.section("quantization_config")
    if checks.quant_method(load) != "auto-round":
        return None
    absent = [f"no {key}" for key in ("bits", "group_size", "sym") if section.raw(key) is None]
    other = [f"{key}: {section.raw(key)}" for key, known in AUTO_ROUND.items() if section.raw(key) not in known]
    if absent or other:
        return listed([*absent, *(text for text in other if text != "bits: None")])
    backend = section.text("backend") or "auto"
    if not quantized_loading.packed_as_gptq(section):
        return f"bits: {section.raw('bits')}, packed as AWQ" if section.integer("bits") != 4 else None
    marlin = {
        "bits": section.integer("bits") in (4, 8), "sym": section.flag("sym"),
        "group_size": section.integer("group_size") in MARLIN_GROUPS,
        "backend": backend == "auto" or "marlin" in backend,
    }  # fmt: skip
    return listed([f"{key}: {section.raw(key)}, packed as GPTQ" for key, taken in marlin.items() if not taken])


@RULES.add("sglang-int4-activations", "refused", "compressed-tensors INT4 is weight-only: there is no scheme with "
           "quantized activations for dense layers",
           f"{QUANT}/compressed_tensors/compressed_tensors.py, 0.5.23", "run")  # fmt: skip
def _int4_activations(load: SimulatedLoad) -> str | None:
    return listed([
        f"{weights.integer('num_bits')}-bit weights, {inputs.integer('num_bits')}-bit activations"
        for weights, inputs, _ in checks.compressed_groups(load)
        if weights.integer("num_bits") == 4 and inputs.data and weights.text("type") == "int"
    ])  # fmt: skip


RULES.row("sglang-kv-b", "refused", "kv_b_proj is split right after loading: where it is built quantized, that fails",
          MLA, "run", quantized_loading.latent_quantized)  # fmt: skip


RULES.row("sglang-a-projections", "refused", "q_a and kv_a are joined tensor by tensor along the first side: what has "
          "none (one number), or another one (words of several outputs, weight_shape), stops the load", MLA, "run",
          quantized_loading.unjoined)  # fmt: skip


@RULES.add("sglang-fc-quantized", "refused", "fc is a plain linear in the Llama class: codes of another shape stop the "
           "load", LLAMA, "run")  # fmt: skip
def _fc_quantized(load: SimulatedLoad) -> str | None:
    tensor = load.tensor("fc.weight")
    coded = tensor is not None and not load.mla and tensor.dtype not in FLOATS
    return f"fc.weight is {tensor.dtype}" if tensor and coded and not quantized_loading.fc_coded(load) else None


ROCM_METHODS = frozenset({
    "auto-round", "auto-round-int8", "awq", "compressed-tensors", "fp8", "mxfp4", "mxfp8", "petit_nvfp4", "quark",
    "quark_int4fp8_moe", "quark_mxfp4", "w8a8_fp8",
})  # fmt: skip


@RULES.add("sglang-rocm", "refused", "not every quantization runs on ROCm: GPTQ and ModelOpt are not listed, "
           "compressed-tensors INT4 repacks with a CUDA symbol", f"{QUANT}/__init__.py, 0.5.23", "run")  # fmt: skip
def _rocm(load: SimulatedLoad) -> str | None:
    if not load.on_amd or not load.truth.quantization:
        return None
    if quantized_loading.algorithm(load):
        return "ModelOpt on ROCm"
    method = checks.quant_method(load)
    if method and method not in ROCM_METHODS:
        return f"quant_method: {method} on ROCm"
    int4 = any(weights.integer("num_bits") == 4 for weights, *_ in checks.compressed_groups(load))
    return "compressed-tensors INT4 on ROCm" if int4 else None


@RULES.add("sglang-quark-export", "refused", "Quark's declaration needs its export section and what it says of single "
           "layers, be it empty", f"{QUANT}/quark/quark.py, 0.5.23", "run")  # fmt: skip
def _quark_sections(load: SimulatedLoad) -> str | None:
    section = load.config.section("quantization_config")
    if checks.quant_method(load) != "quark":
        return None
    layers = [f"no {key}" for key in ("layer_quant_config", "layer_type_quant_config") if section.raw(key) is None]
    return quantization_config.unexported(load) or listed(layers)


RULES.row("sglang-scales", "refused", "weights and scales are built as quantization_config declares them; what has "
          "another shape, or is to be rounded in a column-parallel linear, stops the load",
          "srt/layers/{linear,parameter}.py, 0.5.23", "run",
          quantized_loading.stopping)  # fmt: skip


@RULES.add("sglang-words-undeclared", "refused", "weights in words of another shape need a quantization_config",
           BOTH, "run")  # fmt: skip
def _words_undeclared(load: SimulatedLoad) -> str | None:
    return quantized_loading.in_words(load) if quantized_loading.undeclared(load) else None


def in_words(clash: QuantizationMismatch) -> bool:
    """Values in words of another shape against a plain linear, or the other way round."""
    return clash.kind in ("excluded", "not excluded") and clash.storage == "words"


def _misshapen(kind: str) -> Check:
    def check(load: SimulatedLoad) -> str | None:
        clashes = (clash for clash in mismatches(load) if clash.kind == kind and in_words(clash))
        return listed([str(clash) for clash in clashes if clash.module.kind != ROW])

    return check


RULES.row("sglang-other-scheme", "refused", "of several groups the one that matches a module says how it is built; "
          "tensors of another one do not fit there", MATCHED, "run", quantization_config.other_scheme)  # fmt: skip


@RULES.add("sglang-head-block", "refused", "a head with scales per block stops the start",
           f"{QUANT}/compressed_tensors/compressed_tensors.py, 0.5.23", "run")  # fmt: skip
def _block_head(load: SimulatedLoad) -> str | None:
    groups = load.config.section("quantization_config").section("config_groups")
    blocks = (
        named("lm_head", group.texts("targets"))
        for group in (groups.section(name) for name in groups.data)
        if group.section("weights").text("strategy") == "block"
    )
    return next((target for target in blocks if target), None)


RULES.row("sglang-not-excluded-shape", "refused", "a linear that no list excludes by its runtime name is built "
          "quantized, and a plain tensor has another shape",
          MATCHED, "run", _misshapen("not excluded"))  # fmt: skip
RULES.row("sglang-excluded-shape", "refused", "a linear that is not matched by its runtime name is built plain, and "
          "quantized tensors have another shape", MATCHED, "run", _misshapen("excluded"))  # fmt: skip


RULES.row("sglang-torn", "refused", "projections that are joined into one linear are quantized together or not at all",
          MATCHED, "run", mismatch("torn", "words"))  # fmt: skip
RULES.row("sglang-unmatched", "refused", "a linear that lists match in part, or a target of compressed-tensors not at "
          "all, stops the start; so do a pattern that is no regular expression (auto-round passes over it) and a "
          "config of Quark's without weights", MATCHED, "run", mismatch("stops"))  # fmt: skip
