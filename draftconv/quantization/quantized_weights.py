"""The quantized weights of an opened drafter: which format they are in, and what belongs to which module.

config.json is believed where it speaks of a format that the tensors are in. Where it does not,
or the tensors say otherwise, the one format that fits every module is taken and told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftconv.checkpoint import FLOATS, QUANT_FILE, TensorRef, show, show_some
from draftconv.drafter.config import Config
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.tensors import ExpectedTensor, expected
from draftconv.errors import BadCheckpoint, Refused, Undecided
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.format_detection import FormatMatch, detect_format, detect_formats, headers
from draftconv.quantization.formats import find_format, formats
from draftconv.quantization.formats.base import Weight
from draftconv.quantization.module_lists import exclusion_findings, names_in
from draftconv.quantization.recipes import in_one_file
from draftconv.quantization.scheme import DTYPES, told_inputs
from draftconv.reference.load import to_torch

Parts = Mapping[str, TensorRef]

CODES = frozenset({"weight", "weight_packed", "qweight"})
"""Tensors that hold the quantized values of a weight; all the others together are a hundredth of their size."""


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """The quantized weights of a drafter, not yet read.

    Attributes:
        matches: canonical module (`layers.0.mlp.down_proj`) → how it is stored.
        modules: the same → its tensors by suffix. `shapes`: [O, I] of each.
        dtype: of the weights that they stand for, as safetensors spells it.
        findings: what is not as usual, for a person. `lies`: those of them that config.json says otherwise,
            and that whoever goes by it would stumble over.
        unlisted: modules that are plain, and that config.json does not exclude. Whether that is a fault
            differs from engine to engine: some build such a module quantized, others never do.
    """

    matches: Mapping[str, FormatMatch]
    modules: Mapping[str, Parts]
    shapes: Mapping[str, tuple[int, int]]
    dtype: str
    findings: tuple[str, ...] = ()
    lies: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()

    @property
    def parts(self) -> Mapping[FormatMatch, tuple[str, ...]]:
        """Every way in which weights are stored, with the modules that are."""
        found: dict[FormatMatch, list[str]] = {}
        for module in self.modules:
            found.setdefault(self.matches[module], []).append(module)
        return {match: tuple(modules) for match, modules in found.items()}

    @property
    def only(self) -> FormatMatch:
        """How all of them are stored.

        Raises:
            Refused: they have several schemes.
        """
        match, *others = self.parts
        if others:
            raise Refused(
                f"these weights have {1 + len(others)} schemes: {self.title}",
                why="only weights of one scheme are packed anew: which formats hold all of them is not looked for",
                cure="add --unpack for those of all schemes but one, use --dequantize, or quantize again",
            )
        return match

    @property
    def title(self) -> str:
        """Format and granularity, for a person; of each part."""
        parts = self.parts
        if len(parts) == 1:
            return _match_title(next(iter(parts)))
        return "; ".join(f"{_match_title(match)}: {show_some(modules)}" for match, modules in parts.items())

    @property
    def activations(self) -> str:
        """What inputs are rounded to, in words."""
        return told_inputs({module: self.matches[module].declared.inputs for module in self.modules})

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
        match = self.matches[module]
        weight = match.format.load(tensors, match.declared, self.dtype)
        if (shape := tuple(weight.quantized.qvalues.shape)) != self.shapes[module]:
            raise BadCheckpoint(
                f"{show(module)} unpacks to {show(shape)}, the drafter needs {show(self.shapes[module])}",
                why=f"it was read as {match.format.title}, as quantization_config says",
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
    told = _declared_matches(drafter, forgiving=spec is not None)
    several = not isinstance(told, BadCheckpoint) and (len(told) > 1 or any(match.declared.targets for match in told))
    if not isinstance(told, BadCheckpoint) and several and spec is None:
        return _find_parts(drafter, told, modules, shapes)
    config_match = told if isinstance(told, BadCheckpoint) else next(iter(told), None)
    fits = _in_range(detect_formats(modules, shapes), modules)
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
    unlisted: tuple[str, ...] = ()
    if isinstance(config_match, FormatMatch):
        excluded_lies, unlisted = exclusion_findings(drafter, config_match, modules)
        lies += excluded_lies
    every = (*lies, *findings)
    return QuantizedWeights(
        dict.fromkeys(modules, chosen), modules, shapes, _dtype(drafter), every, tuple(lies), unlisted
    )


def _find_parts(
    drafter: Drafter,
    told: Sequence[FormatMatch],
    modules: Mapping[str, Parts],
    shapes: Mapping[str, tuple[int, int]],
) -> QuantizedWeights:
    """The same where config.json tells of several schemes: each module by its tensors, and by its name where several
    schemes have the same ones.

    Raises:
        BadCheckpoint: no scheme that is told of fits a module. Undecided: several do.
    """
    matches: dict[str, FormatMatch] = {}
    for module, parts in modules.items():
        fits = [match for match in told if detect_format(match, parts, shapes[module])]
        named = [match for match in fits if _targets(match, module)] or [match for match in fits if _by_class(match)]
        if not fits:
            raise BadCheckpoint(
                f"{show(module)} is stored as none of the schemes of config.json: {show_some(sorted(parts), 6)}",
                why=f"it tells of {'; '.join(map(_match_title, told))}",
                cure="quantization_config does not describe these tensors, or export the checkpoint again",
            )
        if len(fits) > 1 and len(named) != 1:
            raise Undecided(
                f"{show(module)} may have {' or '.join(map(_scheme_title, fits))}",
                why="their tensors look the same, and no single group of config.json names the module",
                cure="name it in the targets of its group",
            )
        matches[module] = (named or fits)[0] if len(fits) > 1 else fits[0]
    lies, unlisted = exclusion_findings(drafter, told[0], modules)
    for module, match in matches.items():
        if match.declared.targets and not _targets(match, module) and not _by_class(match):
            lies.append(f"no target of {_match_title(match)} names {module}, which is stored so")
    for match in told:
        misnamed = [m for m, its in matches.items() if its is not match and _targets(match, m)]
        if misnamed:
            lies.append(f"config.json names {show_some(misnamed)} among {_match_title(match)}, which it is not")
    return QuantizedWeights(matches, modules, shapes, _dtype(drafter), tuple(lies), tuple(lies), unlisted)


def _targets(match: FormatMatch, module: str) -> bool:
    """Whether a group of config.json names a module; classes name none."""
    return any(names_in(entry, [module]) for entry in match.declared.targets)


def _by_class(match: FormatMatch) -> bool:
    """Whether a group of config.json has what no other one names: a class is one word, such as Linear."""
    return any(entry.isidentifier() and entry[:1].isupper() for entry in match.declared.targets)


def _scheme_title(match: FormatMatch) -> str:
    return f"{_match_title(match)} with activations {match.declared.inputs or '16 bit'}"


def _declared_matches(drafter: Drafter, *, forgiving: bool) -> tuple[FormatMatch, ...] | BadCheckpoint:
    """What config.json says, scheme by scheme; an error where it contradicts itself.

    Raises:
        Refused: it tells of a variant that is not known, unless `forgiving`.
    """
    config = Config(drafter.config)
    section = config.section("quantization_config").data or config.section("compression_config").data
    try:
        told: list[FormatMatch] = []
        for fmt in formats().values():
            if not told or fmt.id in in_one_file(told[0].format.id):
                told += [FormatMatch(fmt, part) for part in fmt.read_parts(section, drafter.checkpoint.sidecars)]
        return tuple(told)
    except BadCheckpoint as error:
        return error
    except Refused:
        if not forgiving:
            raise
    return ()


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
