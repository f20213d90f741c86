"""TensorRT-LLM (PyTorch backend): what it loads, mis-reads and refuses as an EAGLE-3 drafter.

Nothing here was run: its wheels could not be imported. `1.3` stands for the main line of
2026 H2, `1.2` for the copy before 2026-01-28; files are below `tensorrt_llm/`. One class
serves every drafter (one-model mode); `kv_lora_rank` alone decides between MLA and GQA.
Fused projections assert that their parts exist, plain modules without tensors are skipped
silently, and captured layers come from the serve file, never from the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from draftconv.drafter.boundaries import default_triple, trtllm_ids
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts, Fusion, Gqa, Mla, Taps
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import HEAD, expected
from draftconv.engines import checks, declared
from draftconv.engines.base import Engine, EngineSpec, Reading, Rule, View
from draftconv.engines.building import build, without
from draftconv.engines.checks import QUANT_FILE, compare, listed, skipped
from draftconv.engines.loading import Causes, Fate, cause, is_fused, sort_fates
from draftconv.engines.matching import told
from draftconv.engines.quantized import clash
from draftconv.engines.serving import (
    LOOPBACK,
    ServeCommand,
    Start,
    Yaml,
    layers_to_capture,
    remote_code_note,
    yaml_text,
)
from draftconv.errors import Refused, UsageError

OWN_TYPES = ("kimi_k2", "deepseek_v32", "glm_moe_dsa")
"""model_types with a config class in the tree (_torch/pyexecutor/config_utils.py)."""

QUANT_METHODS = frozenset({"fp8", "mxfp4", "mxfp8", "nvfp4", "compressed-tensors", "modelopt", "modelopt_fp4"})

ALGORITHMS = frozenset({
    "FP8", "FP8_BLOCK_SCALES", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION", "NVFP4", "W4A16", "W4A16_AWQ",
    "W4A8_AWQ", "W4A8_NVFP4_FP8", "W8A16",
})  # fmt: skip
"""quant_algo values that a drafter's linears can have (quantization/modelopt_config.py, _torch/modules/linear.py)."""

AWQ: Mapping[str, tuple[str, ...]] = {
    "W4A16_AWQ": ("weight_scale",),
    "W4A8_AWQ": ("weight_scale", "weight_scale_2", "input_scale"),
}
"""Algorithm → what every INT4 weight needs beside it (_torch/modules/linear.py)."""

SMOOTHED = (".o_proj.weight", ".down_proj.weight")
"""Weights that need pre_quant_scale too; those that are joined do without."""

LATENT = ("q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj")
"""MLA projections that the DeepSeek loader copies by hand."""

MISNAMED: Causes = (
    ("trtllm-prefix", r"^model\."),
    ("trtllm-later-norm", r"^(midlayer|layers)\.[1-9]\d*\.input_layernorm\."),
    ("trtllm-layer-names", r"^(midlayer|layers)\."),
)

SKIPPED: Causes = (
    ("trtllm-prefix", r"^model\."),
    ("trtllm-embedding", r"^embed_tokens\."),
    ("trtllm-fusion", r"(^|\.)(fc_norm|input_norm)\."),
    ("trtllm-later-norm", r"^(midlayer|layers)\.[1-9]\d*\.input_layernorm\."),
    ("trtllm-attention-bias", r"\.[qkvo]_proj\.bias$"),
    ("trtllm-mlp-bias", r"\.(gate|up|down)_proj\.bias$"),
    ("trtllm-fc-bias", r"^fc\.bias$"),
    ("trtllm-qk-norm", r"\.[qk]_norm\.weight$"),
)


def _load(name: str, built: Facts, wanted: Collection[str], spec: EngineSpec) -> Fate:
    """Where one tensor goes: Eagle3ForCausalLM.load_weights of _torch/models/modeling_speculative.py.

    Names get `model.` in front, unless they hold `lm_head`; modules are called `midlayer.X` in a
    drafter of one layer and `midlayer.N.X` in others. `layers.N.` is renamed since 1.3 (PR 11010).
    """
    if name == "lm_head.weight":
        return ("lm_head.weight",)
    if name == "d2t":
        return ("d2t",) if built.draft_vocab != built.vocab else "dropped"
    if name == "embed_tokens.weight":
        return ("embed_tokens.weight",) if built.target_hidden != built.hidden else "dropped"
    if is_fused(name):
        return "fatal"
    canonical = _canonical(name, built.layers, spec)
    return (canonical,) if canonical in wanted else "dropped"


