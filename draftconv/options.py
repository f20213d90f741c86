"""Options of the commands, each said once: its name, type, default and what it is for.

A command's options are a frozen dataclass whose fields are made with `option`. `takes` makes keyword arguments of a
Python function from them, and `draftconv.cli.options` what is typed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
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
        least, above, most: bounds of a number; `above` is not reached itself.
        file: it names a file that must exist.
        parse: reads what is typed; raises ValueError with what is wrong.
    """

    help: str
    flag: str = ""
    short: Sequence[str] = ()
    former: Sequence[str] = ()
    metavar: str = ""
    choices: Sequence[str] | Callable[[], Sequence[str]] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict)
    former_values: Sequence[str] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    file: bool = False
    parse: Callable[[str], object] | None = None

    def known(self) -> tuple[str, ...]:
        """All choices."""
        return tuple(self.choices() if callable(self.choices) else self.choices)

    def meant(self, value: str) -> str:
        """The choice that a text stands for; the text itself where it is none of them."""
        lower = value.lower()
        return self.synonyms.get(lower) or next((each for each in self.known() if each.lower() == lower), value)


def option(default: Any, told: Option | str, /, **more: Any) -> Any:
    """A field of a command's options.

    Args:
        default: `...` where there is none. `told`: an `Option`, or its help with the rest of it as keywords.
    """
    found = told if isinstance(told, Option) else Option(told, **more)
    return field(default=MISSING if default is ... else default, metadata={KEY: found})


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


def dtype_option(told: str, names: Sequence[str], **more: Any) -> Option:
    """A choice of some of `DTYPES`."""
    return Option(told, choices=names, synonyms={word: name for name in names for word in DTYPES[name]}, **more)


# ── what several commands have ────────────────────────────────────────────────────────

TARGET = Option(
    "The target model: a directory with a config.json, a Hub id, or a known name (kimi-k2.6 …).", metavar="TARGET"
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
OVERWRITE = Option("Replace OUT if draftconv wrote all that is in it.")


def layout_of_each(first: str) -> Option:
    """`LAYOUT` where a command takes several drafters; a value without a name is about `first`, as --help calls it."""
    told = f"Read {first}, or the DRAFTER named, as this layout instead of detecting it (repeatable)."
    return Option(told, flag="--from", metavar="[DRAFTER=]LAYOUT")


def aux_convention_of_each(first: str) -> Option:
    """The same of `AUX_CONVENTION`."""
    told = f"What the layer ids of {first}, or of the DRAFTER named, mean: captured before or after layer n."
    return Option(told, metavar="[DRAFTER=]before|after")


# ── fields ─────────────────────────────────────────────────────────────────────────


def python_only(default: Any, about: str) -> Any:
    """A field that only Python has: what cannot be typed."""
    return field(default=default, metadata={"about": about})


def option_of(each: Field[Any]) -> Option | None:
    """What a field says; None for one that only Python has."""
    return each.metadata.get(KEY)


def flag_of(each: Field[Any], told: Option) -> str:
    """An option's first name, as typed."""
    return told.flag or f"--{each.name.replace('_', '-')}"


def several(given: Several) -> tuple[str, ...]:
    """What was given where several are allowed."""
    return (given,) if isinstance(given, str) else tuple(given)


def each_of(places: Place | Sequence[Place]) -> tuple[Place, ...]:
    """One place, or any number of them."""
    return (places,) if isinstance(places, str | Path) else tuple(places)


class takes(Generic[P, T]):
    """Make a function's last argument, a command's options, into keyword arguments.

    `@takes(ConvertOptions)` over `def convert(source, out, options)` gives `convert(source, out, *, to="portable", …)`.
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
        asked, hints = inspect.signature(function), get_type_hints(function)
        *first, last = asked.parameters.values()
        wanted = inspect.signature(self.kind).parameters.values()
        keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in wanted]
        hints |= get_type_hints(self.kind)
        signature = Signature(
            [each.replace(annotation=hints[each.name]) for each in (*first, *keywords)],
            return_annotation=hints["return"],
        )
        names = [each.name for each in first]
        options = {each.name: told for each in fields(self.kind) if (told := option_of(each))}  # type: ignore[arg-type]

        @wraps(function)
        def wrapper(*given: Any, **named: Any) -> R:
            arguments = signature.bind(*given, **_of_today(options, named)).arguments
            told = {name: arguments.pop(name) for name in names if name in arguments}
            return function(**told, **{last.name: self.kind(**arguments)})  # type: ignore[call-arg]

        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__doc__ = f"{inspect.getdoc(function)}\n\nKeyword arguments:\n{_listed(self.kind)}"
        return wrapper


class Signature(inspect.Signature):
    """A signature that `help` writes without what the list of keyword arguments says: their types and defaults."""

    def __str__(self) -> str:
        first = [each for each in self.parameters.values() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        keywords = [each.name for each in self.parameters.values() if each not in first]
        told = ", ".join([*(f"{each.name}: {_type(each.annotation)}" for each in first), "*", *keywords])
        lines = wrap(told, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)
        return "\n".join(["(", *lines, f") -> {_type(self.return_annotation)}"])

    def format(self, **_: object) -> str:
        """As Python 3.13 asks for it."""
        return str(self)


WIDTH = 96
INDENT = "    "


def _of_today(options: Mapping[str, Option], named: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments under the names that they have now, and choices as they are spelled.

    Raises:
        TypeError: one is given twice, under both names.
    """
    former = {_keyword(flag): name for name, told in options.items() for flag in told.former}
    found: dict[str, Any] = {}
    for typed, value in named.items():
        name = typed if typed in options else former.get(typed, typed)
        if name != typed:
            warn_former(typed, name, depth=3)
            if name in named:
                raise TypeError(f"{typed} and {name} are the same argument; give {name}")
        found[name] = _chosen(name, options.get(name), value)
    return found


def _chosen(name: str, told: Option | None, value: Any) -> Any:
    """A choice as it is spelled; anything else as it is."""
    if told is None or not told.choices or not isinstance(value, str):
        return value
    meant = told.meant(value)
    if value in told.former_values:
        warn_former(f"{name}={value!r}", f"{name}={meant!r}", depth=4)
    return meant


def _keyword(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _listed(kind: Callable[..., Any]) -> str:
    """Every field with its type, its default, the flag where that has another name, and what it is for."""
    hints = get_type_hints(kind)
    lines = []
    for each in fields(kind):  # type: ignore[arg-type]
        told = option_of(each)
        typed = ", ".join(filter(None, (told.flag, *told.short))) if told else ""
        flag = f"  ({typed})" if typed else ""
        lines.append(f"{each.name}: {_type(hints[each.name])}{_default(each)}{flag}")
        text = _sentence(each, told) if told else str(each.metadata.get("about", ""))
        lines += wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)
    return indent("\n".join(lines), INDENT)


def _type(annotation: Any) -> str:
    """A type without the modules that its names are from."""
    return re.sub(r"\b([a-z_]+\.)+", "", inspect.formatannotation(annotation))


def _default(each: Field[Any]) -> str:
    if each.default_factory is not MISSING:
        return f" = {each.default_factory()!r}"
    return "" if each.default is MISSING else f" = {each.default!r}"


def _sentence(each: Field[Any], told: Option) -> str:
    """As --help has it, after the value that it is about where that is not the one that would be expected."""
    off = "False: " if each.default is True and "/" not in told.flag else ""
    choices = told.choices() if callable(told.choices) else told.choices
    one_of = f" One of {', '.join(choices)}." if choices else ""
    return f"{off}{told.help}{one_of}"
