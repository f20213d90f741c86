"""The quantized weights of an opened drafter: which format they are in, and what belongs to which module.

config.json is believed where it speaks of a format that the tensors are in. Where it does not,
or the tensors say otherwise, the one format that fits every module is taken and told.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftconv.checkpoint import FLOATS, QUANT_FILE, TensorRef, show, show_some
from draftconv.drafter.config import Config
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.fused_projections import FUSED
from draftconv.drafter.tensors import ExpectedTensor, expected
from draftconv.errors import BadCheckpoint, Refused, Undecided
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.format_detection import FormatMatch, detect_format, detect_formats, headers
from draftconv.quantization.formats import find_format, formats
from draftconv.quantization.formats.base import Declared, Format, Weight
from draftconv.quantization.recipes import PER_MODULE
from draftconv.quantization.scheme import DTYPES
from draftconv.reference.load import to_torch

Parts = Mapping[str, TensorRef]

CODES = frozenset({"weight", "weight_packed", "qweight"})
"""Tensors that hold the quantized values of a weight; all the others together are a hundredth of their size."""


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """The quantized weights of a drafter, not yet read.

    Attributes:
        modules: canonical module (`layers.0.mlp.down_proj`) → its tensors by suffix. `shapes`: [O, I] of each.
        dtype: of the weights that they stand for, as safetensors spells it.
        findings: what is not as usual, for a person. `lies`: those of them that config.json says otherwise,
            and that whoever goes by it would stumble over.
        unlisted: modules that are plain, and that config.json does not exclude. Whether that is a fault
            differs from engine to engine: some build such a module quantized, others never do.
    """

    format: Format
    declared: Declared
    modules: Mapping[str, Parts]
    shapes: Mapping[str, tuple[int, int]]
    dtype: str
    findings: tuple[str, ...] = ()
    lies: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Format and granularity, for a person."""
        return _match_title(FormatMatch(self.format, self.declared))

    def load(self, module: str) -> Weight:
        """One weight in memory.

        Raises:
            BadCheckpoint: its tensors do not fit each other, the drafter or what is declared.
        """
        return self._loaded(module, {suffix: read(ref) for suffix, ref in self.modules[module].items()})

    def outline(self, module: str) -> Weight:
        """As `load`, without the quantized values: they lie on torch's meta device, and not one of them is read.

        Raises:
            BadCheckpoint: as `load`, but for faults of the quantized values.
        """
        parts = self.modules[module]
        qvalues = headers({suffix: ref for suffix, ref in parts.items() if suffix in CODES})
        return self._loaded(module, qvalues | {suffix: read(parts[suffix]) for suffix in parts.keys() - qvalues.keys()})

    def _loaded(self, module: str, tensors: Mapping[str, Tensor]) -> Weight:
        weight = self.format.load(tensors, self.declared, self.dtype)
        if (shape := tuple(weight.quantized.qvalues.shape)) != self.shapes[module]:
            raise BadCheckpoint(
                f"{show(module)} unpacks to {show(shape)}, the drafter needs {show(self.shapes[module])}",
                why=f"it was read as {self.format.title}, as quantization_config says",
                cure="quantization_config does not describe these tensors",
            )
        return weight

    def group(self, weight: Weight) -> int | None:
        """Inputs under one scale; None for one scale per row or for all."""
        inputs, scales = weight.quantized.qvalues.shape[1], weight.quantized.scale.shape[1]
        return None if scales == 1 else inputs // scales


