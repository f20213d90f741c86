"""SGLang: what it loads, mis-reads and refuses as an EAGLE-3 drafter.

Read from sglang 0.5.23 (paths below `sglang/`); behaviour marked `run` was observed with
SGLang's own loader classes on CPU. Its loaders check nothing: unknown tensors are dropped,
missing ones stay uninitialised, only shapes are compared. So most rules say `mis-read`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

from draftconv.checkpoint.dtypes import FLOATS
from draftconv.drafter.boundaries import IDS, default_triple, sglang_captures, sglang_convention
from draftconv.drafter.checks import LONG_CONTEXT
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts, Mla, Taps
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import expected
from draftconv.engines import checks, declared
from draftconv.engines.base import Engine, EngineSpec, Reading, Rule, View
from draftconv.engines.building import build, fusion
from draftconv.engines.checks import compare, listed, skipped
from draftconv.engines.loading import Causes, Fate, fused_parts, sort_fates
from draftconv.engines.quantized import clash
from draftconv.engines.serving import LOOPBACK, ServeCommand, Start, remote_code_note

Kind = Literal["llama", "mla"]

CLASSES: Mapping[str, Kind] = {"LlamaForCausalLMEagle3": "llama", "Eagle3DeepseekV2ForCausalLM": "mla"}
"""The two EAGLE-3 draft classes, by exact architectures[0]."""

MTP_NAMES = frozenset({"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Qwen3MoeForCausalLM"})
"""Draft architectures that are rewritten to a multi-token-prediction class (srt/configs/model_config.py)."""

TARGET_TYPES = frozenset({
    "apertus", "bailing_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "exaone_moe", "gemma3", "gemma3_text",
    "gemma4", "glm4_moe", "glm4_moe_lite", "glm5_next", "gpt_oss", "kimi_k2", "kimi_k25", "llama", "llama4",
    "llama4_text", "longcat_flash", "minimax_m2", "minimax_m3", "minimax_m3_vl", "mllama4", "qwen2", "qwen2_5_vl",
    "qwen2_moe", "qwen3", "qwen3_5", "qwen3_5_text", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe",
})  # fmt: skip
"""Targets read to have set_eagle3_layers_to_capture."""

MODELOPT_ALGORITHMS = frozenset({"FP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "MIXED_PRECISION"})

ROCM_METHODS = frozenset({
    "auto-round", "auto-round-int8", "awq", "compressed-tensors", "fp8", "mxfp4", "mxfp8", "petit_nvfp4", "quark",
    "quark_int4fp8_moe", "quark_mxfp4", "w8a8_fp8",
})  # fmt: skip

LEGACY_NORMS = {"aux_norm_low.": "fc_norm.0.", "aux_norm_mid.": "fc_norm.1.", "aux_norm_high.": "fc_norm.2."}
"""Names of the first EAGLE-3.1 files, which the Llama class still understands."""

NAMES: Causes = (
    ("sglang-prefix", r"^model\."),
    ("sglang-later-norm", r"^layers\.[1-9]\d*\.input_layernorm\."),
)

MISNAMED: Causes = (*NAMES, ("sglang-dropped", r"(?<!\.weight_packed)(?<!\.qweight)$"))
"""Why a name is not looked for although its module is built; packed weights have that of a plain module too."""

SKIPPED: Causes = (
    ("sglang-tied", r"^lm_head\."),
    ("sglang-fusion", r"(^|\.)(fc_norm|input_norm)\."),
    *NAMES,
    ("sglang-qkv-bias", r"\.[qkv]_proj\.bias$"),
    ("sglang-bias", r"(\.o_proj|^fc)\.bias$"),
    ("sglang-mlp-bias", r"\.(gate|up|gate_up|down)_proj\.bias$"),
    ("sglang-qk-norm", r"\.[qk]_norm\.weight$"),
)


def _load_llama(name: str, wanted: Collection[str]) -> tuple[str, ...]:
    """Those of `wanted` that one name fills: `load_weights` of srt/models/llama_eagle3.py, 0.5.23."""
    bare = name.replace("midlayer", "layers.0")
    if "d2t" in bare:
        return ("d2t",)
    if "t2d" in bare:
        return ()
    if bare.startswith("model.") and not bare.startswith("model.lm_head."):
        bare = bare.removeprefix("model.")
    for legacy, new in LEGACY_NORMS.items():
        bare = bare.replace(legacy, new)
    if later := re.fullmatch(r"(layers\.[1-9]\d*)\.(hidden_norm|input_layernorm)\.weight", bare):
        # Layers after the first own a hidden_norm and no input_layernorm.
        return (f"{later[1]}.input_layernorm.weight",) if later[2] == "hidden_norm" else ()
    return tuple(part for part in fused_parts(bare) if part in wanted)


def _load_mla(name: str, wanted: Collection[str]) -> tuple[str, ...]:
    """The same of srt/models/kimi_k25_eagle3.py, 0.5.23: `model.` is put before everything but lm_head."""
    if name == "t2d" or name.endswith(".t2d"):
        return ()
    if name == "d2t" or name.endswith(".d2t"):
        return ("d2t",)
    bare = re.sub(r"^midlayer\.", "layers.0.", name)
    return tuple(part for part in fused_parts(bare) if part in wanted)


def _read(view: View, truth: Facts, target: Target | None, spec: EngineSpec) -> Reading:
    config = Config(view.config)
    eagle = config.section("eagle_config")
    mla = isinstance(truth.attention, Mla)
    tied = bool(config.flag("tie_word_embeddings"))
    built = build(config, mla=mla, o_bias=bool(config.flag("attention_bias") or config.flag("bias")))
    if config.text("model_type") == "llama4_text":
        built = replace(built, intermediate=config.size("intermediate_size_mlp") or built.intermediate)
    built = replace(
        built,
        aux=_aux(config, eagle, mla=mla),
        fusion=fusion(config, per_state=bool(config.flag("fc_norm") or config.flag("use_aux_norm")), whole=not mla),
        feedback="post-norm" if config.flag("norm_output") else "pre-norm",
        fc_bias=bool(config.flag("bias")),
        own_head=not tied,
    )

    wanted = expected(built)

    def load(name: str) -> Fate:
        return (_load_mla if mla else _load_llama)(name, wanted) or "dropped"

    # fc is a plain nn.Linear in the Llama class, and the embedding never asks the quantizer.
    plain = ("embed_tokens.weight",) if mla else ("embed_tokens.weight", "fc.weight")
    lent = set()
    if built.target_hidden == built.hidden:
        lent.add("embed_tokens.weight")
    if _target_head(config):
        lent.add("lm_head.weight")
    return Reading(
        view, config, spec, sort_fates(view.tensors, load, dict.fromkeys(plain, "dropped")), built, truth, target,
        frozenset(lent), MISNAMED,
    )  # fmt: skip


def _aux(config: Config, eagle: Config, *, mla: bool) -> int:
    """Width of fc in states; num_aux_hidden_states counts in the Llama class only."""
    ids = eagle.integers(IDS)
    if mla:
        ids = ids or config.integers(IDS)
        return len(ids) if ids else 3
    return config.size("num_aux_hidden_states") or (len(ids) if ids else 3)


def _target_head(config: Config) -> bool:
    """The target's head is shared: draft_vocab_size is null (in the MLA class also when absent)."""
    return config.size("draft_vocab_size") is None


