"""Plots as inline SVG: drawn by matplotlib, coloured by the page.

Every colour is a stand-in that becomes a CSS variable, so that one drawing is legible on a
light page, a dark one and on paper. A drawing that is a file of its own has no page: `standalone`
gives it the same colours. Nothing that a stranger wrote is drawn: names stand in
the page around a plot. The same figures give the same bytes with the same matplotlib.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from draftconv.report.intervals import Measured
from draftconv.report.statistics import Depth, Pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, LINE, REFERENCE, CANDIDATE, WORSE, PAGE = (f"#0{n}0{n}0{n}" for n in range(1, 8))
VARIABLES: Mapping[str, str] = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    REFERENCE: "var(--reference)",
    CANDIDATE: "var(--candidate)",
    WORSE: "var(--worse)",
    PAGE: "var(--page)",
}
STYLE: Mapping[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "draftconv",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same widths everywhere
    "font.size": 11,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.labelcolor": MUTED,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.unicode_minus": True,
    "axes.axisbelow": True,
    "axes.grid": True,
    "figure.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.color": LINE,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
WIDTH = 4.8
"""Inches of 72 px: narrow enough that labels stay readable when a phone scales the drawing down."""


def acceptance_by_depth(name: str, depths: Sequence[Depth]) -> str:
    """p_j of both arms as bars, and their difference with 95 % intervals below.

    Args:
        name: of the drawing, unique on its page.
    """
    with _figure(4.3) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(5, 3))
        places = [depth.depth for depth in depths]
        rates = [depth.reached for depth in depths]
        above.bar([j - 0.19 for j in places], [100 * r.reference.value for r in rates], 0.34, color=REFERENCE)
        above.bar([j + 0.19 for j in places], [100 * r.candidate.value for r in rates], 0.34, color=CANDIDATE)
        above.set(ylim=(0, 100), ylabel="% of steps")
        above.grid(visible=False, axis="x")
        below.axhline(0, color=MUTED, linewidth=1)
        for j, rate in zip(places, rates, strict=True):
            _whisker(below, j, rate.difference)
        below.set(ylabel="difference,\npoints", xlabel="drafted token", xlim=(0.5, len(places) + 0.5))
        span = max(max(abs(r.difference.interval.low), abs(r.difference.interval.high)) for r in rates)
        below.set_ylim(-130 * max(span, 0.004), 130 * max(span, 0.004))
        below.set_xticks(places)
        below.grid(visible=False, axis="x")
        figure.align_ylabels((above, below))
        return _svg(
            figure,
            name,
            "Acceptance by depth",
            "Bars: share of steps that accepted at least so many drafted tokens, for both arms. Below: "
            "candidate minus reference with 95 % intervals. The table beside it has the same figures.",
        )


def accept_length_by_depth(name: str, lengths: Sequence[Measured]) -> str:
    """Accept length with 1, 2 … drafted tokens per step, with 95 % intervals.

    Args:
        name: of the drawing, unique on its page.
    """
    with _figure(3.2) as figure:
        axes = figure.subplots()
        places = range(1, len(lengths) + 1)
        axes.plot(places, [measured.value for measured in lengths], "o-", color=CANDIDATE, markersize=6, linewidth=1)
        for k, measured in zip(places, lengths, strict=True):
            axes.plot([k, k], [measured.interval.low, measured.interval.high], color=CANDIDATE, linewidth=2)
        axes.set(xlabel="drafted tokens per step", ylabel="tokens per step", xlim=(0.5, len(lengths) + 0.5))
        axes.set_ylim(bottom=1)
        axes.set_xticks(places)
        axes.grid(visible=False, axis="x")
        return _svg(
            figure,
            name,
            "Accept length by drafted tokens",
            "Accept length for each number of drafted tokens per step, with 95 % intervals. The table below has the "
            "same figures.",
        )


@dataclass(frozen=True, slots=True)
class Spot:
    """A combination of choices by its size.

    Attributes:
        bytes: of weights per draft step. `ratio`: of its accept length to that of the drafter as it is.
        gain: its estimated speed-up over no drafter, where that is known.
    """

    bytes: float
    ratio: Measured
    chosen: bool = False
    gain: float | None = None


UPRIGHT = 10
"""Speed-ups that stand side by side; more of them are turned."""


def bytes_and_ratio(name: str, spots: Sequence[Spot], max_loss: float) -> str:
    """What is left of accept length over the bytes of weights that a draft step reads; the chosen one is filled.

    Args:
        name: of the drawing, unique on its page.
        max_loss: the share of accept length that may be lost; a line is drawn there.
    """
    with _figure(3.7) as figure:
        axes = figure.subplots()
        axes.axhline(1 - max_loss, color=MUTED, linewidth=1, linestyle="--")
        whole = max(spot.bytes for spot in spots)
        for spot in spots:
            share = 100 * spot.bytes / whole
            axes.plot([share, share], [spot.ratio.interval.low, spot.ratio.interval.high], color=CANDIDATE, linewidth=2)
            filled = CANDIDATE if spot.chosen else PAGE
            axes.plot([share], [spot.ratio.value], "o", color=CANDIDATE, markerfacecolor=filled, markersize=7)
        _speed_ups(axes, [spot for spot in spots if spot.gain is not None], whole)
        axes.set(xlabel="% of the bytes per draft step", ylabel="accept length, ratio", xlim=(0, 104))
        return _svg(
            figure,
            name,
            "Bytes per draft step and accept length",
            f"{len(spots)} combinations, one point each: accept length, of the drafter as it is, with 95 % intervals; "
            f"a filled one was certified; the dashed line is the loss that was allowed, {1 - max_loss:g}; figures "
            "above points are estimated speed-ups.",
        )


def _speed_ups(axes: Axes, spots: Sequence[Spot], whole: float) -> None:
    """In one row above the plot, each tied to its point and as near to it as the others leave room."""
    if not spots:
        return
    upright = len(spots) <= UPRIGHT
    apart = 10.0 if upright else 4.5
    place = 100 + apart
    for left, spot in reversed(list(enumerate(sorted(spots, key=lambda spot: spot.bytes)))):
        share = 100 * spot.bytes / whole
        place = min(place - apart, max(share, left * apart))  # to the left, where fewer points are
        axes.annotate(
            f"{spot.gain:.2f}",
            (share, spot.ratio.interval.high),
            xytext=(place, 1.06),
            textcoords=axes.get_xaxis_transform(),
            rotation=0 if upright else 90,
            color=INK,
            ha="center",
            va="bottom",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 1},
        )
    title = "estimated speed-up over no drafter"
    axes.set_title(title, loc="left", color=MUTED, fontsize=11, pad=32 if upright else 44)


def per_request(name: str, pairs: Sequence[Pair]) -> str:
    """Accept length of every request: reference across, candidate up; at least one pair must count."""
    points = [(p.reference.accept_length, p.candidate.accept_length) for p in pairs if p.counted]
    worse = sum(candidate < reference for reference, candidate in points)
    better = sum(candidate > reference for reference, candidate in points)
    flat = [value for point in points for value in point]
    margin = max(0.08 * (max(flat) - min(flat)), 0.1)
    low, high = min(flat) - margin, max(flat) + margin
    with _figure(4.3) as figure:
        axes = figure.subplots()
        axes.fill_between([low, high], [low, low], [low, high], color=WORSE, linewidth=0)
        axes.plot([low, high], [low, high], color=MUTED, linewidth=1)
        axes.plot([x for x, _ in points], [y for _, y in points], "o", color=CANDIDATE, alpha=0.6, markersize=5, mew=0)
        axes.text(0.03, 0.97, f"better: {better}", transform=axes.transAxes, va="top", color=MUTED)
        axes.text(0.97, 0.03, f"worse: {worse}", transform=axes.transAxes, ha="right", color=MUTED)
        axes.set(xlim=(low, high), ylim=(low, high), xlabel="reference, tokens", ylabel="candidate, tokens")
        axes.set_aspect("equal")
        return _svg(
            figure,
            name,
            "Accept length of every request",
            f"{len(points)} requests, one point each: the candidate is worse on {worse}, better on {better}, "
            f"and equal on {len(points) - worse - better}.",
        )


def _whisker(axes: Axes, x: float, measured: Measured) -> None:
    axes.plot([x, x], [100 * measured.interval.low, 100 * measured.interval.high], color=CANDIDATE, linewidth=2)
    axes.plot([x], [100 * measured.value], "o", color=CANDIDATE, markersize=6)


@contextmanager
def _figure(height: float) -> Iterator[Figure]:
    """A figure that no matplotlibrc of the user changes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield Figure(figsize=(WIDTH, height), layout="constrained")


