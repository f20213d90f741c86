"""What stops TensorRT-LLM: rules in the order in which the first broken one is the reason."""

from __future__ import annotations

from collections.abc import Mapping

from draftconv.checkpoint import QUANT_FILE
from draftconv.drafter.facts import AuxLayers
from draftconv.drafter.tensors import HEAD
from draftconv.engines import checks
from draftconv.engines.checks import listed
from draftconv.engines.load_results import cause
from draftconv.engines.quantization_mismatch import mismatch, mismatches
from draftconv.engines.quantized_modules import declaration
from draftconv.engines.rules import Rules, SimulatedLoad
from draftconv.engines.trtllm import rotary
from draftconv.engines.trtllm.aux_layers import spelled
from draftconv.engines.trtllm.config_types import DTYPES, INDEXED, LATENT_TYPES, WITHOUT_BIAS, strict_faults
from draftconv.engines.trtllm.loading import MISNAMED, PARTS, own_head, unfilled
from draftconv.engines.trtllm.quantized_modules import (
    EIGHT_BITS,
    MIXED,
    ROWS,
    UNREAD,
    algorithm,
    modelopt_section,
    translated,
    words,
)
from draftconv.engines.trtllm.shapes_stored import LATENT, copied, misfitting
from draftconv.engines.trtllm.sources import (
    ATTENTION,
    CAPTURE,
    COMPRESSED,
    CONFIG,
    LINEAR,
    LOADER,
    MAIN,
    MLA,
    MODEL_CONFIG,
    OLD,
    ROPE,
    UTILS,
)
from draftconv.errors import Refused

RULES = Rules()


@RULES.add("trtllm-safetensors", "refused", "only *.safetensors files are read", LOADER, "inferred")
def _not_safetensors(load: SimulatedLoad) -> str | None:
    used = [file.name for file in load.view.files if not file.unused]
    if any(name.endswith(".safetensors") for name in used):
        return None
    return listed([name for name in used if name.endswith((".bin", ".pt", ".pth"))])


@RULES.add("trtllm-architectures", "refused", "architectures must be a list with an entry; which one does not matter",
           MAIN, "read")  # fmt: skip
def _no_architecture(load: SimulatedLoad) -> str | None:
    return None if load.architecture else f"architectures: {load.config.raw('architectures')}"


RULES.row("trtllm-model-type", "refused", "model_type must be one that transformers or TensorRT-LLM knows; "
          "speculators configs have none", CONFIG, "read", checks.unresolved_type)  # fmt: skip
RULES.row("trtllm-null", "refused", "only the presence of these keys is tested, so a null breaks the arithmetic",
          MAIN, "read", checks.null_keys("target_hidden_size", "eagle_config"))  # fmt: skip


@RULES.add("trtllm-dtype", "refused", "torch_dtype decides the model's dtype and has no default",
           MODEL_CONFIG, "inferred")  # fmt: skip
def _no_dtype(load: SimulatedLoad) -> str | None:
    written = load.config.text("dtype") or load.config.text("torch_dtype")
    if not written:
        return "neither torch_dtype nor dtype"
    return None if load.spec.before(1, 3) or written in DTYPES else f"torch_dtype: {written}"


@RULES.add("trtllm-draft-vocab", "refused", "draft_vocab_size must be there; 1.3 takes vocab_size when it is not",
           OLD, "read", until=(1, 3))  # fmt: skip
def _draft_vocab_absent(load: SimulatedLoad) -> str | None:
    return None if load.config.has("draft_vocab_size") else "draft_vocab_size is absent"


@RULES.add("trtllm-config-type", "refused", "the config classes of transformers 5 are strict: a value of another type "
           "than the field's stops the load, null too; sizes of the tree's own class must be numbers",
           CONFIG, "read", since=(1, 3))  # fmt: skip
def _config_type(load: SimulatedLoad) -> str | None:
    return listed(strict_faults(load.config))


@RULES.add("trtllm-rope-refused", "refused", "rotary scaling must be of a kind that is known, with all of its keys",
           ROPE, "read", since=(1, 3))  # fmt: skip
def _rope(load: SimulatedLoad) -> str | None:
    return listed(rotary.faults(load.config))