def find_quantized(drafter: Drafter, spec: str | None = None) -> QuantizedWeights:
    """How the weights of a quantized drafter are stored.

    Args:
        spec: the format to read as, FORMAT or FORMAT:STYLE, when config.json should not decide.

    Raises:
        Undecided: several formats fit the tensors, and only `spec` can tell.
        Refused: no format that draftconv reads fits, the variant is not known, or there are two formats.
        BadCheckpoint: config.json contradicts itself, something is quantized that is no weight, or nothing is.
        UsageError: no format is called as given.
    """
    modules = dict(quantized_modules(drafter))
    if not modules:
        raise BadCheckpoint(
            f"weights are declared quantized ({show(drafter.facts.quantization)}), and none is",
            why="engines would look for scales that are not there",
            cure=f"remove {QUANT_FILE} and the key quantization_config of config.json, or export the checkpoint again",
        )
    shapes = _shapes(drafter, modules)
    fits = _in_range(detect_formats(modules, shapes), modules)
    config_match = _declared_match(drafter, forgiving=spec is not None)
    findings, lies = [], []
    if spec is not None:
        chosen = _with_declared(_requested_match(spec, fits), config_match)
        findings.append(f"read as {chosen} because it was asked for")
    elif isinstance(config_match, FormatMatch):
        chosen = _trusted_match(config_match, fits)
    else:
        chosen = _fitting_match(fits, modules, drafter, config_match)
        lies.append(f"config.json does not say how the weights are stored; their tensors are {_match_title(chosen)}")
    if isinstance(config_match, FormatMatch):
        lies += _overruled_findings(config_match, chosen)
        if not fits:
            _refuse_mixed(chosen, modules, shapes)
    else:
        findings.append("what activations are rounded to is not told: they are read as 16 bit")
    lies += _variant_findings(chosen, modules)
    findings += _missing_findings(chosen, modules)
    excluded = _excluded_modules(drafter, config_match) if isinstance(config_match, FormatMatch) else ()
    if packed := [module for module in excluded if module in modules]:
        lies.append(f"{show_some(packed)} quantized, although config.json excludes it")
    excludes = (
        isinstance(config_match, FormatMatch)
        and config_match.declared.ignore
        and config_match.declared.style not in NAMING
    )
    unlisted = _unlisted_modules(drafter, excluded, modules) if excludes else ()
    every = (*lies, *findings)
    return QuantizedWeights(
        chosen.format, chosen.declared, modules, shapes, _dtype(drafter), every, tuple(lies), unlisted
    )


def _declared_match(drafter: Drafter, *, forgiving: bool) -> FormatMatch | BadCheckpoint | None:
    """What config.json says; an error where it contradicts itself.

    Raises:
        Refused: it tells of a variant that is not known, unless `forgiving`.
    """
    config = Config(drafter.config)
    section = config.section("quantization_config").data or config.section("compression_config").data
    try:
        for fmt in formats().values():
            if (declared := fmt.read(section, drafter.checkpoint.sidecars)) is not None:
                return FormatMatch(fmt, declared)
    except BadCheckpoint as error:
        return error
    except Refused:
        if not forgiving:
            raise
    return None


def _with_declared(match: FormatMatch, config_match: FormatMatch | BadCheckpoint | None) -> FormatMatch:
    """A reading by tensors, with what only config.json can tell."""
    if not isinstance(config_match, FormatMatch):
        return match
    return replace(
        match,
        declared=replace(match.declared, inputs=config_match.declared.inputs, ignore=config_match.declared.ignore),
    )


def _requested_match(spec: str, fits: Sequence[FormatMatch]) -> FormatMatch:
    fmt, style = find_format(spec)
    matches = [fit for fit in fits if fit.format is fmt and style in (None, fit.declared.style)]
    if not matches:
        raise Refused(
            f"the tensors are not {fmt.title}",
            why=f"what fits every quantized weight: {', '.join(map(str, fits)) or 'no format'}",
            cure="leave --from-format out, or give one that fits",
        )
    return _single_match(matches)


def _trusted_match(config_match: FormatMatch, fits: Sequence[FormatMatch]) -> FormatMatch:
    """What config.json says, unless only another reading fits the tensors."""
    same = [fit for fit in fits if fit.format is config_match.format]
    if not fits or any(fit.tells(config_match.declared) for fit in same):
        return config_match
    # A wrong granularity leaves the order of nibbles told, which no tensor tells.
    alike = [fit for fit in same if fit.declared.style == config_match.declared.style]
    return _with_declared(_single_match(alike or fits), config_match)