def _canonical(name: str, layers: int, spec: EngineSpec) -> str:
    """The canonical name behind a file name that is looked for; "" for one that is not."""
    match = re.fullmatch(r"(midlayer|layers)\.(?:(\d+)\.)?([a-z].*)", name)
    if match is None:
        return name
    stem, index, rest = match.groups()
    if stem == "layers" and (spec.before(1, 3) or index is None or (layers == 1 and index != "0")):
        return ""
    if stem == "midlayer" and (index is None) != (layers == 1):
        return ""
    layer = int(index or 0)
    if layer and rest.startswith("input_layernorm."):
        return ""
    return f"layers.{layer}." + (rest.replace("hidden_norm.", "input_layernorm.", 1) if layer else rest)


def _read(view: View, truth: Facts, target: Target | None, spec: EngineSpec) -> Reading:
    config = Config(view.config)
    eagle = config.section("eagle_config")
    mla = isinstance(truth.attention, Mla)
    bias = bool(config.flag("attention_bias"))
    built = build(without(config, "rope_parameters", "rope_interleave"), mla=mla, qkv_bias=bias, o_bias=bias)
    if config.text("model_type") == "llama4_text":
        built = replace(built, intermediate=config.size("intermediate_size_mlp") or built.intermediate)
    post_norm = eagle.flag("return_hidden_post_norm") or (config.flag("norm_output") and not spec.before(1, 3))
    built = replace(
        built,
        aux=truth.aux,  # from eagle3_layers_to_capture of the serve file
        fusion=_fusion(config, eagle, spec),
        feedback="post-norm" if post_norm else "pre-norm",
        mlp_bias=bool(config.flag("mlp_bias")),
        fc_bias=bool(config.flag("bias")),
    )
    lent = {"embed_tokens.weight"} if built.target_hidden == built.hidden else set()
    if built.draft_vocab == built.vocab and not _own_head(view):
        lent.add(HEAD)
    wanted = expected(built)
    fates = sort_fates(view.tensors, lambda name: _load(name, built, wanted, spec))
    return Reading(view, config, spec, fates, built, truth, target, frozenset(lent), MISNAMED)


def _own_head(view: View) -> bool:
    """A head of its own is built when any name holds lm_head, and filled from one that is just that."""
    return any("lm_head" in name for name in view.tensors)


def _fusion(config: Config, eagle: Config, spec: EngineSpec) -> Fusion:
    if spec.before(1, 3):
        return "plain"
    if config.flag("fc_norm"):
        return "fc_norm"
    return "norm_before_fc" if eagle.flag("norm_before_fc") else "plain"


# ── checks: what stops it ──────────────────────────────────────────────────────────


def _not_safetensors(reading: Reading) -> str | None:
    used = [file.name for file in reading.view.files if not file.unused]
    if any(name.endswith(".safetensors") for name in used):
        return None
    return listed([name for name in used if name.endswith((".bin", ".pt", ".pth"))])


def _no_architecture(reading: Reading) -> str | None:
    return None if reading.architecture else f"architectures: {reading.config.raw('architectures')}"


def _no_dtype(reading: Reading) -> str | None:
    written = reading.config.text("torch_dtype") or reading.config.text("dtype")
    return None if written else "neither torch_dtype nor dtype"


def _draft_vocab_absent(reading: Reading) -> str | None:
    return None if reading.config.has("draft_vocab_size") else "draft_vocab_size is absent"


def _wrong_class(reading: Reading) -> str | None:
    latent = bool(reading.config.raw("kv_lora_rank"))
    if latent == reading.mla:
        return None
    return f"kv_lora_rank: {reading.config.raw('kv_lora_rank')}" if latent else "an MLA drafter without kv_lora_rank"


def _prefixed(reading: Reading) -> str | None:
    return listed([name for name in reading.fates.dropped if name.startswith("model.")])


