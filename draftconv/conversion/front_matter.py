"""The YAML at the top of a model card, as the Hub reads it: taken from a stranger's card, and written for ours.

Only scalars and lists of scalars under a few keys are taken, as the text that stands there: no tag, anchor or type of
YAML is acted on, so that `no` stays a language and nothing grows. What keys mean: huggingface/hub-docs,
docs/hub/model-cards.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from draftconv import limits
from draftconv.checkpoint.text import show
from draftconv.errors import BadCheckpoint

if TYPE_CHECKING:
    import yaml

FENCED = re.compile(r"\ufeff?\s*---[ \t]*\r?\n(?P<yaml>.*?)(?:(?<=\n)|\r?\n)---[ \t]*(?:\r?\n|$)", re.DOTALL)
OPENED = re.compile(r"\ufeff?\s*---[ \t]*\r?\n")
NULLS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True)
class Taken:
    """A key that is taken: what each of its values looks like, in words and as a pattern; `most`: how many."""

    words: str
    pattern: re.Pattern[str]
    most: int = 1


LINK = r"https?://[\w.~/?#&=%:@+,;-]{1,400}|[\w.-]{1,100}"

TAKEN: Mapping[str, Taken] = {
    "license": Taken("an identifier", re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}"), 8),
    "license_name": Taken("a short name", re.compile(r"[\w .,()+/:&'-]{1,100}")),
    "license_link": Taken("an address or a file name", re.compile(LINK, re.ASCII)),
    "language": Taken("a language code", re.compile(r"[A-Za-z]{2,16}([-_][A-Za-z0-9]{1,8}){0,3}"), 64),
    "datasets": Taken("a Hub id", re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII), 64),
}


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """What is taken over from a card.

    Attributes:
        values: key of `TAKEN` → its values, at least one. `faults`: what stands there and is not taken, and why.
    """

    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    def one(self, key: str) -> str | None:
        """The value of a key that has one, if it is there."""
        return next(iter(self.values.get(key, ())), None)


def read_front_matter(text: str) -> FrontMatter:
    """What is taken from a card; whatever it holds, nothing is raised for it."""
    longest = limits.FRONT_MATTER.value
    head = text[:longest]
    found = FENCED.match(head)
    if found is None:
        endless = OPENED.match(head) and len(text) > longest
        return FrontMatter(faults=(f"its front matter has more characters; {longest} is the limit",) if endless else ())
    try:
        nodes = _nodes(found["yaml"])
    except BadCheckpoint as error:
        return FrontMatter(faults=(error.what,))
    values: dict[str, tuple[str, ...]] = {}
    faults: list[str] = []
    for key, taken in TAKEN.items():
        if key not in nodes:
            continue
        read = tuple(_texts(nodes[key]))
        if fault := _fault(taken, read):
            faults.append(f"{key}: {fault}")
        elif read:
            values[key] = tuple(text for text in read if text is not None)
    return FrontMatter(values, tuple(faults))


def _nodes(text: str) -> Mapping[str, yaml.Node]:
    """The top level's keys with what stands under them.

    Raises:
        BadCheckpoint: it is no YAML, or no mapping; a key is there twice.
    """
    import yaml

    try:
        root = yaml.compose(text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadCheckpoint("its front matter is not YAML") from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise BadCheckpoint("its front matter is no mapping of keys to values")
    nodes: dict[str, yaml.Node] = {}
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value in nodes and key.value in TAKEN:
            raise BadCheckpoint(f"its front matter has {show(key.value)} twice")
        nodes[key.value] = value
    return nodes


def _texts(node: yaml.Node) -> Iterator[str | None]:
    """The scalars of a value, None for what is none; nothing where it is empty."""
    import yaml

    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    for item in items:
        if not isinstance(item, yaml.ScalarNode):
            yield None
        elif item.style is not None or item.value not in NULLS:
            yield item.value


def _fault(taken: Taken, read: tuple[str | None, ...]) -> str:
    """Why a value is not taken; empty where it is."""
    if len(read) > taken.most:
        return f"{len(read)} values, {taken.most} is the most"
    strange = [text for text in read if text is None or not taken.pattern.fullmatch(text)]
    return f"{_quoted(strange[0])} is not {taken.words}" if strange else ""


def _quoted(text: str | None) -> str:
    return "a mapping or a list" if text is None else f"'{show(text)}'" if text else "an empty text"


def write_front_matter(values: Mapping[str, object]) -> str:
    """The keys in order, without the lines that fence them; what is None or empty is left out."""
    import yaml

    kept = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    kept = {key: value for key, value in kept.items() if value not in (None, [], "")}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, default_flow_style=False, width=1000)
