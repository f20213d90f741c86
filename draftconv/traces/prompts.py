"""Prompts: what a target is asked.

`load_prompts` reads them from a file (.jsonl, .json, .txt) or from a suite of recipes/suites.
An entry of a JSON file is one of

    "text"                                     one turn
    [1, 2, 3]                                  token ids
    {"prompt": "text"}                         one turn
    {"turns": ["text", …]}                     a conversation; the target writes the answers
    {"messages": [{"role": "user", …}, …]}     the same, user messages only
    {"token_ids": [1, 2, 3]}                   token ids

and an object may add `id` (else the entry's number), `category` and `language` (else none);
its other keys are not read. A .txt file holds one prompt per line. Blank lines are skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from draftconv.checkpoint import show, show_some
from draftconv.checkpoint.files import exists
from draftconv.errors import BadPrompts, UsageError, did_you_mean
from draftconv.traces.entries import encodable, json_entries, json_kind, jsonl_entries, text_lines

logger = logging.getLogger(__name__)

DEFAULT_SUITE = "mt-bench"

KINDS = ("prompt", "turns", "messages", "token_ids")
"""The keys that can hold what is asked; an entry has exactly one."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation.

    Attributes:
        id: unique in its suite or file; all turns together are one cluster.
        turns: what the user says, turn by turn; empty when `tokens` is given.
        tokens: token ids of a single turn, taken as they are: no chat template, no tokenizer.
        language: that it is asked in, as whoever wrote it says; empty where nobody does.
    """

    id: str
    category: str
    turns: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    language: str = ""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts in the order in which they are asked.

    Attributes:
        source: where they came from: the file's name without its directory, or suite, data set, commit and split.
        max_tokens: the length that the suite is run at; None when the prompts came from a file.
    """

    source: str
    prompts: tuple[Prompt, ...]
    max_tokens: int | None = None


