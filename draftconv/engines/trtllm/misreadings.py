"""What loads in TensorRT-LLM and computes something else than was trained."""

from __future__ import annotations

from dataclasses import replace

from draftconv.checkpoint.dtypes import FLOATS
from draftconv.engines import checks, quantization_config, replays
from draftconv.engines.checks import compare, listed, skipped
from draftconv.engines.load_results import cause
from draftconv.engines.quantization_mismatch import mismatch, mismatches
from draftconv.engines.rules import Rules, SimulatedLoad
from draftconv.engines.trtllm.loading import PARTS, SKIPPED, unfilled
from draftconv.engines.trtllm.quantized_modules import EIGHT_BITS, algorithm, declares
from draftconv.engines.trtllm.rotary import alike
from draftconv.engines.trtllm.shapes_stored import copied, misfitting
from draftconv.engines.trtllm.sources import LINEAR, MAIN, MAPPER, QUANT, ROPE

RULES = Rules()


RULES.row("trtllm-scales-missing", "mis-read", "scales and zero points that are not found stay as they were made",
          LINEAR, "inferred", quantization_config.unscaled_weights, replay=replays.MEMORY)  # fmt: skip


@RULES.add("trtllm-missing-tensor", "mis-read", "a plain module without tensors is skipped silently and stays as it "
           "was made", MAPPER, "read", replay=replays.NORMS)  # fmt: skip
def _missing(load: SimulatedLoad) -> str | None:
    if load.mla:
        return None
    return listed([load.gap(name) for name in unfilled(load) if not PARTS.search(name)])


@RULES.add("trtllm-dropped", "mis-read", "a tensor whose name is not looked for is ignored silently", MAPPER, "read",
           replay=replays.MEMORY)  # fmt: skip
def _dropped(load: SimulatedLoad) -> str | None:
    """Needed tensors for which nothing is built, those of other rules aside."""
    return listed([
        name for part, name in load.lost.items()
        if part not in load.expected_tensors and cause(name, SKIPPED) is None
    ])  # fmt: skip


RULES.row("trtllm-later-norm", "mis-read", "layers after the first call their norm hidden_norm; input_layernorm is "
          "ignored", MAIN, "read", skipped("trtllm-later-norm", SKIPPED), replay=("later norms of ones",))  # fmt: skip
RULES.row("trtllm-attention-bias", "mis-read", "q, k, v and o have biases iff attention_bias is true; else they are "
          "ignored", MAIN, "read", skipped("trtllm-attention-bias", SKIPPED), replay=("biases dropped",))  # fmt: skip
RULES.row("trtllm-mlp-bias", "mis-read", "the MLP has biases iff mlp_bias is true; else they are ignored",
          MAIN, "read", skipped("trtllm-mlp-bias", SKIPPED), replay=("biases dropped",))  # fmt: skip
RULES.row("trtllm-fc-bias", "mis-read", "fc has a bias iff bias is true; else it is ignored",
          MAIN, "read", skipped("trtllm-fc-bias", SKIPPED), replay=("biases dropped",))  # fmt: skip
RULES.row("trtllm-qk-norm", "mis-read", "there is no q_norm and k_norm",
          MAIN, "read", skipped("trtllm-qk-norm", SKIPPED), replay=("q and k norms",))  # fmt: skip


RULES.row("trtllm-embedding-lost", "mis-read", "the target's embedding is always used instead of one of equal width",
          MAIN, "read", checks.embedding_lost, replay=("target's embedding",))  # fmt: skip
RULES.row("trtllm-norm-output", "mis-read", "the state fed back is post-norm with "
          "eagle_config.return_hidden_post_norm, since 1.3 also with norm_output (PR 14988)",
          MAIN, "read", compare("feedback", "feedback"), replay=("feedback norm",))  # fmt: skip
RULES.row("trtllm-fusion", "mis-read", "since 1.3: fc_norm at the top level, which wins over "
          "eagle_config.norm_before_fc; norm_before_fc at the top level is never read",
          MAIN, "read", compare("fusion", "norm before fc"), replay=replays.FUSION)  # fmt: skip