@RULES.add("trtllm-index", "refused", "index_n_heads is read for these architectures, whatever the drafter's class is",
           MODEL_CONFIG, "read", since=(1, 3))  # fmt: skip
def _index(load: SimulatedLoad) -> str | None:
    lacks = load.architecture in INDEXED and not load.config.has("index_n_heads")
    return f"architectures: {load.architecture}, no index_n_heads" if lacks else None


@RULES.add("trtllm-attention-bias-lacking", "refused", "attention_bias is read as an attribute, which these classes do "
           "not have by default", MAIN, "read")  # fmt: skip
def _attention_bias_lacking(load: SimulatedLoad) -> str | None:
    lacks = not load.mla and not load.config.has("attention_bias") and load.model_type in WITHOUT_BIAS
    return f"model_type {load.model_type} without attention_bias" if lacks else None


@RULES.add("trtllm-tied", "refused", "tie_word_embeddings asks an embedding for its sizes that a drafter does not "
           "have", UTILS, "read")  # fmt: skip
def _tied(load: SimulatedLoad) -> str | None:
    return checks.tied(load)


@RULES.add("trtllm-class", "refused", "kv_lora_rank alone decides between MLA and Llama-style attention", MAIN, "read")
def _wrong_class(load: SimulatedLoad) -> str | None:
    latent = bool(load.config.raw("kv_lora_rank"))
    if not load.config.has("kv_lora_rank") and load.model_type in LATENT_TYPES:
        return None if load.mla else f"model_type {load.model_type}, whose class has a kv_lora_rank by default"
    if latent == load.mla:
        return None
    return f"kv_lora_rank: {load.config.raw('kv_lora_rank')}" if latent else "an MLA drafter without kv_lora_rank"


@RULES.add("trtllm-prefix", "refused", "`model.` is put before every name without lm_head, so others that have it "
           "are not found", MAIN, "read")  # fmt: skip
def _prefixed(load: SimulatedLoad) -> str | None:
    return listed([name for name in load.results.dropped if name.startswith("model.") and "lm_head" not in name])


@RULES.add("trtllm-old-names", "refused", "only midlayer.* is looked for; layers.N is renamed since 1.3 (PR 11010)",
           OLD, "read", until=(1, 3))  # fmt: skip
def _old_layers(load: SimulatedLoad) -> str | None:
    return listed([name for name in load.results.dropped if name.startswith("layers.")])


@RULES.add("trtllm-layer-names", "refused", "a drafter of one layer says midlayer.X, one of several midlayer.N.X",
           MAIN, "read")  # fmt: skip
def _layer_names(load: SimulatedLoad) -> str | None:
    """Layer tensors spelled for another number of layers than num_hidden_layers says."""
    return listed([
        name for part, name in load.unplaced.items()
        if part in load.expected_tensors and name in load.results.dropped
        and cause(name, MISNAMED) == "trtllm-layer-names"
        and not (name.startswith("layers.") and load.spec.before(1, 3))
    ])  # fmt: skip


@RULES.add("trtllm-fused", "refused", "q, k, v and gate, up must be stored apart: they are fused while loading",
           MAIN, "read")  # fmt: skip
def _fused(load: SimulatedLoad) -> str | None:
    return listed(load.results.fatal)


@RULES.add("trtllm-missing-part", "refused", "a fused projection asserts that all its parts exist", LINEAR, "read")
def _missing_parts(load: SimulatedLoad) -> str | None:
    return None if load.mla else listed([load.gap(name) for name in load.missing if PARTS.search(name)])


@RULES.add("trtllm-missing-mla", "refused", "the DeepSeek weight loader raises KeyError for a missing tensor",
           MLA, "read")  # fmt: skip
def _missing_mla(load: SimulatedLoad) -> str | None:
    if not load.mla:
        return None
    return listed([load.gap(name) for name in unfilled(load)])


RULES.row("trtllm-d2t-missing", "refused", "a reduced vocabulary without d2t stops with an assertion",
          MAIN, "read", checks.d2t_missing)  # fmt: skip


@RULES.add("trtllm-head-missing", "refused", "without lm_head the target's is shared, so the vocabulary must be whole",
           MAIN, "read")  # fmt: skip
