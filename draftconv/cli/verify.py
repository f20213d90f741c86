"""`draftconv verify`."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftconv.api.verify import ComparedItem, Verification, VerifyOptions, verify
from draftconv.cli.options import format_option, options_of
from draftconv.layouts.drafter_reader import reading_json

EPILOG = """\b
Examples:
  draftconv verify out --against kimi-k2.5-eagle3
  draftconv verify out --against kimi-k2.5-eagle3 --target kimi-k2.5 --format json
"""


@click.command(epilog=EPILOG)
@click.argument("out")
@click.option("--against", required=True, metavar="SOURCE", help="The checkpoint that OUT was made from.")
@options_of(VerifyOptions)
@format_option
def command(out: str, against: str, fmt: str, **keywords: Any) -> None:
    """Prove that OUT is its source: every bit compared, every difference made again.

    What the draftconv.json of OUT declares is made again from SOURCE. Exit code 1 when a tensor or fact is
    another one, or when only the record says so: what to give then is printed.
    """
    from draftconv.cli import output

    with output.progress("comparing") as report:
        verification = verify(out, against, **keywords, progress=report)
    output.print_doubts(verification.output, verification.source)
    match fmt:
        case "json":
            output.print_json(_json(verification))
        case "human":
            output.show([*verification.blocks(), *output.readings(verification.output, verification.source)])
            if verification.passed and keywords["target"] and verification.engines:
                engine = verification.engines[0].name
                output.print_next(["draftconv", "serve", out, "--for", engine, "--target", keywords["target"]])
    sys.exit(0 if verification.passed else 1)


def _json(verification: Verification) -> dict[str, object]:
    return {
        "passed": verification.passed,
        "result": verification.result,
        "record": verification.record,
        "tensors": [_item_json(row) for row in verification.tensors],
        "facts": [_item_json(row) for row in verification.facts],
        "directory": [_item_json(row) for row in verification.directory],
        "cures": list(verification.cures),
        "readings": {"output": reading_json(verification.output), "source": reading_json(verification.source)},
    }


def _item_json(item: ComparedItem) -> dict[str, str]:
    return {"what": item.what, "outcome": item.outcome, "how": item.how}
