"""What loads in SGLang and computes something else than was trained."""

from __future__ import annotations

from draftconv.checkpoint.dtypes import FLOATS
from draftconv.drafter.boundaries import IDS
from draftconv.engines import checks, replays
from draftconv.engines.checks import compare, listed, skipped
from draftconv.engines.module_names import ROW
from draftconv.engines.quantization_mismatch import mismatch, mismatches
from draftconv.engines.rules import Rules, SimulatedLoad
from draftconv.engines.sglang import quantized_loading
from draftconv.engines.sglang.aux_layers import captured, lone_state
from draftconv.engines.sglang.loading import CLASSES, CUT, SKIPPED, architecture, target_head
from draftconv.engines.sglang.refusals import draft_vocab_absent, in_words
from draftconv.engines.sglang.sources import BOTH, CAPTURE, LLAMA, MATCHED, MLA, QUANT

RULES = Rules()


RULES.row("sglang-not-excluded", "mis-read", "a linear that no list excludes by its runtime name is built quantized; "
          "a plain tensor is dropped silently, or cast to 8 bits",
          MATCHED, "run", mismatch("not excluded", "packed", "bytes"), replay=replays.MEMORY)  # fmt: skip
RULES.row("sglang-excluded", "mis-read", "a linear that is not matched by its runtime name is built plain; packed "
          "tensors are dropped silently, 8-bit ones are read without their scales",
          MATCHED, "run", mismatch("excluded", "packed", "bytes"), replay=replays.MEMORY)  # fmt: skip


@RULES.add("sglang-packed-undeclared", "mis-read", "without a quantization_config packed weights are dropped and their "
           "linears stay uninitialised; 8-bit ones are read without their scales", BOTH, "run",
           replay=replays.MEMORY)  # fmt: skip
def _packed_undeclared(load: SimulatedLoad) -> str | None:
    undeclared = quantized_loading.undeclared(load) and not quantized_loading.in_words(load)
    return "quantized weights without quantization_config" if undeclared else None


RULES.row("sglang-torn-silent", "mis-read", "of projections that are joined into one linear, those that are stored "
          "otherwise than it is built are dropped, or cast to 8 bits", MATCHED, "run",
          mismatch("torn", "packed", "bytes"), replay=replays.CODES)  # fmt: skip
RULES.row("sglang-scales-cut", "mis-read", "of what is longer than is built the first part is taken, shorter gate, up, "
          "o and down are filled up with zeros, and what is stored in another dtype is cast",
          "srt/layers/{linear,parameter}.py, 0.5.23", "run",
          quantized_loading.changed, replay=replays.CUT)  # fmt: skip
RULES.row("sglang-fc-coded", "mis-read", "fc is a plain linear in the Llama class: 8-bit codes are read as the weights",
          LLAMA, "run", quantized_loading.fc_coded, replay=replays.CODES)  # fmt: skip
RULES.row("sglang-scales-missing", "mis-read", "scales, zero points and orders of inputs that are declared and not "
          "found stay as they were made", "srt/layers/{linear,parameter}.py, 0.5.23", "run",
          quantized_loading.unfilled, replay=replays.MEMORY)  # fmt: skip
RULES.row("sglang-order-dropped", "mis-read", "an order of inputs that is stored and not declared (actorder: group) is "
          "dropped", f"{QUANT}/compressed_tensors, 0.5.23", "run", quantized_loading.unordered,
          replay=replays.CODES)  # fmt: skip


@RULES.add("sglang-words-cut", "mis-read", "o and down whose lists say otherwise than they are stored: halved words "
           "are filled up with zeros and taken for weights, weights are cut and taken for words",
           MATCHED, "run", replay=replays.CUT)  # fmt: skip
def _words_cut(load: SimulatedLoad) -> str | None:
    return listed([str(clash) for clash in mismatches(load) if in_words(clash) and clash.module.kind == ROW])


RULES.row("sglang-missing-tensor", "mis-read", "missing tensors are not reported; the module keeps uninitialised "
          "memory", BOTH, "run", checks.missing_tensors, replay=replays.MEMORY)  # fmt: skip


