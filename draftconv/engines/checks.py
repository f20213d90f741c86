"""Checks that several engines share, and the words their findings are told in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from draftconv.checkpoint import QUANT_FILE, show_some
from draftconv.drafter.config import Config
from draftconv.drafter.facts import AuxLayers, Mla, Rope
from draftconv.drafter.problems import KINDS
from draftconv.engines.load_results import Causes, cause
from draftconv.engines.model_build import defaults
from draftconv.engines.rules import Check, SimulatedLoad

Boundaries = tuple[int, ...] | AuxLayers

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


def misfits(load: SimulatedLoad) -> str | None:
    """Tensors of another shape than the engine builds from config.json."""
    return listed([load.misfit(name) for name in load.misshapen])


# ── facts ──────────────────────────────────────────────────────────────────────────


def compare(fact: str, name: str) -> Check:
    """A check that one fact is built as it was trained."""

    def check(load: SimulatedLoad) -> str | None:
        built, truth = getattr(load.built, fact), getattr(load.truth, fact)
        return None if built == truth else f"{name}: built as {built}, trained as {truth}"

    return check


def rope_differs(load: SimulatedLoad) -> str | None:
    """A rotary embedding built otherwise than it was trained, part by part."""
    built, truth = (_turning(rope, mla=load.mla) for rope in (load.built.rope, load.truth.rope))
    pairs = [(part, getattr(built, part), getattr(truth, part)) for part in ("theta", "pairs", "kind", "scaling")]
    return listed([f"{part}: built as {b}, trained as {t}" for part, b, t in pairs if b != t])


def _turning(rope: Rope, *, mla: bool) -> Rope:
    """What turns a query: MLA's multipliers come of mscale and mscale_all_dim, whatever attention_factor says."""
    scaling = {key: value for key, value in rope.scaling.items() if not (mla and key == "attention_factor")}
    return replace(rope, scaling=MappingProxyType(scaling))


def double_norm(load: SimulatedLoad) -> str | None:
    """A drafter of ModelOpt 0.41-0.47, which normalised the state twice."""
    return "trained as hidden_norm(input_layernorm(state))" if load.truth.double_norm else None


def other_activation(load: SimulatedLoad) -> str | None:
    """A hidden_act other than silu."""
    activation = load.built.activation
    return None if activation == "silu" else f"hidden_act: {activation}"


def plain_query(load: SimulatedLoad) -> str | None:
    """An MLA query without compression, in the file or in config.json."""
    attentions = (load.built.attention, load.truth.attention)
    plain = any(isinstance(attention, Mla) and attention.q_lora is None for attention in attentions)
    return "q_lora_rank is null" if plain else None


# ── config keys ────────────────────────────────────────────────────────────────────


def null_keys(*keys: str) -> Check:
    """A check that none of these keys is present with the value null."""

    def check(load: SimulatedLoad) -> str | None:
        data = load.view.config
        return listed([f"{key}: null" for key in keys if key in data and data[key] is None])

    return check


def tied(load: SimulatedLoad) -> str | None:
    """tie_word_embeddings, as the target's config may have left it."""
    return "tie_word_embeddings: true" if load.config.flag("tie_word_embeddings") else None


def last_state_only(load: SimulatedLoad) -> str | None:
    """A config that asks for EAGLE-1's input, the last hidden state."""
    off = load.eagle.flag("use_aux_hidden_state") is False
    return "eagle_config.use_aux_hidden_state: false" if off else None


