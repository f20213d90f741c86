"""Options of the commands, each said once: its name, type, default and what it is for.

A command's options are a frozen dataclass whose fields are made with `option`. `takes` makes keyword arguments of a
Python function from them, and `draftconv.cli.options` what is typed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from dataclasses import field as dataclass_field
from functools import wraps
from pathlib import Path
from textwrap import indent, wrap
from types import MappingProxyType
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, get_type_hints, overload

from draftconv.errors import warn_former

Place: TypeAlias = str | Path
"""A directory, a file or a Hub id."""
Several: TypeAlias = str | Sequence[str]
"""One text, or any number of them."""

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")

KEY = "option"


@dataclass(frozen=True, slots=True)
class Option:
    """How one field is typed on a command line, and what it is for.

    Attributes:
        help: one sentence; `[default: …]` in it where the default is not a value.
        flag: as typed, `--a/--b` for a yes and a no; empty is the field's name with dashes.
        short: the other documented names of it (`-k`).
        former: flags that it had in an earlier release; each works for one more, as the keyword of that name does.
        metavar: what stands for its value in help texts.
        choices: all values that there are, or what lists them; case makes no difference.
        synonyms: what people type, in lower case → the choice. `former_values`: those that were choices themselves.
        least, above, most, below: bounds of a number; `above` and `below` are not reached themselves.
        file: it names a file that must exist.
        parse: reads what is typed; raises ValueError with what is wrong.
    """

    help: str
    flag: str = ""
    short: Sequence[str] = ()
    former: Sequence[str] = ()
    metavar: str = ""
    choices: Sequence[str] | Callable[[], Sequence[str]] = ()
    synonyms: Mapping[str, str] = dataclass_field(default_factory=dict)
    former_values: Sequence[str] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    file: bool = False
    parse: Callable[[str], object] | None = None

    def known(self) -> tuple[str, ...]:
        """All choices."""
        return tuple(self.choices() if callable(self.choices) else self.choices)

    def meant(self, value: str) -> str:
        """The choice that a text stands for; the text itself where it is none of them."""
        lower = value.lower()
        return self.synonyms.get(lower) or next((choice for choice in self.known() if choice.lower() == lower), value)


def option(default: Any, spec: Option | str, /, **more: Any) -> Any:
    """A field of a command's options.

    Args:
        default: `...` where there is none. `spec`: an `Option`, or its help with the rest of it as keywords.
    """
    resolved = spec if isinstance(spec, Option) else Option(spec, **more)
    return dataclass_field(default=MISSING if default is ... else default, metadata={KEY: resolved})


# ── dtypes ─────────────────────────────────────────────────────────────────────────

DTYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "float64": ("fp64", "f64", "double"),
        "float32": ("fp32", "f32", "float"),
        "bfloat16": ("bf16",),
        "float16": ("fp16", "f16", "half"),
    }
)
"""Float dtypes by torch's names → what else people call them."""


def dtype_option(text: str, names: Sequence[str], **more: Any) -> Option:
    """A choice of some of `DTYPES`."""
    return Option(text, choices=names, synonyms={synonym: name for name in names for synonym in DTYPES[name]}, **more)


# ── what several commands have ────────────────────────────────────────────────────────

