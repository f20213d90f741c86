"""An in-toto Statement v1, written to a file of its own.

Source: https://github.com/in-toto/attestation, `spec/v1/statement.md` and `resource_descriptor.md`; read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import draftconv
from draftconv.checkpoint.directories import nearest_parent, parents_made
from draftconv.checkpoint.staging import write_error, write_new
from draftconv.checkpoint.text import show
from draftconv.errors import UsageError, WriteError
from draftconv.options import Place

TYPE = "https://in-toto.io/Statement/v1"
PROGRAM = "pkg:pypi/draftconv"
"""What made a statement, as a package URL."""


@dataclass(frozen=True, slots=True)
class ResourceDescriptor:
    """A file or a thing, by its digest or its URI.

    Attributes:
        sha256: of its bytes, in hex. `annotations`: what else is known of it.
    """

    name: str
    sha256: str | None = None
    uri: str | None = None
    annotations: Mapping[str, object] | None = None

    def document(self) -> dict[str, object]:
        """As in a statement."""
        parts = {
            "name": self.name,
            "uri": self.uri,
            "digest": {"sha256": self.sha256} if self.sha256 else None,
            "annotations": dict(self.annotations) if self.annotations else None,
        }
        return {key: value for key, value in parts.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Statement:
    """Files, and what is said of them."""

    subject: Sequence[ResourceDescriptor]
    predicate_type: str
    predicate: Mapping[str, object]

    def document(self) -> dict[str, object]:
        """As it is written: no times, hosts or absolute paths, so equal inputs and options give equal bytes."""
        return {
            "_type": TYPE,
            "subject": [item.document() for item in self.subject],
            "predicateType": self.predicate_type,
            "predicate": dict(self.predicate),
        }


def program() -> str:
    """This version of draftconv, as a package URL."""
    return f"{PROGRAM}@{draftconv.__version__}"


def refuse_statement(file: Place | None, *artifacts: Place) -> None:
    """Refuse a place that `write_statement` would refuse, or that is in one of these directories, before any work.

    Raises:
        UsageError: it is inside an artifact. WriteError: it exists, or no directory can be made for it.
    """
    if file is None:
        return
    path = Path(file)
    for artifact in map(Path, artifacts):
        if path.resolve() == artifact.resolve() or artifact.resolve() in path.resolve().parents:
            raise UsageError(
                f"--attest {show(path.name)} lies inside {show(artifact.name)}",
                why="a statement that lies in what it is about would change it, and prove nothing to whoever edits it",
                cure=f"write it beside it: --attest {artifact.name}.intoto.json",
            )
    if os.path.lexists(path):
        raise WriteError(f"{show(path.name)} exists already", cure="name another file for --attest, or remove it")
    nearest_parent(path)


def write_statement(file: Place, statement: Statement) -> None:
    """Write a statement; the file appears whole or not at all, and with it the directories above it.

    Raises:
        WriteError: it exists already, or the file system refuses.
    """
    path = Path(file).absolute()
    data = json.dumps(statement.document(), indent=2, ensure_ascii=False) + "\n"
    try:
        with parents_made(path):
            write_new(path, data.encode("utf-8"))
    except FileExistsError as error:
        raise WriteError(f"{show(path.name)} exists already", cure="name another file for --attest") from error
    except OSError as error:
        raise write_error(error, path) from error
