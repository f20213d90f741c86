"""In which format the quantized weights of an opened drafter are.

config.json is believed where it speaks of a format that the tensors are in. Where it does not,
or the tensors say otherwise, the one format that fits every module is taken and told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from draftconv.checkpoint import FLOATS, QUANT_FILE, show, show_some
from draftconv.drafter.config import Config
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.tensors import ExpectedTensor, expected
from draftconv.errors import BadCheckpoint, Refused, Undecided
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.format_detection import FormatMatch, detect_format, detect_formats, headers
from draftconv.quantization.formats import find_format, formats
from draftconv.quantization.module_lists import exclusion_findings, names_in
from draftconv.quantization.quantized_weights import Parts, QuantizedWeights, quantized_modules, read
from draftconv.quantization.recipes import in_one_file


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
        lies.append(f"config.json does not say how the weights are stored; their tensors are {chosen.title}")
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
                why=f"it tells of {'; '.join(match.title for match in told)}",
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
            lies.append(f"no target of {match.title} names {module}, which is stored so")
    for match in told:
        misnamed = [m for m, its in matches.items() if its is not match and _targets(match, m)]
        if misnamed:
            lies.append(f"config.json names {show_some(misnamed)} among {match.title}, which it is not")
    return QuantizedWeights(matches, modules, shapes, _dtype(drafter), tuple(lies), tuple(lies), unlisted)


def _targets(match: FormatMatch, module: str) -> bool:
    """Whether a group of config.json names a module; classes name none."""
    return any(names_in(entry, [module]) for entry in match.declared.targets)


def _by_class(match: FormatMatch) -> bool:
    """Whether a group of config.json has what no other one names: a class is one word, such as Linear."""
    return any(entry.isidentifier() and entry[:1].isupper() for entry in match.declared.targets)


def _scheme_title(match: FormatMatch) -> str:
    return f"{match.title} with activations {match.declared.inputs or '16 bit'}"


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


def _overruled_findings(config_match: FormatMatch, chosen: FormatMatch) -> list[str]:
    if chosen.format is config_match.format and chosen.tells(config_match.declared):
        return []
    return [f"config.json says {config_match.title}, but the tensors are {chosen.title} and are read so"]


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
    named = " or ".join(dict.fromkeys(match.title for match in matches))
    raise Refused(
        f"{show_some(other)} not stored as {config_match.title} like the others, but as {named}",
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
