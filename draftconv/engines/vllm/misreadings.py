"""What loads in vLLM and computes something else than was trained."""

from __future__ import annotations

from draftconv.engines import checks, quantization_config, replays
from draftconv.engines.checks import compare, listed, skipped
from draftconv.engines.quantization_mismatch import mismatch
from draftconv.engines.rules import Rules, SimulatedLoad
from draftconv.engines.vllm.aux_layers import captured_v1, captured_v2, v1_by_default
from draftconv.engines.vllm.loading import CUT, LATER_NORM
from draftconv.engines.vllm.sources import LLAMA, LOADERS, MATCHED, MLA, QUANT

RULES = Rules()


RULES.row("vllm-cast", "mis-read", "a linear that no list excludes by its runtime name is built of 8-bit weights, and "
          "a plain tensor is cast into it without a word", MATCHED, "run",
          mismatch("not excluded", "bytes"), replay=replays.CODES)  # fmt: skip
RULES.row("vllm-scales-missing", "mis-read", "scales and zero points that are not found stay as they were made",
          MATCHED, "run", quantization_config.unscaled, replay=replays.MEMORY)  # fmt: skip
RULES.row("vllm-missing-tensor", "mis-read", "missing tensors are not reported: norms stay one, weights uninitialised",
          LOADERS, "run", checks.missing_tensors, replay=replays.NORMS)  # fmt: skip
RULES.row("vllm-cut", "mis-read", "of a projection with more rows (o and down: columns) than are built, the first are "
          "taken and the others left without a word", "model_executor/layers/linear.py and parameter.py, 0.32.0", "run",
          CUT.too_long, replay=replays.CUT)  # fmt: skip
RULES.row("vllm-later-norm", "mis-read", "layers after the first read input_layernorm; their hidden_norm is unused",
          LOADERS, "run", skipped("vllm-later-norm", LATER_NORM), replay=("later norms of ones",))  # fmt: skip
RULES.row("vllm-d2t-missing", "mis-read", "without d2t, draft id i is taken for target id i",
          LOADERS, "run", checks.d2t_missing, replay=("d2t zeroed",))  # fmt: skip


@RULES.add("vllm-head-missing", "mis-read", "without lm_head the target's is shared, which has no reduced vocabulary",
           LOADERS, "run", replay=replays.MEMORY)  # fmt: skip
def _head_missing(load: SimulatedLoad) -> str | None:
    reduced = load.built.draft_vocab != load.built.vocab
    absent = load.tensor("lm_head.weight") is None and "lm_head.weight" not in load.results.packed
    return f"no lm_head, draft_vocab_size {load.built.draft_vocab}" if reduced and absent else None


@RULES.add("vllm-bias-dropped", "mis-read", "biases without their flag are skipped silently; fc and lm_head never "
           "have one", LLAMA, "run", replay=("biases dropped",))  # fmt: skip
def _biases(load: SimulatedLoad) -> str | None:
    return listed([name for name in load.results.dropped if name.endswith(".bias")])


RULES.row("vllm-bias-half", "mis-read", "attention_bias builds q, k, v and o biases, bias that of o; missing ones "
          "stay uninitialised", LLAMA, "run", checks.half_biased, replay=replays.MEMORY)  # fmt: skip


@RULES.add("vllm-taps", "mis-read", "Model Runner V2 (the GPU default) captures the top-level ids only, as boundaries",
           "v1/worker/gpu/spec_decode/eagle3_utils.py, 0.33.0", "run", replay=replays.BOUNDARIES)  # fmt: skip
def _aux_layers_v2(load: SimulatedLoad) -> str | None:
    return None if load.on_cpu else checks.other_aux_layers(captured_v2(load), load)


@RULES.add("vllm-taps-v1", "mis-read", "Model Runner V1 takes the top level, else eagle_config, both as boundaries",
           "v1/worker/gpu_model_runner.py, 0.32.0 and 0.33.0", "run", replay=replays.BOUNDARIES)  # fmt: skip
def _aux_layers_v1(load: SimulatedLoad) -> str | None:
    return checks.other_aux_layers(captured_v1(load), load) if v1_by_default(load) else None


@RULES.add("vllm-last-state", "mis-read", "use_aux_hidden_state: false leaves fc out and reads the last hidden state",
           LLAMA, "run", replay=("last state",))  # fmt: skip
def _last_state(load: SimulatedLoad) -> str | None:
    return None if load.mla else checks.last_state_only(load)


RULES.row("vllm-norm-output", "mis-read", "norm_output at the top level decides the state fed back, default false",
          LOADERS, "run", compare("feedback", "feedback"), since=(0, 22), replay=("feedback norm",))  # fmt: skip


