"""`draftconv quantize`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from draftconv.api.convert import refuse_place
from draftconv.api.quantize import Quantization, QuantizeOptions, prepare
from draftconv.attestation.provenance import attest_conversion
from draftconv.attestation.statement import refuse_statement
from draftconv.cli.examples import ENGINE, OTHER, THIRD
from draftconv.cli.options import command_line, format_option, options_of

EPILOG = f"""\b
Examples:
  draftconv quantize drafter out --recipe w4a16 --for {ENGINE}:b200 --target kimi-k2.5
  draftconv quantize drafter out --recipe fp8 --for {OTHER}:mi325x --target kimi-k2.5 --dry-run
  draftconv quantize drafter out --recipe w4a8-awq --for {THIRD}:b200 --calibrate trace
"""


@click.command(epilog=EPILOG)
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@options_of(QuantizeOptions)
@click.option("--dry-run", is_flag=True, help="Say what would be written and run, and write nothing.")
@format_option
@click.pass_context
def command(ctx: click.Context, /, source: str, out: Path, dry_run: bool, fmt: str, **keywords: Any) -> None:
    """Quantize the drafter SOURCE for the engine that will serve it, to the new directory OUT.

    Says in words which arithmetic will run there. A recipe that has no form on an engine is refused
    before any work, and the nearest one named. embed_tokens and norms keep every bit; lm_head and fc
    do too, unless the recipe has a part for them.
    """
    from draftconv.checkpoint.kept_work import room_of
    from draftconv.cli import output
    from draftconv.cli.interrupted import keeping
    from draftconv.cli.memory import taking

    options = QuantizeOptions(**keywords)
    if not dry_run:
        refuse_place(source, out, overwrite=options.overwrite)
        refuse_statement(options.attest, out)
    quantization = prepare(source, options, download=not dry_run)
    if not dry_run:
        total = quantization.conversion.plan.total_bytes
        if gptq := quantization.decided.calibration.gptq:
            output.print_notes([f"GPTQ takes about {gptq.estimate()}"])
            units = {"calibrating": "billion operations", "writing": "bytes"}
            need = taking("GPTQ", max(gptq.memory, quantization.conversion.plan.peak_memory))
            with need, keeping(room_of(out, "calibration"), "rounded"), output.stages(units) as stage:
                quantization.write(
                    out,
                    overwrite=options.overwrite,
                    progress=lambda done: stage("writing", done, total),
                    calibrating=partial(stage, "calibrating"),
                    announce=lambda line: output.print_notes([line]),
                )
        else:
            need = taking("it", quantization.conversion.plan.peak_memory)
            with need, output.progress(f"writing {out.name}") as report:
                quantization.write(out, overwrite=options.overwrite, progress=lambda done: report(done, total))
        attest_conversion(quantization.conversion, options, out)
    output.print_doubts(quantization.conversion.drafter)
    match fmt:
        case "json":
            output.print_json(_json(quantization, written=not dry_run))
        case "human":
            _show(quantization, out, written=not dry_run)
            if dry_run:
                better = {"recipe": quantization.instead} if quantization.instead else {}
                output.print_next(command_line(ctx, dry_run=None, **better))
            else:
                reading = [
                    *options.convert.reading.arguments,
                    *(["--accept-detected"] if quantization.conversion.drafter.readings else []),
                ]
                engines = list(quantization.decided.deployments)
                multiplied = ["--as", engines[0]] if len(engines) > 1 else []  # of one, the record tells
                output.print_next(["draftconv", "parity", source, str(out), *reading, "--trace", "TRACE", *multiplied])


# ── for a person ───────────────────────────────────────────────────────────────────


def _show(quantization: Quantization, out: Path, *, written: bool) -> None:
    from draftconv.cli import output

    amount, *blocks = quantization.blocks()
    outcome = f"{f'Wrote {out}' if written else 'Nothing written: would write'}: {amount}"
    output.show([outcome, *output.readings(quantization.conversion.drafter), *blocks])


# ── for a program ──────────────────────────────────────────────────────────────────


def _json(quantization: Quantization, *, written: bool) -> dict[str, object]:
    from dataclasses import asdict

    from draftconv.cli.describe import left_out_json, verdict_json
    from draftconv.layouts.drafter_reader import reading_json
    from draftconv.quantization.deviation import total

    decided = quantization.decided
    before, after = quantization.all_bytes
    bytes_of = quantization.bytes_of
    deviations = decided.deviations
    weights_before, weights_after = quantization.quantized_bytes
    return {
        "written": written,
        "recipe": decided.recipe.name,
        "instead": quantization.instead or None,
        "scheme": decided.deployment.numbers,
        "format": decided.deployment.format,
        "style": decided.deployment.style,
        "backend": {
            "name": decided.rounding.backend,
            "package": decided.rounding.package,
            "notes": list(decided.rounding.notes),
        },
        "source": {"quantized": decided.stored.title, "findings": list(quantization.conversion.findings)}
        if decided.stored
        else None,
        "floats_again": list(decided.unpacked),
        "engines": [
            {
                "engine": name,
                "executed": deployment.executed,
                "activations": str(deployment.multiplied or "16 bit"),
                "evidence": deployment.evidence,
                "source": deployment.source,
                "notes": list(deployment.notes),
            }
            for name, deployment in decided.deployments.items()
        ],
        "reading": reading_json(quantization.conversion.drafter),
        "warnings": list(quantization.warnings),
        "verdicts": [verdict_json(verdict) for verdict in quantization.conversion.verdicts],
        "left_out": left_out_json(quantization.conversion),
        "quantized": [
            {
                "name": name,
                "scheme": str(decided.part(name).scheme.weights),
                "bytes_before": bytes_of[name][0],
                "bytes_after": bytes_of[name][1],
            }
            | (asdict(deviations[name]) if name in deviations else {})
            for name in decided.selection.quantized
        ],
        "total": {"bytes_before": weights_before, "bytes_after": weights_after}
        | (asdict(total(deviations)) if deviations else {}),
        "kept": dict(decided.selection.kept),
        "bytes_before": before,
        "bytes_after": after,
        "peak_memory": quantization.conversion.plan.peak_memory,
    }
