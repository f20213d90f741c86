"""What cannot be told of vLLM from a directory alone, and what is worth knowing."""

from __future__ import annotations

from draftconv.drafter.facts import AuxLayers
from draftconv.engines import checks
from draftconv.engines.checks import listed
from draftconv.engines.quantization_mismatch import mismatch, numbered_names
from draftconv.engines.rules import Rules, SimulatedLoad
from draftconv.engines.vllm.aux_layers import captured_v1, captured_v2, v1_by_default
from draftconv.engines.vllm.loading import UNCAPPED_ROPES, speculators
from draftconv.engines.vllm.sources import LOADERS, MATCHED, QUANT, SPEC

RULES = Rules()


RULES.row("vllm-model-type-unknown", "undecided", "transformers must know the model_type",
          "transformers_utils/config.py, 0.33.0", "inferred",
          checks.unknown_type("kimi_k2", "deepseek_v32"))  # fmt: skip


@RULES.add("vllm-taps-undecided", "undecided", "which layers are captured depends on the target", SPEC, "read")
def _undecided_aux_layers(load: SimulatedLoad) -> str | None:
    if load.trained is AuxLayers.UNKNOWN:
        return checks.UNKNOWN_AUX_LAYERS
    captured = captured_v1(load) if load.on_cpu else captured_v2(load)
    if not checks.open_aux_layers(captured, load.trained):
        return None
    return f"captures {checks.shown(captured)}, trained on {checks.shown(load.trained)}; give --target"


RULES.row("vllm-names-undecided", "undecided", "layers are numbered on from the target's",
          LOADERS, "read", numbered_names)  # fmt: skip
RULES.row("vllm-pattern-undecided", "undecided", "a pattern that cannot be tried here decides what is quantized",
          MATCHED, "read", mismatch("unknown"))  # fmt: skip


@RULES.add("vllm-taps-fallback", "note", "should the server fall back to Model Runner V1, it captures other layers",
           "v1/worker/gpu_model_runner.py, 0.33.0", "run")  # fmt: skip
def _aux_layers_fallback(load: SimulatedLoad) -> str | None:
    return None if v1_by_default(load) else checks.other_aux_layers(captured_v1(load), load)


@RULES.add("vllm-joined-fp8", "note", "joined FP8 weights that have a scale each are rounded once more, under the "
           "largest", f"{QUANT}/utils/w8a8_utils.py, 0.32.0", "read")  # fmt: skip
def _joined_fp8_on_gpu(load: SimulatedLoad) -> str | None:
    return None if load.on_cpu else checks.joined_fp8(load)


RULES.row("vllm-joined-inputs", "note", "the inputs of joined weights are rounded under the largest input_scale",
          f"{QUANT}/{{modelopt.py,compressed_tensors,quark}}, 0.32.0", "run",
          checks.joined("joined-input-scales", "U8", "F8_E4M3"))  # fmt: skip


@RULES.add("vllm-positions", "note", "under a scaled rope the drafter's positions cap the length that the target "
           "serves", SPEC, "run")  # fmt: skip
def _capped(load: SimulatedLoad) -> str | None:
    return None if load.built.rope.kind in UNCAPPED_ROPES else checks.short_rotary(load)


@RULES.add("vllm-speculators-keys", "note", "these keys are dropped at the top level of a speculators config",
           "transformers_utils/configs/speculators/base.py, 0.33.0", "run")  # fmt: skip
def _speculators_keys(load: SimulatedLoad) -> str | None:
    data = load.view.config
    read = ("num_aux_hidden_states", "num_aux_layers", "eagle_config", "sliding_window", "layer_types")
    return listed([key for key in read if key in data]) if speculators(data) else None


RULES.row("vllm-norm-switches", "note", "these switches are not read; the computation is that of true, true, false",
          LOADERS, "run", checks.unusual_norms)  # fmt: skip
RULES.row("vllm-double-norm", "note", "the state is normalised once, as for every published figure of such drafters",
          LOADERS, "run", checks.double_norm)  # fmt: skip
