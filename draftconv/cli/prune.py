"""`draftconv prune`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from draftconv.api.prune import PruneOptions, Pruning, prepare, refuse_place, write
from draftconv.attestation.statement import refuse_statement
from draftconv.cli.options import command_line, format_option, options_of
from draftconv.options import arguments_of
from draftconv.verification.options import said_again

EPILOG = """\b
Examples:
  draftconv prune drafter out --vocab 32000 --counts answers.jsonl --target kimi-k2.5 --dry-run
  draftconv prune drafter out --vocab 32000 --counts code=3:logs.jsonl --counts prose=1:books.txt --target target
  draftconv prune drafter out --vocab 32000 --counts ids.jsonl --trace trace --target target
"""

STAGES = {"counting": "bytes", "replaying": "tokens", "writing": "bytes"}


@click.command(epilog=EPILOG)
@click.argument("source", metavar="DRAFTER")
@click.argument("out", type=click.Path(path_type=Path))
@options_of(PruneOptions)
@click.option("--dry-run", is_flag=True, help="Say what would stay, and what it would cost, and write nothing.")
@format_option
@click.pass_context
def command(ctx: click.Context, /, source: str, out: Path, dry_run: bool, fmt: str, **keywords: Any) -> None:
    """Keep the rows of DRAFTER's head that its target's text needs, in the new directory OUT.

    Says beforehand what the rows cover of text that did not choose them, whether there was enough text, the loss of
    accept length that follows, and with --trace the accept length before and after. Every row that stays keeps every
    bit.
    """
    from draftconv.cli import output
    from draftconv.cli.memory import taking

    if not dry_run:
        refuse_place(source, out, overwrite=keywords["overwrite"])
        refuse_statement(keywords["attest"], out)
    with output.stages(STAGES) as progress:
        options = PruneOptions(**keywords, progress=progress)
        pruning = prepare(source, options, download=not dry_run)
    output.print_doubts(pruning.conversion.drafter)
    if fmt == "human":
        output.show([*output.readings(pruning.conversion.drafter), *pruning.blocks()])
    if not dry_run:
        with taking("it", pruning.conversion.plan.peak_memory), output.stages(STAGES) as progress:
            write(pruning, out, options, progress)
    match fmt:
        case "json":
            output.print_json(_json(pruning, written=not dry_run))
        case "human":
            amount, *changes = pruning.conversion.blocks()
            output.show([f"{f'Wrote {out}' if not dry_run else 'Nothing written: would write'}: {amount}", *changes])
            accepted = ["--accept-detected"] if pruning.conversion.drafter.readings else []
            again = [*arguments_of(said_again(options)), *accepted]
            verify = ["draftconv", "verify", str(out), "--against", source, *again]
            output.print_next(command_line(ctx, dry_run=None) if dry_run else verify)


def _json(pruning: Pruning, *, written: bool) -> dict[str, object]:
    from dataclasses import asdict

    from draftconv.cli.describe import left_out_json, verdict_json
    from draftconv.layouts.drafter_reader import reading_json

    decided, conversion, replayed = pruning.decided, pruning.conversion, pruning.replayed
    return {
        "written": written,
        "vocab": decided.vocab,
        "rows": len(decided.head.ids),
        "forced": decided.forced,
        "tokens": list(decided.kept.ids),
        "coverage": [asdict(domain) for domain in decided.coverage],
        "learning_curve": [asdict(point) for point in decided.curve],
        "text": {"tokens": decided.effective, "enough": decided.enough},
        "missing": decided.missing,
        "accept_length": decided.accept_length,
        "num_speculative_tokens": decided.depth,
        "ladder": [
            {
                "vocab": step.vocab,
                "bytes": step.nbytes,
                "missing": step.missing,
                "loss": [step.loss.least, step.loss.most],
            }
            for step in decided.ladder
        ],
        "predicted_loss": [decided.loss.least, decided.loss.most],
        "replay": None
        if replayed is None
        else {
            "conversations": replayed.clusters,
            "before": replayed.reference.value,
            "after": replayed.candidate.value,
            "loss": 1 - replayed.ratio,
            "interval": [1 - replayed.interval.high, 1 - replayed.interval.low],
        },
        "reading": reading_json(conversion.drafter),
        "changes": [{"kind": c.kind, "what": c.what, "why": c.why} for c in conversion.changes],
        "warnings": [*decided.notes, *(f"{p.code}: {p.detail}" for p in conversion.warnings if not p.kind.reading)],
        "verdicts": [verdict_json(verdict) for verdict in conversion.verdicts],
        "left_out": left_out_json(conversion),
        "layout": conversion.layout.id,
        "bytes": conversion.plan.total_bytes,
        "peak_memory": conversion.plan.peak_memory,
    }