TARGET = Option(
    "The target model: a directory with a config.json, a Hub id, or a known name (kimi-k2.6 …).",
    metavar="TARGET",
    parse=str,  # a Hub id is no path
)
TARGET_LAYERS = Option("Number of decoder layers of the target.", metavar="N", least=1)
LAYOUT = Option("Read the source as this layout instead of detecting it.", flag="--from", metavar="LAYOUT")
AUX_CONVENTION = Option(
    "What the layer ids in the file mean: captured before or after layer n.", choices=("before", "after")
)
ACCEPT_DETECTED = Option(
    "Go on as detected where a file can be read in several ways; what was inferred is printed and recorded."
)
FROM_FORMAT = Option(
    "How a quantized SOURCE is stored, where its config.json and tensors do not tell.", metavar="FORMAT[:STYLE]"
)
NUM_SPECULATIVE_TOKENS = Option(
    "Drafted tokens per step.", short=("-k",), former=("--depth", "--drafts"), metavar="K", least=1
)
TENSOR_PARALLEL_SIZE = Option(
    "Devices for the target.", short=("-tp",), former=("--tp", "--tensor-parallel"), metavar="N", least=1
)
TEMPERATURE = Option("Draw the text at this temperature.  [default: greedy text]", metavar="T", above=0)
TOP_P = Option("Draw only from the most likely tokens with this probability together.", metavar="P", above=0, most=1)
TOP_K = Option("Draw only from so many most likely tokens.", metavar="N", least=1)
SEED = Option("Of the draws.  [default: 0]", metavar="N", least=0)
ATTEST = Option("Write an in-toto statement to FILE, outside OUT: something to sign.", metavar="FILE")
OVERWRITE = Option("Replace OUT if draftconv wrote all that is in it.")


def layout_of_each(first: str) -> Option:
    """`LAYOUT` where a command takes several drafters; a value without a name is about `first`, as --help calls it."""
    text = f"Read {first}, or the DRAFTER named, as this layout instead of detecting it (repeatable)."
    return Option(text, flag="--from", metavar="[DRAFTER=]LAYOUT")


def aux_convention_of_each(first: str) -> Option:
    """The same of `AUX_CONVENTION`."""
    text = f"What the layer ids of {first}, or of the DRAFTER named, mean: captured before or after layer n."
    return Option(text, metavar="[DRAFTER=]before|after")


# ── fields ─────────────────────────────────────────────────────────────────────────


def python_only(default: Any, about: str) -> Any:
    """A field that only Python has: what cannot be typed."""
    return dataclass_field(default=default, metadata={"about": about})


def option_of(field: Field[Any]) -> Option | None:
    """What a field says; None for one that only Python has."""
    return field.metadata.get(KEY)


def flag_of(field: Field[Any], spec: Option) -> str:
    """An option's first name, as typed."""
    return spec.flag or f"--{field.name.replace('_', '-')}"


def arguments_of(options: Any) -> list[str]:
    """A command's options as they would be typed; what has its default is left out."""
    argv: list[str] = []
    for field in fields(options):
        spec, value = option_of(field), getattr(options, field.name)
        if spec is None or value == field.default:
            continue
        for item in value if isinstance(value, tuple | list) else (value,):
            argv += [flag_of(field, spec)] if isinstance(item, bool) else [flag_of(field, spec), str(item)]
    return argv


def without_places(argv: Sequence[str]) -> tuple[str, ...]:
    """A command for a report, which names no place on this machine: an absolute path by its last part."""
    return tuple(Path(argument).name if Path(argument).is_absolute() else argument for argument in argv)


def several(values: Several) -> tuple[str, ...]:
    """What was given where several are allowed."""
    return (values,) if isinstance(values, str) else tuple(values)


def each_of(places: Place | Sequence[Place]) -> tuple[Place, ...]:
    """One place, or any number of them."""
    return (places,) if isinstance(places, str | Path) else tuple(places)


class takes(Generic[P, T]):
    """Make a function's last argument, a command's options, into keyword arguments.

    `@takes(ConvertOptions)` over `def convert(source, out, options)` gives `convert(source, out, *, to=None, …)`.
    """

    def __init__(self, kind: Callable[P, T]) -> None:
        self.kind = kind

    @overload
    def __call__(self, function: Callable[[A, T], R]) -> Callable[Concatenate[A, P], R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, T], R]) -> Callable[Concatenate[A, B, P], R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, C, T], R]) -> Callable[Concatenate[A, B, C, P], R]: ...

    def __call__(self, function: Callable[..., R]) -> Callable[..., R]:
        original, hints = inspect.signature(function), get_type_hints(function)
        *first, last = original.parameters.values()
        parameters = inspect.signature(self.kind).parameters.values()
        keywords = [param.replace(kind=inspect.Parameter.KEYWORD_ONLY) for param in parameters]
        hints |= get_type_hints(self.kind)
        signature = Signature(
            [param.replace(annotation=hints[param.name]) for param in (*first, *keywords)],
            return_annotation=hints["return"],
        )
        names = [param.name for param in first]
        options = {field.name: spec for field in fields(self.kind) if (spec := option_of(field))}  # type: ignore[arg-type]

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> R:
            arguments = signature.bind(*args, **_current_names(options, kwargs)).arguments
            positional = {name: arguments.pop(name) for name in names if name in arguments}
            return function(**positional, **{last.name: self.kind(**arguments)})  # type: ignore[call-arg]

        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__doc__ = f"{inspect.getdoc(function)}\n\nKeyword arguments:\n{_describe_fields(self.kind)}"
        return wrapper


