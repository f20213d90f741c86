"""Click options of a command, made from its options in Python (`draftconv.options`), and what every command has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import click

from draftconv.cli.loudness import hush, is_quiet, loudness_options
from draftconv.errors import warn_former
from draftconv.options import Option, flag_of, option_of

F = TypeVar("F", bound=Callable[..., Any])


def options_of(*kinds: type) -> Callable[[F], F]:
    """Give a command the options of a dataclass, in the order of its fields; of several, where it has more than one
    way to run: then none of them is required."""
    by_name: dict[str, list[click.Option]] = {}
    for kind in kinds:
        hints = get_type_hints(kind)
        for field in fields(kind):
            option = option_of(field)
            if option is not None and field.name not in by_name:
                param = click_option(field, option, hints[field.name], required=len(kinds) == 1)
                by_name[field.name] = [param, *(Former(flag, param) for flag in option.former)]

    def options(function: F) -> F:
        params = function.__dict__.setdefault("__click_params__", [])
        params += reversed([param for group in by_name.values() for param in group])
        return function

    return options


def click_option(field: Field[Any], option: Option, hint: Any, *, required: bool = True) -> click.Option:
    """One option as Click has it; without a default it is `required`."""
    flag = flag_of(field, option)
    default = None if field.default is MISSING else field.default
    kinds = [kind for kind in _alternatives(hint) if kind is not NoneType]
    repeated = any(get_origin(kind) is Sequence for kind in kinds)
    if bool in kinds:
        if "/" in flag:
            return click.Option([flag, field.name], default=default, help=option.help)
        if default:  # typed, it turns off what is on
            return click.Option([flag, field.name], flag_value=False, default=True, type=bool, help=option.help)
        return click.Option([flag, field.name], is_flag=True, help=option.help)
    pair = get_args(hint) if get_origin(hint) is tuple else ()
    return click.Option(
        [flag, *option.short, field.name],
        type=_param_type(option, kinds, pair),
        nargs=len(pair) if pair and pair[-1] is not ... else 1,
        multiple=repeated,
        **({"required": required} if field.default is MISSING else {"default": default}),
        metavar=option.metavar or None,
        show_default=default not in (None, (), "") and "[default" not in option.help,
        help=option.help,
    )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _param_type(option: Option, kinds: list[Any], pair: tuple[Any, ...]) -> Any:
    """How what is typed is read."""
    if option.parse is not None:
        return Parsed(option.parse)
    if option.choices:
        return Chosen(option.known(), option)
    if literal := next((kind for kind in kinds if get_origin(kind) is Literal), None):
        return Chosen(get_args(literal), option)
    if Path in kinds and not option.file:
        return click.Path(path_type=Path)
    if Path in kinds:
        return click.Path(path_type=Path, exists=True, dir_okay=False)
    number = pair[0] if pair else kinds[0]
    if number is int:
        least, most = (None if end is None else int(end) for end in (option.least, option.most))
        return click.IntRange(least, most)
    if number is float:
        low = option.above if option.above is not None else option.least
        high = option.below if option.below is not None else option.most
        return click.FloatRange(low, high, min_open=option.above is not None, max_open=option.below is not None)
    return click.STRING


class Former(click.Option):
    """What an option was called: it is that option, and a note tells its name of today."""

    def __init__(self, flag: str, today: click.Option) -> None:
        super().__init__([flag, f"former{flag.replace('-', '_')}"], hidden=True, expose_value=False, type=today.type)
        self.flag, self.today = flag, today

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Hand what was typed to the option of today, which is read later, for it was not typed itself."""
        if self.name in opts:
            flag = max(self.today.opts, key=len)
            if self.today.name in opts:
                raise click.UsageError(f"{self.flag} and {flag} are the same option; give {flag}.", ctx)
            cast(dict[str, Any], opts)[self.today.name] = opts[self.name]
            warn_former(self.flag, flag)
        return None, args


class Chosen(click.Choice[str]):
    """One of some words, whatever their case, by what people call it as well."""

    def __init__(self, choices: Sequence[str], option: Option) -> None:
        super().__init__(choices, case_sensitive=False)
        self.option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        meant = self.option.meant(value) if isinstance(value, str) else value
        choice = super().convert(meant, param, ctx)
        if value in self.option.former_values and param is not None:
            flag = max(param.opts, key=len)
            warn_former(f"{flag} {value}", f"{flag} {choice}")
        return choice


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
    argv = ["draftconv", str(ctx.info_name)]
    for parameter in ctx.command.params:
        name = str(parameter.name)
        typed = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        value = changes[name] if name in changes else ctx.params.get(name) if typed else None
        if parameter.nargs > 1 and isinstance(value, tuple):
            argv += [max(parameter.opts, key=len), *map(str, value)]
            continue
        values = value if isinstance(value, tuple) else (value,)
        for item in values:
            if item is False and name not in changes and isinstance(parameter, click.Option):
                turned_off = parameter.secondary_opts or (parameter.opts if parameter.flag_value is False else [])
                argv += [max(turned_off, key=len)] if turned_off else []
            if item is None or item is False:
                continue
            if isinstance(parameter, click.Option):
                argv.append(max(parameter.opts, key=len))
            if item is not True:
                argv.append(str(item))
    return argv


class OutputFormat(click.Choice[str]):
    """What stdout carries; `quiet` was one of the choices."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "quiet" and ctx is not None:
            warn_former("--format quiet", "--quiet")
            hush(ctx)
            return "quiet"
        return super().convert(value, param, ctx)


def format_option(function: F) -> F:
    """--format, and how much is said beside it; a command that is quiet is told the format `quiet`."""
    decorator = click.option(
        "--format",
        "fmt",
        type=OutputFormat(["human", "json"], case_sensitive=False),
        default="human",
        show_default=True,
        callback=lambda _, __, fmt: "quiet" if is_quiet() else fmt,
        help="What stdout carries.",
    )
    return decorator(loudness_options(function))
