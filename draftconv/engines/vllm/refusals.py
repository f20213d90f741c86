"""What stops vLLM: rules in the order in which the first broken one is the reason."""

from __future__ import annotations

import re

from draftconv.drafter.boundaries import IDS
from draftconv.drafter.checks import MTP_MODEL_TYPES
from draftconv.drafter.config import Config
from draftconv.drafter.tensors import HEAD
from draftconv.engines import checks, quantization_config, strict_config
from draftconv.engines.checks import listed
from draftconv.engines.hardware import CHIPS, Chip
from draftconv.engines.quantization_mismatch import mismatch
from draftconv.engines.rules import Rules, SimulatedLoad
from draftconv.engines.vllm.aux_layers import captured_v1, captured_v2, top_ids
from draftconv.engines.vllm.loading import CUT, flatten, speculators
from draftconv.engines.vllm.sources import LLAMA, LOADERS, MATCHED, MLA, QUANT, SPEC

RULES = Rules()


@RULES.add("vllm-architecture", "refused", "the draft architecture must be registered (after an Eagle3 prefix is "
           "added)", "model_executor/models/registry.py, 0.33.0", "run")  # fmt: skip
def _unregistered(load: SimulatedLoad) -> str | None:
    data = load.view.config
    if flatten(data)[1] is not None:
        return None
    if speculators(data):
        return f"speculators config with transformer_layer_config.model_type: {load.model_type}"
    return f"architectures: {data.get('architectures')}"


@RULES.add("vllm-class", "refused", "the architecture decides between the Llama and the MLA class",
           "model_executor/models/registry.py, 0.33.0", "run")  # fmt: skip
def _wrong_class(load: SimulatedLoad) -> str | None:
    return checks.wrong_kind(load, flatten(load.view.config)[1])


@RULES.add("vllm-model-type", "refused", "transformers must know the model_type, unless the config is speculators'",
           "transformers_utils/config.py, 0.33.0", "run")  # fmt: skip
def _untyped(load: SimulatedLoad) -> str | None:
    data = load.view.config
    legacy = data.get("model_type") == "eagle" and Config(data).section("model").data
    return None if legacy or speculators(data) else checks.unresolved_type(load)


@RULES.add("vllm-mtp", "refused", "this model_type is rewritten to a multi-token-prediction class", SPEC, "run")
def _mtp(load: SimulatedLoad) -> str | None:
    mtp = load.model_type in MTP_MODEL_TYPES or load.model_type.startswith("deepseek_v4")
    return f"model_type: {load.model_type}" if mtp else None


RULES.row("vllm-null", "refused", "transformers 5 rejects a null here",
          "transformers 5.19 LlamaConfig, Qwen3Config and DeepseekV3Config, through vLLM 0.33.0", "run",
          strict_config.nulls)  # fmt: skip
RULES.row("vllm-activation", "refused", "the MLP is silu(gate) * up; any other hidden_act is refused",
          "model_executor/models/{llama,deepseek_v2}.py, 0.33.0", "run", checks.other_activation)  # fmt: skip


@RULES.add("vllm-prefix", "refused", "names must be bare: the loader prepends `model.` itself", LOADERS, "run")
def _prefixed(load: SimulatedLoad) -> str | None:
    return listed([name for name in load.results.fatal if name.startswith("model.")])


@RULES.add("vllm-unknown-tensor", "refused", "a tensor without a module stops the load", LOADERS, "run")
def _unknown(load: SimulatedLoad) -> str | None:
    known = re.compile(r"^model\.|^d2t$|fc_norm\.")
    return listed([name for name in load.results.fatal if not known.search(name)])


@RULES.add("vllm-fc-norm-unflagged", "refused", "fc_norm tensors need their module: fc_norm: true, and vLLM 0.22 or "
           "later", LOADERS, "run")  # fmt: skip
def _unflagged_fc_norm(load: SimulatedLoad) -> str | None:
    names = [name for name in load.results.fatal if "fc_norm." in name and not name.startswith("model.")]
    return listed(names)


@RULES.add("vllm-d2t-full", "refused", "d2t must be absent when the head covers the whole vocabulary", LOADERS, "run")
def _d2t_on_full(load: SimulatedLoad) -> str | None:
    return "d2t is stored and draft_vocab_size is the target's" if "d2t" in load.results.fatal else None


RULES.row("vllm-shape", "refused", "modules are built from config.json; a tensor of another shape stops the load",
          LOADERS, "run", CUT.misfit)  # fmt: skip
RULES.row("vllm-plain-query", "refused", "the query must be compressed: kv_a is fused with q_a unconditionally",
          MLA, "run", checks.plain_query)  # fmt: skip


NO_INTERFACE = frozenset({"kimi_vl", "kimi_audio"})
"""Target model_types whose class does not hand out hidden states."""

NO_INTERFACE_ON_AMD = frozenset({"kimi_linear"})
"""Those that have one class for ROCm without, and one for everything else with it (models/kimi_k3/{amd,nvidia})."""