def _old_layers(reading: Reading) -> str | None:
    return listed([name for name in reading.fates.dropped if name.startswith("layers.")])


def _layer_names(reading: Reading) -> str | None:
    """Layer tensors spelled for another number of layers than num_hidden_layers says."""
    return listed([
        name for part, name in reading.unplaced.items()
        if part in reading.wanted and name in reading.fates.dropped and cause(name, MISNAMED) == "trtllm-layer-names"
        and not (name.startswith("layers.") and reading.spec.before(1, 3))
    ])  # fmt: skip


def _fused(reading: Reading) -> str | None:
    return listed(reading.fates.fatal)


_PARTS = re.compile(r"\.(q|k|v|gate|up)_proj\.weight$")
_OWN_RULE = ("d2t", "_proj.bias")


def _missing_parts(reading: Reading) -> str | None:
    return None if reading.mla else listed([reading.gap(name) for name in reading.missing if _PARTS.search(name)])


def _missing_mla(reading: Reading) -> str | None:
    if not reading.mla:
        return None
    return listed([reading.gap(name) for name in _unfilled(reading)])


def _unfilled(reading: Reading) -> Sequence[str]:
    """What is missing, but for what has rules of its own; a head that nobody asks for is the target's."""
    own = (*_OWN_RULE,) if _own_head(reading.view) else (*_OWN_RULE, HEAD)
    return [name for name in reading.missing if not name.endswith(own)]


def _head_missing(reading: Reading) -> str | None:
    absent = HEAD in reading.missing and not _own_head(reading.view)
    return f"no lm_head, draft_vocab_size {reading.built.draft_vocab}" if absent else None


def _reduced_mla(reading: Reading) -> str | None:
    reduced = reading.mla and reading.built.draft_vocab != reading.built.vocab
    return f"draft_vocab_size {reading.built.draft_vocab} of {reading.built.vocab}" if reduced else None


def _irregular_layers(reading: Reading) -> str | None:
    irregular = reading.truth.layers > 1 and reading.eagle.flag("next_layer_regular") is False
    return "eagle_config.next_layer_regular: false" if irregular else None


def _zero_boundary(reading: Reading) -> str | None:
    trained = reading.trained
    if isinstance(trained, Taps):
        return None
    try:
        trtllm_ids(trained)
    except Refused:
        return f"trained on {list(trained)}"
    return None


def _unknown_method(reading: Reading) -> str | None:
    method = checks.quant_method(reading)
    if not method or reading.view.sidecars.get(QUANT_FILE) or method in QUANT_METHODS:
        return None
    return f"quant_method: {method}"


def _compressed_integers(reading: Reading) -> str | None:
    if reading.view.sidecars.get(QUANT_FILE):
        return None
    return listed([
        f"{weights.integer('num_bits')}-bit integers"
        for weights, _ in checks.compressed_groups(reading)
        if weights.text("type") == "int"
    ])  # fmt: skip


def _awq_parts(reading: Reading) -> str | None:
    section = told(reading.spec, reading.config.section("quantization_config").data, reading.view.sidecars)
    found = section.modelopt(sidecar_wins=True)
    layers = found.section("quantized_layers")
    names = (found.text("quant_algo"), *(layers.section(layer).text("quant_algo") for layer in layers.data))
    parts = next((AWQ[name] for name in names if name and name in AWQ), None)
    if parts is None:
        return None
    packed = [part for part, name in reading.fates.loaded.items() if reading.view.tensors[name].dtype in ("U8", "I8")]
    wanted = ((part, (*parts, *(("pre_quant_scale",) if part.endswith(SMOOTHED) else ()))) for part in packed)
    return listed([
        reading.gap(f"{part.removesuffix('.weight')}.{suffix}")
        for part, suffixes in wanted for suffix in suffixes
        if suffix not in reading.fates.beside.get(part, ())
    ])  # fmt: skip


def _joined_scales(reading: Reading) -> str | None:
    codes = ("joined-weight-scales", "joined-input-scales")
    return listed([told for code in codes if (told := checks.joined(code, "U8", "I8")(reading))])


