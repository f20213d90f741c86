"""Text from strangers: made harmless, shortened for messages, JSON read strictly."""

from __future__ import annotations

import html
import json
import math
import re
from collections import Counter
from collections.abc import Iterable

from draftconv import limits
from draftconv.errors import BadCheckpoint, DraftconvError


def show(name: object) -> str:
    """`name` as text, cut to `limits.SHOWN` characters: a checkpoint can hold names of megabytes."""
    text = str(name)
    if len(text) <= limits.SHOWN.value:
        return text
    return f"{text[: limits.SHOWN.value]}… ({len(text)} characters)"


def show_some(names: Iterable[object], limit: int = 3) -> str:
    """The first few names, then how many more there are."""
    listed = list(names)
    text = ", ".join(show(name) for name in listed[:limit])
    return text if len(listed) <= limit else f"{text} and {len(listed) - limit} more"


def safe(value: object) -> str:
    """Text with control, bidirectional and other unprintable characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def size(count: int) -> str:
    """Bytes as a person reads them: 6.36 GB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1000
    return f"{count} B"


def code(value: object) -> str:
    """Text for a code span or block of Markdown: no control or invisible characters, no backticks, one line."""
    return _one_line(value).replace("`", "?")


def plain(value: object) -> str:
    """Text for prose in Markdown: also every character that Markdown or HTML could act on is escaped."""
    escaped = html.escape(re.sub(r"[\\`*_\[\]#|!~$^{}]", r"\\\g<0>", _one_line(value)), quote=False)
    # GitHub and the Hub turn bare addresses into links
    return re.sub(r"(?i)(://|www\.|@)", lambda match: f"{match[0][:-1]}\\{match[0][-1]}", escaped)


def _one_line(value: object) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(value))[:400]


def parse_object(data: bytes, where: str, *, constants: bool = True) -> dict[str, object]:
    """A JSON object in UTF-8, every key once.

    Args:
        where, constants: see `parse_json`.

    Raises:
        BadCheckpoint: not an object; see `parse_json`.
    """
    document = parse_json(data, where, constants=constants)
    if not isinstance(document, dict):
        raise BadCheckpoint(f"{where} holds a JSON {type(document).__name__}, not an object")
    return document


def parse_json(data: bytes, where: str, *, constants: bool = True) -> object:
    """A JSON document in UTF-8, every key once.

    Args:
        where: what is being read, for the message (`config.json`, `header of x.safetensors`).
        constants: whether `NaN` and `Infinity` are allowed; transformers writes them into configs.

    Raises:
        BadCheckpoint: not UTF-8, not JSON, a repeated key, a lone surrogate, nested too deeply.
    """

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        mapping = dict(pairs)
        if len(mapping) != len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise BadCheckpoint(
                f"{where} has the key {show(twice)} twice",
                why="readers disagree on which of the two counts",
                cure="remove one of them",
            )
        return mapping

    def constant(text: str) -> float:
        if not constants:
            raise BadCheckpoint(f"{where} is not valid JSON: it holds {text}")
        return float(text)

    try:
        text = data.decode("utf-8")
        document: object = json.loads(text, object_pairs_hook=once, parse_constant=constant)
        if "\\ud" in text or "\\uD" in text:
            # Half a surrogate pair passes json.loads and breaks whoever writes it out again.
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeError as error:
        raise BadCheckpoint(f"{where} is not UTF-8 text ({show(error)})") from error
    except RecursionError as error:
        raise limits.JSON_LEVELS.exceeded(f"{where} is nested too deeply") from error
    except ValueError as error:
        raise BadCheckpoint(f"{where} is not valid JSON: {show(error)}") from error
    refuse_deep(document, where)
    return document


def refuse_deep(document: object, where: str, *, error: type[DraftconvError] = BadCheckpoint) -> None:
    """Refuse a JSON document that is nested beyond the limit, which nothing could print, copy or write again.

    Raises:
        DraftconvError: of the class `error`.
    """
    level, depth = [document], 0
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        limits.JSON_LEVELS.check(depth, f"{where} is nested more than {limits.JSON_LEVELS.value} deep", error=error)
        level = [item for inner in level for item in (inner.values() if isinstance(inner, dict) else inner)]


def refuse_infinite(document: object, where: str) -> None:
    """Refuse numbers that are none (NaN) or have no end, named by their keys: strict JSON cannot hold them.

    Raises:
        BadCheckpoint: there is one.
    """
    pending = [(where, ": ", document)]
    while pending:
        path, joint, item = pending.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise BadCheckpoint(
                f"{show(path)} is {item}, which is no number",
                why="JSON has none such: engines and libraries in other languages do not read the file",
                cure="correct the key",
            )
        if isinstance(item, dict):
            pending += [(f"{path}{joint}{key}", ".", value) for key, value in item.items()]
        elif isinstance(item, list):
            pending += [(f"{path}[{index}]", ".", value) for index, value in enumerate(item)]


def is_plain_name(name: str) -> bool:
    """Whether `name` is a file name that cannot lead out of a directory."""
    return (
        0 < len(name.encode("utf-8", "surrogatepass")) <= 255
        and name not in (".", "..")
        and not any(character in "/\\\0" for character in name)
    )
