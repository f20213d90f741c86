"""The command line: Click only. Each command parses, calls the function of its name, renders."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

import draftconv

COMMANDS = {
    "inspect": "what a drafter is, what is wrong with it, and which engine reads it rightly",
    "convert": "write it in another layout",
    "verify": "prove that an output is its source, to the bit",
    "diff": "what differs between two drafters",
    "serve": "print the server command for a drafter",
    "push": "upload an output to the Hub",
}
"""Command → one line; the modules of the same names are imported only when they run."""


class Commands(click.Group):
    """Loads a command's module when it is asked for, so that --help imports nothing heavy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"draftconv.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the closest command when one is mistyped."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {close[0]}?" if close else f" Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(f"No command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Turn every expected error into its message and exit code."""
        from draftconv.errors import DraftconvError

        words = list(sys.argv[1:] if args is None else args)
        try:
            return super().main(args, *rest, **extra)
        except DraftconvError as error:
            if "--debug" in words:
                raise
            from draftconv.cli.output import print_error

            print_error(error)
            sys.exit(error.exit_code)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ok, 1 a check failed, 2 usage or bad input, 130 interrupted.",
)
@click.version_option(draftconv.__version__, prog_name="draftconv")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Convert, check and prove EAGLE-3 drafters for vLLM, SGLang and TensorRT-LLM."""
    del debug  # read from the arguments by `Commands.main`, which outlives the parsing


def main() -> None:
    """Entry point; an interrupt exits with 130."""
    try:
        cli.main(standalone_mode=False)
    except click.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of stdout (head, less) has gone; say nothing more.
        sys.stderr.close()
        sys.exit(0)
