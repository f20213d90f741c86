"""report.html: one file that needs nothing else, neither network nor JavaScript."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from draftconv.checkpoint.text import safe
from draftconv.display import Table
from draftconv.report import formatting, plots, tables
from draftconv.report.cells import cell_class, compact, short
from draftconv.report.formatting import (
    MEANINGS,
    SYMBOLS,
    Decode,
    arithmetics,
    change,
    change_interval,
    gate_label,
    length,
    passage,
    sentence,
    token,
)
from draftconv.report.interval_strips import Axis, Strip, category_axis, gate_axis
from draftconv.report.model import Comparison, Place, Report
from draftconv.report.verdict import category_floor, percent

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True, slots=True)
class Draft:
    """A drafted token: the target agreed with it or not."""

    text: str
    accepted: bool


@dataclass(frozen=True, slots=True)
class PlaceText:
    """A place where the candidate lost, as text."""

    place: Place
    context: str
    target: tuple[str, ...]
    reference: tuple[Draft, ...]
    candidate: tuple[Draft, ...]

    @classmethod
    def of(cls, place: Place, decode: Decode | None) -> PlaceText:
        def drafts(tokens: Sequence[int], accepted: int) -> tuple[Draft, ...]:
            return tuple(Draft(token(decode, number), i < accepted) for i, number in enumerate(tokens))

        return cls(
            place,
            passage(decode, place.context),
            tuple(token(decode, number) for number in place.target),
            drafts(place.reference, place.reference_accepted),
            drafts(place.candidate, place.candidate_accepted),
        )


@dataclass(frozen=True, slots=True)
class Section:
    """A comparison with everything that the page draws of it.

    Attributes:
        category_strips: one for each row of the table.
        floor: what every category must keep of its accept length; None where nothing is asked of them.
        depth, requests: drawings; empty where no step was counted.
    """

    comparison: Comparison
    gate: Axis
    gate_strip: Strip | None
    category_table: Table
    category_axis: Axis
    category_strips: tuple[Strip, ...]
    floor: float | None
    depth_table: Table
    depth: str
    requests: str
    places: tuple[PlaceText, ...]
    more: tuple[Table, ...]
    missed: Table
    sample: Table

    @classmethod
    def of(cls, report: Report, comparison: Comparison, number: int, decode: Decode | None) -> Section:
        verdict, losses = comparison.verdict, comparison.losses
        gate, axis = gate_axis(verdict), category_axis(verdict)
        estimate = verdict.estimate
        more = (
            tables.contexts(comparison),
            tables.diagnostics(comparison),
            tables.every_position(comparison),
            tables.attribution(comparison),
        )
        return cls(
            comparison=comparison,
            gate=gate,
            gate_strip=gate.strip(estimate) if estimate else None,
            category_table=tables.categories(comparison),
            category_axis=axis,
            category_strips=tuple(
                axis.strip(part) for part in (*verdict.categories.values(), *filter(None, [estimate]))
            ),
            floor=None if verdict.gate.margin is None else category_floor(verdict.gate.margin),
            depth_table=tables.depths(comparison),
            depth=plots.acceptance_by_depth(f"depth-{number}", comparison.depths) if estimate else "",
            requests=plots.per_request(f"requests-{number}", report.pairs(comparison)) if estimate else "",
            places=tuple(PlaceText.of(place, decode) for place in (losses.largest if losses else ())),
            more=tuple(table for table in more if table.rows),
            missed=tables.missed(comparison, decode),
            sample=tables.sample(report, comparison),
        )


def page(report: Report, decode: Decode | None = None) -> str:
    """The page. Nothing in it that came from a model or a text can act as markup.

    Args:
        decode: token ids to text; ids are shown without it.
    """
    return template("report.html.j2").render(
        report=report,
        sections=[
            Section.of(report, comparison, number, decode) for number, comparison in enumerate(report.comparisons, 1)
        ],
        headline=tables.headline(report),
        arithmetics=list(arithmetics(report)),
        controls=tables.controls(report),
        noticed=formatting.controls(report),
        beside=[table for table in (tables.speed(report), tables.accuracy(report)) if table.rows],
        arms=tables.arms(report),
        settings=tables.settings(report),
        command=safe(shlex.join(report.about.command)),
        decoded=decode is not None,
    )


def _keep_units(text: str) -> str:
    """No line break between a figure and its unit."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


@cache
def template(name: str) -> Template:
    """One of the pages of this package, with the tables, words and styles that all of them share."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    def source(name: str) -> str:
        return files("draftconv.report").joinpath(name).read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(source), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=True
    )
    environment.globals |= {"style": Markup(source("report.css")), "symbols": SYMBOLS, "meanings": MEANINGS}
    filters: dict[str, Callable[..., str]] = {
        "safe_text": safe,
        "compact": compact,
        "short": short,
        "cell_class": cell_class,
        "drawing": Markup,
        "sentence": sentence,
        "asked": gate_label,
        "accept_length": length,
        "change": change,
        "change_interval": change_interval,
        "percent": percent,
        "together": _keep_units,
    }
    environment.filters |= filters
    return environment.get_template(name)