# ── checks: what stops it ──────────────────────────────────────────────────────────


def _unknown_class(reading: Reading) -> str | None:
    known = reading.architecture in CLASSES or reading.architecture in MTP_NAMES
    return None if known else f"architectures: {reading.config.raw('architectures')}"


def _mtp(reading: Reading) -> str | None:
    return f"architectures: {reading.architecture}" if reading.architecture in MTP_NAMES else None


def _wrong_class(reading: Reading) -> str | None:
    return checks.wrong_kind(reading, CLASSES.get(reading.architecture))


def _draft_vocab_absent(reading: Reading) -> str | None:
    absent = not reading.mla and not reading.config.has("draft_vocab_size")
    return "draft_vocab_size is absent" if absent else None


def _null_width(reading: Reading) -> str | None:
    return None if reading.mla else checks.null_keys("target_hidden_size")(reading)


def _several_mla(reading: Reading) -> str | None:
    return f"num_hidden_layers: {reading.built.layers}" if reading.mla and reading.built.layers != 1 else None


def _context(reading: Reading) -> str | None:
    """The drafter's context as SGLang derives it (positions times rope factor), below the target's."""
    target = reading.target
    if target is None or not target.max_positions:
        return None
    limit, absent = _derived_context(reading)
    if limit >= target.max_positions:
        return None
    return f"max_position_embeddings gives {limit}{absent}, {target.name} has {target.max_positions}"


