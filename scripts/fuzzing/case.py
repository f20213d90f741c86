"""One input: broken files, good ones beside them, and the commands that get them."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CASE = "case.json"
"""What tells of a saved case, beside its files."""

Command = tuple[str, ...]
"""Arguments of draftconv; `{in}`, `{out}` and `{seed:NAME}` stand for directories. `@engine NAME` asks an
engine, `@verify SOURCE` verifies what the command before has written, where it has, which must then pass."""


@dataclass(frozen=True, slots=True)
class Case:
    """One input.

    Attributes:
        files: path below `{in}` → contents. `copied`: path below `{in}` → a file of a seed that is as it was.
        served: whether `{in}` is what a Hub or an engine answers.
    """

    mutator: str
    seed: int
    number: int
    files: Mapping[str, bytes]
    commands: tuple[Command, ...]
    copied: Mapping[str, Path] = field(default_factory=dict)
    served: bool = False

    def lay(self, directory: Path) -> None:
        """Write the files."""
        for name, data in self.files.items():
            (path := directory / name).parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for name, source in self.copied.items():
            (path := directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)

    def save(self, directory: Path, faults: tuple[str, ...]) -> None:
        """Keep it for a replay; file names that no file system takes are in the JSON file with all the rest."""
        directory.mkdir(parents=True)
        document = {
            "mutator": self.mutator,
            "seed": self.seed,
            "number": self.number,
            "commands": self.commands,
            "served": self.served,
            "files": {name: base64.b64encode(data).decode() for name, data in self.files.items()},
            "copied": {name: [path.parent.name, path.name] for name, path in self.copied.items()},
        }
        (directory / CASE).write_text(json.dumps(document) + "\n", encoding="utf-8")
        (directory / "faults.txt").write_text("\n\n".join(faults) + "\n", encoding="utf-8")

    @staticmethod
    def load(directory: Path, seeds: Path) -> Case:
        """A case that was saved; what it shares with a seed is taken from there."""
        document = json.loads((directory / CASE).read_text(encoding="utf-8"))
        return Case(
            document["mutator"],
            document["seed"],
            document["number"],
            {name: base64.b64decode(text) for name, text in document["files"].items()},
            tuple(map(tuple, document["commands"])),
            {name: seeds / seed / file for name, (seed, file) in document["copied"].items()},
            document["served"],
        )