RULES.row("sglang-padded", "mis-read", "o, gate, up and down are filled up with zeros where they are shorter than is "
          "built; an MLP that is short as a whole computes the same", "srt/layers/linear.py, 0.5.23", "run",
          CUT.too_short, replay=replays.CUT)  # fmt: skip


@RULES.add("sglang-class-unfilled", "mis-read", "the Llama class takes an MLA drafter: what it finds no name for is "
           "dropped, and its own q, k and v stay uninitialised", LLAMA, "run", replay=replays.MEMORY)  # fmt: skip
def _class_unfilled(load: SimulatedLoad) -> str | None:
    return checks.wrong_kind(load, CLASSES.get(architecture(load.config))) if load.mla else None


RULES.row("sglang-cut", "mis-read", "of a projection with more rows (o and down: columns) than are built, the first "
          "are taken and the others left without a word", "srt/layers/linear.py and parameter.py, 0.5.23", "run",
          CUT.too_long, replay=replays.CUT)  # fmt: skip
RULES.row("sglang-prefix", "mis-read", "the MLA class prepends `model.` itself and drops names that have it (the "
          "Llama class knows both, but not model.lm_head)", MLA, "run", skipped("sglang-prefix", SKIPPED),
          replay=replays.MEMORY)  # fmt: skip
RULES.row("sglang-dropped", "mis-read", "a tensor whose name is not looked for is dropped silently",
          BOTH, "run", skipped("sglang-dropped", SKIPPED), replay=replays.MEMORY)  # fmt: skip
RULES.row("sglang-qkv-bias", "mis-read", "q, k and v never have biases, whatever attention_bias says",
          LLAMA, "run", skipped("sglang-qkv-bias", SKIPPED), replay=("biases dropped",))  # fmt: skip
RULES.row("sglang-qk-norm", "mis-read", "there is no q_norm and k_norm",
          LLAMA, "run", skipped("sglang-qk-norm", SKIPPED), replay=("q and k norms",))  # fmt: skip
RULES.row("sglang-mlp-bias", "mis-read", "the MLP never has biases", LLAMA, "run", skipped("sglang-mlp-bias", SKIPPED),
          replay=("biases dropped",))  # fmt: skip
RULES.row("sglang-bias", "mis-read", "o_proj has a bias with attention_bias or bias, fc with bias; else it is dropped",
          BOTH, "run", skipped("sglang-bias", SKIPPED), replay=("biases dropped",))  # fmt: skip
RULES.row("sglang-bias-half", "mis-read", "attention_bias and bias build an o_proj bias; a missing one stays "
          "uninitialised", LLAMA, "run", checks.half_biased, replay=replays.MEMORY)  # fmt: skip
RULES.row("sglang-later-norm", "mis-read", "layers after the first call their norm hidden_norm; input_layernorm is "
          "dropped", LLAMA, "run", skipped("sglang-later-norm", SKIPPED), replay=("later norms of ones",))  # fmt: skip
RULES.row("sglang-d2t-missing", "mis-read", "without d2t, draft id i is taken for target id i",
          "srt/speculative/eagle_worker.py, 0.5.23", "run", checks.d2t_missing, replay=("d2t zeroed",))  # fmt: skip


RULES.row("sglang-d2t-values", "mis-read", "d2t is added to the draft ids as it is stored, whatever it holds",
          BOTH, "run", checks.wrong_map, replay=("d2t absolute",))  # fmt: skip


@RULES.add("sglang-d2t-dtype", "mis-read", "d2t is added to the draft ids in its own dtype: of floats, drafted tokens "
           "are floats too, and so are those of the answer", BOTH, "run", replay=replays.BREAKS)  # fmt: skip
def _float_map(load: SimulatedLoad) -> str | None:
    stored = load.tensor("d2t")
    return f"d2t is {stored.dtype}" if stored is not None and stored.dtype in FLOATS else None


@RULES.add("sglang-head", "mis-read", "a null draft_vocab_size (in the MLA class also an absent one) puts the "
           "target's head in place of the trained one", BOTH, "run", replay=("target's head",))  # fmt: skip