def _derived_context(reading: Reading) -> tuple[int, str]:
    limit, absent = checks.positions(reading)
    factor = reading.built.rope.scaling.get("factor", 1)
    return (int(limit * factor) if isinstance(factor, int | float) else limit), absent


def _quark_int4(reading: Reading) -> str | None:
    return "Quark INT4" if checks.quark_int4(reading) else None


def _mla_nvfp4(reading: Reading) -> str | None:
    algorithm = checks.modelopt_algorithm(reading) or ""
    return f"quant_algo: {algorithm}" if reading.mla and "NVFP4" in algorithm else None


def _int4_activations(reading: Reading) -> str | None:
    return listed([
        f"{weights.integer('num_bits')}-bit weights, {inputs.integer('num_bits')}-bit activations"
        for weights, inputs in checks.compressed_groups(reading)
        if weights.integer("num_bits") == 4 and inputs.data and weights.text("type") == "int"
    ])  # fmt: skip


def _latent_quantized(reading: Reading) -> str | None:
    """kv_b_proj in anything but floats: it is split into the absorbed matrices right after loading."""
    found = reading.tensor("layers.0.self_attn.kv_b_proj.weight")
    packed = "layers.0.self_attn.kv_b_proj.weight" in reading.fates.packed
    return "kv_b_proj is quantized" if packed or (found is not None and found.dtype not in FLOATS) else None


def _joined_projections(reading: Reading) -> str | None:
    """Packed a-projections, whose tensors are joined one by one, weight_shape among them."""
    names = ("q_a_proj", "kv_a_proj_with_mqa")
    return listed([n for n in names if f"layers.0.self_attn.{n}.weight" in reading.fates.packed])


def _fc_quantized(reading: Reading) -> str | None:
    found = reading.tensor("fc.weight")
    return f"fc.weight is {found.dtype}" if found and not reading.mla and found.dtype not in FLOATS else None


def _rocm(reading: Reading) -> str | None:
    if reading.spec.hardware not in checks.AMD or not reading.truth.quantization:
        return None
    if checks.modelopt_algorithm(reading):
        return "ModelOpt on ROCm"
    method = checks.quant_method(reading)
    if method and method not in ROCM_METHODS:
        return f"quant_method: {method} on ROCm"
    int4 = any(weights.integer("num_bits") == 4 for weights, _ in checks.compressed_groups(reading))
    return "compressed-tensors INT4 on ROCm" if int4 else None


# ── checks: what loads and computes something else ─────────────────────────────────


def _head_replaced(reading: Reading) -> str | None:
    if not reading.truth.own_head or not _target_head(reading.config) or _draft_vocab_absent(reading):
        return None
    return f"draft_vocab_size is {'null' if reading.config.has('draft_vocab_size') else 'absent'}, lm_head is stored"


# ── checks: captured layers ────────────────────────────────────────────────────────


def _captured(reading: Reading) -> checks.Boundaries:
    """Boundaries captured for the nested ids; UNKNOWN when that depends on a target not given."""
    ids, target = reading.eagle.integers(IDS), reading.target
    if not ids:
        if target is None:
            return Taps.DEFAULT
        return tuple(sorted(set(default_triple(target.layers, target.family, "sglang"))))
    if target is not None and target.family is not None:
        return sglang_captures(ids, target.family, target.layers)
    if sglang_convention(ids, None, target.layers if target else None) is None:
        return Taps.UNKNOWN
    return tuple(sorted({i + 1 for i in ids}))


def _taps(reading: Reading) -> str | None:
    found = checks.other_taps(_captured(reading), reading)
    top_only = reading.config.integers(IDS) and not reading.eagle.integers(IDS)
    return f"{found} (ids at the top level are not read)" if found and top_only else found


def _count(reading: Reading) -> str | None:
    return checks.wrong_count(_captured(reading), reading)


