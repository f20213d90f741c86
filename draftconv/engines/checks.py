"""Checks that several engines share, and the words their findings are told in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from draftconv.checkpoint import QUANT_FILE, show_some
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Mla, Taps
from draftconv.drafter.problems import KINDS
from draftconv.engines.base import Check, Reading
from draftconv.engines.building import defaults
from draftconv.engines.loading import Causes, cause

Boundaries = tuple[int, ...] | Taps

TRANSFORMERS_TYPES = frozenset({
    "apertus", "bailing_moe", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "exaone4", "gemma", "gemma2",
    "gemma3_text", "glm", "glm4", "glm4_moe", "gpt_oss", "granite", "granitemoe", "internlm3", "llama",
    "llama4_text", "minimax", "mistral", "mixtral", "nemotron", "olmo2", "olmo3", "phi", "phi3", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "starcoder2",
})  # fmt: skip
"""model_types of language models in transformers 5.19; not all of them."""


def listed(items: Sequence[str]) -> str | None:
    """The first few of some findings, or None when there are none."""
    return show_some(items) if items else None


def misfits(reading: Reading) -> str | None:
    """Tensors of another shape than the engine builds from config.json."""
    return listed([reading.misfit(name) for name in reading.misshapen])


# ── facts ──────────────────────────────────────────────────────────────────────────


def compare(fact: str, name: str) -> Check:
    """A check that one fact is built as it was trained."""

    def check(reading: Reading) -> str | None:
        built, truth = getattr(reading.built, fact), getattr(reading.truth, fact)
        return None if built == truth else f"{name}: built as {built}, trained as {truth}"

    return check


def rope_differs(reading: Reading) -> str | None:
    """A rotary embedding built otherwise than it was trained, part by part."""
    built, truth = reading.built.rope, reading.truth.rope
    pairs = [(part, getattr(built, part), getattr(truth, part)) for part in ("theta", "pairs", "kind", "scaling")]
    return listed([f"{part}: built as {b}, trained as {t}" for part, b, t in pairs if b != t])


def double_norm(reading: Reading) -> str | None:
    """A drafter of ModelOpt 0.41-0.47, which normalised the state twice."""
    return "trained as hidden_norm(input_layernorm(state))" if reading.truth.double_norm else None


def other_activation(reading: Reading) -> str | None:
    """A hidden_act other than silu."""
    found = reading.built.activation
    return None if found == "silu" else f"hidden_act: {found}"


def plain_query(reading: Reading) -> str | None:
    """An MLA query without compression, in the file or in config.json."""
    attentions = (reading.built.attention, reading.truth.attention)
    plain = any(isinstance(attention, Mla) and attention.q_lora is None for attention in attentions)
    return "q_lora_rank is null" if plain else None


# ── config keys ────────────────────────────────────────────────────────────────────


def null_keys(*keys: str) -> Check:
    """A check that none of these keys is present with the value null."""

    def check(reading: Reading) -> str | None:
        data = reading.view.config
        return listed([f"{key}: null" for key in keys if key in data and data[key] is None])

    return check


def tied(reading: Reading) -> str | None:
    """tie_word_embeddings, as the target's config may have left it."""
    return "tie_word_embeddings: true" if reading.config.flag("tie_word_embeddings") else None


def null_experts(reading: Reading) -> str | None:
    """n_routed_experts: null, where the config becomes one of transformers' DeepSeek classes."""
    deepseek = reading.model_type.startswith(("deepseek", "kimi", "glm_moe_dsa"))
    return null_keys("n_routed_experts")(reading) if deepseek else None


def last_state_only(reading: Reading) -> str | None:
    """A config that asks for EAGLE-1's input, the last hidden state."""
    off = reading.eagle.flag("use_aux_hidden_state") is False
    return "eagle_config.use_aux_hidden_state: false" if off else None