def _head_replaced(load: SimulatedLoad) -> str | None:
    if not load.truth.own_head or not target_head(load.config) or draft_vocab_absent(load):
        return None
    return f"draft_vocab_size is {'null' if load.config.has('draft_vocab_size') else 'absent'}, lm_head is stored"


RULES.row("sglang-tied", "mis-read", "tie_word_embeddings makes the shared embedding the head",
          BOTH, "run", checks.tied, replay=("tied head",))  # fmt: skip
RULES.row("sglang-embedding-lost", "mis-read", "the target's embedding always replaces one of equal width",
          BOTH, "run", checks.embedding_lost, replay=("target's embedding",))  # fmt: skip


@RULES.add("sglang-taps", "mis-read", "ids are read from eagle_config only, and numbered per target family",
           CAPTURE, "run", replay=replays.BOUNDARIES)  # fmt: skip
def _aux_layers(load: SimulatedLoad) -> str | None:
    problem = checks.other_aux_layers(captured(load), load)
    if lone_state(load):
        problem = f"captures {checks.shown(captured(load))}, trained on {checks.shown(load.trained)}"
    top_only = load.config.integers(IDS) and not load.eagle.integers(IDS)
    return f"{problem} (ids at the top level are not read)" if problem and top_only else problem


@RULES.add("sglang-lone-state", "mis-read", "one captured state of the drafter's own width is taken for a fed-back "
           "one, and fc is left out", LLAMA, "run", replay=("fc left out",))  # fmt: skip
def _lone_state(load: SimulatedLoad) -> str | None:
    return f"captures {checks.shown(captured(load))}" if lone_state(load) else None


RULES.row("sglang-last-state", "mis-read", "use_aux_hidden_state: false hands over the last hidden state only",
          "srt/model_executor/model_runner.py, 0.5.23", "run", checks.last_state_only,
          replay=("last state",))  # fmt: skip
RULES.row("sglang-norm-output", "mis-read", "norm_output at the top level decides the state fed back, default false",
          BOTH, "run", compare("feedback", "feedback"), replay=("feedback norm",))  # fmt: skip
RULES.row("sglang-fusion", "mis-read", "fc_norm (or use_aux_norm) at the top level, norm_before_fc in eagle_config, "
          "else the top level; without the flag the tensors are dropped, and the MLA class has no norm_before_fc",
          BOTH, "run", compare("fusion", "norm before fc"), replay=replays.FUSION)  # fmt: skip
RULES.row("sglang-residual", "mis-read", "norm_before_residual is never read; the raw state is added",
          BOTH, "run", compare("norm_before_residual", "norm_before_residual"),
          replay=("norm before residual",))  # fmt: skip
RULES.row("sglang-rope", "mis-read", "the rotary embedding follows rope_parameters or the legacy keys; MLA "
          "interleaves unless rope_interleave is false",
          "srt/layers/rotary_embedding, srt/models/deepseek_v2.py, 0.5.23", "run", checks.rope_differs,
          replay=replays.ROPE)  # fmt: skip
RULES.row("sglang-eps", "mis-read", "rms_norm_eps comes from config.json", BOTH, "run", compare("eps", "eps"),
          replay=("rms_norm_eps",))  # fmt: skip
RULES.row("sglang-window", "mis-read", "no sliding window is read from config.json",
          BOTH, "run", compare("window", "sliding window"), replay=("window",))  # fmt: skip
RULES.row("sglang-joined-scales", "mis-read", "joined NVFP4 weights are multiplied under the largest weight_scale_2; "
          "the scales of their blocks stay as they are",
          f"{QUANT}/modelopt_quant.py, 0.5.23", "run", checks.joined("joined-weight-scales", "U8"),
          replay=replays.CODES)  # fmt: skip
RULES.row("sglang-vocab", "mis-read", "vocab_size must be the target's: its embedding is put in",
          BOTH, "run", checks.wrong_vocab, replay=replays.BREAKS)  # fmt: skip