def unusual_norms(load: SimulatedLoad) -> str | None:
    """Norm switches of ModelOpt's training that no engine reads, away from what engines compute."""
    usual = {"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False}
    flags = {key: load.eagle.flag(key) for key in usual}
    return listed([
        f"{key}: {str(value).lower()}" for key, value in flags.items() if value is not None and value is not usual[key]
    ])  # fmt: skip


def unresolved_type(load: SimulatedLoad) -> str | None:
    """A config that transformers' AutoConfig cannot turn into a class."""
    if not load.config.has("model_type"):
        layout = " (a speculators config)" if load.config.has("speculators_config") else ""
        return f"no model_type{layout}"
    return f"model_type: {load.model_type}" if load.model_type in ("", "eagle", "eagle3") else None


def unknown_type(*more: str) -> Check:
    """A model_type that is neither in the table of transformers' nor one that the engine adds."""

    def check(load: SimulatedLoad) -> str | None:
        known = load.model_type in TRANSFORMERS_TYPES or load.model_type in more
        return None if known or unresolved_type(load) else f"model_type: {load.model_type}"

    return check


# ── against the target ─────────────────────────────────────────────────────────────


def short_rotary(load: SimulatedLoad) -> str | None:
    """max_position_embeddings, or its class default, below the target's."""
    target = load.target
    limit, absent = positions(load)
    if target and target.max_positions and limit < target.max_positions:
        return f"max_position_embeddings is {limit}{absent}, {target.name} has {target.max_positions}"
    return None


def positions(load: SimulatedLoad) -> tuple[int, str]:
    """max_position_embeddings as built, and a remark when it is a class default."""
    written = load.config.size("max_position_embeddings")
    if written is not None:
        return written, ""
    return defaults(load.config, mla=load.mla)["max_position_embeddings"], " (absent)"


def wrong_vocab(load: SimulatedLoad) -> str | None:
    """A vocab_size that is not the target's."""
    target = load.target
    if target and target.vocab and target.vocab != load.built.vocab:
        return f"vocab_size {load.built.vocab}, {target.name} has {target.vocab}"
    return None


def wrong_width(load: SimulatedLoad) -> str | None:
    """An fc built for states of another width than the target's."""
    target = load.target
    if target and target.hidden and target.hidden != load.built.target_hidden:
        return f"fc is built for states of {load.built.target_hidden}, those of {target.name} are {target.hidden}"
    return None


# ── captured layers ────────────────────────────────────────────────────────────────


def open_aux_layers(captured: Boundaries, trained: Boundaries) -> bool:
    """True when it cannot be told whether the same layers are captured as were trained on."""
    if AuxLayers.UNKNOWN in (captured, trained):
        return True
    return (captured is AuxLayers.DEFAULT) != (trained is AuxLayers.DEFAULT)


def other_aux_layers(captured: Boundaries, load: SimulatedLoad) -> str | None:
    """Other layers captured than trained on; a wrong number of them is `wrong_count`."""
    trained = load.trained
    if open_aux_layers(captured, trained) or captured == trained or wrong_count(captured, load):
        return None
    return f"captures {shown(captured)}, trained on {shown(trained)}"


def wrong_count(captured: Boundaries, load: SimulatedLoad) -> str | None:
    """States that do not fill the fc that was built for them."""
    if isinstance(captured, AuxLayers) or len(captured) == load.built.aux:
        return None
    return f"captures {shown(captured)}, fc is built for {load.built.aux} states"


def zero_boundary(captured: Boundaries, load: SimulatedLoad) -> str | None:
    """Boundary 0 on a target whose loop has no residual stream before its first layer."""
    target = load.target
    if target is None or target.family != "deepseek" or isinstance(captured, AuxLayers) or 0 not in captured:
        return None
    return f"{list(captured)} on {target.name}"


def shown(boundaries: Boundaries) -> str:
    """Boundaries in the words of a finding."""
    match boundaries:
        case AuxLayers.DEFAULT:
            return "the default triple"
        case AuxLayers.UNKNOWN:
            return "unknown layers"
        case numbers:
            return str(list(numbers))


UNKNOWN_AUX_LAYERS = "the layers it was trained on are unknown; give --aux-convention or --from"


# ── tensors that reach no module, modules that get no tensor ─────────────────────────


def skipped(code: str, causes: Causes) -> Check:
    """Needed tensors that the loader skips for the cause `code`; for any other cause if it is in no row.

    Where the module is built only its name can be the cause (`SimulatedLoad.misnamed`).
    """

    def check(load: SimulatedLoad) -> str | None:
        others = {other for other, _ in causes}
        names = []
        for part, name in load.lost.items():
            why = cause(name, load.misnamed if part in load.expected_tensors else causes)
            unnamed = why is None and part not in load.expected_tensors and code not in others
            if why == code or unnamed:
                names.append(name)
        return listed(names)

    return check


def ignored(load: SimulatedLoad) -> str | None:
    """Tensors that the loader skips and the forward pass does not need, t2d and rotary tables aside."""
    needless = re.compile(r"t2d|d2t|rotary_emb|embed_tokens")
    lost = set(load.lost.values())
    return listed([name for name in load.results.dropped if name not in lost and not needless.search(name)])


def own_embedding(load: SimulatedLoad) -> bool:
    """A stored embedding of the target's width, which an engine may replace by the target's."""
    return load.truth.own_embedding and load.built.target_hidden == load.built.hidden


def embedding_replaced(load: SimulatedLoad) -> str | None:
    """A stored embedding that gives way to the target's, not known to differ from it."""
    stored = own_embedding(load) and "embedding-differs" not in load.known
    return "embed_tokens is stored" if stored else None


def embedding_lost(load: SimulatedLoad) -> str | None:
    """A stored embedding that gives way to the target's and is known to differ (`inspect --deep`)."""
    differs = own_embedding(load) and "embedding-differs" in load.known
    return "embed_tokens differs from the target's" if differs else None


def half_biased(load: SimulatedLoad) -> str | None:
    """Biases of projections that a flag builds and the file does not hold."""
    return listed([load.gap(name) for name in load.missing if name.endswith("_proj.bias")])


def missing_tensors(load: SimulatedLoad) -> str | None:
    """Tensors that are built and not stored, but for those with rules of their own: d2t, and biases of one flag."""
    return listed([load.gap(name) for name in load.missing if not name.endswith(("d2t", "_proj.bias"))])


def d2t_missing(load: SimulatedLoad) -> str | None:
    """A reduced vocabulary whose map the engine gets from nowhere."""
    if "d2t" not in load.missing:
        return None
    return load.gap("d2t") if "d2t" in load.unplaced else "draft_vocab_size is smaller than vocab_size"


WRONG_MAPS = ("d2t-absolute", "d2t-range", "d2t-rounded")
"""Problems of a map's values that every engine takes as they are."""


def wrong_map(load: SimulatedLoad) -> str | None:
    """A map whose values are known to be wrong (`inspect` looks at them)."""
    return listed([KINDS[code].title for code in WRONG_MAPS if code in load.known])


def joined(code: str, *dtypes: str) -> Check:
    """A check for a problem of the values beside joined weights, where weights are stored in one of these dtypes."""

    def check(load: SimulatedLoad) -> str | None:
        stored = {ref.dtype for name, ref in load.view.tensors.items() if name.endswith(".weight")}
        return KINDS[code].title if code in load.known and stored & set(dtypes) else None

    return check


joined_fp8 = joined("joined-fp8-scales", "F8_E4M3")
"""FP8 weights that are joined and have a scale each."""


# ── classes ────────────────────────────────────────────────────────────────────────


def wrong_kind(load: SimulatedLoad, kind: str | None) -> str | None:
    """An architecture that builds the other kind of attention; `kind` None: it is not registered at all."""
    if kind is None or (kind == "mla") == load.mla:
        return None
    return f"{load.architecture or load.model_type} builds {'MLA' if kind == 'mla' else 'Llama-style'} attention"


# ── quantization ───────────────────────────────────────────────────────────────────


def undeclared_packed(load: SimulatedLoad) -> str | None:
    """Quantized tensors that neither config.json nor hf_quant_config.json describes."""
    if not load.truth.quantization or load.config.section("quantization_config").data:
        return None
    return None if load.view.sidecars.get(QUANT_FILE) else "packed weights without quantization_config"


def quant_method(load: SimulatedLoad) -> str:
    """quantization_config.quant_method, or "" when absent."""
    return load.config.section("quantization_config").text("quant_method") or ""


def quark_int4(load: SimulatedLoad) -> Config | None:
    """The weight section of a Quark INT4 declaration."""
    section = load.config.section("quantization_config").section("global_quant_config").section("weight")
    int4 = quant_method(load) == "quark" and section.text("dtype") in ("int4", "uint4")
    return section if int4 else None


def modelopt_algorithm(load: SimulatedLoad) -> str | None:
    """quant_algo of a ModelOpt declaration, from the legacy file or from config.json."""
    legacy = Config(load.view.sidecars.get(QUANT_FILE, {}), QUANT_FILE).section("quantization")
    return legacy.text("quant_algo") or load.config.section("quantization_config").text("quant_algo")


def unknown_algorithm(known: frozenset[str]) -> Check:
    """A check that ModelOpt's quant_algo is one that the engine knows."""

    def check(load: SimulatedLoad) -> str | None:
        algorithm = modelopt_algorithm(load)
        return f"quant_algo: {algorithm}" if algorithm and algorithm not in known else None

    return check


def compressed_groups(load: SimulatedLoad) -> list[tuple[Config, Config, str | None]]:
    """(weights, input_activations, format) of every group of a compressed-tensors declaration.

    A group may have a format of its own; `mixed-precision` above says only that they have.
    """
    section = load.config.section("quantization_config")
    if section.text("quant_method") != "compressed-tensors":
        return []
    groups = section.section("config_groups")
    return [
        (
            group.section("weights"),
            group.section("input_activations"),
            group.text("format") or section.text("format"),
        )
        for group in (groups.section(name) for name in groups.data)
    ]