@RULES.add("vllm-target", "refused", "the target's class must hand out hidden states (EAGLE-3 interface)",
           "model_executor/models/interfaces.py, 0.33.0", "run")  # fmt: skip
def _no_interface(load: SimulatedLoad) -> str | None:
    target = load.target
    without = NO_INTERFACE | (NO_INTERFACE_ON_AMD if load.on_amd else frozenset())
    return f"{target.name} is {target.model_type}" if target and target.model_type in without else None


RULES.row("vllm-target-width", "refused", "fc must fit the target's hidden states", LLAMA, "run", checks.wrong_width)


@RULES.add("vllm-zero-boundary", "refused", "boundary 0 has no residual on DeepSeek/Kimi targets and crashes",
           "model_executor/models/deepseek_v2.py, 0.33.0", "run")  # fmt: skip
def _zero_boundary(load: SimulatedLoad) -> str | None:
    return checks.zero_boundary(captured_v1(load), load)


@RULES.add("vllm-duplicate-id", "refused", "layer ids are de-duplicated, so a repeated one makes fc too wide",
           "model_executor/models/interfaces.py, 0.33.0", "run")  # fmt: skip
def _repeated(load: SimulatedLoad) -> str | None:
    ids = top_ids(load) or load.eagle.integers(IDS) or ()
    return f"{list(ids)}" if len(set(ids)) != len(ids) else None


@RULES.add("vllm-aux-count", "refused", "as many states must be captured as fc is built for (num_aux_hidden_states, "
           "else the nested ids, else 3)", LOADERS, "run")  # fmt: skip
def _count(load: SimulatedLoad) -> str | None:
    captured = captured_v1(load) if load.on_cpu else captured_v2(load)
    return None if _repeated(load) else checks.wrong_count(captured, load)


@RULES.add("vllm-quark-per-channel", "refused", "Quark INT4 needs a positive group_size",
           f"{QUANT}/quark/quark.py, 0.33.0", "run")  # fmt: skip
def _quark_per_channel(load: SimulatedLoad) -> str | None:
    weight = checks.quark_int4(load)
    return "INT4 without a group size" if weight and (weight.integer("group_size") or -1) < 1 else None


@RULES.add("vllm-quark-activations", "refused", "Quark INT4 is weight-only: with quantized activations it is not "
           "implemented", f"{QUANT}/quark/quark.py, 0.33.0", "run")  # fmt: skip
def _quark_activations(load: SimulatedLoad) -> str | None:
    if checks.quark_int4(load) is None:
        return None
    inputs = load.config.section("quantization_config").section("global_quant_config").section("input_tensors")
    return f"INT4 weights with {inputs.text('dtype')} activations" if inputs.data else None


