"""`draftconv quantize`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from draftconv.api.convert import ConvertOptions, refuse_place
from draftconv.api.quantize import Quantization, QuantizeOptions, prepare
from draftconv.cli.examples import ENGINE, OTHER, THIRD
from draftconv.cli.options import accept_option, command_line, format_option, reading_options, target_options
from draftconv.quantization.oracles import BACKENDS, BackendName

if TYPE_CHECKING:
    from draftconv.conversion.quantizing import Quantizing
    from draftconv.conversion.rounding import Rounding
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
@click.option("--recipe", required=True, metavar="NAME|FILE",
              help="A shipped recipe (see `draftconv recipes`), or a YAML file.")  # fmt: skip
@click.option(
    "--for", "engines", multiple=True, metavar="ENGINE",
    help=f"Who will serve it, as ENGINE[@VERSION][:HARDWARE], e.g. {ENGINE}:b200; may be repeated.  "
    "[default: the form that most engines read]",
)  # fmt: skip
@click.option("--allow-a16", is_flag=True,
              help="Leave activations in 16 bits where the engine has no form of the recipe otherwise.")  # fmt: skip
@click.option("--tp", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Ranks of tensor parallelism, for the sizes that the engine's kernels take.")  # fmt: skip
@click.option("--calibrate", type=click.Path(path_type=Path), metavar="TRACE",
              help="A trace to measure static activation scales on, or AWQ smoothing (modelopt).")  # fmt: skip
@click.option("--backend", type=click.Choice(BACKENDS), default="native", show_default=True,
              help="Who rounds the weights: draftconv, amd-quark or nvidia-modelopt (extras).")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE",
              help="Where torch rounds the weights (native).")  # fmt: skip
@click.option("--requantize", is_flag=True,
              help="Take a SOURCE that is quantized already; the errors of both add up.")  # fmt: skip
@click.option("--from-format", metavar="FORMAT[:STYLE]",
              help="How a quantized SOURCE is stored, where its config.json and tensors do not tell.")  # fmt: skip
@target_options
@click.option("--dry-run", is_flag=True, help="Say what would be written and run, and write nothing.")
@click.option("--hash", "hashed", is_flag=True, help="Record the SHA-256 of the source's weight files.")
@click.option("--no-card", is_flag=True, help="Write no README.md.")
@reading_options
@accept_option
@click.option("--overwrite", is_flag=True, help="Replace OUT if draftconv wrote all that is in it.")
@format_option
@click.pass_context
def command(
    ctx: click.Context,
    source: str,
    out: Path,
    recipe: str,
    engines: tuple[str, ...],
    allow_a16: bool,
    tp: int,
    calibrate: Path | None,
    backend: BackendName,
    device: str,
    requantize: bool,
    from_format: str | None,
    target: str | None,
    target_layers: int | None,
    dry_run: bool,
    hashed: bool,
    no_card: bool,
    layout: str | None,
    aux_convention: str | None,
    accept_detected: bool,
    overwrite: bool,
    form: str,
) -> None:
    """Quantize the drafter SOURCE for the engine that will serve it, to the new directory OUT.

    Says in words which arithmetic will run there. A recipe that has no form on an engine is refused
    before any work, and the nearest one named. embed_tokens, lm_head, fc and norms keep every bit.
    """
    from draftconv.cli import output

    convert = ConvertOptions(
        source=layout, target=target, target_layers=target_layers, aux_convention=aux_convention,
        accept_detected=accept_detected, hash=hashed, card=not no_card, from_format=from_format,
    )  # fmt: skip
    options = QuantizeOptions(recipe, engines, allow_a16, tp, calibrate, backend, device, requantize, convert)
    if not dry_run:
        refuse_place(source, out, overwrite=overwrite)
    found = prepare(source, options, download=not dry_run)
    if not dry_run:
        total = found.conversion.plan.total_bytes
        with output.progress(f"writing {out.name}") as report:
            found.write(out, overwrite=overwrite, progress=lambda done: report(done, total))
    output.print_readings(form, found.conversion.drafter)
    match form:
        case "json":
            output.print_json(_json(found, written=not dry_run))
        case "human":
            _show(found, out, written=not dry_run)
            if dry_run:
                output.print_next(command_line(ctx, dry_run=None))
            else:
                said = [*convert.said.words, *(["--accept-detected"] if found.conversion.drafter.readings else [])]
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


def _card(decided: Quantizing) -> list[tuple[str, object]]:
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


def _rounding(rounding: Rounding) -> list[tuple[str, object]]:
    told = [("rounded by", rounding.package)] if rounding.package else []
    return [*told, *(("", note) for note in rounding.notes)]


def _again(decided: Quantizing) -> list[tuple[str, object]]:
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


def _format(decided: Quantizing) -> str:
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
    every = {**drafter.tensors, **drafter.companions}
    return sum(ref.nbytes for ref in every.values()), found.conversion.plan.total_bytes


# ── for a program ──────────────────────────────────────────────────────────────────


def _json(found: Quantization, *, written: bool) -> dict[str, object]:
    from dataclasses import asdict

    from draftconv.cli.describe import verdict_json
    from draftconv.layouts.readings import reading_json
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
