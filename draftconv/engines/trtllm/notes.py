"""What cannot be told of TensorRT-LLM from a directory alone, and what is worth knowing."""

from __future__ import annotations

from draftconv.checkpoint.dtypes import FLOATS
from draftconv.drafter.boundaries import default_triple
from draftconv.drafter.facts import AuxLayers
from draftconv.drafter.kinds import eagle31, kind_of
from draftconv.drafter.tensors import HEAD
from draftconv.engines import checks
from draftconv.engines.checks import listed
from draftconv.engines.quantization_mismatch import mismatch
from draftconv.engines.rules import Rules, SimulatedLoad
from draftconv.engines.trtllm.aux_layers import spelled
from draftconv.engines.trtllm.config_types import OWN_TYPES, WITH_BIAS, WITHOUT_BIAS
from draftconv.engines.trtllm.sources import ARGUMENTS, CAPTURE, CONFIG, LINEAR, MAIN, MAPPER, QUANT, ROPE

RULES = Rules()


@RULES.add("trtllm-taps-unknown", "undecided", "the serve file must name the captured layers", ARGUMENTS, "read")
def _unknown_aux_layers(load: SimulatedLoad) -> str | None:
    return checks.UNKNOWN_AUX_LAYERS if load.trained is AuxLayers.UNKNOWN else None


RULES.row("trtllm-model-type-unknown", "undecided", "transformers must know the model_type",
          CONFIG, "inferred", checks.unknown_type(*OWN_TYPES))  # fmt: skip


@RULES.add("trtllm-names-undecided", "undecided", "a pattern that cannot be tried here decides what is quantized",
           QUANT, "read")  # fmt: skip
def _untried(load: SimulatedLoad) -> str | None:
    """A pattern that could take for ever, or is no regular expression: what comes of that one was not read."""
    return mismatch("unknown")(load) or mismatch("stops")(load)


@RULES.add("trtllm-head-scales", "undecided", "whether a drafter's head takes scales was not found in the source",
           MAIN, "inferred")  # fmt: skip
def _quantized_head(load: SimulatedLoad) -> str | None:
    head = load.tensor(HEAD)
    return load.results.packed.get(HEAD) or (HEAD if head is not None and head.dtype not in FLOATS else None)


@RULES.add("trtllm-draft-vocab-null", "undecided", "draft_vocab_size is compared with vocab_size; what a null does is "
           "not known", MAIN, "inferred", until=(1, 3))  # fmt: skip
def _draft_vocab_null(load: SimulatedLoad) -> str | None:
    return checks.null_keys("draft_vocab_size")(load)


@RULES.add("trtllm-mla-norm-before-fc", "undecided", "norm_before_fc beside MLA was not read to work", MAIN, "inferred")
def _mla_whole_norm(load: SimulatedLoad) -> str | None:
    whole = load.mla and load.truth.fusion in ("norm_before_fc", "both")
    return "norm_before_fc on an MLA drafter" if whole else None


RULES.row("trtllm-joined-fp8", "note", "joined FP8 weights that have a scale each are rounded once more, under the "
          "largest", LINEAR, "read", checks.joined_fp8)  # fmt: skip
RULES.row("trtllm-joined-inputs", "note", "the inputs of joined FP8 weights are rounded under the largest input_scale",
          LINEAR, "read",
          checks.joined("joined-input-scales", "F8_E4M3"))  # fmt: skip


@RULES.add("trtllm-taps", "note", "captured layers are never read from the checkpoint; the serve file must name them",
           CAPTURE, "read")  # fmt: skip
def _aux_layers_in_yaml(load: SimulatedLoad) -> str | None:
    """Boundaries that the serve file must name."""
    trained = load.trained
    if isinstance(trained, AuxLayers) or 0 in trained:
        return None
    if load.target is None:
        return f"eagle3_layers_to_capture: {list(spelled(trained))}, unless that is the target's default triple"
    default = trained == default_triple(load.target.layers)
    return None if default else f"eagle3_layers_to_capture: {list(spelled(trained))}"


RULES.row("trtllm-embedding", "note", "the target's embedding is always used instead of one of equal width",
          MAIN, "read", checks.embedding_replaced)  # fmt: skip
RULES.row("trtllm-ignored", "note", "tensors whose names are not looked for are ignored silently",
          MAPPER, "read", checks.ignored)  # fmt: skip


@RULES.add("trtllm-gqa-on-mla", "note", "whether a Llama-style drafter can have its own KV cache beside an MLA target "
           "is not proven; an MLA drafter is the safe pair", MAIN, "inferred")  # fmt: skip
def _gqa_on_mla(load: SimulatedLoad) -> str | None:
    target = load.target
    latent = target is not None and target.family == "deepseek"
    return f"a Llama-style drafter for {target.name}" if target and latent and not load.mla else None


@RULES.add("trtllm-mla-eagle31", "note", "EAGLE-3.1 with MLA was `not tested` when it was added (PR 14988)",
           MAIN, "read", since=(1, 3))  # fmt: skip
def _mla_eagle31(load: SimulatedLoad) -> str | None:
    return "EAGLE-3.1 with MLA" if load.mla and kind_of(load.truth) is eagle31.KIND else None


@RULES.add("trtllm-auto-map", "note", "the draft config is read with trust_remote_code, so auto_map's code is imported",
           CONFIG, "read")  # fmt: skip
def _auto_map(load: SimulatedLoad) -> str | None:
    return "auto_map is set" if load.config.has("auto_map") else None


@RULES.add("trtllm-layers", "note", "layers.N needs a version of 2026-01-28 or later; midlayer is read by all",
           MAIN, "read", since=(1, 3))  # fmt: skip
def _layers_spelling(load: SimulatedLoad) -> str | None:
    return listed([name for name in load.results.loaded.values() if name.startswith("layers.")])


@RULES.add("trtllm-yarn", "note", "how YaRN scales cos and sin of a Llama-style drafter is not settled",
           ROPE, "inferred")  # fmt: skip
def _yarn_gqa(load: SimulatedLoad) -> str | None:
    yarn = load.built.rope.kind == "yarn" and not load.mla
    return f"YaRN factor {load.built.rope.scaling.get('factor')}" if yarn else None


@RULES.add("trtllm-attention-bias-absent", "note", "attention_bias is a required attribute; only some classes default "
           "it", MAIN, "read")  # fmt: skip
def _attention_bias_absent(load: SimulatedLoad) -> str | None:
    known = (*WITHOUT_BIAS, *WITH_BIAS, *OWN_TYPES)
    absent = not load.mla and not load.config.has("attention_bias") and load.model_type not in known
    return f"model_type {load.model_type} without attention_bias" if absent else None


RULES.row("trtllm-positions", "note", "the position table is as long as max_position_embeddings of the drafter",
          MAIN, "read", checks.short_rotary)  # fmt: skip
RULES.row("trtllm-norm-switches", "note", "these switches are not read; the computation is that of true, true, false",
          MAIN, "read", checks.unusual_norms)  # fmt: skip
RULES.row("trtllm-double-norm", "note", "the state is normalised once, as for every published figure of such drafters",
          MAIN, "read", checks.double_norm)  # fmt: skip
