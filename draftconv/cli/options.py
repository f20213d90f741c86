"""Click options of a command, made from its options in Python (`draftconv.options`), and what every command has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from draftconv.options import Option, option_of

F = TypeVar("F", bound=Callable[..., Any])


def options_of(*kinds: type) -> Callable[[F], F]:
    """Give a command the options of a dataclass, in the order of its fields; of several, where it has more than one
    way to run: then none of them is required."""
    found: dict[str, click.Option] = {}
    for kind in kinds:
        hints = get_type_hints(kind)
        for each in fields(kind):
            told = option_of(each)
            if told is not None:
                found.setdefault(each.name, click_option(each, told, hints[each.name], required=len(kinds) == 1))

    def options(function: F) -> F:
        params = function.__dict__.setdefault("__click_params__", [])
        params += reversed(found.values())
        return function

    return options


def click_option(each: Field[Any], told: Option, hint: Any, *, required: bool = True) -> click.Option:
    """One option as Click has it; without a default it is `required`."""
    flag = told.flag or f"--{each.name.replace('_', '-')}"
    default = None if each.default is MISSING else each.default
    kinds = [kind for kind in _alternatives(hint) if kind is not NoneType]
    repeated = any(get_origin(kind) is Sequence for kind in kinds)
    if bool in kinds:
        if "/" in flag:
            return click.Option([flag, each.name], default=default, help=told.help)
        if default:  # typed, it turns off what is on
            return click.Option([flag, each.name], flag_value=False, default=True, type=bool, help=told.help)
        return click.Option([flag, each.name], is_flag=True, help=told.help)
    pair = get_args(hint) if get_origin(hint) is tuple else ()
    return click.Option(
        [flag, each.name],
        type=_type(told, kinds, pair),
        nargs=len(pair) if pair and pair[-1] is not ... else 1,
        multiple=repeated,
        **({"required": required} if each.default is MISSING else {"default": default}),
        metavar=told.metavar or None,
        show_default=default not in (None, (), "") and "[default" not in told.help,
        help=told.help,
    )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _type(told: Option, kinds: list[Any], pair: tuple[Any, ...]) -> Any:
    """How what is typed is read."""
    if told.parse is not None:
        return Parsed(told.parse)
    if choices := told.choices if not callable(told.choices) else told.choices():
        return click.Choice(list(choices))
    if literal := next((kind for kind in kinds if get_origin(kind) is Literal), None):
        return click.Choice(list(get_args(literal)))
    if Path in kinds and not told.file:
        return click.Path(path_type=Path)
    if Path in kinds:
        return click.Path(path_type=Path, exists=True, dir_okay=False)
    number = pair[0] if pair else kinds[0]
    if number is int:
        least, most = (None if end is None else int(end) for end in (told.least, told.most))
        return click.IntRange(least, most)
    if number is float:
        low = told.above if told.above is not None else told.least
        return click.FloatRange(low, told.most, min_open=told.above is not None, max_open=told.most is not None)
    return click.STRING


class Parsed(click.ParamType[Any]):
    """A text that a function of the command's room reads."""

    def __init__(self, parse: Callable[[str], object]) -> None:
        self.parse, self.name = parse, parse.__name__

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


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
            if item is False and name not in changes and isinstance(parameter, click.Option):
                turned_off = parameter.secondary_opts or (parameter.opts if parameter.flag_value is False else [])
                words += [max(turned_off, key=len)] if turned_off else []
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