def _latent_quantized(reading: Reading) -> str | None:
    if not reading.mla or not reading.truth.quantization or checks.modelopt_algorithm(reading) == "FP8_BLOCK_SCALES":
        return None
    names = {name: f"layers.0.self_attn.{name}.weight" for name in LATENT}
    return listed([name for name, canonical in names.items() if not reading.stored_plain(canonical)])


# ── checks: what loads and computes something else ─────────────────────────────────


def _missing(reading: Reading) -> str | None:
    if reading.mla:
        return None
    return listed([reading.gap(name) for name in _unfilled(reading) if not _PARTS.search(name)])


def _dropped(reading: Reading) -> str | None:
    """Needed tensors for which nothing is built, those of other rules aside."""
    return listed([
        name for part, name in reading.lost.items()
        if part not in reading.wanted and cause(name, SKIPPED) is None
    ])  # fmt: skip


def _tied(reading: Reading) -> str | None:
    return checks.tied(reading) if reading.truth.own_head else None


# ── checks: cannot be told, or worth knowing ───────────────────────────────────────


def _unknown_taps(reading: Reading) -> str | None:
    return checks.UNKNOWN_TAPS if reading.trained is Taps.UNKNOWN else None


def _taps_in_yaml(reading: Reading) -> str | None:
    """Boundaries that the serve file must name."""
    trained = reading.trained
    if isinstance(trained, Taps) or 0 in trained:
        return None
    if reading.target is None:
        return f"eagle3_layers_to_capture: {list(trtllm_ids(trained))}, unless that is the target's default triple"
    default = trained == default_triple(reading.target.layers)
    return None if default else f"eagle3_layers_to_capture: {list(trtllm_ids(trained))}"


def _mla_whole_norm(reading: Reading) -> str | None:
    whole = reading.mla and reading.truth.fusion in ("norm_before_fc", "both")
    return "norm_before_fc on an MLA drafter" if whole else None


def _draft_vocab_null(reading: Reading) -> str | None:
    return checks.null_keys("draft_vocab_size")(reading)


def _gqa_on_mla(reading: Reading) -> str | None:
    target = reading.target
    latent = target is not None and target.family == "deepseek"
    return f"a Llama-style drafter for {target.name}" if target and latent and not reading.mla else None


def _mla_eagle31(reading: Reading) -> str | None:
    return "EAGLE-3.1 with MLA" if reading.mla and reading.truth.eagle == "3.1" else None


def _auto_map(reading: Reading) -> str | None:
    return "auto_map is set" if reading.config.has("auto_map") else None


def _layers_spelling(reading: Reading) -> str | None:
    return listed([name for name in reading.fates.loaded.values() if name.startswith("layers.")])


def _yarn_gqa(reading: Reading) -> str | None:
    yarn = reading.built.rope.kind == "yarn" and not reading.mla
    return f"YaRN factor {reading.built.rope.scaling.get('factor')}" if yarn else None


def _attention_bias_absent(reading: Reading) -> str | None:
    absent = not reading.mla and not reading.config.has("attention_bias") and reading.model_type != "llama"
    return f"model_type {reading.model_type} without attention_bias" if absent else None


_MAIN = "_torch/models/modeling_speculative.py, main 2026 H2"
_OLD = "_torch/models/modeling_speculative.py, before 2026-01-28"
_MLA = "_torch/models/modeling_deepseekv3.py, early 2026"
_MAPPER = "_torch/models/checkpoints/hf/weight_mapper.py, main 2026 H2"
_CONFIG = "_torch/pyexecutor/config_utils.py, main 2026 H2"
_QUANT = "quantization/modelopt_config.py, main 2026 H2"
_MODEL_CONFIG = "_torch/model_config.py, main 2026 H2"