class Signature(inspect.Signature):
    """A signature that `help` writes without what the list of keyword arguments says: their types and defaults."""

    def __str__(self) -> str:
        first = [param for param in self.parameters.values() if param.kind is not inspect.Parameter.KEYWORD_ONLY]
        keywords = [param.name for param in self.parameters.values() if param not in first]
        parameters = ", ".join(
            [*(f"{param.name}: {_describe_type(param.annotation)}" for param in first), "*", *keywords]
        )
        lines = wrap(parameters, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)
        return "\n".join(["(", *lines, f") -> {_describe_type(self.return_annotation)}"])

    def format(self, **_: object) -> str:
        """As Python 3.13 asks for it."""
        return str(self)


WIDTH = 96
INDENT = "    "


def _current_names(options: Mapping[str, Option], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments under the names that they have now, and choices as they are spelled.

    Raises:
        TypeError: one is given twice, under both names.
    """
    former = {_keyword(flag): name for name, spec in options.items() for flag in spec.former}
    arguments: dict[str, Any] = {}
    for typed, value in keywords.items():
        name = typed if typed in options else former.get(typed, typed)
        if name != typed:
            warn_former(typed, name, depth=3)
            if name in keywords:
                raise TypeError(f"{typed} and {name} are the same argument; give {name}")
        arguments[name] = _resolve_choice(name, options.get(name), value)
    return arguments


def _resolve_choice(name: str, spec: Option | None, value: Any) -> Any:
    """A choice as it is spelled; anything else as it is."""
    if spec is None or not spec.choices or not isinstance(value, str):
        return value
    meant = spec.meant(value)
    if value in spec.former_values:
        warn_former(f"{name}={value!r}", f"{name}={meant!r}", depth=4)
    return meant


def _keyword(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _describe_fields(kind: Callable[..., Any]) -> str:
    """Every field with its type, its default, the flag where that has another name, and what it is for."""
    hints = get_type_hints(kind)
    lines = []
    for field in fields(kind):  # type: ignore[arg-type]
        spec = option_of(field)
        typed = ", ".join(filter(None, (spec.flag, *spec.short))) if spec else ""
        flag = f"  ({typed})" if typed else ""
        lines.append(f"{field.name}: {_describe_type(hints[field.name])}{_describe_default(field)}{flag}")
        text = _sentence(field, spec) if spec else str(field.metadata.get("about", ""))
        lines += wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)
    return indent("\n".join(lines), INDENT)


def _describe_type(annotation: Any) -> str:
    """A type without the modules that its names are from."""
    return re.sub(r"\b([a-z_]+\.)+", "", inspect.formatannotation(annotation))


def _describe_default(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return f" = {field.default_factory()!r}"
    return "" if field.default is MISSING else f" = {field.default!r}"


def _sentence(field: Field[Any], spec: Option) -> str:
    """As --help has it, after the value that it is about where that is not the one that would be expected."""
    off = "False: " if field.default is True and "/" not in spec.flag else ""
    choices = spec.choices() if callable(spec.choices) else spec.choices
    one_of = f" One of {', '.join(choices)}." if choices else ""
    return f"{off}{spec.help}{one_of}"
