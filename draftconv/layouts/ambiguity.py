"""Where a file can be read in several ways: layouts whose rules fit it as well as those of the detected one.

Producers share names and keys and mean other things by them: ids before or after the layer,
`norm_output` for the state fed back or for the norm before the head. A mark that only one
program writes settles it, and so does the usual triple of layers, which is usual under one
numbering only. What is left is for a person to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from draftconv.drafter.boundaries import default_triple
from draftconv.drafter.drafter import Detection, Reading
from draftconv.drafter.facts import AuxLayers
from draftconv.drafter.fingerprint import Fingerprint
from draftconv.layouts import MARK, layouts
from draftconv.layouts.aux_layers import DEFAULT_COUNT
from draftconv.layouts.base import Layout, ReadOptions

Read = Callable[[tuple[str, str], Layout, ReadOptions], Reading]
"""Reads the file as this layout with these options, which this option and value choose."""


def readings(
    fingerprint: Fingerprint, layout: Layout, detection: Detection, options: ReadOptions, read: Read
) -> tuple[Reading, ...]:
    """Every reading that fits and gives other facts, the detected one first; empty where there is only one."""
    if detection.confidence == "given" or fingerprint.config.has(MARK):
        return ()
    first = read(_layout_option(layout), layout, options)
    if first.boundaries is AuxLayers.UNKNOWN:
        return ()  # a problem of its own, with the same cures
    layers = options.target.layers if options.target else None
    unmarked = detection.confidence != "certain"
    fitting = _fitting_layouts(fingerprint, layout) if unmarked else ()
    others = [read(_layout_option(other), other, options) for other in fitting]
    turned = [
        other for other in _flipped_readings(layout, options, read) if usual(other, layers) or _is_shared(other, others)
    ]
    known = [reading for reading in (*turned, *others) if reading.boundaries is not AuxLayers.UNKNOWN]
    any_usual = any(usual(reading, layers) for reading in (first, *known))
    plausible = [first, *(reading for reading in known if usual(reading, layers) or not any_usual)]
    distinct: dict[str, Reading] = {}
    for reading in plausible:
        distinct.setdefault(reading.means, reading)
    return tuple(distinct.values()) if len(distinct) > 1 else ()


def usual(reading: Reading, layers: int | None) -> bool:
    """Whether the triple that every engine and trainer takes by default is among the boundaries.

    Args:
        layers: of the target; None asks for any target of which it would be the triple.
    """
    boundaries = reading.boundaries
    if isinstance(boundaries, AuxLayers):
        return boundaries is AuxLayers.DEFAULT
    counts = [layers] if layers else [b + 3 for b in boundaries if b + 3 >= max(boundaries)]
    triples = [{*default_triple(count)} for count in counts]
    # of few layers it repeats
    return any(len(triple) == DEFAULT_COUNT and triple <= {*boundaries} for triple in triples)


def _fitting_layouts(fingerprint: Fingerprint, layout: Layout) -> Iterator[Layout]:
    """Layouts that an unmarked file may be in as well."""
    for other in layouts().values():
        if (
            other is not layout
            and other.unmarked is not None
            and all(clue.holds(fingerprint) for clue in other.unmarked)
        ):
            yield other


def _flipped_readings(layout: Layout, options: ReadOptions, read: Read) -> Iterator[Reading]:
    """The same layout with its ids counted the other way, as after an edit by hand."""
    if options.aux_convention is None:
        for convention in ("before", "after"):
            yield read(("--aux-convention", convention), layout, replace(options, aux_convention=convention))


def _is_shared(reading: Reading, others: list[Reading]) -> bool:
    return any(other.boundaries == reading.boundaries for other in others)


def _layout_option(layout: Layout) -> tuple[str, str]:
    return "--from", layout.alias or layout.id
