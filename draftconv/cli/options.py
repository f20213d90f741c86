"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def target_options(function: F) -> F:
    """--target and --target-layers."""
    function = click.option(
        "--target-layers", type=click.IntRange(1), metavar="N", help="Number of decoder layers of the target."
    )(function)
    return click.option(
        "--target",
        metavar="TARGET",
        help="The target model: a directory with a config.json, a Hub id, or a known name (kimi-k2.6 …).",
    )(function)


def reading_options(function: F) -> F:
    """--from and --aux-convention."""
    function = click.option(
        "--aux-convention",
        type=click.Choice(["before", "after"]),
        help="What the layer ids in the file mean: captured before or after layer n.",
    )(function)
    return click.option(
        "--from", "layout", metavar="LAYOUT", help="Read the source as this layout instead of detecting it."
    )(function)


def reading_options_of_each(first: str) -> Callable[[F], F]:
    """The same for a command that takes several drafters.

    Args:
        first: which of them a value without a name is about, as --help calls it.
    """

    def options(function: F) -> F:
        function = accept_option(function)
        function = click.option(
            "--aux-convention",
            multiple=True,
            metavar="[DRAFTER=]before|after",
            help=f"What the layer ids of {first}, or of the DRAFTER named, mean: captured before or after layer n.",
        )(function)
        return click.option(
            "--from",
            "layout",
            multiple=True,
            metavar="[DRAFTER=]LAYOUT",
            help=f"Read {first}, or the DRAFTER named, as this layout instead of detecting it (repeatable).",
        )(function)

    return options


def accept_option(function: F) -> F:
    """--accept-detected, for commands that act on what was read."""
    return click.option(
        "--accept-detected",
        is_flag=True,
        help="Go on as detected where a file can be read in several ways; what was inferred is printed and recorded.",
    )(function)


def command_line(ctx: click.Context, **changes: object) -> list[str]:
    """The command as it was typed, with some parameters changed; None or False leaves one out."""
    words = ["draftconv", str(ctx.info_name)]
    for parameter in ctx.command.params:
        name = str(parameter.name)
        typed = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        value = changes[name] if name in changes else ctx.params.get(name) if typed else None
        if parameter.nargs > 1 and isinstance(value, tuple):
            words += [max(parameter.opts, key=len), *map(str, value)]
            continue
        values = value if isinstance(value, tuple) else (value,)
        for item in values:
            if item is False and name not in changes and parameter.secondary_opts:
                words.append(max(parameter.secondary_opts, key=len))
            if item is None or item is False:
                continue
            if isinstance(parameter, click.Option):
                words.append(max(parameter.opts, key=len))
            if item is not True:
                words.append(str(item))
    return words


def format_option(function: F) -> F:
    """--format."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(["human", "json", "quiet"]),
        default="human",
        show_default=True,
        help="What stdout carries; quiet prints nothing and leaves the exit code.",
    )(function)
