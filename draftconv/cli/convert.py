"""`draftconv convert`."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import click

from draftconv.api.convert import Conversion, ConvertOptions, prepare, refuse_place
from draftconv.checkpoint import Plan
from draftconv.cli.examples import ENGINE, OTHER
from draftconv.cli.options import accept_option, command_line, format_option, reading_options, target_options
from draftconv.drafter.words import listed
from draftconv.engines import ENGINES
from draftconv.layouts import writable

EPILOG = f"""\b
Examples:
  draftconv convert kimi-k2.5-eagle3 out --to {ENGINE} --target kimi-k2.5
  draftconv convert nvidia/Kimi-K2.6-Eagle3 out --to {OTHER} --target kimi-k2.6 --dry-run
  draftconv convert pruned out --to {ENGINE} --repair head-pruned-by-offset=unpruned
"""
SHARING = listed([engine.title for engine in ENGINES.values() if engine.portable], "and")

SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([KMG]I?)?B?")
UNITS = {None: 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_size(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """A number of bytes such as 5GB or 512MiB."""
    if value is None:
        return None
    match = SIZE.fullmatch(value.strip().upper())
    size = int(Decimal(match[1]) * UNITS[match[2]]) if match else 0
    if size <= 0:
        raise click.BadParameter(f"{value!r} is not a size; write 5GB or 512MiB")
    return size


@click.command(epilog=EPILOG)
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--to", default="portable", show_default=True, metavar="LAYOUT",
    help=f"How it is written: {', '.join(writable())}. What is portable, {SHARING} read rightly, in 16 bits.",
)  # fmt: skip
@target_options
@click.option(
    "--embed", type=click.Choice(["keep", "drop", "from-target"]), default="keep", show_default=True,
    help="embed_tokens: keep the drafter's, drop it (if proven equal to the target's), or attach the target's.",
)  # fmt: skip
@click.option("--dtype", type=click.Choice(["bf16", "f16", "f32"]), help="Cast every float tensor.")
@click.option("--max-positions", type=click.IntRange(1), metavar="N", help="max_position_embeddings to write.")
@click.option("--shard-size", callback=parse_size, metavar="SIZE", help="Most bytes of tensors per file, e.g. 5GB.")
@click.option("--dequantize", is_flag=True, help="Write a quantized drafter as the floats that its weights stand for.")
@click.option("--pack", "packing", metavar="FORMAT[:STYLE]",
              help="Write a quantized drafter's integers in this format, e.g. compressed-pack.")  # fmt: skip
@click.option("--unpack", multiple=True, metavar="MODULE",
              help="With --pack: write this weight as floats, e.g. fc (repeatable).")  # fmt: skip
@click.option("--from-format", metavar="FORMAT[:STYLE]",
              help="How a quantized SOURCE is stored, where its config.json and tensors do not tell.")  # fmt: skip
@click.option(
    "--allow-lossy", is_flag=True,
    help="With --pack: leave out activations that the format cannot declare, and round scales that it cannot hold.",
)  # fmt: skip
@click.option("--deep", is_flag=True, help="Read every byte first; refuse NaN, infinities and all-zero tensors.")
@click.option("--dry-run", is_flag=True, help="Show the whole plan and write nothing.")
@click.option("--hash", "hashed", is_flag=True, help="Record the SHA-256 of the source's weight files.")
@click.option("--no-card", is_flag=True, help="Write no README.md.")
@reading_options
@accept_option
@click.option("--repair", "repairs", multiple=True, metavar="CODE[=PATH]", help="Mend this problem (repeatable).")
@click.option("--overwrite", is_flag=True, help="Replace OUT if draftconv wrote all that is in it.")
@click.option("--force", is_flag=True, help="With --embed drop: drop it unproven. Accept length may suffer.")
@format_option
@click.pass_context
def command(
    ctx: click.Context,
    source: str,
    out: Path,
    to: str,
    target: str | None,
    target_layers: int | None,
    embed: str,
    dtype: str | None,
    max_positions: int | None,
    shard_size: int | None,
    dequantize: bool,
    packing: str | None,
    unpack: tuple[str, ...],
    from_format: str | None,
    allow_lossy: bool,
    deep: bool,
    dry_run: bool,
    hashed: bool,
    no_card: bool,
    layout: str | None,
    aux_convention: str | None,
    accept_detected: bool,
    repairs: tuple[str, ...],
    overwrite: bool,
    force: bool,
    form: str,
) -> None:
    """Write the drafter SOURCE in another layout, to the new directory OUT.

    Whatever the reader of that layout cannot express is refused with the reason. The result is
    checked as the engine would read it before a byte is written; OUT appears whole or not at all.
    """
    from draftconv.cli import output

    options = ConvertOptions(
        to=to,
        source=layout,
        target=target,
        target_layers=target_layers,
        aux_convention=aux_convention,
        accept_detected=accept_detected,
        embed=embed,  # type: ignore[arg-type]
        force=force,
        dtype=dtype,
        max_positions=max_positions,
        repairs=repairs,
        shard_size=shard_size,
        hash=hashed,
        deep=deep,
        dequantize=dequantize,
        pack=packing,
        unpack=unpack,
        allow_lossy=allow_lossy,
        from_format=from_format,
        card=not no_card,
    )
    if not dry_run:
        refuse_place(source, out, overwrite=overwrite)
    conversion = prepare(source, options, download=not dry_run)
    if not dry_run:
        total = conversion.plan.total_bytes
        with output.progress(f"writing {out.name}") as report:
            conversion.write(out, overwrite=overwrite, progress=lambda done: report(done, total))
    output.print_readings(form, conversion.drafter)
    match form:
        case "json":
            output.print_json(_json(conversion, dry_run=dry_run))
        case "human" if dry_run:
            _show_plan(conversion)
            output.print_next(command_line(ctx, dry_run=None))
        case "human":
            _show(conversion, out)
            output.print_next(["draftconv", "verify", str(out), "--against", source, *_readable(conversion, out)])


def _readable(conversion: Conversion, out: Path) -> list[str]:
    """What has to be said of the source and of the output again, where only a person can."""
    accepted = ["--accept-detected"] if conversion.drafter.readings else []
    return [*(["--from", f"{out}={conversion.layout.id}"] if conversion.ambiguous else []), *accepted]


def _json(conversion: Conversion, *, dry_run: bool) -> dict[str, object]:
    from draftconv.cli.describe import verdict_json
    from draftconv.layouts.readings import reading_json

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
    }


def _show_plan(conversion: Conversion) -> None:
    from draftconv.cli import output

    plan = conversion.plan
    rows = [
        (
            output.text(placed.tensor.name),
            output.text(placed.tensor.dtype),
            output.text(list(placed.tensor.shape)),
            output.text(type(placed.tensor.operation).__name__.lower()),
        )
        for shard in plan.shards()
        for placed in shard.tensors
    ]
    output.console().print(output.table("Plan", ("tensor", "dtype", "shape", "operation"), rows))
    _show_changes(conversion)
    output.write(f"Nothing written: would write {_amount(conversion)} for {conversion.layout.title}{_files(plan)}.")
    output.write(f"Peak memory about {output.size(plan.peak_memory)}.")


def _show(conversion: Conversion, out: Path) -> None:
    from draftconv.cli import output

    _show_changes(conversion)
    readers = ", ".join(f"{verdict.spec} {verdict.status}" for verdict in conversion.verdicts)
    checked = f" ({readers})" if readers else ""
    written = f"Wrote {out}: {_amount(conversion)} for {conversion.layout.title}{_files(conversion.plan)}{checked}"
    output.write(output.safe(written))
    if conversion.not_made:
        output.write(output.safe(f"Not checked: {'; '.join(conversion.not_made)}."))


def _show_changes(conversion: Conversion) -> None:
    from draftconv.cli import output

    screen = output.console()
    keys = [c.what.removeprefix(CONFIG_KEY) for c in conversion.changes if c.what.startswith(CONFIG_KEY)]
    changes = [c for c in conversion.changes if not c.what.startswith(CONFIG_KEY)]
    if changes:
        rows = [(output.text(c.kind), output.text(c.what), output.text(c.why)) for c in changes]
        screen.print(output.table("Changes", ("", "what", "why"), rows))
    if keys:
        screen.print(output.text(f"Config keys left out, kept in draftconv.json: {', '.join(keys)}.", "dim"))
    for finding in conversion.findings:
        screen.print(output.text(f"Note: {finding}."))
    for problem in (warning for warning in conversion.warnings if not warning.kind.reading):
        style = output.STYLES[problem.severity]
        screen.print(output.text(f"{problem.severity.capitalize()} {problem.code}: {problem.detail}", style))


CONFIG_KEY = "config.json: "


def _amount(conversion: Conversion) -> str:
    from draftconv.cli import output

    return f"{len(conversion.plan.tensors)} tensors, {output.size(conversion.plan.total_bytes)}"


def _files(plan: Plan) -> str:
    return f" in {count} files" if (count := len(plan.shards())) > 1 else ""