RULES: tuple[Rule, ...] = (
    # ── refused ────────────────────────────────────────────────────────────────────
    Rule("trtllm-safetensors", "refused", "only *.safetensors files are read",
         "_torch/models/checkpoints/hf/weight_loader.py, main 2026 H2", "inferred", _not_safetensors),
    Rule("trtllm-architectures", "refused", "architectures must be a list with an entry; which one does not matter",
         _MAIN, "read", _no_architecture),
    Rule("trtllm-model-type", "refused", "model_type must be one that transformers or TensorRT-LLM knows; speculators "
         "configs have none",
         _CONFIG, "read", checks.unresolved_type),
    Rule("trtllm-null", "refused", "only the presence of these keys is tested, so a null breaks the arithmetic",
         _MAIN, "read", checks.null_keys("target_hidden_size", "eagle_config")),
    Rule("trtllm-dtype", "refused", "torch_dtype decides the model's dtype and has no default",
         _MODEL_CONFIG, "inferred", _no_dtype),
    Rule("trtllm-draft-vocab", "refused", "draft_vocab_size must be there; 1.3 takes vocab_size when it is not",
         _OLD, "read", _draft_vocab_absent, until=(1, 3)),
    Rule("trtllm-class", "refused", "kv_lora_rank alone decides between MLA and Llama-style attention",
         _MAIN, "read", _wrong_class),
    Rule("trtllm-prefix", "refused", "`model.` is put before every name, so names that have it are not found",
         _MAIN, "read", _prefixed),
    Rule("trtllm-old-names", "refused", "only midlayer.* is looked for; layers.N is renamed since 1.3 (PR 11010)",
         _OLD, "read", _old_layers, until=(1, 3)),
    Rule("trtllm-layer-names", "refused", "a drafter of one layer says midlayer.X, one of several midlayer.N.X",
         _MAIN, "read", _layer_names),
    Rule("trtllm-fused", "refused", "q, k, v and gate, up must be stored apart: they are fused while loading",
         _MAIN, "read", _fused),
    Rule("trtllm-missing-part", "refused", "a fused projection asserts that all its parts exist",
         "_torch/modules/linear.py, main 2026 H2", "read", _missing_parts),
    Rule("trtllm-missing-mla", "refused", "the DeepSeek weight loader raises KeyError for a missing tensor",
         _MLA, "read", _missing_mla),
    Rule("trtllm-d2t-missing", "refused", "a reduced vocabulary without d2t stops with an assertion",
         _MAIN, "read", checks.d2t_missing),
    Rule("trtllm-head-missing", "refused", "without lm_head the target's is shared, so the vocabulary must be whole",
         _MAIN, "read", _head_missing),
    Rule("trtllm-shape", "refused", "modules are built from config.json; a tensor of another shape stops the load",
         _MAIN, "read", lambda r: listed(r.misfits)),
    Rule("trtllm-target-width", "refused", "fc must fit the target's hidden states",
         _MAIN, "inferred", checks.wrong_width),
    Rule("trtllm-plain-query", "refused", "the fused projection is sized with q_lora_rank",
         _MAIN, "inferred", checks.plain_query),
    Rule("trtllm-reduced-mla", "refused", "the DeepSeek weight loader walks into d2t and stops with a KeyError",
         _MLA, "read", _reduced_mla),
    Rule("trtllm-next-layer", "refused", "next_layer_regular: false gives later layers an input of twice the width",
         _MAIN, "read", _irregular_layers),
    Rule("trtllm-zero-boundary", "refused", "eagle3_layers_to_capture names outputs of layers; boundary 0 is none",
         "_torch/speculative/eagle3.py, main 2026 H2", "read", _zero_boundary),
    Rule("trtllm-quant-method", "refused",
         "this quant_method has no branch (Quark, AWQ, GPTQ): packed weights are taken "
         "for plain ones and do not fit",
         _MODEL_CONFIG, "read", _unknown_method),
    Rule("trtllm-compressed-integers", "refused", "of compressed-tensors only float schemes are translated",
         "_torch/models/checkpoints/hf/compressed_tensors.py, main 2026 H2", "read", _compressed_integers),
    Rule("trtllm-algorithm", "refused", "this quant_algo has no linear method",
         "_torch/modules/linear.py, main 2026 H2", "read", checks.unknown_algorithm(ALGORITHMS)),
    Rule("trtllm-awq-parts", "refused",
         "INT4 weights need their scales (W4A8: weight_scale_2 and input_scale too), o_proj and down_proj "
         "pre_quant_scale, ones if nothing was smoothed; a missing one is a KeyError",
         "_torch/modules/linear.py, main 2026 H2", "read", _awq_parts),
    Rule("trtllm-excluded", "refused",
         "packed projections do not fit a linear that a pattern excludes (ModelOpt writes model*), or that "
         "quantized_layers does not list",
         _QUANT, "read", clash("excluded", "words", "packed")),
    Rule("trtllm-not-excluded", "refused",
         "a linear that no pattern excludes by its module name is built quantized, and a plain tensor has no scales "
         "for it",
         _QUANT, "inferred", clash("not excluded")),
    Rule("trtllm-torn", "refused", "projections that are joined into one linear are quantized together or not at all",
         "_torch/modules/linear.py, main 2026 H2", "read", clash("torn")),
    Rule("trtllm-joined-scales", "refused",
         "joined NVFP4 and W4A8_AWQ weights must have one weight_scale_2 and one input_scale: an assertion",
         "_torch/modules/linear.py, main 2026 H2", "read", _joined_scales),
    Rule("trtllm-latent-quantized", "refused", "q_a, kv_a and kv_b are copied by hand and must be unquantized",
         _MLA, "read", _latent_quantized),
    Rule("trtllm-packed-undeclared", "refused", "packed weights need hf_quant_config.json or quantization_config",
         _MODEL_CONFIG, "read", checks.undeclared_packed),
    # ── loads, but computes something else ─────────────────────────────────────────
    Rule("trtllm-scales-missing", "mis-read", "scales and zero points that are not found stay as they were made",
         "_torch/modules/linear.py, main 2026 H2", "inferred", declared.unscaled),
    Rule("trtllm-missing-tensor", "mis-read",
         "a plain module without tensors is skipped silently and stays as it was made",
         _MAPPER, "read", _missing),
    Rule("trtllm-dropped", "mis-read", "a tensor whose name is not looked for is ignored silently",
         _MAPPER, "read", _dropped),
    Rule("trtllm-later-norm", "mis-read",
         "layers after the first call their norm hidden_norm; input_layernorm is ignored",
         _MAIN, "read", skipped("trtllm-later-norm", SKIPPED)),
    Rule("trtllm-attention-bias", "mis-read",
         "q, k, v and o have biases iff attention_bias is true; else they are ignored",
         _MAIN, "read", skipped("trtllm-attention-bias", SKIPPED)),
    Rule("trtllm-bias-half", "mis-read", "attention_bias builds q, k, v and o biases; missing ones stay uninitialised",
         _MAIN, "inferred", checks.half_biased),
    Rule("trtllm-mlp-bias", "mis-read", "the MLP has biases iff mlp_bias is true; else they are ignored",
         _MAIN, "read", skipped("trtllm-mlp-bias", SKIPPED)),
    Rule("trtllm-fc-bias", "mis-read", "fc has a bias iff bias is true; else it is ignored",
         _MAIN, "read", skipped("trtllm-fc-bias", SKIPPED)),
    Rule("trtllm-qk-norm", "mis-read", "there is no q_norm and k_norm",
         _MAIN, "read", skipped("trtllm-qk-norm", SKIPPED)),
    Rule("trtllm-tied", "mis-read",
         "tie_word_embeddings keeps the mapper from loading lm_head, which stays uninitialised",
         _MAPPER, "read", _tied),
    Rule("trtllm-embedding-lost", "mis-read", "the target's embedding is always used instead of one of equal width",
         _MAIN, "read", checks.embedding_lost),
    Rule("trtllm-norm-output", "mis-read",
         "the state fed back is post-norm with eagle_config.return_hidden_post_norm, since "
         "1.3 also with norm_output (PR 14988)",
         _MAIN, "read", compare("feedback", "feedback")),
    Rule("trtllm-fusion", "mis-read",
         "since 1.3: fc_norm at the top level, which wins over eagle_config.norm_before_fc; "
         "norm_before_fc at the top level is never read",
         _MAIN, "read", compare("fusion", "norm before fc")),
    Rule("trtllm-residual", "mis-read", "norm_before_residual is never read; the raw state is added",
         _MAIN, "read", compare("norm_before_residual", "norm_before_residual")),
    Rule("trtllm-rope", "mis-read",
         "the rotary embedding follows rope_theta and rope_scaling only; MLA always interleaves",
         "_torch/attention_backend/interface.py, main 2026 H2", "read", checks.rope_differs),
    Rule("trtllm-eps", "mis-read", "rms_norm_eps comes from config.json", _MAIN, "read", compare("eps", "eps")),
    Rule("trtllm-window", "mis-read", "no sliding window is read from config.json",
         _MAIN, "inferred", compare("window", "sliding window")),
    Rule("trtllm-activation", "mis-read", "the MLP is silu(gate) * up; hidden_act is not read",
         _MAIN, "inferred", checks.other_activation),
    Rule("trtllm-vocab", "mis-read", "vocab_size must be the target's: its embedding is used",
         _MAIN, "inferred", checks.wrong_vocab),
    Rule("trtllm-joined-smoothing", "mis-read",
         "joined weights take the pre_quant_scale of the first, and with W4A16_AWQ none: their inputs are not "
         "multiplied by what the weights were divided by",
         "_torch/modules/linear.py, main 2026 H2", "read", checks.joined("joined-smoothing", "U8", "I8")),
    Rule("trtllm-excluded-fp8", "mis-read",
         "a pattern excludes the drafter's own FP8 projections (ModelOpt writes model*), or quantized_layers does not "
         "list them: their bytes are cast without scales",
         _QUANT, "read", clash("excluded", "bytes")),
    # ── cannot be told, or worth knowing ───────────────────────────────────────────
    Rule("trtllm-taps-unknown", "undecided", "the serve file must name the captured layers",
         "llmapi/llm_args.py, main 2026 H2", "read", _unknown_taps),
    Rule("trtllm-model-type-unknown", "undecided", "transformers must know the model_type",
         _CONFIG, "inferred", checks.unknown_type(*OWN_TYPES)),
    Rule("trtllm-names-undecided", "undecided", "a pattern that cannot be tried here decides what is quantized",
         _QUANT, "read", clash("unknown")),
    Rule("trtllm-draft-vocab-null", "undecided",
         "draft_vocab_size is compared with vocab_size; what a null does is not known",
         _MAIN, "inferred", _draft_vocab_null),
    Rule("trtllm-mla-norm-before-fc", "undecided", "norm_before_fc beside MLA was not read to work",
         _MAIN, "inferred", _mla_whole_norm),
    Rule("trtllm-joined-fp8", "note", "joined FP8 weights that have a scale each are rounded once more, under the "
         "largest",
         "_torch/modules/linear.py, main 2026 H2", "read", checks.joined("joined-fp8-scales", "F8_E4M3")),
    Rule("trtllm-joined-inputs", "note", "the inputs of joined FP8 weights are rounded under the largest input_scale",
         "_torch/modules/linear.py, main 2026 H2", "read", checks.joined("joined-input-scales", "F8_E4M3")),
    Rule("trtllm-taps", "note", "captured layers are never read from the checkpoint; the serve file must name them",
         "_torch/speculative/eagle3.py, main 2026 H2", "read", _taps_in_yaml),
    Rule("trtllm-embedding", "note", "the target's embedding is always used instead of one of equal width",
         _MAIN, "read", checks.embedding_replaced),
    Rule("trtllm-ignored", "note", "tensors whose names are not looked for are ignored silently",
         _MAPPER, "read", checks.ignored),
    Rule("trtllm-gqa-on-mla", "note",
         "whether a Llama-style drafter can have its own KV cache beside an MLA target is not "
         "proven; an MLA drafter is the safe pair",
         _MAIN, "inferred", _gqa_on_mla),
    Rule("trtllm-mla-eagle31", "note", "EAGLE-3.1 with MLA was `not tested` when it was added (PR 14988)",
         _MAIN, "read", _mla_eagle31, since=(1, 3)),
    Rule("trtllm-auto-map", "note", "the draft config is read with trust_remote_code, so auto_map's code is imported",
         _CONFIG, "read", _auto_map),
    Rule("trtllm-layers", "note", "layers.N needs a version of 2026-01-28 or later; midlayer is read by all",
         _MAIN, "read", _layers_spelling, since=(1, 3)),
    Rule("trtllm-yarn", "note", "how YaRN scales cos and sin of a Llama-style drafter is not settled",
         "_torch/attention_backend/interface.py, main 2026 H2", "inferred", _yarn_gqa),
    Rule("trtllm-attention-bias-absent", "note", "attention_bias is a required attribute; only some classes default it",
         _MAIN, "read", _attention_bias_absent),
    Rule("trtllm-positions", "note", "the position table is as long as max_position_embeddings of the drafter",
         _MAIN, "read", checks.short_rotary),
    Rule("trtllm-norm-switches", "note", "these switches are not read; the computation is that of true, true, false",
         _MAIN, "read", checks.unusual_norms),
    Rule("trtllm-double-norm", "note", "the state is normalised once, as for every published figure of such drafters",
         _MAIN, "read", checks.double_norm),
)  # fmt: skip


