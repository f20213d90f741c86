"""The tokens that a target writes whatever the text is about: special ones, and those of its chat template.

A text that is counted holds none of them, or each once per answer; a drafter that cannot draft them stumbles at the
beginning and at the end of every answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv import limits
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.local import LocalDirectory
from draftconv.checkpoint.text import parse_object
from draftconv.drafter.config import Config

if TYPE_CHECKING:
    from draftconv.traces.chat_template import Tokenizer

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
CONFIGS = ("config.json", "generation_config.json")
KEYS = ("bos_token_id", "eos_token_id", "pad_token_id")

CONVERSATIONS = (
    ("system", "user", "assistant", "user"),
    ("user", "assistant", "user"),
    ("user",),
)
"""Who speaks in what is rendered; some templates take no system text, and some no second turn."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids that stay in every head.

    Attributes:
        added: those that the tokenizer's files and the target's configs name.
        template: those that every conversation has in common.
    """

    added: frozenset[int]
    template: frozenset[int] = frozenset()

    @property
    def ids(self) -> frozenset[int]:
        """All of them."""
        return self.added | self.template


def added_tokens(directory: Path) -> frozenset[int]:
    """What the tokenizer of a target adds to its vocabulary, and what its configs call begin, end and padding.

    Only JSON is read, so that tokenizers with code of their own are no obstacle.

    Raises:
        BadCheckpoint: a file is no JSON object or too large.
    """
    listing = LocalDirectory(directory)

    def read(name: str, limit: limits.Limit) -> Mapping[str, object]:
        if name not in listing.files:
            return {}
        limit.check(listing.files[name], f"{name} has {listing.files[name]} bytes")
        return parse_object(listing.read(name), name)

    ids = {*_added(read(TOKENIZER, limits.TOKENIZER))}
    decoder = read(TOKENIZER_CONFIG, limits.CONFIG).get("added_tokens_decoder")
    ids |= {int(key) for key in decoder if key.isdecimal() and len(key) < 10} if isinstance(decoder, Mapping) else set()
    for name in CONFIGS:
        ids |= {*_named(read(name, limits.CONFIG), name)}
    return frozenset(ids)


def added_by(tokenizer: Path) -> frozenset[int]:
    """The same of a tokenizer.json alone, as a trace keeps it.

    Raises:
        BadCheckpoint: as `added_tokens`.
    """
    with LocalFile(tokenizer) as file:
        limits.TOKENIZER.check(file.size, f"{tokenizer.name} has {file.size} bytes")
        return frozenset(_added(parse_object(file.read(0, file.size), tokenizer.name)))


def template_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that a chat template writes whatever is said; none where there is no template, or it takes no dialogue.

    Two conversations that differ in every word are rendered, and what both have is the template's.
    """
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        return frozenset()
    for roles in CONVERSATIONS:
        try:
            one, other = (
                tokenizer.apply_chat_template(
                    [{"role": role, "content": content} for role in roles],
                    add_generation_prompt=True,
                    tokenize=True,
                    return_dict=False,
                )
                for content in ("a", "0")
            )
        except (TemplateError, ValueError, TypeError, KeyError):  # a template is a program of its own
            continue
        return frozenset(one) & frozenset(other)
    return frozenset()


def _added(tokenizer: Mapping[str, object]) -> Iterator[int]:
    rows = tokenizer.get("added_tokens")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Mapping) and type(number := row.get("id")) is int:
            yield number


def _named(config: Mapping[str, object], where: str) -> Iterator[int]:
    outer = Config(config, where)
    for place in (outer, outer.section("text_config")):
        for key in KEYS:
            value = place.raw(key)
            for item in value if isinstance(value, list) else [value]:
                if type(item) is int:
                    yield item
