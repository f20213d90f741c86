"""Everything that can be wrong with a drafter, each with a stable code.

One row says what it is, why it costs accept length or a crash, and how to cure it; what an
engine makes of it stands with that engine, and `draftconv.engines.problems` joins the two. The
checks in `draftconv.drafter.checks` (and the readers of layouts) report `Problem`s by
code. Levels say what must be read to find it:

    config   config.json and the tensor headers
    maps     also d2t and t2d (a few hundred KB)
    sample   also a few sampled lm_head rows, and what lies beside quantized weights that engines join
    deep     every byte of every tensor (`--deep`, or `convert`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Level = Literal["config", "maps", "sample", "deep"]
LEVELS: tuple[Level, ...] = ("config", "maps", "sample", "deep")

Severity = Literal["error", "warning", "note"]
"""error: the drafter's meaning is broken or unknown, `convert` refuses it unless repaired.
warning: some reader mis-reads it, or it was trained otherwise; `convert` writes it rightly or says so.
note: harmless, listed for completeness."""


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One kind of problem."""

    severity: Severity
    level: Level
    title: str
    why: str
    cure: str
    repair: bool = False
    """`convert --repair CODE` can mend it."""
    reading: bool = False
    """It is about how the file was read, so nothing that is written cures it: every command that acts on it says so."""
    written: bool = False
    """`convert` tells it of what it writes, also where the source does not have it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem found in one drafter; `detail` names the tensor, key and values."""

    code: str
    detail: str

    @property
    def kind(self) -> ProblemKind:
        """What is known of every problem with this code."""
        return KINDS[self.code]

    @property
    def severity(self) -> Severity:
        """How much it matters; see `Severity`."""
        return self.kind.severity


