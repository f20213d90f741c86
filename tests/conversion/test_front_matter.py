"""Front matter: what is taken from strangers' cards, as text, and what never is."""

from __future__ import annotations

import time

import pytest
import yaml

from draftconv import limits
from draftconv.conversion.front_matter import TAKEN, read_front_matter, write_front_matter


def read(front: str, body: str = "# a card\n") -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    found = read_front_matter(f"---\n{front}---\n{body}")
    return dict(found.values), found.faults


def test_what_is_taken() -> None:
    values, faults = read(
        "license: other\nlicense_name: Modified MIT\nlicense_link: https://example.org/LICENSE?x=1#y\n"
        "language:\n- no\n- zh-Hant\ndatasets: owner/data\nbase_model: owner/other\ntags: [a]\nmodel-index: {}\n"
    )
    assert faults == ()
    assert values == {
        "license": ("other",),
        "license_name": ("Modified MIT",),
        "license_link": ("https://example.org/LICENSE?x=1#y",),
        "language": ("no", "zh-Hant"),
        "datasets": ("owner/data",),
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# no front matter\n",
        "---\n---\n",
        "--- \nlicense:\n---\n",
        "text\n---\nlicense: mit\n---\n",
        "---\nlicense: ~\n---\n",
        "---\nlicense: []\n---\n",
        "---\nlicense: mit\n",
    ],
)
def test_no_license_is_no_license(text: str) -> None:
    found = read_front_matter(text)
    assert (found.values, found.faults) == ({}, ())


@pytest.mark.parametrize(
    "text", ["---\nlicense: mit\n---\n", "\ufeff---\r\nlicense: mit\r\n---\r\nx", "\n---\nlicense: mit\n---"]
)
def test_how_cards_begin(text: str) -> None:
    assert read_front_matter(text).values == {"license": ("mit",)}


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {k: v}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("front", "fault"),
    [
        ("license: {id: mit}\n", "license: a mapping or a list is not an identifier"),
        ("license: [[mit]]\n", "license: a mapping or a list is not an identifier"),
        ("license: ''\n", "license: an empty text is not an identifier"),
        ("license: '<img src=x onerror=alert(1)>'\n", "license: '<img src=x onerror=alert(1)>' is not an identifier"),
        ('license: "mit\\nlicense: gpl"\n', "license: 'mit\nlicense: gpl' is not an identifier"),
        ("license: [a, b, c, d, e, f, g, h, i]\n", "license: 9 values, 8 is the most"),
        ("license: mit\nlicense: gpl\n", "its front matter has license twice"),
        ("license: &x mit\nlanguage: [*x, '</script>']\n", "language: '</script>' is not a language code"),
        (f"license: {'m' * 65}\n", f"license: '{'m' * 65}' is not an identifier"),
        ("license_name: '[x](http://evil.example)'\n", "license_name: '[x](http://evil.example)' is not a short name"),
        ("license_name: [a, b]\n", "license_name: 2 values, 1 is the most"),
        ("license_link: javascript:alert(1)\n", "license_link: 'javascript:alert(1)' is not an address or a file name"),
        ("license_link: ../../etc/passwd\n", "license_link: '../../etc/passwd' is not an address or a file name"),
        ("datasets: [a/b/c]\n", "datasets: 'a/b/c' is not a Hub id"),
        (f"language: [{', '.join(['en'] * 65)}]\n", "language: 65 values, 64 is the most"),
        ("- a\n- b\n", "its front matter is no mapping of keys to values"),
        ("a: [\n", "its front matter is not YAML"),
        ("a: \x00\n", "its front matter is not YAML"),
        ("[" * 20_000 + "\n", "its front matter is not YAML"),
        ("license: *nobody\n", "its front matter is not YAML"),
        (BOMB + "license: *i\n", "license: 9 values, 8 is the most"),
        (BOMB + "language: *b\n", "language: a mapping or a list is not a language code"),
        (MERGES + "license: *i\n", "license: a mapping or a list is not an identifier"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_said(front: str, fault: str) -> None:
    begun = time.monotonic()
    values, faults = read(front)
    assert faults == (fault,)
    assert fault.partition(":")[0] not in values
    assert time.monotonic() - begun < 5


def test_one_wrong_key_does_not_hide_another() -> None:
    values, faults = read("license: mit\nlanguage: {}\n")
    assert values == {"license": ("mit",)}
    assert len(faults) == 1


def test_tags_of_yaml_are_text() -> None:
    values, _ = read("license: !!python/object/apply:os.system [echo]\nlicense_name: !!binary aGk\n")
    assert values == {"license": ("echo",), "license_name": ("aGk",)}


def test_front_matter_without_an_end_in_sight() -> None:
    found = read_front_matter("---\nlicense: mit\n" + "# x\n" * limits.FRONT_MATTER.value + "---\n")
    assert found.faults == (f"its front matter has more characters; {limits.FRONT_MATTER.value} is the limit",)
    assert read_front_matter("---\nlicense: mit\n---\n" + "x" * 10_000_000).values == {"license": ("mit",)}


def test_what_is_written_reads_back() -> None:
    values = {"license": "no", "tags": ("a: b", "# c", "-"), "empty": (), "none": None, "language": "é\n---\n"}
    text = write_front_matter(values)
    assert yaml.safe_load(text) == {"license": "no", "tags": ["a: b", "# c", "-"], "language": "é\n---\n"}
    assert list(yaml.safe_load(text)) == ["license", "tags", "language"]
    assert "\n---" not in text


def test_every_taken_key_is_asked_for_by_its_pattern() -> None:
    assert all(not taken.pattern.fullmatch(text) for taken in TAKEN.values() for text in ("a\nb", "<b>", "a`b", ""))