def _head_missing(load: SimulatedLoad) -> str | None:
    absent = HEAD in load.missing and not own_head(load.view)
    return f"no lm_head, draft_vocab_size {load.built.draft_vocab}" if absent else None


@RULES.add("trtllm-bias-half", "refused", "attention_bias builds q, k, v and o biases, mlp_bias and bias the others; "
           "a missing one is an assertion", LINEAR, "read")  # fmt: skip
def _biases_missing(load: SimulatedLoad) -> str | None:
    return listed([load.gap(name) for name in load.missing if name.endswith(("_proj.bias", "fc.bias"))])


@RULES.add("trtllm-fc-prefix", "refused", "tensors are found by the start of their names: beside fc_norm an fc that is "
           "not stored is found without a weight", LINEAR, "read")  # fmt: skip
def _fc_prefix(load: SimulatedLoad) -> str | None:
    norms = any(name.startswith("fc_norm.") for name in load.view.tensors)
    return "fc.weight" if norms and not load.mla and "fc.weight" in load.missing else None


@RULES.add("trtllm-shape", "refused", "modules are built from config.json; a tensor of another shape stops the load, "
           "unless it can be repeated", MAIN, "read")  # fmt: skip
def _shapes(load: SimulatedLoad) -> str | None:
    return listed([load.misfit(name) for name in misfitting(load) if not copied(load, name)])


@RULES.add("trtllm-mla-heads", "refused", "o_proj of MLA is built with num_key_value_heads, 128 by default",
           ATTENTION, "read")  # fmt: skip
def _latent_heads(load: SimulatedLoad) -> str | None:
    attention = load.built.attention
    if not load.mla or load.spec.before(1, 3) or load.model_type == "deepseek_v2":
        return None
    heads = load.config.size("num_key_value_heads") if load.config.has("num_key_value_heads") else 128
    wrong = heads is not None and heads != attention.heads
    return f"num_key_value_heads {heads}, num_attention_heads {attention.heads}" if wrong else None


@RULES.add("trtllm-mla-input-norm", "refused", "norm_before_fc builds input_norm, which the DeepSeek weight loader "
           "asks for even where fc_norm wins", MLA, "read")  # fmt: skip
def _latent_input_norm(load: SimulatedLoad) -> str | None:
    stored = any(name.startswith("input_norm.") for name in load.view.tensors)
    both = load.eagle.flag("norm_before_fc") and load.config.flag("fc_norm")
    return "no input_norm" if load.mla and both and not stored else None


@RULES.add("trtllm-eh-proj", "refused", "eh_proj_before_attn gives every layer an input of single width",
           MAIN, "read", since=(1, 3))  # fmt: skip
def _joined_before(load: SimulatedLoad) -> str | None:
    return "eagle_config.eh_proj_before_attn: true" if load.eagle.flag("eh_proj_before_attn") else None


RULES.row("trtllm-target-width", "refused", "fc must fit the target's hidden states",
          MAIN, "inferred", checks.wrong_width)  # fmt: skip
RULES.row("trtllm-plain-query", "refused", "the fused projection is sized with q_lora_rank",
          MAIN, "inferred", checks.plain_query)  # fmt: skip


@RULES.add("trtllm-reduced-mla", "refused", "the DeepSeek weight loader walks into d2t and stops with a KeyError",
           MLA, "read")  # fmt: skip
def _reduced_mla(load: SimulatedLoad) -> str | None:
    reduced = load.mla and load.built.draft_vocab != load.built.vocab
    return f"draft_vocab_size {load.built.draft_vocab} of {load.built.vocab}" if reduced else None


@RULES.add("trtllm-next-layer", "refused", "next_layer_regular: false gives later layers an input of twice the width",
           MAIN, "read")  # fmt: skip
def _irregular_layers(load: SimulatedLoad) -> str | None:
    irregular = load.truth.layers > 1 and load.eagle.flag("next_layer_regular") is False
    return "eagle_config.next_layer_regular: false" if irregular else None


@RULES.add("trtllm-zero-boundary", "refused", "eagle3_layers_to_capture names outputs of layers; boundary 0 is none",
           CAPTURE, "read")  # fmt: skip
