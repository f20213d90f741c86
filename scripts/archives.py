"""What a release holds: looked up in the archives themselves.

python scripts/archives.py DIR      DIR holds one sdist and one wheel
"""

from __future__ import annotations

import re
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
MOST = 2_000_000
"""Bytes of an archive: some 600 kB of text, and nothing that grows by itself."""

NOT_PUBLISHED = re.compile(r"(^|/)(tests|scripts|docs|__pycache__|\.(?!gitignore)\w+)(/|$)|\.(safetensors|bin|pyc)$")
"""Hatchling puts .gitignore into every sdist: what it leaves out of a build follows from it."""
LINK = re.compile(r"(?:\]\(|src=\"|^\[[^\]]+\]: +)(?P<link>[^)\s\"]+)", re.MULTILINE)
DEFINITION = re.compile(r"^\[(?P<label>[^\]]+)\]: ", re.MULTILINE)
REFERENCE = re.compile(r"\[(?P<text>[^\]\[]+)\](?!\()(?:\[(?P<label>[^\]]+)\])?")
CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
CLASSIFIER = "Programming Language :: Python :: 3."


def faults(directory: Path) -> Iterator[str]:
    """What is wrong with the archives in `directory`, a line each."""
    sdists, wheels = sorted(directory.glob("*.tar.gz")), sorted(directory.glob("*.whl"))
    if len(sdists) != 1 or len(wheels) != 1:
        yield f"{directory} holds {len(sdists)} sdists and {len(wheels)} wheels, not one of each"
        return
    with tarfile.open(sdists[0]) as sdist:
        names = [member.name for member in sdist.getmembers()]
    yield from _held(sdists[0], [name.partition("/")[2] for name in names])
    with zipfile.ZipFile(wheels[0]) as wheel:
        yield from _held(wheels[0], wheel.namelist())
        metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        yield from _described(BytesParser().parsebytes(wheel.read(metadata)))


def _held(archive: Path, names: list[str]) -> Iterator[str]:
    """Every file of the package and of the recipes, and no file of a checkout."""
    recipes = "" if archive.suffix == ".gz" else "draftconv/"
    wanted = {*_files("draftconv"), *(recipes + path for path in _files("recipes"))}
    for name in sorted(wanted - {*names}):
        yield f"{archive.name} lacks {name}"
    for name in sorted(filter(NOT_PUBLISHED.search, names)):
        yield f"{archive.name} holds {name}"
    if archive.stat().st_size > MOST:
        yield f"{archive.name} has {archive.stat().st_size} bytes, more than {MOST}"


def _files(directory: str) -> Iterator[str]:
    for path in (ROOT / directory).rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix()


def _described(metadata: Message) -> Iterator[str]:
    """The page that a package index shows of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    least = int(project["requires-python"].removeprefix(">=3."))
    minors = [int(line.rpartition(".")[2]) for line in project["classifiers"] if line.startswith(CLASSIFIER)]
    if minors != [*range(least, max(minors) + 1)]:
        yield f"the classifiers tell Python 3.{minors}, requires-python begins at 3.{least}"
    if not metadata.get_all("Project-URL"):
        yield "the wheel names no project URL"
    page = str(metadata.get_payload())
    yield from _undefined(CODE.sub("", page))
    for link in LINK.findall(page):
        if not link.startswith(("https://", "#")):
            yield f"README.md links to {link}, which is nothing outside a checkout"
        yield from _dead(link, project["urls"]["Homepage"])


def _undefined(text: str) -> Iterator[str]:
    """References that would be shown as they are typed, and definitions that nothing refers to."""
    defined = {label.lower() for label in DEFINITION.findall(text)}
    used = {(found["label"] or found["text"]).lower() for found in REFERENCE.finditer(DEFINITION.sub("", text))}
    yield from (f"README.md refers to [{label}], which is defined nowhere" for label in sorted(used - defined))
    yield from (f"README.md defines [{label}], to which nothing refers" for label in sorted(defined - used))


def _dead(link: str, home: str) -> Iterator[str]:
    """A link into the repository whose file is not there."""
    for prefix in (f"{home}/blob/main/", f"{home}/raw/main/", f"{home}/tree/main/"):
        path = PurePosixPath(link.removeprefix(prefix).partition("#")[0])
        if link.startswith(prefix) and not (ROOT / path).exists():
            yield f"README.md links to {path}, which is not there"


def main() -> int:
    (directory,) = map(Path, sys.argv[1:])
    told = [*faults(directory)]
    for line in told:
        print(f"Error: {line}", file=sys.stderr)
    if not told:
        print(f"archives: {', '.join(f'{path.name} ({path.stat().st_size:,} bytes)' for path in directory.iterdir())}")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