MODELOPT_ALGORITHMS = frozenset(
    {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8", "MIXED_PRECISION"}
)
RULES.row("vllm-modelopt", "refused", "of ModelOpt's algorithms only FP8, NVFP4 and MXFP8 kinds are known, no INT4",
          f"{QUANT}/modelopt.py, 0.33.0", "run", checks.unknown_algorithm(MODELOPT_ALGORITHMS))  # fmt: skip


def _compressed_without_kernel(load: SimulatedLoad, chip: Chip) -> str | None:
    """INT4 of compressed-tensors beside activations that this chip has no kernel for."""
    for weights, inputs, form in checks.compressed_groups(load):
        if weights.integer("num_bits") != 4 or weights.text("type") != "int":
            continue
        if inputs.text("type") == "float" and chip != "sm90":
            return "INT4 weights with FP8 activations"
        if form == "int-quantized" and chip != "cpu":
            return "INT4 weights in bytes (int-quantized)"
    return None


def _quark_fp4(load: SimulatedLoad) -> bool:
    section = load.config.section("quantization_config").section("global_quant_config").section("weight")
    return checks.quant_method(load) == "quark" and section.text("dtype") in ("fp4", "mxfp4")


@RULES.add("vllm-kernel-cpu", "refused", "a CPU multiplies no NVFP4, no MXFP4 and no INT4 by FP8",
           "model_executor/kernels/linear, 0.32.0", "run")  # fmt: skip
def _no_kernel_on_cpu(load: SimulatedLoad) -> str | None:
    if not load.on_cpu:
        return None
    algorithm = checks.modelopt_algorithm(load) or ""
    if "NVFP4" in algorithm:
        return f"quant_algo: {algorithm}"
    return "MXFP4 without amd-quark" if _quark_fp4(load) else _compressed_without_kernel(load, "cpu")


@RULES.add("vllm-kernel", "refused", "INT4 by FP8 is multiplied on Hopper only, and INT4 in bytes on a CPU only",
           f"{QUANT}/compressed_tensors, 0.33.0; issues 35439 and llm-compressor 2693", "read")  # fmt: skip
def _no_kernel_on_gpu(load: SimulatedLoad) -> str | None:
    if load.on_cpu or load.spec.hardware is None:
        return None
    problem = _compressed_without_kernel(load, CHIPS[load.spec.hardware])
    return f"{problem} on {load.spec.hardware}" if problem else None


RULES.row("vllm-quant-method", "refused", "without quant_method a declaration is passed over: everything is built "
          "plain", "config/{speculative,vllm}.py, 0.33.0", "run", quantization_config.unnamed_method)  # fmt: skip
RULES.row("vllm-quark-export", "refused", "Quark's declaration needs its export section",
          f"{QUANT}/quark/quark.py, 0.33.0", "run", quantization_config.unexported)  # fmt: skip
RULES.row("vllm-compressed-variant", "refused", "sparse weights and reordered inputs of compressed-tensors are "
          "rejected", f"{QUANT}/compressed_tensors, 0.33.0", "run",
          quantization_config.sparse_or_reordered)  # fmt: skip
RULES.row("vllm-scales", "refused", "scales are built as quantization_config declares them; others do not fit",
          MATCHED, "run", quantization_config.other_grouping)  # fmt: skip
RULES.row("vllm-packed-undeclared", "refused", "packed weights need a quantization_config",
          LOADERS, "run", checks.undeclared_packed)  # fmt: skip
RULES.row("vllm-not-excluded", "refused", "a linear that no list excludes by its runtime name is built quantized, and "
          "a plain tensor has no place or another shape there",
          MATCHED, "run", mismatch("not excluded", "packed", "words"))  # fmt: skip
RULES.row("vllm-excluded", "refused", "quantized tensors have no place in a linear that is built plain: lists are "
          "matched against runtime names, fused and numbered on from the target's layers",
          MATCHED, "run", mismatch("excluded"))  # fmt: skip
RULES.row("vllm-lists", "refused", "a pattern that is no regular expression, and a config of Quark's without weights, "
          "stop the start", MATCHED, "run", mismatch("stops"))  # fmt: skip
RULES.row("vllm-torn", "refused", "projections that are joined into one linear are quantized together or not at all",
          MATCHED, "run", mismatch("torn"))  # fmt: skip


@RULES.add("vllm-static-fp8-cpu", "refused", "under a static FP8 scale the inputs of a Llama-style down_proj are "
           "rounded by an operation that a CPU does not have: the server starts, and dies at the first request",
           "model_executor/layers/fusion/fused_act_quant.py, 0.32.0", "run")  # fmt: skip
def _static_fp8(load: SimulatedLoad) -> str | None:
    if not load.on_cpu or load.mla:
        return None
    tensors = load.view.tensors
    return listed([
        name for part, name in load.results.loaded.items()
        if part.endswith(".down_proj.weight") and tensors[name].dtype == "F8_E4M3"
        and f"{name.removesuffix('.weight')}.input_scale" in tensors
    ])  # fmt: skip


@RULES.add("vllm-joined-fp8-cpu", "refused", "joined FP8 weights that have a scale each are rounded once more, which "
           "a CPU has no operation for", f"{QUANT}/utils/w8a8_utils.py, 0.32.0", "run")  # fmt: skip
def _joined_fp8_on_cpu(load: SimulatedLoad) -> str | None:
    return checks.joined_fp8(load) if load.on_cpu else None


RULES.row("vllm-other-scheme", "refused", "of several groups the one that matches a module says how it is built; "
          "tensors of another one have no place there", MATCHED, "run", quantization_config.other_scheme)  # fmt: skip


@RULES.add("vllm-head-order", "refused", "GPTQ's method makes no g_idx for the head, and the loader stops at a tensor "
           "without a place", f"{QUANT}/auto_gptq.py, 0.32.0", "run")  # fmt: skip
def _ordered_head(load: SimulatedLoad) -> str | None:
    return listed([name for name in load.view.tensors if name.endswith("lm_head.g_idx")])


@RULES.add("vllm-head-packed", "refused", "Model Runner V2, which GPUs take by default, compares the weight of the "
           "head with the target's; packed values are no weight, and it ends with an AttributeError",
           "v1/worker/gpu/spec_decode/eagle/utils.py, 0.33.0", "read")  # fmt: skip
def _packed_head(load: SimulatedLoad) -> str | None:
    return None if load.on_cpu else load.results.packed.get(HEAD)


@RULES.add("vllm-tensor-fp8-cpu", "refused", "FP8 under one scale, as compressed-tensors or Quark declares it, is "
           "rounded once more although the scales are equal, which a CPU has no operation for",
           f"{QUANT}/utils/w8a8_utils.py, 0.32.0", "run")  # fmt: skip
def _tensor_fp8_on_cpu(load: SimulatedLoad) -> str | None:
    if not load.on_cpu:
        return None
    quark = load.config.section("quantization_config").section("global_quant_config").section("weight")
    declared = any(
        (weights.text("type"), weights.integer("num_bits"), weights.text("strategy")) == ("float", 8, "tensor")
        for weights, *_ in checks.compressed_groups(load)
    ) or (
        checks.quant_method(load) == "quark"
        and (quark.text("dtype"), quark.text("qscheme")) == ("fp8_e4m3", "per_tensor")
    )
    tensors = load.view.tensors
    return listed([
        name for name in load.results.loaded.values()
        if declared and name.endswith(".weight") and tensors[name].dtype == "F8_E4M3"
    ])  # fmt: skip
