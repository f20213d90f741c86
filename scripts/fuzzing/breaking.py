"""Ways to break bytes and documents, by a random source alone: the same one breaks them alike."""

from __future__ import annotations

import copy
import json
from random import Random

MARKER = "payload-was-run"
"""A file that only a payload would make; see `child`."""

TEXTS = (
    "", " ", "\x00", "\u202e\x1b[31m", "../../etc/passwd", "/etc/passwd", "model.safetensors", "re:(a+)+$",
    "re:.*.*.*.*x", "x" * 300, "layers.0.fc.weight", "NaN", "-1", "0", "true", "é" * 130, "http://127.0.0.1:9/",
    "hf://a/b", "*", "[a-", "{}", "{{7*7}}", "<script>", "a\nb", "$(touch /x)", "re:" + "a" * 1100, "vllm", "int4",
    "yarn", "llama3", "kimi_k2", "eagle3", "float8_e4m3fn", "F8_E4M3",
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 3, 7, 255, 1000, 65537, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30,
           0.0, -0.0, 0.5, 1e-9, 1.5, 1e15, 1e16, 1e308, float("inf"), float("-inf"), float("nan"))  # fmt: skip
RAW = ("1e400", "-1e999", "1" * 5000, "0x10", "nul", "[" * 100 + "]" * 100, '{"a":' * 70 + "1" + "}" * 70, '"\\ud800"',
       "[" * 100_000, '"' + "a" * 1_000_000 + '"', "-", "'x'", "01", "Infinity")  # fmt: skip
"""JSON that json.dumps does not write."""
_HOLE = "\ue000hole\ue000"


def odd_value(random: Random) -> object:
    """Something that is valid JSON, and rarely what a reader expects."""
    match random.randrange(6):
        case 0:
            return random.choice(NUMBERS)
        case 1:
            return random.choice(TEXTS)
        case 2:
            return random.choice((None, True, False, [], {}, [[]], [None], {"": None}))
        case 3:
            return [random.choice(NUMBERS) for _ in range(random.choice((1, 2, 3, 65, 2000)))]
        case 4:
            return [random.choice(TEXTS) for _ in range(random.choice((1, 3, 300, 12_000)))]
        case _:
            return {random.choice(TEXTS): random.choice((*NUMBERS, *TEXTS)) for _ in range(random.choice((1, 3, 400)))}


Place = tuple[object, object]
"""A container and a key or index of it."""


def places(document: object) -> list[Place]:
    """Every place of a document that holds a value."""
    found: list[Place] = []
    pending = [document]
    while pending:
        match pending.pop():
            case dict() as container:
                keys: list[object] = list(container)
                pending += container.values()
            case list() as container:
                keys = list(range(min(len(container), 20)))  # long lists do not crowd out the rest
                pending += container[:20]
            case _:
                continue
        found += [(container, key) for key in keys]
    return found


def broken_document(random: Random, document: object) -> bytes:
    """JSON with one to four values changed, keys lost, repeated or renamed, or its text cut, spliced or flipped."""
    document = copy.deepcopy(document)
    raw = ""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        known = places(document)
        if not known:
            break
        container, key = random.choice(known)
        value = container[key]  # type: ignore[index]
        match random.randrange(10):
            case 0:
                del container[key]  # type: ignore[attr-defined]
            case 1 if isinstance(container, dict):
                container[random.choice((*container, *TEXTS))] = container.pop(key)
            case 2 if not raw:
                raw = random.choice(RAW)
                container[key] = _HOLE  # type: ignore[index]
            case 3:
                container[key] = _wrapped(random, value)  # type: ignore[index]
            case 4 if isinstance(value, (int, float)) and not isinstance(value, bool):
                near = (value + 1, value - 1, value * 2, -value, float(value), str(value))
                container[key] = random.choice((*near, *random.choices(NUMBERS, k=6)))  # type: ignore[index]
            case 5:
                other, elsewhere = random.choice(known)
                if elsewhere in (other if isinstance(other, dict) else range(len(other))):  # type: ignore[arg-type]
                    container[key] = copy.deepcopy(other[elsewhere])  # type: ignore[index]
            case 6 if isinstance(container, dict):
                container[random.choice(TEXTS)] = odd_value(random)
            case 7 if isinstance(value, list) and value:
                container[key] = value * random.choice((2, 100)) if len(value) < 100 else value[:1]  # type: ignore[index]
            case _:
                container[key] = odd_value(random)  # type: ignore[index]
    text = json.dumps(document, ensure_ascii=random.random() < 0.5)
    data = text.replace(json.dumps(_HOLE), raw).replace(f'"{_HOLE}"', raw).encode("utf-8", "surrogatepass")
    return broken_bytes(random, data) if random.random() < 0.1 else data


def _wrapped(random: Random, value: object) -> object:
    return random.choice(([value], {"value": value}, [value, value], str(value), [[value]], {str(value): value}))


def broken_bytes(random: Random, data: bytes) -> bytes:
    """Bytes flipped, cut out, doubled, or put in."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(len(out) + 1)
        length = random.choice((1, 1, 4, 16, 100))
        match random.randrange(6):
            case 0:
                del out[at : at + length]
            case 1:
                out[at:at] = random.randbytes(length)
            case 2:
                out[at:at] = out[at : at + length]
            case 3:
                del out[at:]
            case 4 if at < len(out):
                out[at] ^= 1 << random.randrange(8)
            case _:
                out[at : at + 1] = random.choice(
                    (b"\x00", b"\xff", b"\n", b"\xed\xa0\x80", b'"', b"{", b"}", b"[", b"9")
                )
    return bytes(out)


YAML_VALUES = (
    "", "null", "~", "[]", "{}", "-1", "0", "1e400", ".inf", ".nan", "true", "2026-13-45", "0x1F", "1:1:1", "1" * 5000,
    "'", '"', "|", ">", "*nobody", "&a [*a, *a]", "!!python/object/apply:os.system ['touch payload-was-run']",
    "!!binary AAAA", "!!set {a, b}", "!<tag:x> y", "[" * 30 + "]" * 30, "[" * 5000, "{a: " * 30 + "}" * 30, "&m {a: 1}",
    "? [a]", "x" * 3000, "\u202e", "\x07", "- a", "a: b: c", "@", "`", "%", "2026-02-30", "12e", "=", "<<", "off", "4",
    "128", "group", "int4",
)  # fmt: skip
BOMBS = (
    "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "m0: &m0 {k: v}\n" + "".join(f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}\n" for i in range(1, 10)),
    "<<: &x {<<: *x}\n",
    "- " * 2000 + "x\n",
)


def broken_yaml(random: Random, text: str) -> bytes:
    """A YAML file with values replaced, lines lost, doubled or moved, keys misspelled, or aliases that explode."""
    lines = text.splitlines(keepends=True)
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(lines)) if lines else 0
        match random.randrange(8):
            case 0 if lines:
                del lines[at]
            case 1 if lines:
                lines.insert(random.randrange(len(lines)), lines[at])
            case 2 if lines:
                key, colon, _ = lines[at].partition(":")
                lines[at] = f"{key[:-1]}{colon} {random.choice(YAML_VALUES)}\n"
            case 3:
                lines.insert(at, random.choice(BOMBS))
            case 4 if lines:
                lines[at] = " " * random.randrange(6) + lines[at].lstrip()
            case _ if lines:
                key, _, _ = lines[at].partition(":")
                lines[at] = f"{key}: {random.choice(YAML_VALUES)}\n"
    data = "".join(lines).encode("utf-8", "surrogatepass")
    return broken_bytes(random, data) if random.random() < 0.1 else data
