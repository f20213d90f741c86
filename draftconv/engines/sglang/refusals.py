"""What stops SGLang: rules in the order in which the first broken one is the reason."""

from __future__ import annotations

from draftconv.checkpoint.dtypes import FLOATS
from draftconv.engines import checks, quantization_config
from draftconv.engines.checks import listed
from draftconv.engines.quantization_mismatch import mismatch
from draftconv.engines.rules import Rules, SimulatedLoad
from draftconv.engines.sglang.aux_layers import captured
from draftconv.engines.sglang.loading import CLASSES, derived_context
from draftconv.engines.sglang.sources import BOTH, CAPTURE, CONFIG, LLAMA, MATCHED, MLA, QUANT

RULES = Rules()


MTP_NAMES = frozenset({"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Qwen3MoeForCausalLM"})
"""Draft architectures that are rewritten to a multi-token-prediction class (srt/configs/model_config.py)."""


@RULES.add("sglang-architecture", "refused", "only LlamaForCausalLMEagle3 and Eagle3DeepseekV2ForCausalLM exist, by "
           "exact name; others fall to the Transformers backend and die there",
           "srt/models/registry.py, 0.5.23", "run")  # fmt: skip
def _unknown_class(load: SimulatedLoad) -> str | None:
    known = load.architecture in CLASSES or load.architecture in MTP_NAMES
    return None if known else f"architectures: {load.config.raw('architectures')}"


@RULES.add("sglang-mtp", "refused", "this draft architecture is rewritten to a multi-token-prediction class",
           CONFIG, "read")  # fmt: skip
def _mtp(load: SimulatedLoad) -> str | None:
    return f"architectures: {load.architecture}" if load.architecture in MTP_NAMES else None


@RULES.add("sglang-class", "refused", "the architecture decides between the Llama and the MLA class",
           "srt/models/registry.py, 0.5.23", "read")  # fmt: skip
def _wrong_class(load: SimulatedLoad) -> str | None:
    return checks.wrong_kind(load, CLASSES.get(load.architecture))


RULES.row("sglang-model-type", "refused", "transformers must know the model_type; speculators configs have none",
          "srt/utils/hf_transformers_utils.py, 0.5.23; issue 18216", "read", checks.unresolved_type)  # fmt: skip
RULES.row("sglang-null", "refused", "transformers 5 rejects a null here",
          "transformers 5.19 DeepseekV3Config, through SGLang 0.5.23", "run", checks.null_experts)  # fmt: skip


@RULES.add("sglang-null-width", "refused", "target_hidden_size is tested for existence, so a null breaks the width of "
           "fc", LLAMA, "read")  # fmt: skip
def _null_width(load: SimulatedLoad) -> str | None:
    return None if load.mla else checks.null_keys("target_hidden_size")(load)


@RULES.add("sglang-draft-vocab", "refused", "the Llama class needs the key draft_vocab_size to exist (AttributeError)",
           LLAMA, "run")  # fmt: skip
def draft_vocab_absent(load: SimulatedLoad) -> str | None:
    absent = not load.mla and not load.config.has("draft_vocab_size")
    return "draft_vocab_size is absent" if absent else None


RULES.row("sglang-activation", "refused", "the MLP is silu(gate) * up; any other hidden_act is refused",
          "srt/models/{llama,deepseek_v2}.py, 0.5.23", "read", checks.other_activation)  # fmt: skip


@RULES.add("sglang-one-mla-layer", "refused", "`EAGLE3 currently only supports 1 layer`", MLA, "read")
def _several_mla(load: SimulatedLoad) -> str | None:
    return f"num_hidden_layers: {load.built.layers}" if load.mla and load.built.layers != 1 else None


RULES.row("sglang-plain-query", "refused", "q_lora_rank null raises ValueError", MLA, "read", checks.plain_query)
RULES.row("sglang-shape", "refused", "modules are built from config.json; a tensor of another shape stops the load, "
          "lm_head with another number of rows by an assertion", BOTH, "run", checks.misfits)  # fmt: skip
RULES.row("sglang-target-width", "refused", "fc must fit the target's hidden states",
          BOTH, "inferred", checks.wrong_width)  # fmt: skip


@RULES.add("sglang-aux-count", "refused", "as many states must be captured as fc is built for; boundary L is captured "
           "for gpt-oss only, boundary 0 not for DeepSeek and Kimi", CAPTURE, "inferred")  # fmt: skip
def _count(load: SimulatedLoad) -> str | None:
    return checks.wrong_count(captured(load), load)


@RULES.add("sglang-context", "refused", "a drafter with a shorter context than the target's stops the start, unless "
           "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 is set", CONFIG, "read")  # fmt: skip
def _context(load: SimulatedLoad) -> str | None:
    """The drafter's context as SGLang derives it (positions times rope factor), below the target's."""
    target = load.target
    if target is None or not target.max_positions:
        return None
    limit, absent = derived_context(load)
    if limit >= target.max_positions:
        return None
    return f"max_position_embeddings gives {limit}{absent}, {target.name} has {target.max_positions}"


@RULES.add("sglang-quark-int4", "refused", "Quark INT4 has no scheme for dense layers",
           f"{QUANT}/quark/quark.py, 0.5.23", "run")  # fmt: skip
def _quark_int4(load: SimulatedLoad) -> str | None:
    return "Quark INT4" if checks.quark_int4(load) else None


