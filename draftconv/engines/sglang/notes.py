"""What cannot be told of SGLang from a directory alone, and what is worth knowing."""

from __future__ import annotations

from draftconv.drafter.boundaries import IDS
from draftconv.drafter.checks import LONG_CONTEXT
from draftconv.drafter.facts import AuxLayers
from draftconv.engines import checks
from draftconv.engines.quantization_mismatch import mismatch
from draftconv.engines.rules import Rules, SimulatedLoad
from draftconv.engines.sglang.aux_layers import captured
from draftconv.engines.sglang.loading import derived_context
from draftconv.engines.sglang.sources import BOTH, CAPTURE, CONFIG, MATCHED, QUANT

RULES = Rules()


@RULES.add("sglang-taps-undecided", "undecided", "which layers are captured depends on the target", CAPTURE, "read")
def _undecided_aux_layers(load: SimulatedLoad) -> str | None:
    if load.trained is AuxLayers.UNKNOWN:
        return checks.UNKNOWN_AUX_LAYERS
    if not checks.open_aux_layers(captured(load), load.trained):
        return None
    ids = load.eagle.integers(IDS)
    what = f"ids {list(ids)} mean other layers per target family" if ids else "captures the default triple"
    return f"{what}, trained on {checks.shown(load.trained)}; give --target"


RULES.row("sglang-model-type-unknown", "undecided", "transformers must know the model_type",
          "srt/utils/hf_transformers_utils.py, 0.5.23", "inferred",
          checks.unknown_type("kimi_k2", "deepseek_v32"))  # fmt: skip
RULES.row("sglang-names-undecided", "undecided", "what is quantized is decided by a pattern that cannot be tried "
          "here, or by MIXED_PRECISION, which is read as one of several methods",
          MATCHED, "read", mismatch("unknown"))  # fmt: skip
RULES.row("sglang-embedding", "note", "the target's embedding always replaces one of equal width",
          BOTH, "run", checks.embedding_replaced)  # fmt: skip
RULES.row("sglang-joined-fp8", "note", "joined FP8 weights that have a scale each are rounded once more, under the "
          "largest", f"{QUANT}/modelopt_quant.py, 0.5.23", "run", checks.joined_fp8)  # fmt: skip
RULES.row("sglang-joined-inputs", "note", "the inputs of joined weights are rounded under the largest input_scale",
          f"{QUANT}/modelopt_quant.py, 0.5.23", "run",
          checks.joined("joined-input-scales", "U8", "F8_E4M3"))  # fmt: skip
RULES.row("sglang-ignored", "note", "tensors whose names are not looked for are dropped silently",
          BOTH, "run", checks.ignored)  # fmt: skip


@RULES.add("sglang-context-untold", "note", "a drafter with a shorter context than the target's stops the start",
           CONFIG, "read")  # fmt: skip
def _context_untold(load: SimulatedLoad) -> str | None:
    if load.target is not None and load.target.max_positions:
        return None
    limit, absent = derived_context(load)
    return f"max_position_embeddings gives {limit}{absent}" if limit < LONG_CONTEXT else None


TARGET_TYPES = frozenset({
    "apertus", "bailing_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "exaone_moe", "gemma3", "gemma3_text",
    "gemma4", "glm4_moe", "glm4_moe_lite", "glm5_next", "glm_moe_dsa", "gpt_oss", "internlm3", "kimi_k2", "kimi_k25",
    "llama", "llama4", "llama4_text", "longcat_flash", "minimax_m2", "minimax_m3", "minimax_m3_vl", "mistral",
    "mllama4", "phi3", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen3", "qwen3_5", "qwen3_5_text", "qwen3_moe",
    "qwen3_next", "qwen3_vl", "qwen3_vl_moe",
})  # fmt: skip
"""Targets whose class has set_eagle3_layers_to_capture (srt/models, 0.5.23; run)."""


@RULES.add("sglang-target", "note", "this target was not read to hand out hidden states", CAPTURE, "run")
def _unread_target(load: SimulatedLoad) -> str | None:
    target = load.target
    strange = target is not None and target.model_type and target.model_type not in TARGET_TYPES
    return f"{target.name} is {target.model_type}" if target and strange else None


RULES.row("sglang-norm-switches", "note", "these switches are not read; the computation is that of true, true, false",
          BOTH, "run", checks.unusual_norms)  # fmt: skip
RULES.row("sglang-double-norm", "note", "the state is normalised once, as for every published figure of such drafters",
          BOTH, "run", checks.double_norm)  # fmt: skip
