"""`draftconv convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from draftconv.api.convert import Conversion, ConvertOptions, prepare, refuse_place
from draftconv.attestation.provenance import attest_conversion
from draftconv.attestation.statement import refuse_statement
from draftconv.cli.examples import ENGINE, OTHER
from draftconv.cli.options import command_line, format_option, options_of
from draftconv.display import table
from draftconv.options import arguments_of
from draftconv.verification.options import said_again

EPILOG = f"""\b
Examples:
  draftconv convert kimi-k2.5-eagle3 out --to {ENGINE} --target kimi-k2.5
  draftconv convert nvidia/Kimi-K2.6-Eagle3 out --to {OTHER} --target kimi-k2.6 --dry-run
  draftconv convert pruned out --to {ENGINE} --repair head-pruned-by-offset=unpruned
"""


@click.command(epilog=EPILOG)
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@options_of(ConvertOptions)
@click.option("--dry-run", is_flag=True, help="Show the whole plan and write nothing.")
@format_option
@click.pass_context
def command(ctx: click.Context, /, source: str, out: Path, dry_run: bool, fmt: str, **keywords: Any) -> None:
    """Write the drafter SOURCE in another layout, to the new directory OUT.

    Whatever the reader of that layout cannot express is refused with the reason. The result is
    checked as the engine would read it before a byte is written; OUT appears whole or not at all.
    """
    from draftconv.cli import output
    from draftconv.cli.memory import taking

    options = ConvertOptions(**keywords)
    if not dry_run:
        refuse_place(source, out, overwrite=options.overwrite)
        refuse_statement(options.attest, out)
    conversion = prepare(source, options, download=not dry_run)
    if not dry_run:
        total = conversion.plan.total_bytes
        need = taking("it", conversion.plan.peak_memory)
        with need, output.progress(f"writing {out.name}") as report:
            conversion.write(out, overwrite=options.overwrite, progress=lambda done: report(done, total))
        attest_conversion(conversion, options, out)
    output.print_doubts(conversion.drafter)
    match fmt:
        case "json":
            output.print_json(_json(conversion, dry_run=dry_run))
        case "human" if dry_run:
            _show_plan(conversion)
            output.print_next(command_line(ctx, dry_run=None))
        case "human":
            _show(conversion, out)
            output.print_next(
                ["draftconv", "verify", str(out), "--against", source, *_said_again(options, conversion, out)]
            )


def _said_again(options: ConvertOptions, conversion: Conversion, out: Path) -> list[str]:
    """What has to be said of the source and of the output again, where only a person can."""
    accepted = ["--accept-detected"] if conversion.drafter.readings else []
    ours = ["--from", f"{out}={conversion.layout.id}"] if conversion.ambiguous else []
    return [*arguments_of(said_again(options)), *ours, *accepted]


def _json(conversion: Conversion, *, dry_run: bool) -> dict[str, object]:
    from draftconv.cli.describe import left_out_json, verdict_json
    from draftconv.layouts.drafter_reader import reading_json

    plan = conversion.plan
    return {
        "written": not dry_run,
        "layout": conversion.layout.id,
        "bytes": plan.total_bytes,
        "peak_memory": plan.peak_memory,
        "files": [{"name": shard.file_name, "size": shard.size} for shard in plan.shards()],
        "tensors": [
            {
                "name": placed.tensor.name,
                "dtype": placed.tensor.dtype,
                "shape": list(placed.tensor.shape),
                "bytes": [placed.start, placed.stop],
                "operation": type(placed.tensor.operation).__name__.lower(),
                "file": shard.file_name,
            }
            for shard in plan.shards()
            for placed in shard.tensors
        ],
        "reading": reading_json(conversion.drafter),
        "changes": [{"kind": c.kind, "what": c.what, "why": c.why} for c in conversion.changes],
        "findings": list(conversion.findings),
        "warnings": [{"code": p.code, "detail": p.detail} for p in conversion.warnings],
        "not_checked": list(conversion.not_made),
        "config": dict(conversion.config),
        "engines": [verdict_json(verdict) for verdict in conversion.verdicts],
        "left_out": left_out_json(conversion),
    }


def _show_plan(conversion: Conversion) -> None:
    from draftconv.cli import output

    plan = conversion.plan
    amount, *blocks = conversion.blocks()
    tensors = (placed.tensor for shard in plan.shards() for placed in shard.tensors)
    rows = ((t.name, t.dtype, list(t.shape), type(t.operation).__name__.lower()) for t in tensors)
    output.show(
        [
            f"Nothing written: would write {amount}.",
            f"Peak memory about {output.size(plan.peak_memory)}.",
            *output.readings(conversion.drafter),
            *blocks,
            table("Plan", "", ("tensor", "dtype", "shape", "operation"), rows),
        ]
    )


def _show(conversion: Conversion, out: Path) -> None:
    from draftconv.cli import output

    amount, *blocks = conversion.blocks()
    output.show([f"Wrote {out}: {amount}", *output.readings(conversion.drafter), *blocks])
