"""One effective rotary embedding out of three config spellings, and back.

Spellings: the legacy pair `rope_theta` + `rope_scaling {type | rope_type, …}`, the
transformers-5 object `rope_parameters {rope_theta, rope_type, …}`, and both mirrored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Rope, Scalar
from draftconv.errors import BadCheckpoint

DEFAULT_THETA = 10000.0
"""What transformers, vLLM, SGLang and TensorRT-LLM use when no spelling gives a base."""

_NOT_SCALING = frozenset({"type", "rope_type", "rope_theta", "partial_rotary_factor"})
"""Keys that are no parameters of the kind. No trainer's drafter turns a part of its heads, whatever a config says that
was copied from a target (transformers 5.19 LlamaRotaryEmbedding, TorchSpec, SpecForge, SafeAILab)."""

Pairs = Literal["halves", "interleaved"]


def read_rope(config: Config, *, mla: bool) -> tuple[Rope, str, tuple[str, ...]]:
    """Return the effective rope, where it came from, and the contradictions found.

    Raises:
        BadCheckpoint: a spelling has the wrong JSON type, or a number in it is absurd.
    """
    sections = [(key, section) for key in ("rope_parameters", "rope_scaling") if (section := config.section(key)).data]
    thetas = {
        name: theta
        for name, theta in [
            ("rope_theta", config.number("rope_theta")),
            *((f"{key}.rope_theta", section.number("rope_theta")) for key, section in sections),
        ]
        if theta is not None
    }
    for name, theta in thetas.items():
        if theta <= 0:
            raise BadCheckpoint(f"{config.where}: {name} is {theta:g}, not a base", cure="correct the key")
        limits.ROPE_NUMBER.check(theta, f"{config.where}: {name} is {theta:g}")
    kinds = {key: _kind(section) for key, section in sections}
    scalings = {key: _scaling(section) for key, section in sections}

    contradictions = [contradiction for _, section in sections if (contradiction := _two_kinds(section))]
    if len(set(thetas.values())) > 1:
        contradictions.append(", ".join(f"{name} = {value:g}" for name, value in thetas.items()))
    if len(set(kinds.values())) > 1:
        contradictions.append(", ".join(f"{name} is {value}" for name, value in kinds.items()))
    elif len({frozenset(scaling.items()) for scaling in scalings.values()}) > 1:
        contradictions.append("rope_parameters and rope_scaling hold different values")

    source = sections[0][0] if sections else "rope_theta" if thetas else "absent"
    pairs: Pairs = "interleaved" if mla and config.flag("rope_interleave") is not False else "halves"
    # TorchSpec and transformers let rope_parameters win, and the top level over rope_scaling.
    theta = thetas.get("rope_parameters.rope_theta", next(iter(thetas.values()), DEFAULT_THETA))
    kind = next(iter(kinds.values()), "default")
    scaling = next(iter(scalings.values()), {})
    reason = f"read from {source}" if source != "absent" else f"absent: every engine and trainer uses {theta:g}"
    return Rope(theta, pairs, kind, MappingProxyType(dict(scaling))), reason, tuple(contradictions)


def with_yarn_defaults(rope: Rope, *, latent: bool) -> Rope:
    """A YaRN embedding with every key that readers without defaults take, standing for the same function.

    A Llama-style one has a multiplier of 0.1 ln(factor) + 1 unless both mscales are given, whatever a lone one says; of
    an MLA one each has its own default (see `reference.rope.table_multiplier`). Other kinds are returned as they are.
    """
    if rope.kind != "yarn":
        return rope
    both = "mscale" in rope.scaling and "mscale_all_dim" in rope.scaling
    kept = dict(rope.scaling)
    if not both and not latent:
        kept = {key: value for key, value in kept.items() if key not in YARN_MSCALES}
    return replace(rope, scaling=MappingProxyType({**YARN_DEFAULTS, **YARN_MSCALES, **kept}))


YARN_DEFAULTS: Mapping[str, Scalar] = MappingProxyType({"beta_fast": 32.0, "beta_slow": 1.0})
YARN_MSCALES: Mapping[str, Scalar] = MappingProxyType({"mscale": 1.0, "mscale_all_dim": 0.0})
"""What transformers, vLLM and SGLang take where a config has none."""


def spell_rope(rope: Rope, *, both: bool = True) -> dict[str, object]:
    """Spell a rope for config.json; `both` mirrors it as `rope_parameters` and as the legacy keys.

    vLLM and SGLang read either, TensorRT-LLM only the legacy keys. No `attention_factor`
    is added: vLLM drops the MLA softmax factor when it is exactly 1.0.
    """
    scaling = {key: list(value) if isinstance(value, tuple) else value for key, value in rope.scaling.items()}
    legacy: dict[str, object] = {"rope_theta": rope.theta}
    if rope.kind != "default" or scaling:
        legacy["rope_scaling"] = {"type": rope.kind, "rope_type": rope.kind, **scaling}
    if not both:
        return legacy
    return legacy | {"rope_parameters": {"rope_type": rope.kind, "rope_theta": rope.theta, **scaling}}


def _kind(section: Config) -> str:
    return section.text("rope_type") or section.text("type") or "default"


def _two_kinds(section: Config) -> str | None:
    """`type` beside a different `rope_type`; transformers itself writes default beside its older name mrope."""
    kinds = {kind for key in ("rope_type", "type") if (kind := section.text(key))}
    if len(kinds) < 2 or kinds == {"default", "mrope"}:
        return None
    return f"{section.where}: rope_type is {section.text('rope_type')}, type is {section.text('type')}"


def _scaling(section: Config) -> Mapping[str, Scalar | tuple[Scalar, ...]]:
    scaling: dict[str, Scalar | tuple[Scalar, ...]] = {}
    for key, value in section.data.items():
        if key in _NOT_SCALING or value is None:
            continue
        if isinstance(value, list) and all(isinstance(item, (bool, int, float, str)) for item in value):
            scaling[key] = tuple(value)
            limits.NAMES.check(len(value), f"{section.where}: {show(key)} lists {len(value)} values")
        elif isinstance(value, (bool, int, float, str)):
            scaling[key] = value
        else:
            raise BadCheckpoint(f"{section.where}: {show(key)} is not a number, a flag or a list of them")
        for number in value if isinstance(value, list) else (value,):
            if isinstance(number, (int, float)):
                limits.ROPE_NUMBER.check(abs(number), f"{section.where}: {show(key)} is {show(number)}")
    return scaling
