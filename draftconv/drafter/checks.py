"""Checks of a drafter against itself and its target, by how much must be read.

Readers of layouts already report what they stumble on (vocabulary maps, contradictory
flags); here is the rest. Each check is one function that yields problems; the tables at
the end say which level it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from draftconv.checkpoint import FLOATS, ByteCounter, Progress, TensorRef, show, show_some
from draftconv.drafter.config import Config
from draftconv.drafter.drafter import SAME_WITHOUT, Drafter
from draftconv.drafter.facts import UNDECLARED, Facts, Mla
from draftconv.drafter.fused_qparams import joined_values
from draftconv.drafter.names import PREFIXES
from draftconv.drafter.problems import LEVELS, Level, Problem
from draftconv.drafter.random_table import judged, sampled_bytes, table_statistics
from draftconv.drafter.rope import DEFAULT_THETA
from draftconv.drafter.targets import EMBED_NAMES, Target
from draftconv.drafter.tensors import EMBEDDING, OPTIONAL, ExpectedTensor, expected
from draftconv.drafter.vocabulary import offset_twins

SAMPLED_PAIRS = 16
LONG_CONTEXT = 4096
"""Below this, a rotary table is too short for any target served today; 2048 is a trainer's default."""

MTP_MODEL_TYPES = frozenset({
    "deepseek_v3", "deepseek_v32", "deepseek_v4", "glm_moe_dsa", "qwen3_next", "kimi_k3", "hy_v3", "step3p5"
})  # fmt: skip
"""vLLM 0.33.0 config/speculative.py rewrites these draft model_types to a multi-token-prediction class."""

VALUES = "NaN, infinity and all-zero tensors"
"""Title of the check that reads every value; `convert` makes it on what it loads anyway."""

HARMLESS_NULLS = frozenset({
    "rope_scaling", "rope_parameters", "sliding_window", "layer_types", "bos_token_id", "eos_token_id",
    "pad_token_id", "transformers_version"
})  # fmt: skip
"""Keys for which transformers writes null itself and every reader takes it as absent."""

