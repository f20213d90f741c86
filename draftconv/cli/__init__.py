"""The command line: Click only. Each command parses, calls the function of its name, renders."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

import draftconv
from draftconv.cli.answer import Answer
from draftconv.cli.loudness import draw_no_bars, former_names_told, loudness_options
from draftconv.cli.memory import out_of_memory
from draftconv.cli.streams import guard, lost
from draftconv.errors import DraftconvError, UsageError

COMMANDS = {
    "inspect": "what a drafter is, what is wrong with it, and which engine reads it rightly",
    "convert": "write it in another layout",
    "quantize": "write it smaller, in the format that an engine really runs",
    "prune": "keep the rows of its head that the target's text needs",
    "slim": "find the smallest drafter that is still as good on an engine, and certify it",
    "recipes": "what quantization recipes there are, and what each becomes where",
    "verify": "prove that an output is its source, to the bit",
    "diff": "what differs between two drafters",
    "serve": "print the server command for a drafter",
    "trace": "run a target once and keep its tokens and hidden states",
    "accept": "how much does a drafter accept? by drafted tokens, text and context, replayed on a trace",
    "parity": "is a candidate as good as its reference? accept length, replayed on a trace",
    "doctor": "why does a running server accept less than it should? which known fault reproduces its counts",
    "push": "upload an output to the Hub",
}
"""Command → one line; the modules of the same names are imported only when they run."""


EXTRAS = {"torch": "torch", "matplotlib": "torch"}
"""What a command imports where it has to → the extra of draftconv that brings it. Others are told of where they are."""


class Commands(click.Group):
    """Loads a command's module when it is asked for, so that --help imports nothing heavy."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _: click.Context, cmd_name: str) -> click.Command | None:
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
            from draftconv.errors import did_you_mean

            hint = did_you_mean(args[0], COMMANDS, f"commands: {', '.join(COMMANDS)}.")
            raise click.UsageError(f"No command {args[0]!r}. {hint[0].upper()}{hint[1:]}")
        return super().resolve_command(ctx, args)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Click takes every broken pipe for stdout's and exits with 1, which would be a verdict."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ConnectionError(str(error)) from error

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run a command and exit: every failure becomes its message and exit code."""
        argv, debug = _take_debug(list(sys.argv[1:] if args is None else args))
        answer = Answer.to(argv)
        extra |= {"standalone_mode": False, "obj": answer}
        with former_names_told():
            code = _exit_code(lambda: super(Commands, self).main(argv, *rest, **extra), answer, debug=debug)
        sys.exit(_unless_lost(code))


def _take_debug(argv: list[str]) -> tuple[list[str], bool]:
    """`--debug` may stand anywhere before `--`, so that it can be added to the end of a command that failed."""
    end = argv.index("--") if "--" in argv else len(argv)
    kept = [argument for argument in argv[:end] if argument != "--debug"]
    return [*kept, *argv[end:]], len(kept) < end


def _exit_code(run: Callable[[], object], answer: Answer, *, debug: bool) -> int:
    """Run, tell what went wrong, and return the exit code."""
    try:
        code = run()
    except SystemExit as error:
        if isinstance(error.code, str):
            raise  # the last words of a library, which Python prints
        code = error.code
    except click.ClickException as error:
        answer.refuse(error, 2)
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        print("Interrupted: nothing was left behind.", file=sys.stderr)
        return 130
    except DraftconvError as error:
        if debug:
            raise
        from draftconv.cli.output import print_error

        answer.refuse(error, error.exit_code)
        print_error(error)
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        from draftconv.cli.output import print_error, print_fault

        known = _missing_extra(error) or out_of_memory(error)
        answer.refuse(known or error, 2)
        if known is not None:
            print_error(known)
        else:
            print_fault(error)
        return 2
    return code if isinstance(code, int) else 0


def _missing_extra(error: Exception) -> DraftconvError | None:
    """What to say where a module of an extra is not installed; None of any other fault."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module not in EXTRAS:
        return None
    return UsageError(
        f"{module} is not installed",
        why="this computes with it; inspect, convert, verify (of 16-bit weights), diff, serve, recipes (without "
        "--drafter) and push do not",
        cure=f"`pip install 'draftconv[{EXTRAS[module]}]'`",
    )


def _unless_lost(code: int) -> int:
    """A command's exit code, unless what it printed is lost: nobody should take half an output for a whole one."""
    if (fault := lost()) is None:
        return code
    from draftconv.cli.output import print_error
    from draftconv.errors import WriteError

    error = WriteError(f"stdout could not be written: {fault.strerror}")
    print_error(error)
    return error.exit_code


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ok, 1 a check failed, 2 usage or bad input, 3 inconclusive, 4 void, 130 interrupted.",
)
@click.version_option(draftconv.__version__, prog_name="draftconv")
@loudness_options
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Convert, check and prove EAGLE-3 drafters for vLLM, SGLang and TensorRT-LLM."""
    del debug  # taken out by `Commands.main`, which outlives the parsing; here for --help
    if not sys.stderr.isatty():  # a log would hold every step of them
        draw_no_bars(context)


def main() -> None:
    """Entry point."""
    guard()
    cli.main()
