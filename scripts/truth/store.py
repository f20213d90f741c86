"""Answers that were found already: a run that is stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from truth.table import Part

HERE = Path(__file__).parent
UNTOLD = frozenset({"README.md", "draftconv.json"})
"""Files that no engine reads."""


def digest(*parts: object) -> str:
    """A short name for texts and for the contents of directories and files."""
    hashed = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for path in _files(part):
                hashed.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
        else:
            hashed.update(repr(part).encode() + b"\0")
    return hashed.hexdigest()[:20]


def _files(path: Path) -> Iterable[Path]:
    return [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file() and p.name not in UNTOLD)


def made_by(root: Path) -> str:
    """A short name for the code that makes directories and traces: what other code made is not used again."""
    sources = [*(root / "draftconv").rglob("*.py"), *(root / "recipes").glob("*.yaml"), *HERE.rglob("*.py")]
    return digest(*sorted(sources), root / "tests" / "tiny.py")


class Ask(Protocol):
    """How a part gets an observation: from the engine, from an earlier run, or from the committed table."""

    def __call__(self, part: Part, case: str, depends: Iterable[object], find: Callable[[], Any]) -> Any:
        """What was observed in a case, as `observed` and `detail`; `depends` is everything that decides it."""


class Store:
    """JSON values in a directory, each under the digest of everything it depends on.

    Attributes:
        version: of the engine. `asking`: the file that holds how it is asked.
    """

    def __init__(self, directory: Path, version: str, asking: Path) -> None:
        self.directory, self.version, self.asking = directory, version, asking
        directory.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, depends: Iterable[object], find: Callable[[], Any]) -> Any:
        """The value that was kept for this question, or a new one.

        Args:
            name: of the question, for a person who looks into the directory.
            depends: everything that decides the answer beside the engine's version.
        """
        key = digest(self.version, self.asking, name, *depends)
        path = self.directory / f"{name.replace('/', '_').replace(' ', '-')[:80]}-{key}.json"
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
        value = json.loads(json.dumps(find()))  # the same on both ways
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(value), encoding="utf-8")
        partial.replace(path)
        return value