def _svg(figure: Figure, name: str, title: str, description: str) -> str:
    """The drawing as one element of a page; `name` keeps its ids apart from other drawings'."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    drawing = out.getvalue()
    drawing = drawing[drawing.index("<svg ") :]
    drawing = re.sub(r"<metadata>.*?</metadata>\s*|<defs>\s*<style.*?</defs>\s*", "", drawing, flags=re.DOTALL)
    drawing = re.sub("|".join(VARIABLES), lambda match: VARIABLES[match[0]], drawing)
    drawing = re.sub(r'(?<=\bid=")|(?<=href="#)|(?<=url\(#)', f"{name}-", drawing)
    attributes = f'role="img" aria-labelledby="{name}-title {name}-desc"'
    caption = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    return re.sub(r"<svg ([^>]*)>", lambda match: f"<svg {attributes} {match[1]}>{caption}", drawing, count=1)


PALETTE = re.compile(r":root \{([^}]*)\}")
"""Of the page's style sheet: the light colours first, then the dark ones."""
USED = re.compile(r"var\((--\w+)\)")


def standalone(drawing: str) -> str:
    """A drawing as a file of its own: the page's colours are in it, light ones and for dark screens dark ones.

    Light colours stand where they are used, and the dark ones in a style of its own: programs that know no style
    sheet draw the light ones.
    """
    css = files("draftconv.report").joinpath("report.css").read_text(encoding="utf-8")
    light, dark, *_ = (dict(re.findall(r"(--[\w-]+): ([^;]+);", part)) for part in PALETTE.findall(css))
    ground = '<rect width="100%" height="100%" style="fill: var(--page)"/>'
    style = f"<style>{_dark(drawing + ground, light, dark)}</style>"
    drawing = drawing.replace("</desc>", f"</desc>{style}{ground}", 1)
    return USED.sub(lambda found: light[found[1]], drawing)


def _dark(drawing: str, light: Mapping[str, str], dark: Mapping[str, str]) -> str:
    rules = "".join(
        f'[style*="{key}: {light[name]}"] {{ {key}: {dark[name]} !important }} '
        for name in dict.fromkeys(USED.findall(drawing))
        for key in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark) {{ {rules}}}"