def load_prompts(spec: str, limit: int | None = None) -> PromptSet:
    """Read prompts from a file or a suite.

    Args:
        spec: path of a .jsonl, .json or .txt file, or the name of a suite. A path that exists wins.
        limit: only the first so many; what follows them is not read.

    Raises:
        UsageError: neither a file nor a suite, or a limit below 1.
        BadPrompts: the file cannot be read or an entry is no prompt (names file and line), or
            the suite is not for text or cannot be fetched.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit} leaves no prompt", cure="give a number from 1")
    path = Path(spec)
    if exists(path):
        prompt_set = PromptSet(path.name, collected(_read(path), path.name, limit))
        logger.info("opened %s: %d prompts", show(path), len(prompt_set.prompts))
        return prompt_set
    if path.suffix in _READERS:
        raise UsageError(f"{show(spec)}: no such file", cure="check the path")
    from draftconv.traces.suites import fetch, suites

    known, name = suites(), spec.lower()
    if name not in known:
        raise UsageError(
            f"{show(spec)} is neither a file of prompts nor a suite",
            why=f"suites: {', '.join(known)}",
            cure=did_you_mean(name, known, f"give a {', '.join(_READERS)} file or a suite"),
        )
    logger.info("fetching the suite %s, data set %s", name, known[name].dataset)
    return fetch(name, known[name], limit)


def collected(entries: Iterable[tuple[str, Prompt]], source: str, limit: int | None) -> tuple[Prompt, ...]:
    """Prompts with their places in the file, checked together: at least one, no id twice.

    Raises:
        BadPrompts: see above.
    """
    places: dict[str, str] = {}
    prompts = []
    for where, prompt in islice(entries, limit):
        if prompt.id in places:
            raise BadPrompts(
                f"{where}: the id {show(prompt.id)} was taken at {places[prompt.id]}",
                why="requests of two prompts would be counted as one cluster",
                cure="give every prompt its own id, or none an id",
            )
        places[prompt.id] = where
        prompts.append(prompt)
    if not prompts:
        raise BadPrompts(f"{source} holds no prompt")
    kinds = {bool(prompt.tokens) for prompt in prompts}
    if len(kinds) > 1:
        raise BadPrompts(
            f"{source} mixes texts and token ids",
            why="the chat template would apply to some prompts and not to others",
            cure="split it into two files",
        )
    return tuple(prompts)


# ── files ──────────────────────────────────────────────────────────────────────────


_READERS = {".jsonl": jsonl_entries, ".json": json_entries, ".txt": text_lines}


def _read(path: Path) -> Iterator[tuple[str, Prompt]]:
    """(place, prompt) in file order; the place is FILE:LINE, or FILE entry N in a .json file."""
    reader = _READERS.get(path.suffix)
    if reader is None or not path.is_file():
        raise UsageError(
            f"{show(path.name)} is not a file of prompts",
            cure=f"give a file whose name ends in {', '.join(_READERS)}",
        )
    try:
        for index, (where, entry) in enumerate(reader(path)):
            yield where, _prompt(entry, str(index), where)
    except OSError as error:
        raise BadPrompts(f"{show(path.name)} cannot be read: {error.strerror}") from error


# ── entries ────────────────────────────────────────────────────────────────────────


def _prompt(entry: object, index: str, where: str) -> Prompt:
    match entry:
        case str():
            return Prompt(index, "", (one_turn(entry, where),))
        case list():
            return Prompt(index, "", tokens=_token_ids(entry, where))
        case dict():
            return _prompt_from_entry(entry, index, where)
    raise BadPrompts(
        f"{where} is a JSON {type(entry).__name__}, not a prompt",
        cure="write a text, a list of token ids, or an object",
    )


def _prompt_from_entry(entry: dict[str, object], index: str, where: str) -> Prompt:
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        raise BadPrompts(
            f"{where} has {' and '.join(kinds)}" if kinds else f"{where} has only {show_some(entry) or 'no keys'}",
            why="it does not say what is asked" if not kinds else "only one of them can be asked",
            cure=f"give it one of {', '.join(KINDS)}",
        )
    id = _label(entry.get("id", index), f"{where}: id")
    category = _label(entry.get("category", ""), f"{where}: category")
    language = _label(entry.get("language", ""), f"{where}: language")
    if not id:
        raise BadPrompts(f"{where}: id is empty", cure="leave it out, or give every prompt its own")
    value = entry[kinds[0]]
    at = f"{where}: {kinds[0]}"
    match kinds[0], value:
        case "prompt", _:
            return Prompt(id, category, (one_turn(value, at),), language=language)
        case "turns", list():
            return Prompt(id, category, all_turns(value, at), language=language)
        case "messages", list():
            return Prompt(
                id, category, all_turns([_user_content(message, at) for message in value], at), language=language
            )
        case "token_ids", list():
            return Prompt(id, category, tokens=_token_ids(value, at), language=language)
    raise BadPrompts(f"{at} is {json_kind(value)}, not a list")


def one_turn(value: object, where: str) -> str:
    """A turn that is not empty and can be written as UTF-8.

    Raises:
        BadPrompts: it is something else.
    """
    if not isinstance(value, str):
        raise BadPrompts(
            f"{where} is {json_kind(value)}, not text",
            cure="token ids go under token_ids, several turns under turns" if isinstance(value, list) else "",
        )
    if not value.strip():
        raise BadPrompts(f"{where} is empty", why="a target that is asked nothing answers anything")
    return encodable(value, where)


def all_turns(values: list[object], where: str) -> tuple[str, ...]:
    """One or more turns.

    Raises:
        BadPrompts: none, or one that is empty or no text.
    """
    if not values:
        raise BadPrompts(f"{where} is an empty list")
    return tuple(one_turn(value, f"{where}[{number}]") for number, value in enumerate(values))


def _user_content(message: object, where: str) -> object:
    match message:
        case {"role": "user", "content": content}:
            return content
        case {"role": role, "content": _}:
            raise BadPrompts(
                f"{where} holds a message of the role {show(role)}",
                why="the target writes the answers itself, and a prompt has no system text",
                cure="keep the user messages; put a system text at the start of the first one",
            )
    raise BadPrompts(f"{where} holds a message without role and content")


def _token_ids(values: list[object], where: str) -> tuple[int, ...]:
    ids = []
    for number, value in enumerate(values):
        if type(value) is not int:
            raise BadPrompts(
                f"{where}[{number}] is {json_kind(value)}, not a token id",
                cure='texts go under {"turns": […]}' if isinstance(value, str) else "",
            )
        if not 0 <= value < 1 << 31:
            raise BadPrompts(f"{where}[{number}] is {show(value)}, which is no token id")
        ids.append(value)
    if not ids:
        raise BadPrompts(f"{where} is an empty list")
    return tuple(ids)


def _label(value: object, where: str) -> str:
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise BadPrompts(f"{where} is {json_kind(value)}, not text")
    return encodable(value, where)
