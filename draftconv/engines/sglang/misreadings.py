"""What loads in SGLang and computes something else than was trained."""

from __future__ import annotations

from draftconv.drafter.boundaries import IDS
from draftconv.engines import checks, quantization_config
from draftconv.engines.checks import compare, skipped
from draftconv.engines.quantization_mismatch import mismatch
from draftconv.engines.rules import Rules, SimulatedLoad
from draftconv.engines.sglang.aux_layers import captured
from draftconv.engines.sglang.loading import SKIPPED, target_head
from draftconv.engines.sglang.refusals import draft_vocab_absent
from draftconv.engines.sglang.sources import BOTH, CAPTURE, LLAMA, MATCHED, MLA, QUANT

RULES = Rules()


RULES.row("sglang-not-excluded", "mis-read", "a linear that no list excludes by its runtime name is built quantized; "
          "a plain tensor is dropped silently, or cast to 8 bits",
          MATCHED, "inferred", mismatch("not excluded", "packed", "bytes"))  # fmt: skip
RULES.row("sglang-excluded", "mis-read", "a linear that is not matched by its runtime name is built plain; packed "
          "tensors are dropped silently, 8-bit ones are read without their scales",
          MATCHED, "inferred", mismatch("excluded", "packed", "bytes"))  # fmt: skip
RULES.row("sglang-scales-missing", "mis-read", "scales and zero points that are not found stay as they were made",
          MATCHED, "inferred", quantization_config.unscaled)  # fmt: skip
RULES.row("sglang-missing-tensor", "mis-read", "missing tensors are not reported; the module keeps uninitialised "
          "memory", BOTH, "run", checks.missing_tensors)  # fmt: skip
RULES.row("sglang-prefix", "mis-read", "the MLA class prepends `model.` itself and drops names that have it (the "
          "Llama class knows both, but not model.lm_head)", MLA, "run", skipped("sglang-prefix", SKIPPED))  # fmt: skip
RULES.row("sglang-dropped", "mis-read", "a tensor whose name is not looked for is dropped silently",
          BOTH, "run", skipped("sglang-dropped", SKIPPED))  # fmt: skip
RULES.row("sglang-qkv-bias", "mis-read", "q, k and v never have biases, whatever attention_bias says",
          LLAMA, "run", skipped("sglang-qkv-bias", SKIPPED))  # fmt: skip
RULES.row("sglang-qk-norm", "mis-read", "there is no q_norm and k_norm",
          LLAMA, "run", skipped("sglang-qk-norm", SKIPPED))  # fmt: skip
RULES.row("sglang-mlp-bias", "mis-read", "the MLP never has biases", LLAMA, "read", skipped("sglang-mlp-bias", SKIPPED))
RULES.row("sglang-bias", "mis-read", "o_proj has a bias with attention_bias or bias, fc with bias; else it is dropped",
          BOTH, "run", skipped("sglang-bias", SKIPPED))  # fmt: skip
RULES.row("sglang-bias-half", "mis-read", "attention_bias and bias build an o_proj bias; a missing one stays "
          "uninitialised", LLAMA, "read", checks.half_biased)  # fmt: skip
RULES.row("sglang-later-norm", "mis-read", "layers after the first call their norm hidden_norm; input_layernorm is "
          "dropped", LLAMA, "run", skipped("sglang-later-norm", SKIPPED))  # fmt: skip
RULES.row("sglang-d2t-missing", "mis-read", "without d2t, draft id i is taken for target id i",
          "srt/speculative/eagle_worker.py, 0.5.23", "inferred", checks.d2t_missing)  # fmt: skip


@RULES.add("sglang-head", "mis-read", "a null draft_vocab_size (in the MLA class also an absent one) puts the "
           "target's head in place of the trained one", BOTH, "run")  # fmt: skip
def _head_replaced(load: SimulatedLoad) -> str | None:
    if not load.truth.own_head or not target_head(load.config) or draft_vocab_absent(load):
        return None
    return f"draft_vocab_size is {'null' if load.config.has('draft_vocab_size') else 'absent'}, lm_head is stored"


RULES.row("sglang-tied", "mis-read", "tie_word_embeddings makes the shared embedding the head",
          BOTH, "read", checks.tied)  # fmt: skip
RULES.row("sglang-embedding-lost", "mis-read", "the target's embedding always replaces one of equal width",
          BOTH, "read", checks.embedding_lost)  # fmt: skip


@RULES.add("sglang-taps", "mis-read", "ids are read from eagle_config only, and numbered per target family",
           CAPTURE, "read")  # fmt: skip
def _aux_layers(load: SimulatedLoad) -> str | None:
    problem = checks.other_aux_layers(captured(load), load)
    top_only = load.config.integers(IDS) and not load.eagle.integers(IDS)
    return f"{problem} (ids at the top level are not read)" if problem and top_only else problem


RULES.row("sglang-last-state", "mis-read", "use_aux_hidden_state: false hands over the last hidden state only",
          "srt/model_executor/model_runner.py, 0.5.23", "read", checks.last_state_only)  # fmt: skip
RULES.row("sglang-norm-output", "mis-read", "norm_output at the top level decides the state fed back, default false",
          BOTH, "run", compare("feedback", "feedback"))  # fmt: skip
RULES.row("sglang-fusion", "mis-read", "fc_norm (or use_aux_norm) at the top level, norm_before_fc in eagle_config, "
          "else the top level; without the flag the tensors are dropped, and the MLA class has no norm_before_fc",
          BOTH, "run", compare("fusion", "norm before fc"))  # fmt: skip
RULES.row("sglang-residual", "mis-read", "norm_before_residual is never read; the raw state is added",
          BOTH, "read", compare("norm_before_residual", "norm_before_residual"))  # fmt: skip
RULES.row("sglang-rope", "mis-read", "the rotary embedding follows rope_parameters or the legacy keys; MLA "
          "interleaves unless rope_interleave is false",
          "srt/layers/rotary_embedding, srt/models/deepseek_v2.py, 0.5.23", "read", checks.rope_differs)  # fmt: skip
RULES.row("sglang-eps", "mis-read", "rms_norm_eps comes from config.json", BOTH, "read", compare("eps", "eps"))
RULES.row("sglang-window", "mis-read", "no sliding window is read from config.json",
          BOTH, "read", compare("window", "sliding window"))  # fmt: skip
RULES.row("sglang-joined-scales", "mis-read", "joined NVFP4 weights are multiplied under the largest weight_scale_2; "
          "the scales of their blocks stay as they are",
          f"{QUANT}/modelopt_quant.py, 0.5.23", "read", checks.joined("joined-weight-scales", "U8"))  # fmt: skip
RULES.row("sglang-vocab", "mis-read", "vocab_size must be the target's: its embedding is put in",
          BOTH, "inferred", checks.wrong_vocab)  # fmt: skip