MODELOPT_ALGORITHMS = frozenset({"FP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "MIXED_PRECISION"})
RULES.row("sglang-modelopt", "refused", "of ModelOpt's algorithms only FP8 and NVFP4 kinds are known, no INT4",
          f"{QUANT}/modelopt_quant.py, 0.5.23", "read", checks.unknown_algorithm(MODELOPT_ALGORITHMS))  # fmt: skip


@RULES.add("sglang-mla-nvfp4", "refused", "NVFP4 is switched off for the MLA class, so packed weights do not fit",
           MLA, "read")  # fmt: skip
def _mla_nvfp4(load: SimulatedLoad) -> str | None:
    algorithm = checks.modelopt_algorithm(load) or ""
    return f"quant_algo: {algorithm}" if load.mla and "NVFP4" in algorithm else None


@RULES.add("sglang-int4-activations", "refused", "compressed-tensors INT4 is weight-only: there is no scheme with "
           "quantized activations for dense layers",
           f"{QUANT}/compressed_tensors/compressed_tensors.py, 0.5.23", "run")  # fmt: skip
def _int4_activations(load: SimulatedLoad) -> str | None:
    return listed([
        f"{weights.integer('num_bits')}-bit weights, {inputs.integer('num_bits')}-bit activations"
        for weights, inputs in checks.compressed_groups(load)
        if weights.integer("num_bits") == 4 and inputs.data and weights.text("type") == "int"
    ])  # fmt: skip


@RULES.add("sglang-kv-b", "refused", "kv_b_proj is split right after loading and must be unquantized",
           "srt/models/deepseek_common/deepseek_weight_loader.py, 0.5.23", "run")  # fmt: skip
def _latent_quantized(load: SimulatedLoad) -> str | None:
    """kv_b_proj in anything but floats: it is split into the absorbed matrices right after loading."""
    tensor = load.tensor("layers.0.self_attn.kv_b_proj.weight")
    packed = "layers.0.self_attn.kv_b_proj.weight" in load.results.packed
    return "kv_b_proj is quantized" if packed or (tensor is not None and tensor.dtype not in FLOATS) else None


@RULES.add("sglang-a-projections", "refused", "q_a and kv_a are joined tensor by tensor, weight_shape too: never "
           "packed", MLA, "read")  # fmt: skip
def _joined_projections(load: SimulatedLoad) -> str | None:
    """Packed a-projections, whose tensors are joined one by one, weight_shape among them."""
    names = ("q_a_proj", "kv_a_proj_with_mqa")
    return listed([n for n in names if f"layers.0.self_attn.{n}.weight" in load.results.packed])


@RULES.add("sglang-fc-quantized", "refused", "fc is a plain linear in the Llama class and cannot be quantized",
           LLAMA, "read")  # fmt: skip
def _fc_quantized(load: SimulatedLoad) -> str | None:
    tensor = load.tensor("fc.weight")
    return f"fc.weight is {tensor.dtype}" if tensor and not load.mla and tensor.dtype not in FLOATS else None


ROCM_METHODS = frozenset({
    "auto-round", "auto-round-int8", "awq", "compressed-tensors", "fp8", "mxfp4", "mxfp8", "petit_nvfp4", "quark",
    "quark_int4fp8_moe", "quark_mxfp4", "w8a8_fp8",
})  # fmt: skip


@RULES.add("sglang-rocm", "refused", "not every quantization runs on ROCm: GPTQ and ModelOpt are not listed, "
           "compressed-tensors INT4 repacks with a CUDA symbol", f"{QUANT}/__init__.py, 0.5.23", "read")  # fmt: skip
def _rocm(load: SimulatedLoad) -> str | None:
    if not load.on_amd or not load.truth.quantization:
        return None
    if checks.modelopt_algorithm(load):
        return "ModelOpt on ROCm"
    method = checks.quant_method(load)
    if method and method not in ROCM_METHODS:
        return f"quant_method: {method} on ROCm"
    int4 = any(weights.integer("num_bits") == 4 for weights, _ in checks.compressed_groups(load))
    return "compressed-tensors INT4 on ROCm" if int4 else None


RULES.row("sglang-quark-export", "refused", "Quark's declaration needs its export section",
          f"{QUANT}/quark/quark.py, 0.5.23", "read", quantization_config.unexported)  # fmt: skip
RULES.row("sglang-scales", "refused", "scales are built as quantization_config declares them; others do not fit",
          f"{QUANT}/{{compressed_tensors,awq,gptq}}, 0.5.23", "inferred",
          quantization_config.other_grouping)  # fmt: skip
RULES.row("sglang-packed-undeclared", "refused", "packed weights need a quantization_config",
          BOTH, "read", checks.undeclared_packed)  # fmt: skip
RULES.row("sglang-not-excluded-shape", "refused", "a linear that no list excludes by its runtime name is built "
          "quantized, and a plain tensor has another shape",
          MATCHED, "read", mismatch("not excluded", "words"))  # fmt: skip
RULES.row("sglang-excluded-shape", "refused", "a linear that is not matched by its runtime name is built plain, and "
          "quantized tensors have another shape", MATCHED, "read", mismatch("excluded", "words"))  # fmt: skip
RULES.row("sglang-torn", "refused", "projections that are joined into one linear are quantized together or not at all",
          MATCHED, "read", mismatch("torn"))  # fmt: skip
RULES.row("sglang-unmatched", "refused", "a linear that lists match in part, or a target of compressed-tensors not at "
          "all, stops the start", MATCHED, "run", mismatch("stops"))  # fmt: skip
