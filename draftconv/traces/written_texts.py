"""What a target writes, out of whatever it was kept in: logs of requests, conversations, texts, token ids.

An entry of a JSON file, or a row of a data set, is one of

    "text"                                            a text
    [1, 2, 3]                                         token ids
    {"text": "…"}                                     a text
    {"token_ids": [1, 2, 3]}                          token ids
    {"messages": [{"role": …, "content": …}, …]}      a conversation; what the assistant says
    {"conversations": [{"from": …, "value": …}, …]}   the same, as ShareGPT and trainers spell it
    {"choices": [{"message": …}, …], …}               an answer of a server; its request may stand beside it

`choices` and `messages` may lie in `response`, `request` and their `body`, as logs of OpenAI's API and batches have
them. Only what the target writes is drafted, so of a conversation only the assistant's side counts, and where the
answer is there only the answer: the requests of one conversation repeat what was said before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from draftconv.checkpoint import show_some
from draftconv.errors import BadPrompts
from draftconv.traces.entries import encodable, json_kind

ENVELOPES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "choices": ((), ("response",), ("response", "body"), ("body",)),
    "messages": ((), ("request",), ("request", "body"), ("body",)),
    "conversations": ((),),
}
"""Key → the objects that may hold it, from the outside in."""

ASSISTANT = frozenset({"assistant", "gpt", "model", "chatgpt", "bot"})
"""Who writes what is drafted: OpenAI's role, and what ShareGPT and others call it."""
ASKING = frozenset({"user", "human"})
ROLES, CONTENTS = ("role", "from"), ("content", "value")
REASONING = ("reasoning_content", "reasoning")
"""Where servers put what is thought before the answer."""

PLAIN = ("token_ids", "text")
"""Keys of entries that are no conversation."""


@dataclass(frozen=True, slots=True)
class WrittenText:
    """What one entry holds.

    Attributes:
        key: of its conversation; entries of one conversation have the same.
        texts: parts that are tokenized by themselves. `tokens`: ids that need no tokenizer.
    """

    key: bytes
    texts: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()


def written_text(entry: object, where: str) -> WrittenText | None:
    """What the target wrote of an entry; None of a conversation in which it says nothing.

    Args:
        where: FILE:LINE, for messages.

    Raises:
        BadPrompts: it is none of what may stand there.
    """
    match entry:
        case str():
            return _text(entry, where)
        case list():
            return _token_ids(entry, where)
        case Mapping():
            return _object(entry, where)
    raise BadPrompts(
        f"{where} is {json_kind(entry)}, not a text",
        cure="write a text, a list of token ids, or an object with text, token_ids, messages or choices",
    )


def _object(entry: Mapping[str, object], where: str) -> WrittenText | None:
    choices = _enclosed(entry, "choices")
    messages = _enclosed(entry, "messages")
    if messages is None:
        messages = _enclosed(entry, "conversations")
    if choices is not None:
        said = tuple(_answers(choices, f"{where}: choices"))
        return _of_conversation(messages, said, where)
    if messages is not None:
        said = tuple(part for message in _objects(messages, where) for part in _said(message, where))
        return _of_conversation(messages, said, where)
    plain = [key for key in PLAIN if key in entry]
    if len(plain) != 1:
        found = " and ".join(plain) if plain else f"only {show_some(entry, 6)}" if entry else "no keys"
        raise BadPrompts(
            f"{where} has {found}",
            why="what the target wrote cannot be told",
            cure="give it one of text, token_ids, messages and choices",
        )
    value = entry[plain[0]]
    if plain[0] == "token_ids":
        return _token_ids(value, f"{where}: token_ids")
    return _text(value, f"{where}: text")


def _enclosed(entry: Mapping[str, object], key: str) -> object:
    """A key of an entry or of an object in it; None where it is nowhere."""
    for path in ENVELOPES[key]:
        place: object = entry
        for step in path:
            place = place.get(step) if isinstance(place, Mapping) else None
        if isinstance(place, Mapping) and place.get(key) is not None:
            return place[key]
    return None


def _of_conversation(messages: object, said: tuple[str | tuple[int, ...], ...], where: str) -> WrittenText | None:
    """The answers of a conversation, which what is asked first stands for."""
    texts = tuple(part for part in said if isinstance(part, str))
    tokens = tuple(token for part in said if not isinstance(part, str) for token in part)
    if not texts and not tokens:
        return None
    first = next((_content(message) for message in _objects(messages or [], where) if _role(message) in ASKING), "")
    return WrittenText(_key(first or "\0".join(texts) or tokens), texts, tokens)


def _answers(choices: object, where: str) -> Iterator[str | tuple[int, ...]]:
    """What each choice of an answer says: ids where the server gave them, else text."""
    for choice in _objects(choices, where):
        ids, message, text = choice.get("token_ids"), choice.get("message"), choice.get("text")
        if isinstance(ids, list):
            yield _token_ids(ids, f"{where}: token_ids").tokens
        elif isinstance(message, Mapping):
            yield from _parts(message, where)
        elif isinstance(text, str) and text:
            yield encodable(text, where)


def _said(message: Mapping[str, object], where: str) -> Iterator[str]:
    if _role(message) in ASSISTANT:
        yield from _parts(message, where)


def _parts(message: Mapping[str, object], where: str) -> Iterator[str]:
    """All texts of an answer: what is thought, what is said, and what tools are called with."""
    for key in REASONING:
        if isinstance(text := message.get(key), str) and text:
            yield encodable(text, where)
            break
    if content := _content(message):
        yield encodable(content, where)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        for key in ("name", "arguments"):
            if isinstance(function, Mapping) and isinstance(text := function.get(key), str) and text:
                yield encodable(text, where)


def _role(message: Mapping[str, object]) -> str:
    """Who speaks; empty where that is no text."""
    return next((role for key in ROLES if isinstance(role := message.get(key), str)), "")


def _content(message: Mapping[str, object]) -> str:
    """The text of a message, whose content may be a list of parts."""
    content = next((message[key] for key in CONTENTS if key in message), None)
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, Mapping))
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _objects(values: object, where: str) -> Sequence[Mapping[str, object]]:
    if isinstance(values, list | tuple) and all(isinstance(value, Mapping) for value in values):
        return values
    raise BadPrompts(f"{where} holds {json_kind(values)} in place of a list of objects")


def _text(value: object, where: str) -> WrittenText:
    if not isinstance(value, str):
        raise BadPrompts(f"{where} is {json_kind(value)}, not text")
    return WrittenText(_key(value), (encodable(value, where),))


def _token_ids(values: object, where: str) -> WrittenText:
    if not isinstance(values, list | tuple) or not all(type(value) is int and 0 <= value < 1 << 31 for value in values):
        raise BadPrompts(f"{where} is not a list of token ids", cure="texts go under text")
    return WrittenText(_key(tuple(values)), tokens=tuple(values))


def _key(value: object) -> bytes:
    return hashlib.blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=8).digest()