def _undecided_taps(reading: Reading) -> str | None:
    if reading.trained is Taps.UNKNOWN:
        return checks.UNKNOWN_TAPS
    captured = _captured(reading)
    if not checks.open_taps(captured, reading.trained):
        return None
    ids = reading.eagle.integers(IDS)
    what = f"ids {list(ids)} mean other layers per target family" if ids else "captures the default triple"
    return f"{what}, trained on {checks.shown(reading.trained)}; give --target"


# ── checks: worth knowing ──────────────────────────────────────────────────────────


def _context_untold(reading: Reading) -> str | None:
    if reading.target is not None and reading.target.max_positions:
        return None
    limit, absent = _derived_context(reading)
    return f"max_position_embeddings gives {limit}{absent}" if limit < LONG_CONTEXT else None


def _unread_target(reading: Reading) -> str | None:
    target = reading.target
    strange = target is not None and target.model_type and target.model_type not in TARGET_TYPES
    return f"{target.name} is {target.model_type}" if target and strange else None


_LLAMA = "srt/models/llama_eagle3.py, 0.5.23"
_MLA = "srt/models/kimi_k25_eagle3.py, 0.5.23"
_BOTH = "srt/models/{llama,kimi_k25}_eagle3.py, 0.5.23"
_CAPTURE = "srt/models/{llama,deepseek_v2,gpt_oss,minimax_m3_vl}.py, 0.5.23"
_CONFIG = "srt/configs/model_config.py, 0.5.23"
_QUANT = "srt/layers/quantization"
_MATCHED = f"{_QUANT}/{{compressed_tensors,quark,modelopt_quant.py,awq,gptq,auto_round.py}}, 0.5.23"

