"""`draftconv verify`."""

from __future__ import annotations

import sys

import click

from draftconv.api.verify import Comparison, Verification, verify
from draftconv.cli.options import format_option, reading_options, target_options

EPILOG = """\b
Examples:
  draftconv verify out --against kimi-k2.5-eagle3
  draftconv verify out --against kimi-k2.5-eagle3 --format json
"""


@click.command(epilog=EPILOG)
@click.argument("out")
@click.option("--against", required=True, metavar="SOURCE", help="The checkpoint that OUT was made from.")
@target_options
@reading_options
@format_option
def command(
    out: str,
    against: str,
    target: str | None,
    target_layers: int | None,
    layout: str | None,
    aux_convention: str | None,
    form: str,
) -> None:
    """Prove that OUT is its source: every bit compared, every difference declared.

    Exit code 1 when a tensor or fact differs and no draftconv.json of OUT declares it.
    --from and --aux-convention are about SOURCE.
    """
    from draftconv.checkpoint import open_checkpoint
    from draftconv.cli import output

    total = sum(ref.nbytes for ref in open_checkpoint(against).tensors.values())
    with output.progress("comparing", total) as report:
        found = verify(
            out,
            against,
            target=target,
            target_layers=target_layers,
            layout=layout,
            aux_convention=aux_convention,
            progress=report,
        )
    _render(found, form)
    sys.exit(0 if found.passed else 1)


def _render(found: Verification, form: str) -> None:
    from draftconv.cli import output

    match form:
        case "json":
            output.print_json(
                {
                    "passed": found.passed,
                    "provenance": found.provenance,
                    "tensors": [_json(row) for row in found.tensors],
                    "facts": [_json(row) for row in found.facts],
                }
            )
        case "human":
            screen = output.console()
            rows = [
                (output.styled(row.outcome), output.text(row.what), output.text(row.how))
                for row in (*found.tensors, *found.facts)
                if row.outcome != "equal"
            ]
            if rows:
                screen.print(output.table("Differences", ("", "what", "how"), rows))
            equal = sum(row.outcome == "equal" for row in found.tensors)
            facts = sum(row.outcome == "equal" for row in found.facts)
            screen.print(f"{equal} tensors equal in every bit, {facts} facts equal.")
            if not found.provenance:
                screen.print("No draftconv.json belongs to this directory, so nothing is declared.")
            word = "pass" if found.passed else "fail"
            screen.print(output.text("Verified: ").append(output.styled(word)))


def _json(row: Comparison) -> dict[str, str]:
    return {"what": row.what, "outcome": row.outcome, "how": row.how}