PACKED = frozenset({"I32", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4"})
"""How quantized weights are stored (quantizers.md: Quark, ModelOpt, compressed-tensors, AWQ, GPTQ)."""


@dataclass(frozen=True)
class CheckedDrafter:
    """What a check looks at; `tally` is told the bytes that the deep checks read."""

    drafter: Drafter
    target: Target | None
    tally: ByteCounter

    @cached_property
    def expected(self) -> Mapping[str, ExpectedTensor]:
        """The tensors that the facts ask for."""
        return expected(self.drafter.facts)


Check = Callable[[CheckedDrafter], Iterator[Problem | str]]
"""Yields problems, or a sentence for what it could not look at."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Problems found, and the checks that were not made with the reason."""

    problems: tuple[Problem, ...]
    not_made: tuple[str, ...]


def check_drafter(
    drafter: Drafter, target: Target | None, *, level: Level = "sample", progress: Progress | None = None
) -> Findings:
    """Run every check up to `level`; problems that the reader stumbled on come first.

    Args:
        progress: told the bytes that the checks of level `deep` have read so far, of `deep_bytes`.
    """
    subject = CheckedDrafter(drafter, target, ByteCounter(progress))
    problems = list(drafter.problems)
    not_made: list[str] = []
    for rank, name in enumerate(LEVELS):
        for title, check in CHECKS[name].items():
            if rank > LEVELS.index(level):
                not_made.append(f"{title} (needs --deep)")
            elif title in NEED_TARGET and target is None:
                not_made.append(f"{title} (needs --target)")
            elif title in NEED_TARGET_WEIGHTS and not (target and target.has_weights):
                not_made.append(f"{title} (needs --target with a directory that holds the target's weights)")
            else:
                for result in check(subject):
                    if isinstance(result, Problem):
                        problems.append(result)
                    else:
                        not_made.append(f"{title} ({result})")
    if drafter.facts.quantization:
        not_made.append("shapes and values of quantized weights")
    unique = dict.fromkeys((p.code, p.detail) for p in problems)
    return Findings(tuple(Problem(code, detail) for code, detail in unique), tuple(not_made))


def deep_bytes(drafter: Drafter, target: Target | None) -> int:
    """Bytes that the checks of level `deep` read at most: less where two tables differ early."""
    values = sum(ref.nbytes for _, ref in _floats(drafter))
    mine = _replaceable_embedding(drafter)
    theirs = target_table(target, EMBED_NAMES) if mine and target and target.has_weights else None
    stored = drafter.tensors.get(EMBEDDING)
    values += sampled_bytes(stored) if stored is not None and judged(stored) else 0
    return values + (mine.nbytes + theirs.nbytes if mine and theirs and mine.shape == theirs.shape else 0)


# ── tensors ────────────────────────────────────────────────────────────────────────


def _tensor_set(subject: CheckedDrafter) -> Iterator[Problem]:
    drafter, specs = subject.drafter, subject.expected
    known_missing = {"lm_head.weight", "embed_tokens.weight", "d2t", *OPTIONAL}
    for name in specs:
        if name not in drafter.tensors and name not in known_missing and not _packed(drafter, name):
            yield Problem("tensor-missing", name)
    for name in drafter.tensors:
        if name not in specs:
            yield Problem("tensor-unexpected", drafter.names[name])
    if not drafter.facts.own_head and drafter.facts.reduced_vocab:
        yield Problem("tensor-missing", "lm_head.weight, which no target can lend to a reduced vocabulary")
    if not drafter.facts.own_embedding and drafter.facts.target_hidden != drafter.facts.hidden:
        yield Problem("tensor-missing", "embed_tokens.weight, and the target's table is not as wide as the drafter")


def _tensor_shapes(subject: CheckedDrafter) -> Iterator[Problem]:
    drafter = subject.drafter
    for name, spec in subject.expected.items():
        ref = drafter.tensors.get(name)
        if ref is None or name == "d2t" or (drafter.facts.quantization and ref.dtype not in FLOATS):
            continue
        if name == "t2d" and ref.nbytes == spec.shape[0]:
            continue
        if name == "fc.weight" and len(ref.shape) == 2 and ref.shape[0] == spec.shape[0]:
            continue  # its width is the reader's to judge (fc-width)
        if ref.shape != spec.shape:
            yield Problem(
                "tensor-shape", f"{show(drafter.names[name])} is {list(ref.shape)}, expected {list(spec.shape)}"
            )


def _dtypes(subject: CheckedDrafter) -> Iterator[Problem]:
    drafter, rows = subject.drafter, subject.expected
    weights = {name: ref.dtype for name, ref in drafter.tensors.items() if name not in ("d2t", "t2d")}
    quantization = drafter.facts.quantization
    declared = quantization is not None and not quantization.startswith(UNDECLARED)
    for name, dtype in weights.items():
        role = rows[name].role if name in rows and name.endswith(".weight") else "norm"
        if dtype in FLOATS or (declared and dtype in PACKED and role in ("attention", "mlp", "fc", "head")):
            continue
        remark = "" if declared else " and config.json has no quantization_config"
        yield Problem("tensor-dtype", f"{show(drafter.names[name])} is {dtype}{remark}")
    if quantization and not declared and drafter.qparams:
        yield Problem("tensor-dtype", f"{_show_few(list(drafter.qparams))} without a quantization_config")
    floats = sorted(set(weights.values()) & FLOATS)
    if len(floats) > 1:
        yield Problem("dtype-mixed", ", ".join(f"{sum(d == f for d in weights.values())} x {f}" for f in floats))


def _stale(subject: CheckedDrafter) -> Iterator[Problem]:
    leftovers = [f"{name}: {why}" for name, why in subject.drafter.dropped.items() if why not in SAME_WITHOUT]
    if leftovers:
        yield Problem("tensor-stale", _show_few(leftovers))


def _prefixes(subject: CheckedDrafter) -> Iterator[Problem]:
    drafter = subject.drafter
    prefixed = [name for name in drafter.names.values() if name.startswith(PREFIXES)]
    if prefixed and drafter.detection.layout != "automodel":
        yield Problem("name-prefix", _show_few(prefixed))


def _stray_weights(subject: CheckedDrafter) -> Iterator[Problem]:
    """Unread safetensors; a .bin beside them is usual and no engine prefers it."""
    files = subject.drafter.checkpoint.files
    if stray := [file.name for file in files if file.unused and file.name.endswith(".safetensors")]:
        yield Problem("weights-stray", show_some(stray))


def _packed(drafter: Drafter, name: str) -> bool:
    stem = name.removesuffix(".weight")
    return any(qparam.startswith(f"{stem}.") for qparam in drafter.qparams)


# ── config keys ────────────────────────────────────────────────────────────────────


def _nulls(subject: CheckedDrafter) -> Iterator[Problem]:
    config = subject.drafter.checkpoint.config
    nulls = [key for key, value in config.items() if value is None and key not in HARMLESS_NULLS]
    nulls += [
        f"eagle_config: {key}" for key, value in Config(config).section("eagle_config").data.items() if value is None
    ]
    if "n_routed_experts" in nulls:
        yield Problem("routed-experts-null", "n_routed_experts: null")
    if others := [key for key in nulls if key != "n_routed_experts"]:
        yield Problem("config-null", _show_few(others))


def _flags(subject: CheckedDrafter) -> Iterator[Problem]:
    drafter = subject.drafter
    config = Config(drafter.config)
    if config.has("auto_map"):
        yield Problem("auto-map", "auto_map is set")
    if config.flag("tie_word_embeddings") and drafter.facts.own_head:
        yield Problem("tied-flag", "tie_word_embeddings: true")
    written = config.size("num_hidden_layers")
    if written is not None and written != drafter.facts.layers:
        yield Problem("layers-config", f"num_hidden_layers is {written}, {drafter.facts.layers} stored")
    if config.text("model_type") in MTP_MODEL_TYPES:
        yield Problem("model-type-mtp", f"model_type: {config.text('model_type')}")
    if config.flag("attention_bias") and not any(name.endswith("_proj.bias") for name in drafter.tensors):
        yield Problem("tensor-missing", "attention_bias is true, no *_proj.bias stored")
    if (verifiers := config.section("speculators_config")).has("verifier"):
        name = verifiers.section("verifier").text("name_or_path")
        if not name:
            yield Problem("verifier-unnamed", f"name_or_path is {'absent or null' if name is None else 'empty'}")
    if drafter.detection.layout == "torchspec-native" and (needs := _newer_torchspec(drafter.facts)):
        yield Problem("torchspec-older", ", ".join(needs))
    if drafter.facts.double_norm:
        yield Problem("double-norm", "next_layer_regular / layers.0.* names: ModelOpt 0.41 or later")


def _newer_torchspec(facts: Facts) -> list[str]:
    """What TorchSpec reads since its pull request 97 of 2026-05-12."""
    needs = [f"{facts.aux} captured states"] if facts.aux != 3 else []
    needs += ["fc_norm"] if facts.fusion == "fc_norm" else []
    return needs + (["norm_output"] if facts.feedback == "post-norm" else [])


def _rope(subject: CheckedDrafter) -> Iterator[Problem]:
    drafter, rope = subject.drafter, subject.drafter.facts.rope
    if "attention_factor" in rope.scaling:
        yield Problem("rope-attention-factor", f"attention_factor: {rope.scaling['attention_factor']}")
    if drafter.detection.layout == "angelslim" and rope.theta != DEFAULT_THETA:
        yield Problem("rope-base-untrained", f"rope_theta is {rope.theta:g}, trained by {DEFAULT_THETA:g}")
    latent = drafter.detection.layout == "automodel" and isinstance(drafter.facts.attention, Mla)
    if latent and rope.kind == "yarn" and rope.scaling.get("mscale_all_dim"):
        yield Problem("softmax-scale-untrained", f"mscale_all_dim: {rope.scaling['mscale_all_dim']}")
    if rope.kind != "yarn":
        return
    if "mscale" in rope.scaling and "mscale_all_dim" in rope.scaling:
        return
    missing = " and ".join(key for key in ("mscale", "mscale_all_dim") if key not in rope.scaling)
    if drafter.detection.layout.startswith("modelopt") and not isinstance(drafter.facts.attention, Mla):
        yield Problem("rope-injected", f"YaRN factor {rope.scaling.get('factor')} without {missing}")
    else:
        yield Problem("rope-mscale-missing", f"YaRN factor {rope.scaling.get('factor')} without {missing}")


def _positions(subject: CheckedDrafter) -> Iterator[Problem]:
    limit, target = subject.drafter.facts.max_positions, subject.target
    needed = target.max_positions if target and target.max_positions else LONG_CONTEXT
    if limit is None:
        yield Problem("positions-short", "max_position_embeddings is absent: transformers assumes 2048 or 4096")
    elif limit < needed:
        whose = f"{target.name} has {needed}" if target and target.max_positions else f"targets serve {needed} and more"
        yield Problem("positions-short", f"max_position_embeddings is {limit}, {whose}")


def _target_sizes(subject: CheckedDrafter) -> Iterator[Problem]:
    vocab, target = subject.drafter.facts.vocab, subject.target
    if target and target.vocab and target.vocab != vocab:
        yield Problem("vocab-target", f"vocab_size is {vocab}, {target.name} has {target.vocab}")


# ── contents ───────────────────────────────────────────────────────────────────────


def _zero_offsets(subject: CheckedDrafter) -> Iterator[Problem]:
    """The first target ids, which only a t2d that says the same makes believable."""
    drafter = subject.drafter
    offsets = drafter.maps.offsets if drafter.maps else ()
    if not drafter.facts.reduced_vocab or not offsets or any(offsets):
        return
    if "t2d" not in drafter.tensors or any(problem.code == "d2t-t2d-mismatch" for problem in drafter.problems):
        yield Problem("d2t-zeros", f"all {len(offsets)} offsets are 0: draft ids are taken for target ids")


def _pruned_head(subject: CheckedDrafter) -> Iterator[Problem | str]:
    drafter = subject.drafter
    head, maps = drafter.tensors.get("lm_head.weight"), drafter.maps
    if head is None or not drafter.facts.reduced_vocab or maps is None or (len(maps.offsets),) != head.shape[:1]:
        return
    pairs = offset_twins(maps.offsets, SAMPLED_PAIRS)
    if len(pairs) < 2:
        yield "hardly any draft ids share an offset"
        return
    a, b = pairs[0]
    # Rows taken at offsets are identical in every pair and differ between offsets; a constant head is another fault.
    others = [i for i, offset in enumerate(maps.offsets) if offset != maps.offsets[a]]
    same = all(_row(head, i) == _row(head, j) for i, j in pairs)
    if same and (not others or _row(head, others[-1]) != _row(head, a)):
        detail = f"{len(pairs)} sampled pairs of rows with equal d2t are bit-identical, first: {a} and {b}"
        yield Problem("head-pruned-by-offset", detail)


def _values(subject: CheckedDrafter) -> Iterator[Problem]:
    from draftconv.checkpoint import scan

    for name, ref in _floats(subject.drafter):
        counts = scan(ref, subject.tally)
        if counts.not_finite:
            yield Problem("not-finite", f"{show(ref.name)}: {counts.not_finite} values, first at {counts.first}")
        if counts.all_zero and not name.endswith((".bias", "zero_point")):  # a bias may stay where it began
            yield Problem("all-zero", show(ref.name))


def _floats(drafter: Drafter) -> Iterator[tuple[str, TensorRef]]:
    """The tensors whose every value is looked at, by canonical name."""
    stored = (*drafter.tensors.items(), *drafter.qparams.items())
    return ((name, ref) for name, ref in stored if ref.dtype in FLOATS)


def _random_embedding(subject: CheckedDrafter) -> Iterator[Problem | str]:
    table = subject.drafter.tensors.get(EMBEDDING)
    if table is None or not judged(table):
        return
    found = table_statistics(table, subject.tally)
    if found is None:
        yield f"most rows of {show(table.name)} are zero or not finite"
    elif found.random:
        yield Problem(
            "embedding-random",
            f"{show(table.name)}: {found.rows} sampled rows look drawn with deviation {found.deviation:.3g}: lengths, "
            f"common part and similarity of rows are {found.farthest:.1f} standard deviations from that at most",
        )


def _embedding(subject: CheckedDrafter) -> Iterator[Problem | str]:
    mine, target = _replaceable_embedding(subject.drafter), subject.target
    if mine is None or target is None:
        return
    theirs = target_table(target, EMBED_NAMES)
    if theirs is None:
        yield f"{target.name} stores no embed_tokens under a known name"
    elif difference := table_difference(mine, theirs, subject.tally):
        yield Problem("embedding-differs", difference)


def _replaceable_embedding(drafter: Drafter) -> TensorRef | None:
    """The stored embedding where engines would overwrite it: a drafter of another width keeps its own."""
    same_width = drafter.facts.hidden == drafter.facts.target_hidden
    return drafter.tensors.get(EMBEDDING) if same_width else None


def target_table(target: Target, names: tuple[str, ...]) -> TensorRef | None:
    """The target's embedding or head, under whichever of its usual names."""
    tensors: Mapping[str, TensorRef] = target.open().tensors
    return next((tensors[name] for name in names if name in tensors), None)


def table_difference(mine: TensorRef, theirs: TensorRef | None, tally: ByteCounter | None = None) -> str | None:
    """How two tables [V, H] differ, or None when every value is equal (dtypes may differ).

    Args:
        tally: told the bytes of both that were read.
    """
    from draftconv.checkpoint import first_difference

    if theirs is None:
        return f"the target stores no table to compare {mine.name} with"
    if mine.shape != theirs.shape:
        return f"{mine.name} is {list(mine.shape)}, the target's {list(theirs.shape)}"
    row = first_difference(mine, theirs, tally)
    return None if row is None else f"{mine.name} differs from the target's {theirs.name}, first in row {row}"


def _row(ref: TensorRef, index: int) -> bytes:
    return ref.rows(index, index + 1)


def _show_few(items: list[str]) -> str:
    return show_some(items, 4)


CHECKS: Mapping[Level, Mapping[str, Check]] = {
    "config": {
        "tensor set": _tensor_set,
        "tensor shapes": _tensor_shapes,
        "dtypes": _dtypes,
        "leftovers": _stale,
        "prefixes": _prefixes,
        "weight files": _stray_weights,
        "nulls": _nulls,
        "flags": _flags,
        "rope": _rope,
        "positions": _positions,
        "sizes against the target": _target_sizes,
    },
    "maps": {"d2t of zeros": _zero_offsets},
    "sample": {
        "lm_head rows against d2t": _pruned_head,
        "scales of joined weights": lambda subject: joined_values(subject.drafter),
    },
    "deep": {
        VALUES: _values,
        "embed_tokens that were never trained": _random_embedding,
        "embed_tokens against the target's": _embedding,
    },
}
"""Check by level; most faults of vocabulary maps are found while they are read (`vocabulary.read_maps`)."""

NEED_TARGET = frozenset({"sizes against the target"})
NEED_TARGET_WEIGHTS = frozenset({"embed_tokens against the target's"})