KINDS: Mapping[str, ProblemKind] = {
    # ── vocabulary maps ────────────────────────────────────────────────────────────
    "d2t-absolute": ProblemKind(
        "error", "maps", "d2t holds target ids instead of offsets",
        "every engine adds the draft id to it, so drafts land on wrong or non-existent tokens",
        "convert --repair d2t-absolute subtracts the draft ids", repair=True),
    "d2t-range": ProblemKind(
        "error", "maps", "d2t leaves the target vocabulary",
        "drafts would land on tokens that do not exist",
        "rebuild d2t from the training cache; a guess would draft wrong tokens"),
    "d2t-duplicate": ProblemKind(
        "error", "maps", "d2t maps two draft ids to one target token",
        "one of the two logits is lost in the scatter, and some target tokens are out of reach",
        "rebuild d2t from the training cache"),
    "d2t-t2d-mismatch": ProblemKind(
        "error", "maps", "d2t and t2d describe different vocabularies",
        "the trainer reads t2d and the engine d2t, so training and serving disagree",
        "find out which is right; convert --repair d2t-t2d-mismatch keeps d2t and rebuilds t2d", repair=True),
    "d2t-zeros": ProblemKind(
        "warning", "maps", "d2t of a reduced vocabulary is all zeros",
        "draft ids are then the first target ids: Quark writes zeros until a map is set, and a head that was trained "
        "on other tokens drafts wrong ones",
        "find the map that the drafter was trained with; if the first ids were meant, nothing is wrong"),
    "d2t-missing": ProblemKind(
        "error", "config", "reduced vocabulary without d2t",
        "which target tokens the rows of lm_head stand for is lost",
        "find the d2t of this export (ModelOpt's Megatron export loses it; TorchSpec drops it "
        "from raw checkpoints)"),
    "d2t-on-full-vocab": ProblemKind(
        "warning", "maps", "d2t although the head covers the whole vocabulary",
        "draft ids are target ids already, and not every reader has a place for a map then",
        "convert drops an identity map"),
    "d2t-dtype": ProblemKind(
        "error", "maps", "d2t is not an integer tensor",
        "a blanket cast has been over the checkpoint; half-precision floats cannot hold ids above 2048",
        "convert --repair d2t-dtype restores int64 when every value is integral and the map is valid",
        repair=True),
    "d2t-rounded": ProblemKind(
        "error", "maps", "d2t has been rounded to a half-precision float",
        "every large offset has only 8 (BF16) or 11 (F16) significant bits left, so most drafts land on a "
        "neighbouring token",
        "rebuild d2t from t2d or from the training cache"),
    "head-pruned-by-offset": ProblemKind(
        "error", "sample", "lm_head rows were gathered with offsets instead of target ids",
        "TorchSpec's post-training pruning does this: rows with equal d2t are bit-identical, "
        "so almost every draft token has a wrong row",
        "convert --repair head-pruned-by-offset=UNPRUNED rebuilds the rows from the unpruned drafter",
        repair=True),
    "head-rows": ProblemKind(
        "error", "config", "lm_head, d2t and draft_vocab_size disagree",
        "the rows of lm_head are the draft vocabulary; every engine sizes it from draft_vocab_size",
        "correct draft_vocab_size or restore the matching tensors"),
    # ── norms and fusion ───────────────────────────────────────────────────────────
    "norm-without-flag": ProblemKind(
        "error", "config", "norm tensors without the flag that applies them",
        "the norms were trained and would not be applied",
        "convert --repair norm-without-flag sets the flag", repair=True),
    "flag-without-norm": ProblemKind(
        "error", "config", "a norm flag is set and its tensors are missing",
        "the norm would be applied with weights that nobody trained",
        "restore the tensors, or remove the flag if the drafter was trained without it"),
    "both-fusion-norms": ProblemKind(
        "error", "config", "fc_norm and norm_before_fc at once",
        "no trainer writes both, and engines differ in what they apply",
        "find out which one was trained and remove the other"),
    "norm-output-specforge": ProblemKind(
        "warning", "config", "norm_output in SpecForge's sense",
        "SpecForge (since 2026-07-19) means `final norm before the head` and always feeds back the "
        "pre-norm state; every engine reads it as post-norm feedback",
        "convert writes norm_output: false", reading=True),
    "feedback-contradiction": ProblemKind(
        "error", "config", "norm_output and return_hidden_post_norm contradict each other",
        "engines differ in which of them they read; the wrong state fed back costs a third of acceptance",
        "leave the one that was trained"),
    "final-norm-off": ProblemKind(
        "error", "config", "trained without the final norm",
        "SpecForge's norm_output: false skips the norm before lm_head; every engine applies it",
        "no engine serves this drafter; retrain with norm_output: true"),
    "double-norm": ProblemKind(
        "warning", "config", "trained with a double normalisation that no engine applies",
        "ModelOpt 0.41-0.47 trains hidden_norm(input_layernorm(s)); engines compute hidden_norm(s), for the published "
        "figures too",
        "serve as it is; convert --repair double-norm approximates it, to be judged by accept length",
        repair=True),
    # ── sizes and tensors ──────────────────────────────────────────────────────────
    "fc-width": ProblemKind(
        "error", "config", "fc does not fit the captured layers",
        "its input must be (number of captured layers) x target hidden size",
        "correct the ids, num_aux_hidden_states or target_hidden_size"),
    "tensor-missing": ProblemKind(
        "error", "config", "tensors that the forward pass needs are missing",
        "loaders seldom report it, and go on with weights that nobody trained",
        "export the drafter again"),
    "tensor-unexpected": ProblemKind(
        "error", "config", "tensors that belong to no EAGLE-3 drafter of this kind",
        "no drafter of this kind computes with them",
        "if they are leftovers, convert --repair tensor-unexpected drops and records them", repair=True),
    "tensor-stale": ProblemKind(
        "warning", "config", "leftovers of training",
        "nothing reads them",
        "convert drops and records them"),
    "weights-stray": ProblemKind(
        "warning", "config", "weight files beside the ones that were read",
        "engines load every *.safetensors of a directory without an index, so a second file overwrites tensors",
        "remove the file, or write the index; convert writes what was read"),
    "tensor-shape": ProblemKind(
        "error", "config", "a tensor's shape contradicts the others or config.json",
        "engines build the module from config.json and stop, or slice the wrong rows",
        "correct the config key named, or export again"),
    "tensor-dtype": ProblemKind(
        "error", "config", "a weight is stored in a dtype that no drafter uses unquantized",
        "it would be cast value by value into the model's dtype",
        "quantized files need their quantization_config; otherwise export again in BF16"),
    "weights-misdeclared": ProblemKind(
        "warning", "config", "the quantized weights are not stored as config.json says",
        "engines go by config.json: they stop, or multiply by values and scales that are not there",
        "convert --pack writes the same integers with a config that fits, where the tensors tell what they are"),
    "joined-weight-scales": ProblemKind(
        "warning", "sample", "weights that engines join have different weight_scale_2",
        "what is joined is multiplied under one scale, which is right for one of them only",
        "quantize the 16-bit drafter again (`draftconv quantize` gives joined weights one), or convert --dequantize"),
    "joined-fp8-scales": ProblemKind(
        "warning", "sample", "FP8 weights that engines join have different scales",
        "engines round the quantized values once more, under the largest",
        "quantize the 16-bit drafter again (`draftconv quantize` gives joined weights one scale)"),
    "joined-input-scales": ProblemKind(
        "warning", "sample", "weights that engines join have different input_scale",
        "they are fed the same inputs, which are rounded under one scale",
        "calibrate again: `draftconv quantize --calibrate` measures one for all"),
    "joined-smoothing": ProblemKind(
        "warning", "sample", "pre_quant_scale of weights that engines join",
        "each weight was divided by its own, and what is joined is fed the same inputs",
        "convert --dequantize, or quantize the 16-bit drafter again"),
    "name-prefix": ProblemKind(
        "warning", "config", "tensor names carry a prefix",
        "loaders put a prefix of their own before names, or know bare ones only",
        "convert writes bare names"),
    "dtype-mixed": ProblemKind(
        "note", "config", "float tensors of several dtypes",
        "engines cast all of them to the model's dtype on load; config.json names one at most",
        "convert --dtype bfloat16 makes them uniform"),
    "not-finite": ProblemKind(
        "error", "deep", "NaN or infinity in a tensor",
        "one such value turns every logit into NaN",
        "export again; check training for overflow in float16"),
    "all-zero": ProblemKind(
        "error", "deep", "a tensor is all zeros",
        "a weight that was never saved or loaded (an empty shard under ZeRO-3, a hole in a sparse file)",
        "export again"),
    "embedding-differs": ProblemKind(
        "warning", "deep", "embed_tokens differ from the target's",
        "engines differ in which of the two tables they use",
        "serve with an engine that keeps the drafter's own, or accept the target's table and measure"),
    "embedding-random": ProblemKind(
        "warning", "deep", "embed_tokens look drawn at random, as if they had never been loaded",
        "a table that was never filled with the target's tells the drafter nothing of a token (TorchSpec has exported "
        "such ones)",
        "convert --embed from-target --target DIRECTORY attaches the target's table; judge it by accept length"),
    # ── config keys ────────────────────────────────────────────────────────────────
    "rope-contradiction": ProblemKind(
        "error", "config", "rope spellings contradict each other",
        "engines read different ones, so positions would rotate differently in each",
        "leave one spelling in config.json; convert then writes all of them alike"),
    "rope-injected": ProblemKind(
        "warning", "config", "YaRN injected at export, without mscale keys",
        "ModelOpt adds it to a drafter trained with plain rope",
        "convert --repair rope-injected restores the trained plain rope", repair=True),
    "rope-base-untrained": ProblemKind(
        "warning", "config", "rope_theta is not the base that its trainer turns by",
        "AngelSlim's training class turns by 10000 whatever rope_theta says (0.5.0, run), its own inference class and "
        "every engine by rope_theta",
        "convert --repair rope-base-untrained writes the trained base; judge both by accept length", repair=True,
        reading=True),
    "softmax-scale-untrained": ProblemKind(
        "warning", "config", "trained without YaRN's softmax factor",
        "Automodel's MLA class leaves it out (0.7.0, run), and every engine multiplies the softmax scale by "
        "(0.1 mscale_all_dim ln(factor) + 1) squared",
        "no config says it to every engine; judge by accept length", reading=True),
    "rope-mscale-missing": ProblemKind(
        "warning", "config", "YaRN without mscale and mscale_all_dim",
        "Llama-style: engines multiply cos and sin by 0.1 ln(factor) + 1; MLA: the softmax factor is lost. "
        "TorchSpec and Kimi train with both keys at 1",
        "add the two keys as trained; draftconv will not guess them"),
    "rope-attention-factor": ProblemKind(
        "warning", "config", "attention_factor in the rope scaling",
        "engines differ in whether they read it",
        "remove it and keep mscale and mscale_all_dim"),
    "positions-short": ProblemKind(
        "warning", "config", "max_position_embeddings below the target's",
        "the target goes on where the drafter has no positions",
        "convert --target T raises it to the target's, --max-positions N sets it"),
    "model-type-mtp": ProblemKind(
        "warning", "config", "model_type that stands for a multi-token-prediction class",
        "a reader that goes by it builds something else than the drafter",
        "convert writes kimi_k2"),
    "config-null": ProblemKind(
        "warning", "config", "keys with the value null",
        "some readers test for presence only, and go on with nothing",
        "convert writes no nulls"),
    "routed-experts-null": ProblemKind(
        "warning", "config", "n_routed_experts is null",
        "transformers 5 rejects it",
        "convert leaves the key out"),
    "draft-vocab-missing": ProblemKind(
        "warning", "config", "draft_vocab_size is missing",
        "how many rows lm_head has is left to each reader's default",
        "convert writes it"),
    "head-dim-missing": ProblemKind(
        "warning", "config", "head_dim is missing and differs from hidden_size / heads",
        "engines compute hidden_size / heads and stop on the shapes",
        "convert writes it"),
    "layers-config": ProblemKind(
        "note", "config", "num_hidden_layers is not the number of layers stored",
        "most trainers build one layer whatever the config says; engines build what it says",
        "convert writes the number of layers stored"),
    "tied-flag": ProblemKind(
        "warning", "config", "tie_word_embeddings is true although lm_head is stored",
        "the trained head would not be used",
        "convert writes false"),
    "auto-map": ProblemKind(
        "warning", "config", "auto_map asks for remote code",
        "nothing in a drafter needs it",
        "convert never writes it"),
    "verifier-unnamed": ProblemKind(
        "warning", "config", "verifier.name_or_path names no target",
        "speculators opens the target by it to train the drafter further, and a server that is given the drafter alone "
        "takes it from there; an empty name stops speculators 0.9.0 from opening the drafter at all",
        "convert --to speculators --verifier NAME, with a Hub id or a directory", written=True),
    "torchspec-older": ProblemKind(
        "note", "config", "TorchSpec before 2026-05-12 does not take this drafter",
        "it had three captured states and no EAGLE-3.1: num_aux_hidden_states, fc_norm and norm_output are read since "
        "its pull request 97; before, other tensors stop it (6f21829 of 2026-04-28, run) and norm_output goes unread",
        "train it further with a TorchSpec of that day or later", written=True),
    "vocab-target": ProblemKind(
        "error", "config", "vocab_size is not the target's",
        "ids of the one are not ids of the other",
        "this is the wrong target, or the wrong vocab_size"),
    "hidden-target": ProblemKind(
        "error", "config", "the captured states are not as wide as the target's",
        "fc cannot take this target's hidden states",
        "this is the wrong target, or target_hidden_size is wrong"),
    # ── readings ───────────────────────────────────────────────────────────────────
    "reading-doubtful": ProblemKind(
        "warning", "config", "the file can be read in several ways that fit alike",
        "producers use the same keys for other layers and another feedback, and the wrong reading costs accept length "
        "without a message",
        "say which with --from or --aux-convention; commands that act on it stop until then, or go on as detected "
        "with --accept-detected", reading=True),
    # ── captured layers ────────────────────────────────────────────────────────────
    "aux-contradiction": ProblemKind(
        "error", "config", "layer ids at the top level and in eagle_config name different layers",
        "each engine reads one of the two",
        "leave the right one in config.json, or say with --from LAYOUT whose it is"),
    "aux-order": ProblemKind(
        "error", "config", "layer ids are unsorted, repeated or outside the target",
        "engines hand the states over in ascending order whatever the list says; a duplicate loses a state",
        "list distinct layers in ascending order, in the order fc was trained on"),
    "aux-unknown": ProblemKind(
        "error", "config", "the captured layers cannot be told from the file",
        "a convention wrong by one layer costs accept length without a message",
        "give --aux-convention before|after, --from LAYOUT or --target"),
    "aux-other-triple": ProblemKind(
        "warning", "config", "layer ids equal the default triple of the other convention",
        "by this layout's convention every state lies one layer off the usual ones",
        "if the file was renamed by hand, say --aux-convention before or after", reading=True),
    "aux-default-off": ProblemKind(
        "warning", "config", "no layer ids, and the default triple does not fit the head",
        "engines capture three layers when told nothing",
        "find the ids the drafter was trained with"),
}  # fmt: skip