def _zero_boundary(load: SimulatedLoad) -> str | None:
    trained = load.trained
    if isinstance(trained, AuxLayers):
        return None
    try:
        spelled(trained)
    except Refused:
        return f"trained on {list(trained)}"
    return None


@RULES.add("trtllm-boundary-twice", "refused", "captured layers are a set, and fc is as wide as the set",
           CAPTURE, "read")  # fmt: skip
def _boundary_twice(load: SimulatedLoad) -> str | None:
    trained = load.trained
    if isinstance(trained, AuxLayers) or len(set(trained)) == len(trained):
        return None
    return f"trained on {list(trained)}"


QUANT_METHODS = frozenset({"fp8", "mxfp4", "mxfp8", "nvfp4", "compressed-tensors", "modelopt", "modelopt_fp4"})


@RULES.add("trtllm-quant-method", "refused", "this quant_method has no branch (Quark, AWQ, GPTQ): packed weights are "
           "taken for plain ones and do not fit", MODEL_CONFIG, "read")  # fmt: skip
def _unknown_method(load: SimulatedLoad) -> str | None:
    method = checks.quant_method(load)
    if not method or load.view.sidecars.get(QUANT_FILE) or method in QUANT_METHODS:
        return None
    return f"quant_method: {method}" if load.results.packed or words(load) else None


@RULES.add("trtllm-compressed", "refused", "of compressed-tensors 8 bits per row with activations per token, FP8 in "
           "blocks of 128 and NVFP4 are translated; anything else raises", COMPRESSED, "read")  # fmt: skip
def _compressed(load: SimulatedLoad) -> str | None:
    if load.view.sidecars.get(QUANT_FILE) or checks.quant_method(load) != "compressed-tensors":
        return None
    groups = checks.compressed_groups(load)
    if not groups:
        return "no config_groups"
    if len(groups) > 1:
        return None
    ((weights, inputs, _),) = groups
    if translated(weights, inputs):
        return None
    kind = "integers" if weights.text("type") == "int" else "numbers"
    said = f"{weights.integer('num_bits')}-bit {kind} per {weights.text('strategy')}"
    return f"{said}, activations per {inputs.text('strategy') or 'nothing'}"


@RULES.add("trtllm-row-scales", "refused", "FP8 scales of rows are copied as they are stored, and [rows, 1] does not "
           "fit [rows]", LINEAR, "read")  # fmt: skip
def _row_scales(load: SimulatedLoad) -> str | None:
    if algorithm(load) != ROWS:
        return None
    scales = (
        f"{name.removesuffix('weight')}weight_scale"
        for name in load.results.loaded.values()
        if name.endswith(".weight") and load.view.tensors[name].dtype in ("F8_E4M3", "I8")
    )
    return listed([
        f"{name} is {list(load.view.tensors[name].shape)}"
        for name in scales
        if name in load.view.tensors and len(load.view.tensors[name].shape) > 1 and load.view.tensors[name].shape[0] > 1
    ])  # fmt: skip


@RULES.add("trtllm-mixed-empty", "refused", "MIXED_PRECISION needs quantized_layers", MODEL_CONFIG, "read")
def _mixed_empty(load: SimulatedLoad) -> str | None:
    section = modelopt_section(load)
    empty = section.text("quant_algo") == MIXED and not section.has("quantized_layers")
    return "no quantized_layers" if empty else None


ALGORITHMS = frozenset({
    "FP8", "FP8_BLOCK_SCALES", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION", "NVFP4", "W4A16", "W4A16_AWQ",
    "W4A8_AWQ", "W4A8_NVFP4_FP8", "W8A16",
})  # fmt: skip
"""quant_algo values that a drafter's linears can have (quantization/modelopt_config.py, _torch/modules/linear.py)."""

RULES.row("trtllm-algorithm", "refused", "this quant_algo has no linear method",
          LINEAR, "read", checks.unknown_algorithm(ALGORITHMS))  # fmt: skip


AWQ: Mapping[str, tuple[str, ...]] = {
    "W4A16_AWQ": ("weight_scale",),
    "W4A8_AWQ": ("weight_scale", "weight_scale_2", "input_scale"),
}
"""Algorithm → what every INT4 weight needs beside it (_torch/modules/linear.py)."""