RULES: tuple[Rule, ...] = (
    # ── refused ────────────────────────────────────────────────────────────────────
    Rule("sglang-architecture", "refused",
         "only LlamaForCausalLMEagle3 and Eagle3DeepseekV2ForCausalLM exist, by exact "
         "name; others fall to the Transformers backend and die there",
         "srt/models/registry.py, 0.5.23", "run", _unknown_class),
    Rule("sglang-mtp", "refused", "this draft architecture is rewritten to a multi-token-prediction class",
         _CONFIG, "read", _mtp),
    Rule("sglang-class", "refused", "the architecture decides between the Llama and the MLA class",
         "srt/models/registry.py, 0.5.23", "read", _wrong_class),
    Rule("sglang-model-type", "refused", "transformers must know the model_type; speculators configs have none",
         "srt/utils/hf_transformers_utils.py, 0.5.23; issue 18216", "read", checks.unresolved_type),
    Rule("sglang-null", "refused", "transformers 5 rejects a null here",
         "transformers 5.19 DeepseekV3Config, through SGLang 0.5.23", "run", checks.null_experts),
    Rule("sglang-null-width", "refused", "target_hidden_size is tested for existence, so a null breaks the width of fc",
         _LLAMA, "read", _null_width),
    Rule("sglang-draft-vocab", "refused", "the Llama class needs the key draft_vocab_size to exist (AttributeError)",
         _LLAMA, "run", _draft_vocab_absent),
    Rule("sglang-activation", "refused", "the MLP is silu(gate) * up; any other hidden_act is refused",
         "srt/models/{llama,deepseek_v2}.py, 0.5.23", "read", checks.other_activation),
    Rule("sglang-one-mla-layer", "refused", "`EAGLE3 currently only supports 1 layer`",
         _MLA, "read", _several_mla),
    Rule("sglang-plain-query", "refused", "q_lora_rank null raises ValueError",
         _MLA, "read", checks.plain_query),
    Rule("sglang-shape", "refused", "modules are built from config.json; a tensor of another shape stops the load, "
         "lm_head with another number of rows by an assertion",
         _BOTH, "run", lambda r: listed(r.misfits)),
    Rule("sglang-target-width", "refused", "fc must fit the target's hidden states",
         _BOTH, "inferred", checks.wrong_width),
    Rule("sglang-aux-count", "refused",
         "as many states must be captured as fc is built for; boundary L is captured for "
         "gpt-oss only, boundary 0 not for DeepSeek and Kimi",
         _CAPTURE, "inferred", _count),
    Rule("sglang-context", "refused", "a drafter with a shorter context than the target's stops the start, unless "
         "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 is set",
         _CONFIG, "read", _context),
    Rule("sglang-quark-int4", "refused", "Quark INT4 has no scheme for dense layers",
         f"{_QUANT}/quark/quark.py, 0.5.23", "run", _quark_int4),
    Rule("sglang-modelopt", "refused", "of ModelOpt's algorithms only FP8 and NVFP4 kinds are known, no INT4",
         f"{_QUANT}/modelopt_quant.py, 0.5.23", "read",
         checks.unknown_algorithm(MODELOPT_ALGORITHMS)),
    Rule("sglang-mla-nvfp4", "refused", "NVFP4 is switched off for the MLA class, so packed weights do not fit",
         _MLA, "read", _mla_nvfp4),
    Rule("sglang-int4-activations", "refused",
         "compressed-tensors INT4 is weight-only: there is no scheme with quantized "
         "activations for dense layers",
         f"{_QUANT}/compressed_tensors/compressed_tensors.py, 0.5.23", "run", _int4_activations),
    Rule("sglang-kv-b", "refused", "kv_b_proj is split right after loading and must be unquantized",
         "srt/models/deepseek_common/deepseek_weight_loader.py, 0.5.23", "run", _latent_quantized),
    Rule("sglang-a-projections", "refused", "q_a and kv_a are joined tensor by tensor, weight_shape too: never packed",
         _MLA, "read", _joined_projections),
    Rule("sglang-fc-quantized", "refused", "fc is a plain linear in the Llama class and cannot be quantized",
         _LLAMA, "read", _fc_quantized),
    Rule("sglang-rocm", "refused", "not every quantization runs on ROCm: GPTQ and ModelOpt are not listed, "
         "compressed-tensors INT4 repacks with a CUDA symbol",
         f"{_QUANT}/__init__.py, 0.5.23", "read", _rocm),
    Rule("sglang-quark-export", "refused", "Quark's declaration needs its export section",
         f"{_QUANT}/quark/quark.py, 0.5.23", "read", declared.unexported),
    Rule("sglang-scales", "refused", "scales are built as quantization_config declares them; others do not fit",
         f"{_QUANT}/{{compressed_tensors,awq,gptq}}, 0.5.23", "inferred", declared.other_grouping),
    Rule("sglang-packed-undeclared", "refused", "packed weights need a quantization_config",
         _BOTH, "read", checks.undeclared_packed),
    Rule("sglang-not-excluded-shape", "refused",
         "a linear that no list excludes by its runtime name is built quantized, and a plain tensor has another "
         "shape",
         _MATCHED, "read", clash("not excluded", "words")),
    Rule("sglang-excluded-shape", "refused", "a linear that is not matched by its runtime name is built plain, and "
         "quantized tensors have another shape",
         _MATCHED, "read", clash("excluded", "words")),
    Rule("sglang-torn", "refused", "projections that are joined into one linear are quantized together or not at all",
         _MATCHED, "read", clash("torn")),
    Rule("sglang-unmatched", "refused",
         "a linear that lists match in part, or a target of compressed-tensors not at all, stops the start",
         _MATCHED, "run", clash("stops")),
    # ── loads, but computes something else ─────────────────────────────────────────
    Rule("sglang-not-excluded", "mis-read", "a linear that no list excludes by its runtime name is built quantized; a "
         "plain tensor is dropped silently, or cast to 8 bits",
         _MATCHED, "inferred", clash("not excluded", "packed", "bytes")),
    Rule("sglang-excluded", "mis-read",
         "a linear that is not matched by its runtime name is built plain; packed tensors are dropped silently, "
         "8-bit ones are read without their scales",
         _MATCHED, "inferred", clash("excluded", "packed", "bytes")),
    Rule("sglang-scales-missing", "mis-read", "scales and zero points that are not found stay as they were made",
         _MATCHED, "inferred", declared.unscaled),
    Rule("sglang-missing-tensor", "mis-read", "missing tensors are not reported; the module keeps uninitialised memory",
         _BOTH, "run", checks.missing_tensors),
    Rule("sglang-prefix", "mis-read", "the MLA class prepends `model.` itself and drops names that have it (the Llama "
         "class knows both, but not model.lm_head)",
         _MLA, "run", skipped("sglang-prefix", SKIPPED)),
    Rule("sglang-dropped", "mis-read", "a tensor whose name is not looked for is dropped silently",
         _BOTH, "run", skipped("sglang-dropped", SKIPPED)),
    Rule("sglang-qkv-bias", "mis-read", "q, k and v never have biases, whatever attention_bias says",
         _LLAMA, "run", skipped("sglang-qkv-bias", SKIPPED)),
    Rule("sglang-qk-norm", "mis-read", "there is no q_norm and k_norm",
         _LLAMA, "run", skipped("sglang-qk-norm", SKIPPED)),
    Rule("sglang-mlp-bias", "mis-read", "the MLP never has biases",
         _LLAMA, "read", skipped("sglang-mlp-bias", SKIPPED)),
    Rule("sglang-bias", "mis-read", "o_proj has a bias with attention_bias or bias, fc with bias; else it is dropped",
         _BOTH, "run", skipped("sglang-bias", SKIPPED)),
    Rule("sglang-bias-half", "mis-read",
         "attention_bias and bias build an o_proj bias; a missing one stays uninitialised",
         _LLAMA, "read", checks.half_biased),
    Rule("sglang-later-norm", "mis-read",
         "layers after the first call their norm hidden_norm; input_layernorm is dropped",
         _LLAMA, "run", skipped("sglang-later-norm", SKIPPED)),
    Rule("sglang-d2t-missing", "mis-read", "without d2t, draft id i is taken for target id i",
         "srt/speculative/eagle_worker.py, 0.5.23", "inferred", checks.d2t_missing),
    Rule("sglang-head", "mis-read",
         "a null draft_vocab_size (in the MLA class also an absent one) puts the target's head "
         "in place of the trained one",
         _BOTH, "run", _head_replaced),
    Rule("sglang-tied", "mis-read", "tie_word_embeddings makes the shared embedding the head",
         _BOTH, "read", checks.tied),
    Rule("sglang-embedding-lost", "mis-read", "the target's embedding always replaces one of equal width",
         _BOTH, "read", checks.embedding_lost),
    Rule("sglang-taps", "mis-read", "ids are read from eagle_config only, and numbered per target family",
         _CAPTURE, "read", _taps),
    Rule("sglang-last-state", "mis-read", "use_aux_hidden_state: false hands over the last hidden state only",
         "srt/model_executor/model_runner.py, 0.5.23", "read", checks.last_state_only),
    Rule("sglang-norm-output", "mis-read", "norm_output at the top level decides the state fed back, default false",
         _BOTH, "run", compare("feedback", "feedback")),
    Rule("sglang-fusion", "mis-read",
         "fc_norm (or use_aux_norm) at the top level, norm_before_fc in eagle_config, else the "
         "top level; without the flag the tensors are dropped, and the MLA class has no norm_before_fc",
         _BOTH, "run", compare("fusion", "norm before fc")),
    Rule("sglang-residual", "mis-read", "norm_before_residual is never read; the raw state is added",
         _BOTH, "read", compare("norm_before_residual", "norm_before_residual")),
    Rule("sglang-rope", "mis-read", "the rotary embedding follows rope_parameters or the legacy keys; MLA interleaves "
         "unless rope_interleave is false",
         "srt/layers/rotary_embedding, srt/models/deepseek_v2.py, 0.5.23", "read", checks.rope_differs),
    Rule("sglang-eps", "mis-read", "rms_norm_eps comes from config.json", _BOTH, "read", compare("eps", "eps")),
    Rule("sglang-window", "mis-read", "no sliding window is read from config.json",
         _BOTH, "read", compare("window", "sliding window")),
    Rule("sglang-joined-scales", "mis-read", "joined NVFP4 weights are multiplied under the largest weight_scale_2; "
         "the scales of their blocks stay as they are",
         f"{_QUANT}/modelopt_quant.py, 0.5.23", "read", checks.joined("joined-weight-scales", "U8")),
    Rule("sglang-vocab", "mis-read", "vocab_size must be the target's: its embedding is put in",
         _BOTH, "inferred", checks.wrong_vocab),
    # ── cannot be told, or worth knowing ───────────────────────────────────────────
    Rule("sglang-taps-undecided", "undecided", "which layers are captured depends on the target",
         _CAPTURE, "read", _undecided_taps),
    Rule("sglang-model-type-unknown", "undecided", "transformers must know the model_type",
         "srt/utils/hf_transformers_utils.py, 0.5.23", "inferred", checks.unknown_type("kimi_k2", "deepseek_v32")),
    Rule("sglang-names-undecided", "undecided",
         "what is quantized is decided by a pattern that cannot be tried here, or by MIXED_PRECISION, which is read "
         "as one of several methods",
         _MATCHED, "read", clash("unknown")),
    Rule("sglang-embedding", "note", "the target's embedding always replaces one of equal width",
         _BOTH, "read", checks.embedding_replaced),
    Rule("sglang-joined-fp8", "note", "joined FP8 weights that have a scale each are rounded once more, under the "
         "largest",
         f"{_QUANT}/modelopt_quant.py, 0.5.23", "read", checks.joined("joined-fp8-scales", "F8_E4M3")),
    Rule("sglang-joined-inputs", "note", "the inputs of joined weights are rounded under the largest input_scale",
         f"{_QUANT}/modelopt_quant.py, 0.5.23", "read", checks.joined("joined-input-scales", "U8", "F8_E4M3")),
    Rule("sglang-ignored", "note", "tensors whose names are not looked for are dropped silently",
         _BOTH, "run", checks.ignored),
    Rule("sglang-context-untold", "note", "a drafter with a shorter context than the target's stops the start",
         _CONFIG, "read", _context_untold),
    Rule("sglang-target", "note", "this target was not read to hand out hidden states",
         _CAPTURE, "read", _unread_target),
    Rule("sglang-norm-switches", "note", "these switches are not read; the computation is that of true, true, false",
         _BOTH, "read", checks.unusual_norms),
    Rule("sglang-double-norm", "note", "the state is normalised once, as for every published figure of such drafters",
         _BOTH, "read", checks.double_norm),
)  # fmt: skip


