"""How a server is started with a drafter: the command, the files it reads, and the traps.

Commands are argument lists; `ServeCommand.shell` quotes them for a person. Servers bind to
loopback. Every engine has one function from `ServeRequest` to `ServeCommand`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from draftconv.display import Block, Displayed, card
from draftconv.drafter.facts import Facts
from draftconv.drafter.targets import Target
from draftconv.errors import UsageError

LOOPBACK = "127.0.0.1"

Yaml = bool | int | str | Sequence[int] | Mapping[str, "Yaml"]


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """What is to be served.

    Attributes:
        directory: the drafter, as a path or Hub id that the server can open. `revision`: of that Hub id, where
            one is named.
        facts: of that drafter. `target`: the model it drafts for.
        drafts: tokens proposed per step (K). `tensor_parallel`: devices for the target.
        alone: the target without the drafter, otherwise started alike.
    """

    directory: str
    facts: Facts
    target: Target
    drafts: int = 3
    tensor_parallel: int = 1
    alone: bool = False
    revision: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no server can be started with.

        Raises:
            UsageError: only the target's layer count is known, or a count is below one.
        """
        if not self.model:
            raise UsageError(
                f"{self.target.name} cannot be served",
                why="a server needs the target's files",
                cure="give --target a directory, a Hub id or a known name",
            )
        for option, value in (
            ("--num-speculative-tokens", self.drafts),
            ("--tensor-parallel-size", self.tensor_parallel),
        ):
            if value < 1:
                raise UsageError(f"{option} {value}: must be at least 1")

    @property
    def model(self) -> str:
        """What the server is given as its model."""
        return str(self.target.path) if self.target.path else self.target.repo.partition("@")[0]

    @property
    def model_revision(self) -> str | None:
        """The revision that a target on the Hub was named with."""
        return None if self.target.path else self.target.repo.partition("@")[2] or None


@dataclass(frozen=True, slots=True, repr=False)
class ServeCommand(Displayed):
    """A server's command line.

    Attributes:
        argv: program and arguments. `files`: name → text of files to write beside it first.
        notes: what a person should know before running it.
        environment: variables that it needs; one that is set already is left as it is.
    """

    argv: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def located(self, python: Path | None) -> tuple[str, ...]:
        """The command with its program taken from an environment; None leaves it to the PATH."""
        return located(self.argv, python)

    def shell(self) -> str:
        """The command, quoted for a shell."""
        return shell(self.argv, self.environment)

    def brief(self) -> Iterator[str]:
        """The command."""
        yield self.shell()

    def blocks(self) -> Iterator[Block]:
        """The files, the command and the notes."""
        files = ((name, tuple(text.splitlines())) for name, text in self.files.items())
        notes = (("note", note) for note in self.notes)
        yield card("Serve", (*files, ("command", self.shell()), *notes))


def located(argv: Sequence[str], python: Path | None) -> tuple[str, ...]:
    """A command with its program taken from beside a Python, or that Python itself; None leaves it to the PATH."""
    if python is None:
        return tuple(argv)
    program = python if argv[0] == "python" else python.parent / argv[0]
    return (str(program), *argv[1:])


def shell(argv: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})) -> str:
    """A command with its variables, quoted for a shell."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in environment.items()), shlex.join(argv)])


def wrapped(argv: Sequence[str], environment: Mapping[str, str], width: int = 100) -> str:
    """The same on lines that a person can read: an option stays with its values, and none starts a line alone."""
    parts = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    for argument in argv:
        if argument.startswith("-") or not parts or len(parts) == len(environment):
            parts.append(shlex.quote(argument))
        else:
            parts[-1] += f" {shlex.quote(argument)}"
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) >= width:
            lines.append("   ")
        lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
    return " \\\n".join(lines)


def remote_code_note(target: Target, flag: str) -> tuple[str, ...]:
    """A warning when starting this target runs code from its repository."""
    if not target.remote_code:
        return ()
    return (f"{flag} lets {target.name} run Python code from its own repository: read it first",)


def yaml_text(data: Mapping[str, Yaml], indent: str = "") -> str:
    """YAML for flat settings, without a YAML library: engines start from the text alone."""
    lines: list[str] = []
    for key, value in data.items():
        match value:
            case Mapping():
                lines.append(f"{indent}{key}:\n{yaml_text(value, indent + '  ')}")
            case str():
                lines.append(f"{indent}{key}: {yaml_string(value)}\n")
            case _:
                lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return "".join(lines)


def yaml_string(text: str) -> str:
    """A double-quoted YAML scalar that reads back as exactly this text, whatever it holds.

    YAML reads JSON's pairs of surrogates as two characters; PyYAML has shorter words for thirteen control
    characters, so files that are written again would differ.
    """
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    code = ord(character)
    if character in '"\\':
        return f"\\{character}"
    if 0x20 <= code < 0x7F:
        return character
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
