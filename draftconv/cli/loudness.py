"""How much a command says: `-q` nothing but errors, `-v` also why, and what it does on the way."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

import click

from draftconv.errors import FormerName

F = TypeVar("F", bound=Callable[..., Any])

QUIET, VERBOSE = "draftconv.quiet", "draftconv.verbose"
"""Keys of Click's `meta`, which a command shares with the group before it."""

NO_BARS = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS", "TQDM_DISABLE")
"""Variables by which libraries are told to draw nothing: those that download, and whatever draws with tqdm."""


class Lines(logging.Handler):
    """One line on stderr for each record, whatever names and paths are in it."""

    def emit(self, record: logging.LogRecord) -> None:
        from draftconv.checkpoint.text import safe

        print(f"Info: {safe(record.getMessage())}", file=sys.stderr)


def is_quiet() -> bool:
    """Whether the command that runs was told to say nothing but errors."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def is_verbose() -> bool:
    """Whether the command that runs was told to say what lies behind its result."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(VERBOSE))


def hush(context: click.Context) -> None:
    """Say nothing but errors until the command ends.

    Raises:
        click.UsageError: it was asked to say more.
    """
    _refuse_both(context, VERBOSE)
    if context.meta.setdefault(QUIET, False):
        return
    context.meta[QUIET] = True
    context.with_resource(warnings.catch_warnings())
    warnings.simplefilter("ignore")
    draw_no_bars(context)


def draw_no_bars(context: click.Context) -> None:
    """Keep libraries from drawing bars until the command ends, unless somebody has said otherwise."""
    for name in NO_BARS:
        if name not in os.environ:
            os.environ[name] = "1"
            context.call_on_close(lambda name=name: os.environ.pop(name, None))


def _be_verbose(context: click.Context) -> None:
    """Tell what is done on the way until the command ends."""
    _refuse_both(context, QUIET)
    if context.meta.setdefault(VERBOSE, False):
        return
    context.meta[VERBOSE] = True
    logger, handler = logging.getLogger("draftconv"), Lines()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def end() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    context.call_on_close(end)


def _refuse_both(context: click.Context, key: str) -> None:
    if context.meta.get(key):
        raise click.UsageError("--quiet and --verbose exclude one another; give one of them.", context)


@contextmanager
def former_names_told() -> Iterator[None]:
    """Former names are told in a note each, whatever else becomes of warnings."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            from draftconv.cli.output import print_notes

            if issubclass(category, FormerName):
                print_notes([str(message)])
            else:
                others(message, category, filename, lineno, file, line)

        warnings.simplefilter("always", FormerName)
        warnings.showwarning = show
        yield


def loudness_options(function: F) -> F:
    """-q and -v, read before anything that may print; they stand before or after the command's name."""

    def when_typed(action: Callable[[click.Context], None]) -> Callable[[click.Context, click.Parameter, bool], None]:
        return lambda context, _, typed: action(context) if typed else None

    for names, action, text in (
        (("-v", "--verbose"), _be_verbose, "Also say what lies behind the result, and on stderr what is done."),
        (("-q", "--quiet"), hush, "Say nothing but errors; the exit code tells the rest."),
    ):
        function = click.option(
            *names, is_flag=True, is_eager=True, expose_value=False, callback=when_typed(action), help=text
        )(function)
    return function