# ── serving ────────────────────────────────────────────────────────────────────────


def _command(start: Start, _: EngineSpec) -> ServeCommand:
    argv = ["python", "-m", "sglang.launch_server", "--model-path", start.model, "--host", LOOPBACK]
    if start.model_revision:
        argv += ["--revision", start.model_revision]
    if start.tensor_parallel > 1:
        argv += ["--tp-size", str(start.tensor_parallel)]
    if start.target.remote_code:
        argv.append("--trust-remote-code")
    if (context := _shorter_context(start)) is not None:
        argv += ["--context-length", str(context)]
    if not start.alone:
        argv += ["--speculative-algorithm", "EAGLE3"]
        argv += ["--speculative-draft-model-path", start.directory]
        if start.revision:
            argv += ["--speculative-draft-model-revision", start.revision]
        argv += ["--speculative-num-steps", str(start.drafts)]
        argv += ["--speculative-eagle-topk", "1"]
        argv += ["--speculative-num-draft-tokens", str(start.drafts + 1)]
    return ServeCommand(tuple(argv), notes=tuple(_notes(start)))


def _shorter_context(start: Start) -> int | None:
    """The drafter's context where it is shorter than the target's, which stops the start (_CONFIG)."""
    drafter, target = start.facts.max_positions, start.target.max_positions
    return drafter if drafter and target and drafter < target else None


def _notes(start: Start) -> list[str]:
    facts, target = start.facts, start.target
    notes = list(remote_code_note(target, "--trust-remote-code"))
    notes.append("EAGLE3, not EAGLE: with EAGLE the same files load, fc is skipped and accept length is exactly 1.00")
    if facts.quantization is None:
        notes.append(
            "if you start the target with --quantization, add --speculative-draft-model-quantization unquant: "
            "an unquantized drafter inherits that flag"
        )
    if (context := _shorter_context(start)) is not None:
        notes.append(
            f"--context-length {context} is the drafter's max_position_embeddings, for SGLang does not start with the "
            f"target's {target.max_positions}; SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 would allow it"
        )
    if facts.reduced_vocab:
        notes.append("draft ids come from d2t in the drafter; --speculative-token-map is ignored")
    return notes


ENGINE = Engine(
    "sglang",
    "SGLang",
    20,
    "0.5.23",
    "0.5.23",
    ("h100", "h200", "b200", "mi300x", "mi325x", "mi350"),
    RULES,
    _read,
    _command,
)  # fmt: skip