def unusual_norms(reading: Reading) -> str | None:
    """Norm switches of ModelOpt's training that no engine reads, away from what engines compute."""
    usual = {"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False}
    found = {key: reading.eagle.flag(key) for key in usual}
    return listed([
        f"{key}: {str(value).lower()}" for key, value in found.items() if value is not None and value is not usual[key]
    ])  # fmt: skip


def unresolved_type(reading: Reading) -> str | None:
    """A config that transformers' AutoConfig cannot turn into a class."""
    if not reading.config.has("model_type"):
        layout = " (a speculators config)" if reading.config.has("speculators_config") else ""
        return f"no model_type{layout}"
    return f"model_type: {reading.model_type}" if reading.model_type in ("", "eagle", "eagle3") else None


def unknown_type(*more: str) -> Check:
    """A model_type that is neither in the table of transformers' nor one that the engine adds."""

    def check(reading: Reading) -> str | None:
        known = reading.model_type in TRANSFORMERS_TYPES or reading.model_type in more
        return None if known or unresolved_type(reading) else f"model_type: {reading.model_type}"

    return check


# ── against the target ─────────────────────────────────────────────────────────────


def short_rotary(reading: Reading) -> str | None:
    """max_position_embeddings, or its class default, below the target's."""
    target = reading.target
    limit, absent = positions(reading)
    if target and target.max_positions and limit < target.max_positions:
        return f"max_position_embeddings is {limit}{absent}, {target.name} has {target.max_positions}"
    return None


def positions(reading: Reading) -> tuple[int, str]:
    """max_position_embeddings as built, and a remark when it is a class default."""
    written = reading.config.size("max_position_embeddings")
    if written is not None:
        return written, ""
    return defaults(reading.config, mla=reading.mla)["max_position_embeddings"], " (absent)"


def wrong_vocab(reading: Reading) -> str | None:
    """A vocab_size that is not the target's."""
    target = reading.target
    if target and target.vocab and target.vocab != reading.built.vocab:
        return f"vocab_size {reading.built.vocab}, {target.name} has {target.vocab}"
    return None


def wrong_width(reading: Reading) -> str | None:
    """An fc built for states of another width than the target's."""
    target = reading.target
    if target and target.hidden and target.hidden != reading.built.target_hidden:
        return f"fc is built for states of {reading.built.target_hidden}, those of {target.name} are {target.hidden}"
    return None


# ── captured layers ────────────────────────────────────────────────────────────────


def open_taps(captured: Boundaries, trained: Boundaries) -> bool:
    """True when it cannot be told whether the same layers are captured as were trained on."""
    if Taps.UNKNOWN in (captured, trained):
        return True
    return (captured is Taps.DEFAULT) != (trained is Taps.DEFAULT)


def other_taps(captured: Boundaries, reading: Reading) -> str | None:
    """Other layers captured than trained on; a wrong number of them is `wrong_count`."""
    trained = reading.trained
    if open_taps(captured, trained) or captured == trained or wrong_count(captured, reading):
        return None
    return f"captures {shown(captured)}, trained on {shown(trained)}"


def wrong_count(captured: Boundaries, reading: Reading) -> str | None:
    """States that do not fill the fc that was built for them."""
    if isinstance(captured, Taps) or len(captured) == reading.built.aux:
        return None
    return f"captures {shown(captured)}, fc is built for {reading.built.aux} states"


def zero_boundary(captured: Boundaries, reading: Reading) -> str | None:
    """Boundary 0 on a target whose loop has no residual stream before its first layer."""
    target = reading.target
    if target is None or target.family != "deepseek" or isinstance(captured, Taps) or 0 not in captured:
        return None
    return f"{list(captured)} on {target.name}"


def shown(boundaries: Boundaries) -> str:
    """Boundaries in the words of a finding."""
    match boundaries:
        case Taps.DEFAULT:
            return "the default triple"
        case Taps.UNKNOWN:
            return "unknown layers"
        case numbers:
            return str(list(numbers))


UNKNOWN_TAPS = "the layers it was trained on are unknown; give --aux-convention or --from"


# ── tensors that reach no module, modules that get no tensor ─────────────────────────


def skipped(code: str, causes: Causes) -> Check:
    """Needed tensors that the loader skips for the cause `code`; for any other cause if it is in no row.

    Where the module is built only its name can be the cause (`Reading.misnamed`).
    """

    def check(reading: Reading) -> str | None:
        others = {row for row, _ in causes}
        found = []
        for part, name in reading.lost.items():
            why = cause(name, reading.misnamed if part in reading.wanted else causes)
            unnamed = why is None and part not in reading.wanted and code not in others
            if why == code or unnamed:
                found.append(name)
        return listed(found)

    return check


def ignored(reading: Reading) -> str | None:
    """Tensors that the loader skips and the forward pass does not need, t2d and rotary tables aside."""
    needless = re.compile(r"t2d|d2t|rotary_emb|embed_tokens")
    lost = set(reading.lost.values())
    return listed([name for name in reading.fates.dropped if name not in lost and not needless.search(name)])


def own_embedding(reading: Reading) -> bool:
    """A stored embedding of the target's width, which an engine may replace by the target's."""
    return reading.truth.own_embedding and reading.built.target_hidden == reading.built.hidden


def embedding_replaced(reading: Reading) -> str | None:
    """A stored embedding that gives way to the target's, not known to differ from it."""
    stored = own_embedding(reading) and "embedding-differs" not in reading.known
    return "embed_tokens is stored" if stored else None


def embedding_lost(reading: Reading) -> str | None:
    """A stored embedding that gives way to the target's and is known to differ (`inspect --deep`)."""
    differs = own_embedding(reading) and "embedding-differs" in reading.known
    return "embed_tokens differs from the target's" if differs else None


def half_biased(reading: Reading) -> str | None:
    """Biases of projections that a flag builds and the file does not hold."""
    return listed([reading.gap(name) for name in reading.missing if name.endswith("_proj.bias")])


def missing_tensors(reading: Reading) -> str | None:
    """Tensors that are built and not stored, but for those with rules of their own: d2t, and biases of one flag."""
    return listed([reading.gap(name) for name in reading.missing if not name.endswith(("d2t", "_proj.bias"))])


def d2t_missing(reading: Reading) -> str | None:
    """A reduced vocabulary whose map the engine gets from nowhere."""
    if "d2t" not in reading.missing:
        return None
    return reading.gap("d2t") if "d2t" in reading.unplaced else "draft_vocab_size is smaller than vocab_size"


def joined(code: str, *dtypes: str) -> Check:
    """A check for a problem of the values beside joined weights, where weights are stored in one of these dtypes."""

    def check(reading: Reading) -> str | None:
        stored = {ref.dtype for name, ref in reading.view.tensors.items() if name.endswith(".weight")}
        return KINDS[code].title if code in reading.known and stored & set(dtypes) else None

    return check


joined_fp8 = joined("joined-fp8-scales", "F8_E4M3")
"""FP8 weights that are joined and have a scale each."""


# ── classes ────────────────────────────────────────────────────────────────────────


def wrong_kind(reading: Reading, kind: str | None) -> str | None:
    """An architecture that builds the other kind of attention; `kind` None: it is not registered at all."""
    if kind is None or (kind == "mla") == reading.mla:
        return None
    return f"{reading.architecture or reading.model_type} builds {'MLA' if kind == 'mla' else 'Llama-style'} attention"


# ── quantization ───────────────────────────────────────────────────────────────────


def undeclared_packed(reading: Reading) -> str | None:
    """Quantized tensors that neither config.json nor hf_quant_config.json describes."""
    if not reading.truth.quantization or reading.config.section("quantization_config").data:
        return None
    return None if reading.view.sidecars.get(QUANT_FILE) else "packed weights without quantization_config"


def quant_method(reading: Reading) -> str:
    """quantization_config.quant_method, or "" when absent."""
    return reading.config.section("quantization_config").text("quant_method") or ""


def quark_int4(reading: Reading) -> Config | None:
    """The weight section of a Quark INT4 declaration."""
    section = reading.config.section("quantization_config").section("global_quant_config").section("weight")
    int4 = quant_method(reading) == "quark" and section.text("dtype") in ("int4", "uint4")
    return section if int4 else None


def modelopt_algorithm(reading: Reading) -> str | None:
    """quant_algo of a ModelOpt declaration, from the legacy file or from config.json."""
    legacy = Config(reading.view.sidecars.get(QUANT_FILE, {}), QUANT_FILE).section("quantization")
    return legacy.text("quant_algo") or reading.config.section("quantization_config").text("quant_algo")


def unknown_algorithm(known: frozenset[str]) -> Check:
    """A check that ModelOpt's quant_algo is one that the engine knows."""

    def check(reading: Reading) -> str | None:
        algorithm = modelopt_algorithm(reading)
        return f"quant_algo: {algorithm}" if algorithm and algorithm not in known else None

    return check


def compressed_groups(reading: Reading) -> list[tuple[Config, Config]]:
    """(weights, input_activations) of every group of a compressed-tensors declaration."""
    section = reading.config.section("quantization_config")
    if section.text("quant_method") != "compressed-tensors":
        return []
    groups = section.section("config_groups")
    return [
        (group.section("weights"), group.section("input_activations"))
        for group in (groups.section(name) for name in groups.data)
    ]