def _fitting_match(
    fits: Sequence[FormatMatch], modules: Mapping[str, Parts], drafter: Drafter, error: BadCheckpoint | None
) -> FormatMatch:
    if fits:
        return _single_match(fits)
    if error is not None:
        raise error
    raise Refused(
        f"draftconv cannot read weights that are {drafter.facts.quantization}",
        why=f"the tensors of one module are {show_some(sorted(next(iter(modules.values()), {})), 6)}",
        cure=f"formats that it reads: {', '.join(formats())}",
    )


def _in_range(fits: tuple[FormatMatch, ...], modules: Mapping[str, Parts]) -> tuple[FormatMatch, ...]:
    """Of matches that differ only in the range of values, those that hold the values of the smallest weight."""
    if len({str(fit) for fit in fits}) == len(fits):
        return fits
    smallest = min(modules.values(), key=lambda parts: sum(ref.nbytes for ref in parts.values()))
    stored = {suffix: read(ref) for suffix, ref in smallest.items()}
    return tuple(fit for fit in fits if _loads(fit, stored)) or fits


def _loads(fit: FormatMatch, stored: Mapping[str, Tensor]) -> bool:
    try:
        fit.format.load(stored, fit.declared, "BF16")
    except (BadCheckpoint, Refused):
        return False
    return True


def _single_match(fits: Sequence[FormatMatch]) -> FormatMatch:
    """The only reading.

    Raises:
        Undecided: there are several.
    """
    names = tuple(dict.fromkeys(map(str, fits)))
    if len(names) > 1:
        raise Undecided(
            f"the quantized weights may be {' or '.join(names)}",
            why="config.json does not tell, and their tensors look the same in each",
            cure=f"add --from-format {names[0]} if that is how they were written",
        )
    return fits[0]


# ── findings ───────────────────────────────────────────────────────────────────────


def _match_title(fit: FormatMatch) -> str:
    declared = fit.declared
    several = len({dtype for dtype, _ in fit.format.holds}) > 1
    title = f"{fit.format.title}, {DTYPES[declared.dtype].title}" if several else fit.format.title
    return f"{title} per {declared.granularity or 'group'}" + (f" of {declared.group}" if declared.group else "")


def _overruled_findings(config_match: FormatMatch, chosen: FormatMatch) -> list[str]:
    if chosen.format is config_match.format and chosen.tells(config_match.declared):
        return []
    return [
        f"config.json says {_match_title(config_match)}, but the tensors are {_match_title(chosen)} and are read so"
    ]


def _refuse_mixed(
    config_match: FormatMatch, modules: Mapping[str, Parts], shapes: Mapping[str, tuple[int, int]]
) -> None:
    """Raises Refused for modules in another format than the rest, which is as config.json says."""
    other = [module for module, parts in modules.items() if not detect_format(config_match, parts, shapes[module])]
    if not other or len(other) == len(modules):
        return
    matches = detect_formats({module: modules[module] for module in other}, shapes)
    if not matches:
        return  # damaged, which is told with the module's name when it is loaded
    named = " or ".join(dict.fromkeys(map(_match_title, matches)))
    raise Refused(
        f"{show_some(other)} not stored as {_match_title(config_match)} like the others, but as {named}",
        why="config.json can tell of one format only, and engines read all weights by it",
        cure="export the checkpoint again",
    )


def _variant_findings(chosen: FormatMatch, modules: Mapping[str, Parts]) -> list[str]:
    """Variants that are read and never written."""
    try:
        style = chosen.format.resolve(headers(next(iter(modules.values()))), chosen.declared).style
    except BadCheckpoint:
        return []  # told, with the module's name, when it is loaded
    return [says for known, says in chosen.format.only_read.items() if known == style]


def _missing_findings(chosen: FormatMatch, modules: Mapping[str, Parts]) -> list[str]:
    """Tensors that one would expect, where their absence is not the mark of a variant."""
    if _variant_findings(chosen, modules):
        return []
    parts = next(iter(modules.values()))
    return [text for suffix, text in chosen.format.may_lack.items() if suffix not in parts]


NAMING = frozenset({PER_MODULE})
"""Styles that name every quantized module: one that is not named never is."""

PLAIN = ("fc", "self_attn.", "mlp.")
"""What engines build as quantized linears unless it is excluded."""

