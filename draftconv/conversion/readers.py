"""For which engines an output is written, where nobody names one: for as many as one directory can serve.

What is left out is left out with the reason, which is printed and recorded; refused is only what no engine reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from draftconv.conversion.quantization_plan import QuantizationPlan
from draftconv.conversion.repack_plan import RepackPlan
from draftconv.drafter.facts import Facts, Mla
from draftconv.engines import ENGINES
from draftconv.engines.deployment import refuse_unread
from draftconv.engines.engine import Engine
from draftconv.engines.rules import EngineSpec
from draftconv.errors import Refused
from draftconv.layouts import layout
from draftconv.layouts.base import Layout
from draftconv.layouts.portable import PORTABLE, portable_layout

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An engine that does not read an output, and why."""

    engine: str
    why: str

    def __str__(self) -> str:
        return f"not for {ENGINES[self.engine].title}: {self.why}"


def shared_by(made: Layout) -> tuple[str, ...]:
    """The engines that a portable layout was made for, where these are not all."""
    if made.id != PORTABLE or made.writer is None:
        return ()
    everyone = layout(PORTABLE).writer
    return () if everyone and everyone.serves == made.writer.serves else made.writer.serves


def layout_shared_by(engines: Sequence[str]) -> Layout:
    """The portable layout of these engines."""
    return portable_layout([own for name in engines for own in ENGINES[name].layouts])


def portable_engines() -> list[Engine]:
    """The engines that `--to portable` writes for."""
    return [engine for engine in ENGINES.values() if engine.portable]


def shared_layouts(engines: Sequence[Engine]) -> Iterator[Layout]:
    """Layouts that all these engines may read: the portable one, and what they alone share."""
    yield layout(PORTABLE)
    if len(engines) == 1:
        yield layout(engines[0].layout)
    else:
        yield layout_shared_by([engine.name for engine in engines])


def refuse_unread_form(making: RepackPlan | QuantizationPlan, spec: EngineSpec, facts: Facts) -> None:
    """Refuse quantized weights that an engine has no kernel for.

    Raises:
        Refused: none of its hardware has one, or not that which `spec` names.
    """
    match making:
        case RepackPlan(format=form, scheme=scheme):
            stored = [(form.id, scheme)]
        case QuantizationPlan(deployment=deployment):
            stored = [(part.format, part.scheme) for part in deployment.parts.values()]
    for format_id, scheme in stored:
        refuse_unread(spec, format_id, scheme, mla=isinstance(facts.attention, Mla))


def without_kernel(making: RepackPlan | QuantizationPlan | None, facts: Facts) -> tuple[LeftOut, ...]:
    """The engines that have no kernel for these weights; floats are for all."""
    return tuple(_without_kernel(making, facts)) if making else ()


def _without_kernel(making: RepackPlan | QuantizationPlan, facts: Facts) -> Iterator[LeftOut]:
    for engine in portable_engines():
        try:
            refuse_unread_form(making, EngineSpec(engine.name, engine.version), facts)
        except Refused as refusal:
            yield LeftOut(engine.name, refusal.why)


def for_most(
    engines: Sequence[Engine],
    plan: Callable[[Sequence[Engine], tuple[LeftOut, ...]], T],
    *,
    unread: tuple[LeftOut, ...] = (),
) -> T:
    """What can be planned for the most of these engines; `plan` is told which, and why the others are not.

    Args:
        unread: engines that were not even asked, and why.

    Raises:
        Refused: it can be planned for none; says why for each of them, unless that has nothing to do with engines.
    """
    refusals: dict[frozenset[str], Refused] = {}
    everyone = frozenset(engine.name for engine in engines)
    for count in range(len(engines), 0, -1):
        for some in combinations(engines, count):
            kept = frozenset(engine.name for engine in some)
            left_out = tuple(_left_out(e.name, refusals[kept | {e.name}]) for e in engines if e.name not in kept)
            try:
                return plan(some, (*unread, *left_out))
            except Refused as refusal:
                refusals[kept] = refusal
    alone = tuple(_left_out(engine.name, refusals[frozenset({engine.name})]) for engine in engines)
    whole = refusals[everyone]
    if len({left.why for left in alone}) == 1 and not unread:
        raise whole
    raise Refused(
        "no engine reads this drafter so written",
        why="; ".join(map(str, (*unread, *alone))),
        cure="take another recipe or format" if unread else whole.cure,
    ) from whole


def _left_out(engine: str, refusal: Refused) -> LeftOut:
    return LeftOut(engine, f"{refusal.what}: {refusal.why}" if refusal.why else refusal.what)