RULES.row("trtllm-residual", "mis-read", "norm_before_residual is never read; the raw state is added",
          MAIN, "read", compare("norm_before_residual", "norm_before_residual"),
          replay=("norm before residual",))  # fmt: skip


@RULES.add("trtllm-rope", "mis-read", "the tables are made of rope_theta, of the spelling of its scaling that the "
           "config class keeps, and of partial_rotary_factor; attention_factor, the factor of dynamic scaling and "
           "sections are not read; MLA always interleaves", ROPE, "read", replay=replays.ROPE)  # fmt: skip
def _rope(load: SimulatedLoad) -> str | None:
    alike_ropes = replace(load.built, rope=alike(load.built.rope)), replace(load.truth, rope=alike(load.truth.rope))
    built, truth = alike_ropes
    return checks.rope_differs(replace(load, built=built, truth=truth))


RULES.row("trtllm-eps", "mis-read", "rms_norm_eps comes from config.json", MAIN, "read", compare("eps", "eps"),
          replay=("rms_norm_eps",))  # fmt: skip
RULES.row("trtllm-window", "mis-read", "no sliding window is read from config.json",
          MAIN, "inferred", compare("window", "sliding window"), replay=("window",))  # fmt: skip


@RULES.add("trtllm-activation", "mis-read", "the MLP is silu(gate) * up; hidden_act is not read", MAIN, "inferred",
           replay=("activation",))  # fmt: skip
def _activation(load: SimulatedLoad) -> str | None:
    activation = load.truth.activation
    return None if activation == "silu" else f"trained with {activation}"


RULES.row("trtllm-vocab", "mis-read", "vocab_size must be the target's: its embedding is used",
          MAIN, "inferred", checks.wrong_vocab, replay=replays.BREAKS)  # fmt: skip
RULES.row("trtllm-joined-smoothing", "mis-read", "joined weights take the pre_quant_scale of the first, and with "
          "W4A16_AWQ none: their inputs are not multiplied by what the weights were divided by",
          LINEAR, "read", checks.joined("joined-smoothing", "U8", "I8"), replay=replays.CODES)  # fmt: skip
RULES.row("trtllm-excluded-fp8", "mis-read", "a pattern excludes the drafter's own FP8 projections (ModelOpt writes "
          "model*), or quantized_layers does not list them: their bytes are cast without scales",
          QUANT, "read", mismatch("excluded", "bytes"), replay=replays.CODES)  # fmt: skip


@RULES.add("trtllm-not-excluded-fp8", "mis-read", "a linear that no pattern excludes by its module name is built in "
           "FP8; a plain tensor is cast to it, and its scale stays as it was made", LINEAR, "read",
           replay=replays.CODES)  # fmt: skip
def _cast_to_fp8(load: SimulatedLoad) -> str | None:
    if algorithm(load) not in EIGHT_BITS:
        return None
    return listed([str(clash) for clash in mismatches(load) if clash.kind == "not excluded"])


@RULES.add("trtllm-bytes", "mis-read", "8-bit values that no declaration describes are cast as they are, without their "
           "scales", LINEAR, "read", replay=replays.CODES)  # fmt: skip
def _undeclared_bytes(load: SimulatedLoad) -> str | None:
    if declares(load):
        return None
    beside = load.results.beside
    return listed([
        name for part, name in load.results.loaded.items()
        if part.endswith(".weight") and part in load.expected_tensors
        and (dtype := load.view.tensors[name].dtype) not in FLOATS
        and (dtype != "F8_E4M3" or "weight_scale" in beside.get(part, ()))
        and load.view.tensors[name].shape == load.expected_tensors[part].shape
    ])  # fmt: skip


@RULES.add("trtllm-broadcast", "mis-read", "a tensor of one row, column or element is repeated, and joined projections "
           "of other sizes pass if they add up", LINEAR, "read", replay=replays.CUT)  # fmt: skip
def _broadcast(load: SimulatedLoad) -> str | None:
    return listed([load.misfit(name) for name in misfitting(load) if copied(load, name)])
