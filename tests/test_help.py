"""What `help()` says of a function: the arguments of its command, each with type, default and the same sentence."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import click
import pytest

import draftconv
from draftconv.cli import cli
from draftconv.options import option, python_only, takes

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "parity": ("parity", "live_parity"),
    **{name: (name,) for name in draftconv.__all__ if name not in ("DraftconvError", "parity", "live_parity")},
}
"""Command → the functions that it calls."""

TYPED_ONLY = {
    "--help", "--format", "--quiet", "--verbose", "--dry-run", "--strict", "--exec", "--profile",
    "--against", "--out",
}  # fmt: skip
"""What a command line has for itself, and what is a function's positional argument."""
NOT_OPTIONS = {("trace", "--target"), ("trace", "--prompts"), ("parity", "--overwrite"), ("parity", "--report"),
               ("accept", "--overwrite"), ("accept", "--report"), ("slim", "--report")}  # fmt: skip
"""The same of some commands only."""
PYTHON_ONLY = {"progress", "calibrating", "announce", "command", "token", "alone", "arguments", "patience",
               "environment", "margins", "profile"}  # fmt: skip


def documented(function: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    """Keyword → its type and default, and what it is for."""
    listed = (inspect.getdoc(function) or "").partition("Keyword arguments:\n")[2]
    rows = re.findall(r"^    (\w+): (.*)\n((?:        .*\n?)*)", listed, re.MULTILINE)
    return {name: (kind, " ".join(text.split())) for name, kind, text in rows}


def of_command(name: str) -> dict[str, click.Option]:
    """Field → what is typed, without what only a command line has."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return {
        str(each.name): each
        for each in command.params
        if isinstance(each, click.Option)
        and not each.hidden  # a former name
        and not {*each.opts} & TYPED_ONLY
        and not any((name, flag) in NOT_OPTIONS for flag in each.opts)
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_a_function_says_what_its_command_says(name: str) -> None:
    """Both ways round: no option without a keyword, no keyword without an option, every sentence the same."""
    found = {key: row for function in COMMANDS[name] for key, row in documented(getattr(draftconv, function)).items()}
    typed = of_command(name)
    assert found.keys() - PYTHON_ONLY == typed.keys()
    for key, each in typed.items():
        assert " ".join((each.help or "").split()) in found[key][1]


@pytest.mark.parametrize("function", [each for functions in COMMANDS.values() for each in functions])
def test_every_argument_has_type_and_default(function: str) -> None:
    called = getattr(draftconv, function)
    found = documented(called)
    text = inspect.getdoc(called) or ""
    for each in inspect.signature(called).parameters.values():
        if each.kind is not inspect.Parameter.KEYWORD_ONLY:
            assert re.search(rf"(^    |`|, ){each.name}\b", text.partition("Args:\n")[2], re.MULTILINE), each.name
            continue
        kind, told = found[each.name]
        assert told
        assert (" = " in kind) == (each.default is not inspect.Parameter.empty), each.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of every sort."""

    engine: str = option(..., "Who.", flag="--for")
    mode: Literal["a", "b"] = option("a", "How.")
    dtype: str | None = option(None, "In what.", choices=lambda: ("bf16", "f32"))
    card: bool = option(True, "Write none.", flag="--no-card")
    steps: int = option(3, "How many.", short=("-k",), former=("--count",))
    chat: bool = option(True, "As a chat.", flag="--chat/--raw")
    token: str = python_only("", "kept to itself")


@takes(Options)
def function(source: str, options: Options) -> str:
    """Do it."""
    return f"{source} {options.engine}"


def test_the_list() -> None:
    assert documented(function) == {
        "engine": ("str  (--for)", "Who."),
        "mode": ("Literal['a', 'b'] = 'a'", "How."),
        "dtype": ("str | None = None", "In what. One of bf16, f32."),
        "card": ("bool = True  (--no-card)", "False: Write none."),
        "steps": ("int = 3  (-k)", "How many."),
        "chat": ("bool = True  (--chat/--raw)", "As a chat."),
        "token": ("str = ''", "kept to itself"),
    }
    assert function("it", engine="x") == "it x"


def test_help_begins_with_names() -> None:
    shown = pydoc.plain(pydoc.render_doc(function)).splitlines()
    assert shown[2:6] == [
        "function(", "    source: str, *, engine, mode, dtype, card, steps, chat, token", ") -> str", "    Do it.",
    ]  # fmt: skip
    assert max(map(len, pydoc.plain(pydoc.render_doc(draftconv.live_parity)).splitlines())) <= 120


def test_a_signature_keeps_types_and_defaults() -> None:
    found = inspect.signature(function).parameters["dtype"]
    assert (found.annotation, found.default) == (str | None, None)