LITERAL = re.compile(r"(?:re:)?[\^]?(?:[.]?[*]|\\b|[.]|\\[.])*([A-Za-z_](?:\w|[\\]?[.])*)\$?")
"""An entry of an exclusion list that ends in a name: `fc`, `*fc`, `re:.*\\bfc$`. Others are left to the engines."""


OUTER = re.compile(r"^(?:.*\.)?layers\.\d+\.|^model\.")
"""What engines put before the name of a module: where they hang it, and a layer's number, which counts on from
the target's."""


JOINED: Mapping[str, tuple[str, ...]] = {**FUSED, "fused_qkv_a_proj_with_mqa": FUSED["fused_qkv_a_proj"]}
"""What lists may call weights that engines join."""


def _excluded_modules(drafter: Drafter, config_match: FormatMatch) -> tuple[str, ...]:
    """Modules that config.json excludes by name."""
    entries = [LITERAL.fullmatch(entry) for entry in config_match.declared.ignore]
    spelled = [OUTER.sub("", match[1].replace("\\.", ".").removesuffix(WEIGHT)) for match in entries if match]
    named = {part for name in spelled for part in JOINED.get(name.rpartition(".")[2], (name,))}
    return tuple(m for m in _matrices(drafter) if any(f".{m}".endswith(f".{name}") for name in named))


def _unlisted_modules(drafter: Drafter, excluded: Collection[str], modules: Mapping[str, Parts]) -> tuple[str, ...]:
    """Modules that engines may build quantized, and that are plain and not excluded."""
    linear = [m for m in _matrices(drafter) if m not in modules and m not in excluded]
    return tuple(m for m in linear if f"{m}{WEIGHT}" in drafter.tensors and any(part in m for part in PLAIN))


def _matrices(drafter: Drafter) -> list[str]:
    return [name.removesuffix(WEIGHT) for name, tensor in expected(drafter.facts).items() if len(tensor.shape) == 2]


def quantized_modules(drafter: Drafter) -> Iterator[tuple[str, Parts]]:
    """Modules that have anything but a plain float weight, each with all its tensors but the bias."""
    every = {**drafter.tensors, **drafter.qparams}
    modules: dict[str, dict[str, TensorRef]] = {}
    for name, ref in every.items():
        module, _, suffix = name.rpartition(".")
        modules.setdefault(module, {})[suffix] = ref
    for module, parts in modules.items():
        tensors = {suffix: ref for suffix, ref in parts.items() if suffix != "bias"}
        if module and tensors and (set(tensors) - {"weight"} or tensors["weight"].dtype not in FLOATS):
            yield module, tensors


def _shapes(drafter: Drafter, modules: Iterable[str]) -> dict[str, tuple[int, int]]:
    tensors = expected(drafter.facts)
    shapes = {}
    for module in modules:
        match tensors.get(f"{module}{WEIGHT}"):
            case ExpectedTensor(shape=(outputs, inputs)):
                shapes[module] = (outputs, inputs)
            case _:
                raise BadCheckpoint(
                    f"{show(module)} has quantized tensors, and is no weight of a drafter that could be quantized",
                    why="nobody would know what they belong to",
                    cure="export the checkpoint again",
                )
    return shapes


def _dtype(drafter: Drafter) -> str:
    """The dtype that the quantized weights had: that of the layer norms beside them."""
    norms = [ref.dtype for name, ref in drafter.tensors.items() if name.startswith("layers.") and "norm" in name]
    floats = [dtype for dtype in norms if dtype in FLOATS]
    return floats[0] if floats else "BF16"


INTEGERS: Mapping[str, torch.dtype] = {
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
}
"""Dtypes that only quantized weights have."""


def read(ref: TensorRef) -> Tensor:
    """Any tensor of a stored weight, in its own dtype and shape."""
    if ref.dtype not in INTEGERS:
        return to_torch(ref)
    if not ref.nbytes:
        return torch.empty(ref.shape, dtype=INTEGERS[ref.dtype])
    return torch.frombuffer(bytearray(ref.read()), dtype=INTEGERS[ref.dtype]).reshape(ref.shape)
