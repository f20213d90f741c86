"""`draftconv inspect`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from draftconv.api.inspect import Inspection, InspectOptions, inspect, remedy
from draftconv.api.other_drafter import other_drafter
from draftconv.checkpoint import Checkpoint
from draftconv.cli.examples import ENGINE
from draftconv.cli.loudness import is_verbose
from draftconv.cli.options import format_option, options_of
from draftconv.engines import ENGINES
from draftconv.engines.target_stops import instead_of, target_stop
from draftconv.errors import NotADrafter
from draftconv.options import several

EPILOG = f"""\b
Examples:
  draftconv inspect kimi-k2.5-eagle3
  draftconv inspect lightseekorg/kimi-k2.6-eagle3.1-mla --for {ENGINE} --target kimi-k2.6
"""


@click.command(epilog=EPILOG)
@click.argument("checkpoint")
@options_of(InspectOptions)
@click.option("--strict", is_flag=True, help="Exit 1 on any problem of severity error or warning.")
@format_option
@click.pass_context
def command(ctx: click.Context, /, checkpoint: str, strict: bool, fmt: str, **keywords: Any) -> None:
    """What CHECKPOINT is, what is wrong with it, and which engine reads it rightly.

    CHECKPOINT is a directory, a weights file or a Hub id (hf://owner/name[@revision] forces
    the Hub). By default headers, config.json, the vocabulary maps, a few lm_head rows and the
    scales of joined weights are read.
    """
    from draftconv.cli import output
    from draftconv.cli.describe import inspection_json

    try:
        with output.progress("reading") if keywords["deep"] else nullcontext(None) as report:
            inspection = inspect(checkpoint, **keywords, progress=report)
    except NotADrafter:
        _tell_other(checkpoint, fmt)
        raise
    match fmt:
        case "json":
            output.print_json(inspection_json(inspection))
        case "human":
            output.show(inspection.outcome())
            if argv := _next_command(inspection, checkpoint, ctx):
                output.print_next(argv)
            output.show(inspection.problems_told())
            if is_verbose():
                output.show(inspection.details())
    bad = bool(keywords["engines"]) and not inspection.passed
    faulty = strict and any(problem.severity != "note" for problem in inspection.problems)
    sys.exit(1 if bad or faulty else 0)


def _tell_other(checkpoint: str, fmt: str) -> None:
    """Print what is known of a drafter of another kind."""
    from draftconv.cli import output
    from draftconv.cli.describe import other_drafter_json

    if (other := other_drafter(checkpoint)) is None:
        return
    match fmt:
        case "json":
            output.print_json(other_drafter_json(other))
        case "human":
            output.show(other.blocks())


def _next_command(inspection: Inspection, checkpoint: str, ctx: click.Context) -> list[str]:
    """Convert if that helps, else serve if everything is known for it, else nothing."""
    if inspection.drafter.readings:
        return []  # a person has to say first which of them is right
    chosen = {name: ctx.params[name] for name in ("target", "target_layers", "layout", "aux_convention")}
    options = _arguments(chosen)
    if remedied := remedy(inspection):
        repairs = [argument for code in several(remedied.repairs) for argument in ("--repair", code)]
        out = _new_directory(inspection.drafter.checkpoint, str(remedied.to))
        packing = [argument for module in several(remedied.unpack) for argument in ("--unpack", module)]
        packing += ["--pack", remedied.pack] if remedied.pack else ["--dequantize"] if remedied.dequantize else []
        packing += ["--from-format", remedied.from_format] if remedied.from_format else []
        return ["draftconv", "convert", checkpoint, out, "--to", str(remedied.to), *options, *packing, *repairs]
    target = inspection.target
    served = not inspection.misdeclared and all(verdict.status == "loads" for verdict in inspection.verdicts)
    started = [verdict.spec for verdict in inspection.verdicts if not ENGINES[verdict.spec.name].only_named]
    if target and (target.path or target.repo) and served and started:
        spec = started[0]
        if target_stop(spec, target) is not None:
            if (other := next(instead_of(spec, target), None)) is None:
                return []
            chosen["target"] = other.name
        options = _arguments({**chosen, "target_layers": None})
        return ["draftconv", "serve", checkpoint, "--for", str(spec), *options]
    if target is None:
        engines = [argument for engine in ctx.params["engines"] for argument in ("--for", engine)]
        return ["draftconv", "inspect", checkpoint, *engines, *options, "--target", "TARGET"]
    return []


def _arguments(chosen: Mapping[str, object]) -> list[str]:
    return [argument for name, value in chosen.items() if value is not None for argument in (OPTIONS[name], str(value))]


OPTIONS = {"target": "--target", "target_layers": "--target-layers", "layout": "--from",
           "aux_convention": "--aux-convention"}  # fmt: skip


def _new_directory(checkpoint: Checkpoint, to: str) -> str:
    """A name for the output that is not taken and does not lie in the source."""
    inside = checkpoint.path is not None and Path.cwd().is_relative_to(checkpoint.path.resolve())
    room = checkpoint.path.resolve().parent if checkpoint.path and inside else Path()
    name = f"{checkpoint.name.rsplit('/', 1)[-1]}-{to}"
    candidates = (room / name, *(room / f"{name}-{i}" for i in range(2, 1000)))
    return str(next((path for path in candidates if not path.exists()), room / name))
