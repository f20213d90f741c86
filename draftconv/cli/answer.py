"""What a program reads on stdout: one JSON document, which is the command's, or tells why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import click

from draftconv.errors import DraftconvError


@dataclass(slots=True)
class Answer:
    """The document of one run.

    Attributes:
        wanted: whether stdout carries JSON. `given`: whether the document is written already.
    """

    wanted: bool
    given: bool = False

    @classmethod
    def to(cls, argv: Sequence[str]) -> Answer:
        """What a command line asks for, before anybody knows whether it can be read."""
        words = list(argv[: argv.index("--")] if "--" in argv else argv)
        named = [after for word, after in pairwise(words) if word == "--format"]
        joined = [word.removeprefix("--format=") for word in words if word.startswith("--format=")]
        json = any(value.lower() == "json" for value in (*named, *joined))
        return cls(wanted=json and not {"-q", "--quiet"} & {*words})

    def refuse(self, error: Exception, exit_code: int) -> None:
        """Tell a program what stderr tells a person; nothing where it has its document already."""
        from draftconv.cli.output import print_json

        if self.wanted and not self.given:
            print_json({"error": error_json(error, exit_code)})


def error_json(error: Exception, exit_code: int) -> dict[str, str | int | None]:
    """An error as `--format json` has it; docs/cli.md lists its keys."""
    why = cure = ""
    match error:
        case DraftconvError():
            what, why, cure = error.what, error.why, error.cure
        case click.UsageError(ctx=click.Context() as context):
            what, cure = error.format_message(), f"{context.command_path} --help"
        case click.ClickException():
            what = error.format_message()
        case _:
            what, cure = str(error), "the same command with --debug shows where"
    kind = "UsageError" if isinstance(error, click.ClickException) else type(error).__name__
    return {"kind": kind, "what": what, "why": why or None, "cure": cure or None, "exit_code": exit_code}


def document_given() -> None:
    """The command that runs has written its document."""
    context = click.get_current_context(silent=True)
    if context is not None and (answer := context.find_object(Answer)) is not None:
        answer.given = True
