"""`draftconv quantize`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftconv.api.convert import refuse_place
from draftconv.api.quantize import Quantization, QuantizeOptions, prepare
from draftconv.cli.examples import ENGINE, OTHER, THIRD
from draftconv.cli.options import command_line, format_option, options_of

if TYPE_CHECKING:
    from draftconv.conversion.backend_choice import BackendChoice
    from draftconv.conversion.quantization_plan import QuantizationPlan
    from draftconv.quantization.deviation import Deviation

EPILOG = f"""\b
Examples:
  draftconv quantize drafter out --recipe w4a8 --for {ENGINE}:b200 --target kimi-k2.5
  draftconv quantize drafter out --recipe fp8 --for {OTHER}:mi325x --target kimi-k2.5 --dry-run
  draftconv quantize drafter out --recipe w4a8-awq --for {THIRD}:b200 --calibrate trace
"""

OUTLIER = 2.0
"""A row whose error is this many times that of the median row is worth a warning."""


@click.command(epilog=EPILOG)
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@options_of(QuantizeOptions)
@click.option("--dry-run", is_flag=True, help="Say what would be written and run, and write nothing.")
@format_option
@click.pass_context
def command(ctx: click.Context, /, source: str, out: Path, dry_run: bool, form: str, **told: Any) -> None:
    """Quantize the drafter SOURCE for the engine that will serve it, to the new directory OUT.

    Says in words which arithmetic will run there. A recipe that has no form on an engine is refused
    before any work, and the nearest one named. embed_tokens, lm_head, fc and norms keep every bit.
    """
    from draftconv.cli import output

    options = QuantizeOptions(**told)
    if not dry_run:
        refuse_place(source, out, overwrite=options.overwrite)
    found = prepare(source, options, download=not dry_run)
    if not dry_run:
        total = found.conversion.plan.total_bytes
        with output.progress(f"writing {out.name}") as report:
            found.write(out, overwrite=options.overwrite, progress=lambda done: report(done, total))
    output.print_readings(form, found.conversion.drafter)
    match form:
        case "json":
            output.print_json(_json(found, written=not dry_run))
        case "human":
            _show(found, out, written=not dry_run)
            if dry_run:
                output.print_next(command_line(ctx, dry_run=None))
            else:
                said = [
                    *options.convert.said.words,
                    *(["--accept-detected"] if found.conversion.drafter.readings else []),
                ]
                output.print_next(["draftconv", "parity", source, str(out), *said, "--trace", "TRACE"])


# ── for a person ───────────────────────────────────────────────────────────────────


def _show(found: Quantization, out: Path, *, written: bool) -> None:
    from draftconv.cli import output

    screen = output.console()
    screen.print(output.card(f"Recipe {found.decided.recipe.name}", _card(found.decided)))
    if written:
        screen.print(_table(found))
    for line in (*found.decided.faults, *_warnings(found), *(_outliers(found.decided.deviations) if written else ())):
        screen.print(output.text(f"Warning: {line}", "yellow"))
    before, after = _sizes(found)
    verb = f"Wrote {out}" if written else "Nothing written: would write"
    output.write(output.safe(f"{verb}: {output.size(after)}, {100 * after / before:.0f} % of {output.size(before)}"))


def _warnings(found: Quantization) -> list[str]:
    """What is still worth knowing of the output; how the source was read is told apart."""
    return [f"{p.code}: {p.detail}" for p in found.conversion.warnings if not p.kind.reading]


def _card(decided: QuantizationPlan) -> list[tuple[str, object]]:
    quantized, kept = decided.selection.quantized, decided.selection.kept
    rows: list[tuple[str, object]] = [
        ("scheme", decided.deployment.scheme),
        ("format", _format(decided)),
        *_rounding(decided.rounding),
        *_again(decided),
        ("quantized", f"{len(quantized)} weights: {', '.join(map(_short, quantized))}"),
        ("kept", ", ".join(f"{_short(name)} ({why})" for name, why in kept.items())),
    ]
    for name, deployment in decided.deployments.items():
        rows.append((name, f"runs as {deployment.executed} [{deployment.evidence}: {deployment.source}]"))
        rows += [("", note) for note in deployment.notes]
    if not decided.deployments:
        rows += [("", note) for note in decided.deployment.notes]
    return rows


def _rounding(rounding: BackendChoice) -> list[tuple[str, object]]:
    told = [("rounded by", rounding.package)] if rounding.package else []
    return [*told, *(("", note) for note in rounding.notes)]


def _again(decided: QuantizationPlan) -> list[tuple[str, object]]:
    """What a person has to know of a source that was quantized already."""
    if decided.stored is None:
        return []
    told: list[tuple[str, object]] = [
        ("source", f"quantized already, as {decided.stored.title}"),
        ("", "errors of both roundings add up: those below are of the second, against what the source held"),
    ]
    if decided.unpacked:
        told.append(("floats again", f"{', '.join(map(_short, decided.unpacked))} (in {decided.stored.dtype})"))
    return told + [("", finding) for finding in decided.stored.findings]


def _format(decided: QuantizationPlan) -> str:
    style = f", style {decided.deployment.style}" if decided.deployment.style else ""
    return f"{decided.deployment.format}{style}"


def _short(name: str) -> str:
    return name.removesuffix(".weight")


def _table(found: Quantization) -> object:
    from draftconv.cli import output
    from draftconv.quantization.deviation import total

    decided = found.decided
    bytes_of, scheme = _bytes(found), decided.deployment.scheme.weights.title
    rows = [
        (_short(name), scheme, each.relative, f"{each.row}: {_percent(each.worst)}", each.largest, *bytes_of[name])
        for name, each in ((name, decided.deviations[name]) for name in decided.selection.quantized)
    ]
    whole, (before, after) = total(decided.deviations), _summed(bytes_of)
    rows.append(("total", "", whole.relative, _percent(whole.worst), whole.largest, before, after))
    columns = ("weight", "scheme", "relative error", "worst row", "largest error", "before", "after")
    cells = (
        (name, scheme, _percent(error), worst, f"{largest:.3g}", output.size(before), output.size(after))
        for name, scheme, error, worst, largest, before, after in rows
    )
    return output.table("Quantized weights", columns, (tuple(map(output.text, row)) for row in cells))


def _percent(part: float) -> str:
    return f"{100 * part:.2f} %"


def _outliers(deviations: Mapping[str, Deviation]) -> list[str]:
    return [
        f"{_short(name)}: row {d.row} has {d.worst / d.typical:.1f} times the error of the median row"
        for name, d in deviations.items()
        if d.typical and d.worst > OUTLIER * d.typical
    ]


def _bytes(found: Quantization) -> dict[str, tuple[int, int]]:
    """Bytes of each quantized weight before and after."""
    after: dict[str, int] = {}
    for name, tensor in found.conversion.work.tensors.items():
        module = name.rpartition(".")[0]
        after[module] = after.get(module, 0) + tensor.nbytes
    decided, source = found.decided, found.conversion.drafter.tensors
    stored = decided.stored.modules if decided.stored else {}
    found_in = {
        name: stored[_short(name)].values() if _short(name) in stored else (source[name],)
        for name in decided.selection.quantized
    }
    return {name: (sum(ref.nbytes for ref in refs), after[_short(name)]) for name, refs in found_in.items()}


def _summed(bytes_of: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    return sum(before for before, _ in bytes_of.values()), sum(after for _, after in bytes_of.values())


def _sizes(found: Quantization) -> tuple[int, int]:
    drafter = found.conversion.drafter
    every = {**drafter.tensors, **drafter.qparams}
    return sum(ref.nbytes for ref in every.values()), found.conversion.plan.total_bytes


# ── for a program ──────────────────────────────────────────────────────────────────


def _json(found: Quantization, *, written: bool) -> dict[str, object]:
    from dataclasses import asdict

    from draftconv.cli.describe import verdict_json
    from draftconv.layouts.reading_options import reading_json
    from draftconv.quantization.deviation import total

    decided = found.decided
    before, after = _sizes(found)
    bytes_of, scheme = _bytes(found), str(decided.deployment.scheme.weights)
    deviations = decided.deviations if written else {}
    weights_before, weights_after = _summed(bytes_of)
    return {
        "written": written,
        "recipe": decided.recipe.name,
        "scheme": str(decided.deployment.scheme),
        "format": decided.deployment.format,
        "style": decided.deployment.style,
        "backend": {
            "name": decided.rounding.backend,
            "package": decided.rounding.package,
            "notes": list(decided.rounding.notes),
        },
        "source": {"quantized": decided.stored.title, "findings": list(found.conversion.findings)}
        if decided.stored
        else None,
        "floats_again": list(decided.unpacked),
        "engines": [
            {
                "engine": name,
                "executed": deployment.executed,
                "evidence": deployment.evidence,
                "source": deployment.source,
                "notes": list(deployment.notes),
            }
            for name, deployment in decided.deployments.items()
        ],
        "reading": reading_json(found.conversion.drafter),
        "warnings": [*decided.faults, *_warnings(found), *_outliers(deviations)],
        "verdicts": [verdict_json(verdict) for verdict in found.conversion.verdicts],
        "quantized": [
            {"name": name, "scheme": scheme, "bytes_before": bytes_of[name][0], "bytes_after": bytes_of[name][1]}
            | (asdict(deviations[name]) if name in deviations else {})
            for name in decided.selection.quantized
        ],
        "total": {"bytes_before": weights_before, "bytes_after": weights_after}
        | (asdict(total(deviations)) if deviations else {}),
        "kept": dict(decided.selection.kept),
        "bytes_before": before,
        "bytes_after": after,
        "peak_memory": found.conversion.plan.peak_memory,
    }
