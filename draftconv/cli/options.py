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
