"""`draftconv inspect`."""

from __future__ import annotations

import sys

import click

from draftconv.api.inspect import Inspection, inspect
from draftconv.cli.options import format_option, reading_options, target_options

EPILOG = """\b
Examples:
  draftconv inspect kimi-k2.5-eagle3
  draftconv inspect lightseekorg/kimi-k2.6-eagle3.1-mla --for vllm@0.22 --target kimi-k2.6
"""


@click.command(epilog=EPILOG)
@click.argument("checkpoint")
@click.option(
    "--for", "engines", multiple=True, metavar="ENGINE[@VERSION][:HARDWARE]",
    help="Judge for this engine only (repeatable), and exit 1 if it would mis-read or refuse the drafter.",
)  # fmt: skip
@target_options
@reading_options
@click.option("--deep", is_flag=True, help="Read every byte: NaN, infinities, all-zero tensors, equal tables.")
@click.option("--strict", is_flag=True, help="Exit 1 on any problem of severity error or warning.")
@format_option
def command(
    checkpoint: str,
    engines: tuple[str, ...],
    target: str | None,
    target_layers: int | None,
    layout: str | None,
    aux_convention: str | None,
    deep: bool,
    strict: bool,
    form: str,
) -> None:
    """What CHECKPOINT is, what is wrong with it, and which engine reads it rightly.

    CHECKPOINT is a directory, a weights file or a Hub id (hf://owner/name[@revision] forces
    the Hub). By default headers, config.json, the vocabulary maps and a few lm_head rows are
    read.
    """
    found = inspect(
        checkpoint,
        engines,
        target=target,
        target_layers=target_layers,
        layout=layout,
        aux_convention=aux_convention,
        deep=deep,
    )
    _render(found, form)
    bad = bool(engines) and any(verdict.status != "loads" for verdict in found.verdicts)
    faulty = strict and any(problem.severity != "note" for problem in found.problems)
    sys.exit(1 if bad or faulty else 0)


def _render(found: Inspection, form: str) -> None:
    from draftconv.cli import output
    from draftconv.cli.describe import identity, inspection_json

    match form:
        case "json":
            output.print_json(inspection_json(found))
        case "human":
            screen = output.console()
            screen.print(output.card(found.drafter.checkpoint.name, identity(found)))
            _problems(found)
            _verdicts(found)


def _problems(found: Inspection) -> None:
    from draftconv.cli import output

    screen = output.console()
    if not found.problems:
        screen.print("No problems found.")
    rows = [
        (output.styled(p.severity), output.text(p.code), output.text(f"{p.kind.title}: {p.detail}"))
        for p in found.problems
    ]
    if rows:
        screen.print(output.table("Problems", ("", "code", "what"), rows))
    for problem in found.problems:
        if problem.severity == "error":
            screen.print(output.text(f"{problem.code}: {problem.kind.why}. Cure: {problem.kind.cure}."))
    if found.not_made:
        screen.print(output.text(f"Not checked: {'; '.join(found.not_made)}.", "dim"))


def _verdicts(found: Inspection) -> None:
    from draftconv.cli import output

    screen = output.console()
    rows = []
    for verdict in found.verdicts:
        rows.append((output.text(verdict.spec), output.styled(verdict.status), output.text("")))
        for line in verdict.lines:
            cited = output.text(f"{line.rule.code}; {line.rule.source}; {line.rule.evidence}", "dim")
            says = output.text(f"{line.rule.says}: {line.detail}")
            rows.append((output.text(""), output.styled(line.rule.effect), says.append("\n").append(cited)))
    screen.print(output.table("Engines", ("engine", "verdict", "rule broken"), rows))
    if any(verdict.status != "loads" for verdict in found.verdicts):
        hint = "" if found.target else " --target TARGET"
        screen.print(f"Next: draftconv convert CHECKPOINT OUT --to {found.verdicts[0].spec.name}{hint}")
