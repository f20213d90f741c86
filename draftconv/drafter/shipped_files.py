"""Where the files of `recipes/` are, beside the code of an installed draftconv or at the top of a checkout; and those
that users bring along in place of one."""

from __future__ import annotations

import importlib.resources
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.checkpoint.files import LocalFile
from draftconv.errors import BadCheckpoint, UsageError, did_you_mean

logger = logging.getLogger(__name__)

SUFFIXES = (".yaml", ".yml")
"""What the path of a user's own file ends in; anything else is the name of a shipped one."""


_OWN = "a {} of your own is given by its path, ending in .yaml"


@dataclass(frozen=True, slots=True)
class YamlText:
    """A YAML file that somebody wrote: its text, its name without suffix, and where it lies, for messages."""

    text: str = field(repr=False)
    name: str
    where: str


def recipes() -> Traversable:
    """The directory of recipes, suites and known targets."""
    packaged = importlib.resources.files("draftconv") / "recipes"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "recipes"


def find_written(spec: str, noun: str, names: Sequence[str], folder: str = "") -> YamlText:
    """The shipped file of this name, whatever its case, or the one at this path.

    Args:
        noun: what it holds (`recipe`). `names`: of the shipped ones, in `folder` of `recipes()`.

    Raises:
        UsageError: no such name, or the file cannot be read.
    """
    if spec.endswith(SUFFIXES):
        path = Path(spec)
        logger.info("opening the %s %s", noun, spec)
        try:
            with LocalFile(path) as opened:
                limits.YAML.check(opened.size, f"{noun} {show(spec)} has {opened.size} bytes", error=UsageError)
                return YamlText(opened.read(0, opened.size).decode("utf-8"), path.stem, spec)
        except BadCheckpoint as error:
            raise UsageError(f"{noun} {show(spec)} cannot be read: {error.what}", cure=_OWN.format(noun)) from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{noun} {show(spec)} cannot be read: it is not UTF-8 text") from error
    name = spec if spec in names else spec.lower()
    if name not in names:
        raise UsageError(
            f"no {noun} is called {spec}",
            why=f"shipped {noun}s: {', '.join(names)}",
            cure=did_you_mean(name, names, _OWN.format(noun)),
        )
    file = f"{folder}{name}.yaml"
    return YamlText(recipes().joinpath(file).read_text(encoding="utf-8"), name, f"recipes/{file}")