# ── serving ────────────────────────────────────────────────────────────────────────

SERVE_FILE = "serve.yaml"

INT4_TARGETS = frozenset({"moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.6"})
"""Targets whose weights are INT4 of compressed-tensors, which _torch/model_config.py (main 2026 H2) raises for."""


def _command(start: Start, spec: EngineSpec) -> ServeCommand:
    _refuse_revisions(start)
    old = spec.before(1, 3)
    settings: dict[str, Yaml] = {
        **({} if start.alone else {"speculative_config": _speculative(start, old)}),
        "enable_iter_perf_stats": True,  # acceptance statistics on /metrics
    }
    argv = ["trtllm-serve", start.model, "--host", LOOPBACK, "--backend", "pytorch"]
    argv += ["--tp_size", str(start.tensor_parallel)]
    if start.target.remote_code:
        argv.append("--trust_remote_code")
    argv += ["--extra_llm_api_options" if old else "--config", SERVE_FILE]
    return ServeCommand(tuple(argv), {SERVE_FILE: yaml_text(settings)}, tuple(_notes(start, spec)))


def _refuse_revisions(start: Start) -> None:
    """Raises UsageError for a revision on the Hub: speculative_config has no key for one."""
    drafter = None if start.alone else start.revision
    for repository, revision in ((start.model, start.model_revision), (start.directory, drafter)):
        if revision is not None:
            raise UsageError(
                f"TensorRT-LLM cannot be told revision {revision} of {repository}",
                why="it would take what is newest on the Hub",
                cure=f"name the directory that this writes: hf download {repository} --revision {revision} "
                "--local-dir DIR",
            )