SMOOTHED = (".o_proj.weight", ".down_proj.weight")
"""Weights that need pre_quant_scale too; those that are joined do without."""


@RULES.add("trtllm-awq-parts", "refused", "INT4 weights need their scales (W4A8: weight_scale_2 and input_scale too), "
           "o_proj and down_proj pre_quant_scale, ones if nothing was smoothed; a missing one is a KeyError",
           LINEAR, "read")  # fmt: skip
def _awq_parts(load: SimulatedLoad) -> str | None:
    section = declaration(load.spec, load.config.section("quantization_config").data, load.view.sidecars)
    modelopt = section.modelopt(sidecar_wins=True)
    layers = modelopt.section("quantized_layers")
    names = (modelopt.text("quant_algo"), *(layers.section(layer).text("quant_algo") for layer in layers.data))
    parts = next((AWQ[name] for name in names if name and name in AWQ), None)
    if parts is None:
        return None
    packed = [part for part, name in load.results.loaded.items() if load.view.tensors[name].dtype in ("U8", "I8")]
    needed = ((part, (*parts, *(("pre_quant_scale",) if part.endswith(SMOOTHED) else ()))) for part in packed)
    return listed([
        load.gap(f"{part.removesuffix('.weight')}.{suffix}")
        for part, suffixes in needed for suffix in suffixes
        if suffix not in load.results.beside.get(part, ())
    ])  # fmt: skip


RULES.row("trtllm-excluded", "refused", "packed projections do not fit a linear that is built plain: a pattern "
          "excludes it (ModelOpt writes model*), or the algorithm is MIXED_PRECISION, whose quantized_layers come "
          "after a drafter's weights are created", UTILS, "read", mismatch("excluded", "words", "packed"))  # fmt: skip


@RULES.add("trtllm-not-excluded", "refused", "a linear that no pattern excludes by its module name is built quantized, "
           "and a plain tensor has no scales for it; kv_b is asked for them in FP8 too", LINEAR, "read")  # fmt: skip
def _not_excluded(load: SimulatedLoad) -> str | None:
    eight = algorithm(load) in EIGHT_BITS
    return listed([
        str(clash) for clash in mismatches(load)
        if clash.kind == "not excluded" and (not eight or clash.module.name.endswith(".kv_b_proj"))
    ])  # fmt: skip


RULES.row("trtllm-torn", "refused", "projections that are joined into one linear are quantized together or not at all",
          LINEAR, "read", mismatch("torn"))  # fmt: skip


@RULES.add("trtllm-joined-scales", "refused", "joined NVFP4 and W4A8_AWQ weights must have one weight_scale_2 and one "
           "input_scale: an assertion", LINEAR, "read")  # fmt: skip
def _joined_scales(load: SimulatedLoad) -> str | None:
    codes = ("joined-weight-scales", "joined-input-scales")
    return listed([detail for code in codes if (detail := checks.joined(code, "U8", "I8")(load))])


@RULES.add("trtllm-latent-quantized", "refused", "q_a, kv_a and kv_b are copied by hand and must be unquantized",
           MLA, "read")  # fmt: skip
def _latent_quantized(load: SimulatedLoad) -> str | None:
    if not load.mla or not load.truth.quantization or checks.modelopt_algorithm(load) == "FP8_BLOCK_SCALES":
        return None
    # Under a method without a branch 8 bits are cast without a word: rule trtllm-excluded-fp8.
    unread = checks.quant_method(load) in UNREAD and not load.view.sidecars.get(QUANT_FILE)
    clashes = [clash for clash in mismatches(load) if (clash.kind, clash.storage) == ("excluded", "bytes")]
    cast = {part for clash in clashes for part in clash.module.parts if unread}
    names = {name: f"layers.0.self_attn.{name}" for name in LATENT}
    return listed([n for n, part in names.items() if part not in cast and not load.stored_plain(f"{part}.weight")])


@RULES.add("trtllm-packed-undeclared", "refused", "packed weights need hf_quant_config.json or quantization_config",
           MODEL_CONFIG, "read")  # fmt: skip
def _packed_undeclared(load: SimulatedLoad) -> str | None:
    return checks.undeclared_packed(load) if load.results.packed or words(load) else None
