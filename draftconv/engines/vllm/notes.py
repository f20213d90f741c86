"""What cannot be told of vLLM from a directory alone, and what is worth knowing."""

from __future__ import annotations

from draftconv.drafter.facts import Taps
from draftconv.engines import checks
from draftconv.engines.base import Reading, Rules
from draftconv.engines.checks import listed
from draftconv.engines.quantized import clash, numbered_names
from draftconv.engines.vllm.captures import captured_v1, captured_v2, v1_by_default
from draftconv.engines.vllm.loading import UNCAPPED_ROPES, speculators
from draftconv.engines.vllm.sources import LOADERS, MATCHED, QUANT, SPEC

RULES = Rules()


RULES.row("vllm-model-type-unknown", "undecided", "transformers must know the model_type",
          "transformers_utils/config.py, 0.33.0", "inferred",
          checks.unknown_type("kimi_k2", "deepseek_v32"))  # fmt: skip


@RULES.add("vllm-taps-undecided", "undecided", "which layers are captured depends on the target", SPEC, "read")
def _undecided_taps(reading: Reading) -> str | None:
    if reading.trained is Taps.UNKNOWN:
        return checks.UNKNOWN_TAPS
    captured = captured_v1(reading) if reading.on_cpu else captured_v2(reading)
    if not checks.open_taps(captured, reading.trained):
        return None
    return f"captures {checks.shown(captured)}, trained on {checks.shown(reading.trained)}; give --target"


RULES.row("vllm-names-undecided", "undecided", "layers are numbered on from the target's",
          LOADERS, "read", numbered_names)  # fmt: skip
RULES.row("vllm-pattern-undecided", "undecided", "a pattern that cannot be tried here decides what is quantized",
          MATCHED, "read", clash("unknown"))  # fmt: skip


@RULES.add("vllm-taps-fallback", "note", "should the server fall back to Model Runner V1, it captures other layers",
           "v1/worker/gpu_model_runner.py, 0.33.0", "read")  # fmt: skip
def _taps_fallback(reading: Reading) -> str | None:
    return None if v1_by_default(reading) else checks.other_taps(captured_v1(reading), reading)


@RULES.add("vllm-joined-fp8", "note", "joined FP8 weights that have a scale each are rounded once more, under the "
           "largest", f"{QUANT}/utils/w8a8_utils.py, 0.32.0", "read")  # fmt: skip
def _joined_fp8_on_gpu(reading: Reading) -> str | None:
    return None if reading.on_cpu else checks.joined_fp8(reading)


RULES.row("vllm-joined-inputs", "note", "the inputs of joined weights are rounded under the largest input_scale",
          f"{QUANT}/{{modelopt.py,compressed_tensors,quark}}, 0.32.0", "read",
          checks.joined("joined-input-scales", "U8", "F8_E4M3"))  # fmt: skip


@RULES.add("vllm-positions", "note", "under a scaled rope the drafter's positions cap the length that the target "
           "serves", SPEC, "run")  # fmt: skip
def _capped(reading: Reading) -> str | None:
    return None if reading.built.rope.kind in UNCAPPED_ROPES else checks.short_rotary(reading)


@RULES.add("vllm-speculators-keys", "note", "these keys are dropped at the top level of a speculators config",
           "transformers_utils/configs/speculators/base.py, 0.33.0", "run")  # fmt: skip
def _speculators_keys(reading: Reading) -> str | None:
    data = reading.view.config
    read = ("num_aux_hidden_states", "num_aux_layers", "eagle_config", "sliding_window", "layer_types")
    return listed([key for key in read if key in data]) if speculators(data) else None


RULES.row("vllm-norm-switches", "note", "these switches are not read; the computation is that of true, true, false",
          LOADERS, "read", checks.unusual_norms)  # fmt: skip
RULES.row("vllm-double-norm", "note", "the state is normalised once, as for every published figure of such drafters",
          LOADERS, "read", checks.double_norm)  # fmt: skip