def _speculative(start: Start, old: bool) -> dict[str, Yaml]:
    speculative: dict[str, Yaml] = {
        "decoding_type": "Eagle" if old else "Eagle3",
        "max_draft_len": start.drafts,
        "speculative_model_dir": start.directory,
    }
    layers = layers_to_capture(start)
    if layers is not None:
        speculative["eagle3_layers_to_capture"] = layers
    return speculative


def _notes(start: Start, spec: EngineSpec) -> list[str]:
    facts, target = start.facts, start.target
    notes = list(remote_code_note(target, "--trust_remote_code"))
    if start.model in INT4_TARGETS:
        notes.append(f"TensorRT-LLM does not read the INT4 weights of {start.model}: give --target a model in NVFP4 or "
                     "FP8, such as kimi-k2.6-nvfp4")  # fmt: skip
    if facts.eagle == "3.1":
        notes.append("EAGLE-3.1 needs a TensorRT-LLM of 2026-06 or later, the 1.3 line (PR 14988)")
    if isinstance(facts.attention, Gqa) and target.family == "deepseek":
        notes.append("a Llama-style drafter beside an MLA target is not proven here: an MLA drafter is the safe pair")
    if facts.boundaries is Taps.DEFAULT:
        notes.append("no eagle3_layers_to_capture: the drafter was trained on the default triple")
    if spec.before(1, 3):
        notes.append("names must be midlayer.*: `draftconv convert --to trtllm` writes them")
    return notes


ENGINE = Engine("trtllm", "TensorRT-LLM", 30, "1.3", "1.2", ("h100", "h200", "b200"), RULES, _read, _command)
