"""Which format the tensors of quantized weights are in, whatever config.json says of them.

A format foretells the tensors that a weight of a given shape becomes (`Format.parts`); the shapes
of a drafter's weights follow from its facts. A format fits when every quantized module has just the
tensors foretold. Headers are looked at, no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from draftconv.checkpoint import TensorRef
from draftconv.errors import BadCheckpoint, Refused
from draftconv.quantization.formats import formats
from draftconv.quantization.formats.base import Declared, Format, StoredTensor
from draftconv.quantization.formats.module_tensors import FLOAT, TORCH
from draftconv.quantization.scheme import DTYPES, Granularity, InputScheme, Scheme, WeightDtype, WeightScheme

Parts = Mapping[str, TensorRef]

OPTIONAL = frozenset({"weight_shape", "weight_zero_point", "pre_quant_scale", "g_idx"})
"""Tensors that some programs leave out: what they say follows from the others, or is nothing."""


@dataclass(frozen=True, slots=True)
class FormatMatch:
    """A reading that all quantized modules of a drafter allow."""

    format: Format
    declared: Declared

    def __str__(self) -> str:
        """As --from-format takes it."""
        style = f":{self.declared.style}" if self.format.reads_style else ""
        return f"{self.format.id}{style}"

    @property
    def title(self) -> str:
        """Format and granularity, for a person."""
        declared, fmt = self.declared, self.format
        several = len({dtype for dtype, _ in fmt.holds}) > 1
        title = f"{fmt.title}, {DTYPES[declared.dtype].title}" if several else fmt.title
        return f"{title} per {declared.granularity or 'group'}" + (f" of {declared.group}" if declared.group else "")

    def tells(self, other: Declared) -> bool:
        """Whether a config says of the numbers what the tensors do, as far as it says anything."""
        mine = self.declared
        grouped = other.granularity in (None, mine.granularity) and other.group in (None, mine.group)
        return grouped and other.dtype == mine.dtype


def detect_formats(modules: Mapping[str, Parts], shapes: Mapping[str, tuple[int, int]]) -> tuple[FormatMatch, ...]:
    """Every reading that fits all modules, in order of formats.

    Args:
        modules: module → its tensors by suffix. `shapes`: [O, I] of each weight.
    """
    return tuple(fit for fmt in formats().values() for fit in _fitting_matches(fmt, modules, shapes))


def detect_format(fit: FormatMatch, parts: Parts, shape: tuple[int, int]) -> bool:
    """Whether one module has the tensors that a reading foretells."""
    return _module_fits(fit.format, fit.declared, parts, shape)


def headers(parts: Parts) -> dict[str, Tensor]:
    """Tensors that have dtypes and shapes and no values."""
    return {
        suffix: torch.empty(ref.shape, dtype=TORCH.get(ref.dtype, torch.bool), device="meta")
        for suffix, ref in parts.items()
    }


def _fitting_matches(
    fmt: Format, modules: Mapping[str, Parts], shapes: Mapping[str, tuple[int, int]]
) -> Iterator[FormatMatch]:
    names = list(modules)
    candidates = list(_candidates(fmt, modules[names[0]], shapes[names[0]]))
    left = [
        candidate
        for candidate in candidates
        if all(_module_fits(fmt, candidate, modules[name], shapes[name]) for name in names)
    ]
    styles = fmt.styles if fmt.reads_style else fmt.styles[:1] or (None,)
    fitting: dict[Declared, None] = {}
    for declared in left:
        for style in styles:
            resolved = _resolved(fmt, modules[names[0]], _with_style(declared, style))
            if resolved is not None:
                fitting[resolved] = None
    for declared in fitting:
        yield FormatMatch(fmt, declared)
    if not fitting and fmt.only_read:
        yield from _read_only_matches(fmt, modules, shapes)


def _read_only_matches(
    fmt: Format, modules: Mapping[str, Parts], shapes: Mapping[str, tuple[int, int]]
) -> Iterator[FormatMatch]:
    """Variants that are never written, and so not foretold: the format itself has to know them."""
    dtype = next(dtype for dtype, _ in sorted(fmt.holds))
    seen = {
        _resolved(fmt, parts, Declared(dtype, None, style=fmt.styles[0])) if _fills_words(parts, shapes[name]) else None
        for name, parts in modules.items()
    }
    only = seen.pop()
    if not seen and only is not None and only.style in fmt.only_read:
        yield FormatMatch(fmt, only)


def _fills_words(parts: Parts, shape: tuple[int, int]) -> bool:
    """Whether 32-bit words hold as many INT4 values as the weight has."""
    return "weight" in parts and parts["weight"].dtype == "I32" and 2 * parts["weight"].nbytes == shape[0] * shape[1]


def _resolved(fmt: Format, parts: Parts, declared: Declared) -> Declared | None:
    try:
        return fmt.resolve(headers(parts), declared)
    except (BadCheckpoint, Refused):
        return None


def _with_style(declared: Declared, style: str | None) -> Declared:
    return Declared(declared.dtype, declared.granularity, declared.group, declared.inputs, style=style)


def _candidates(fmt: Format, parts: Parts, shape: tuple[int, int]) -> Iterator[Declared]:
    for dtype, granularity in sorted(fmt.holds):
        for group in _groups(fmt, dtype, granularity, parts, shape[1]):
            for inputs in _inputs(fmt):
                yield Declared(dtype, granularity, group, inputs)


def _groups(fmt: Format, dtype: WeightDtype, granularity: Granularity, parts: Parts, inputs: int) -> list[int | None]:
    """Group sizes that some dimension of a tensor would give; a whole row is called a channel where it can be."""
    if granularity != "group":
        return [None]
    if (size := DTYPES[dtype].group) is not None:
        return [size]
    counts = {count for ref in parts.values() for count in ref.shape if count and inputs % count == 0}
    least = 2 if (dtype, "channel") in fmt.holds else 1
    return [inputs // count for count in sorted(counts) if count >= least]


def _inputs(fmt: Format) -> list[InputScheme | None]:
    """One of each kind that tensors tell apart: none or dynamic, and static, which has a tensor."""
    static: list[InputScheme | None] = [scheme for scheme in fmt.inputs if scheme is not None and not scheme.dynamic]
    loose = [None] if None in fmt.inputs else [scheme for scheme in fmt.inputs if scheme is not None and scheme.dynamic]
    return [*loose, *static]


def _module_fits(fmt: Format, declared: Declared, parts: Parts, shape: tuple[int, int]) -> bool:
    """Whether a module has the tensors that the format foretells, whatever float dtype scales are in."""
    spec = DTYPES[declared.dtype]
    if declared.granularity is None:
        return False
    weights = WeightScheme(declared.dtype, declared.granularity, spec.rules[0], spec.scales[0], declared.group)
    try:
        foretold = {part.suffix: part for part in fmt.parts(shape, Scheme(weights, declared.inputs), "BF16")}
    except Refused:
        return False
    if not (foretold.keys() - OPTIONAL <= parts.keys() <= foretold.keys()):
        return False
    return all(_same_header(foretold[suffix], ref) for suffix, ref in parts.items())


def _same_header(part: StoredTensor, ref: TensorRef) -> bool:
    floats = part.dtype in FLOAT and ref.dtype in FLOAT
    return part.shape == ref.shape and (floats or part.dtype == ref.dtype)