@RULES.add("vllm-eagle31", "mis-read", "norm_output is unknown before 0.22 (PR 42764)",
           LOADERS.replace("0.33.0", "before 0.22"), "read", until=(0, 22), replay=("feedback norm",))  # fmt: skip
def _eagle31_unknown(load: SimulatedLoad) -> str | None:
    return "norm_output: true" if load.truth.feedback == "post-norm" else None


RULES.row("vllm-fusion", "mis-read", "fc_norm at the top level, norm_before_fc in eagle_config, else the top level; "
          "the MLA class has no norm_before_fc", LOADERS, "run", compare("fusion", "norm before fc"),
          replay=replays.FUSION)  # fmt: skip


@RULES.add("vllm-mla-fc-norm", "mis-read", "fc_norm is loaded for MLA drafters and not applied (fixed by PR 43482)",
           MLA.replace("0.33.0", "0.22.0"), "inferred", since=(0, 22), until=(0, 23),
           replay=("fusion norm",))  # fmt: skip
def _mla_fc_norm_unapplied(load: SimulatedLoad) -> str | None:
    return "fc_norm on an MLA drafter" if load.mla and load.truth.fusion == "fc_norm" else None


RULES.row("vllm-residual", "mis-read", "norm_before_residual defaults to false, to true in a speculators config",
          "transformers_utils/configs/speculators/algos.py, 0.33.0", "run",
          compare("norm_before_residual", "norm_before_residual"), replay=("norm before residual",))  # fmt: skip
RULES.row("vllm-rope", "mis-read", "the rotary embedding follows rope_parameters or the legacy keys; MLA interleaves",
          "model_executor/layers/rotary_embedding/__init__.py, 0.33.0", "run", checks.rope_differs,
          replay=replays.ROPE)  # fmt: skip


@RULES.add("vllm-attention-factor", "mis-read", "attention_factor of exactly 1.0 drops the MLA softmax factor",
           "model_executor/layers/rotary_embedding/__init__.py, 0.33.0", "run", replay=replays.ATTENTION)  # fmt: skip
def _attention_factor(load: SimulatedLoad) -> str | None:
    exact = load.built.rope.scaling.get("attention_factor") == 1.0
    return "attention_factor: 1.0" if load.mla and exact else None


def _indexer(load: SimulatedLoad) -> str | None:
    topk = load.config.raw("index_topk")
    return f"index_topk: {topk}" if load.mla and load.config.has("index_topk") else None


@RULES.add("vllm-indexer-cpu", "refused", "index_topk asks for sparse attention, which the CPU does not have",
           "model_executor/models/deepseek_v2.py, 0.32.0", "run")  # fmt: skip
def _indexer_on_cpu(load: SimulatedLoad) -> str | None:
    return _indexer(load) if load.on_cpu else None


@RULES.add("vllm-indexer", "mis-read", "index_topk builds a sparse-attention indexer, for which a drafter has no "
           "weights", "model_executor/models/deepseek_v2.py, 0.33.0", "inferred", replay=replays.MEMORY)  # fmt: skip
def _indexer_on_gpu(load: SimulatedLoad) -> str | None:
    return None if load.on_cpu else _indexer(load)


@RULES.add("vllm-causal", "mis-read", "is_causal must be true or absent", LLAMA, "run", replay=replays.ATTENTION)
def _not_causal(load: SimulatedLoad) -> str | None:
    return "is_causal: false" if load.config.flag("is_causal") is False else None


RULES.row("vllm-eps", "mis-read", "rms_norm_eps comes from config.json", LOADERS, "run", compare("eps", "eps"),
          replay=("rms_norm_eps",))  # fmt: skip
RULES.row("vllm-window", "mis-read", "layer_types and sliding_window make a sliding window; the MLA class has none",
          "model_executor/models/{llama,qwen3_eagle3}.py, 0.32.0", "run",
          compare("window", "sliding window"), replay=("window",))  # fmt: skip
RULES.row("vllm-joined-scales", "mis-read", "joined NVFP4 weights are multiplied under the largest weight_scale_2; "
          "the scales of their blocks stay as they are",
          f"{QUANT}/modelopt.py, 0.32.0", "read", checks.joined("joined-weight-scales", "U8"),
          replay=replays.CODES)  # fmt: skip
RULES.row("vllm-vocab", "mis-read", "a vocab_size other than the target's loads and breaks at run time",
          LOADERS, "run", checks.wrong_vocab, replay=replays.BREAKS)  # fmt: skip
