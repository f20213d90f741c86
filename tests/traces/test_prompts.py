"""Prompts from files: every accepted form, every fault with its place, and one hash for equal prompts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv import limits
from draftconv.errors import BadPrompts, UsageError
from draftconv.traces import prompts as module
from draftconv.traces.chat_template import prompts_hash
from draftconv.traces.prompts import Prompt, load_prompts


def jsonl(path: Path, *entries: object) -> str:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return str(path)


def refused(spec: str) -> BadPrompts:
    with pytest.raises(BadPrompts) as caught:
        load_prompts(spec)
    return caught.value


# ── what is read ───────────────────────────────────────────────────────────────────


def test_every_form_of_a_text(tmp_path: Path) -> None:
    entries: list[object] = [
        "one",
        {"prompt": "two", "id": "b", "category": "math"},
        {"turns": ["three", "and more"], "id": 7, "answer": "not read"},
        {"messages": [{"role": "user", "content": "four"}, {"role": "user", "content": "five"}]},
    ]
    expected = (
        Prompt("0", "", ("one",)),
        Prompt("b", "math", ("two",)),
        Prompt("7", "", ("three", "and more")),
        Prompt("3", "", ("four", "five")),
    )
    lines = load_prompts(jsonl(tmp_path / "p.jsonl", *entries))
    assert lines.prompts == expected
    assert (lines.source, lines.max_tokens) == ("p.jsonl", None)
    (tmp_path / "p.json").write_text(json.dumps(entries), encoding="utf-8")
    assert load_prompts(str(tmp_path / "p.json")).prompts == expected


def test_token_ids(tmp_path: Path) -> None:
    found = load_prompts(jsonl(tmp_path / "p.jsonl", [1, 0, 2**31 - 1], {"token_ids": [5], "category": "c"}))
    assert found.prompts == (Prompt("0", "", tokens=(1, 0, 2**31 - 1)), Prompt("1", "c", tokens=(5,)))


def test_one_prompt_per_line_of_text(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes("\ufeff  indented\r\n\n[1, 2]\nlast, ünïcode".encode())
    found = load_prompts(str(tmp_path / "p.txt"))
    assert [p.turns[0] for p in found.prompts] == ["  indented", "[1, 2]", "last, ünïcode"]
    assert [p.id for p in found.prompts] == ["0", "1", "2"]


def test_the_limit_ends_the_reading(tmp_path: Path) -> None:
    spec = jsonl(tmp_path / "p.jsonl", "one", "two", 3)
    assert len(load_prompts(spec, 2).prompts) == 2
    assert "p.jsonl:3" in refused(spec).what
    with pytest.raises(UsageError, match="--limit 0"):
        load_prompts(spec, 0)


def test_a_file_wins_over_a_suite_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(module.DEFAULT_SUITE).mkdir()
    with pytest.raises(UsageError, match="not a file of prompts"):
        load_prompts(module.DEFAULT_SUITE)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip() != "")


@given(st.lists(st.lists(TEXT, min_size=1, max_size=3), min_size=1, max_size=4))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, conversations: list[list[str]]) -> None:
    spec = jsonl(tmp_path_factory.mktemp("p") / "p.jsonl", *({"turns": turns} for turns in conversations))
    assert [list(p.turns) for p in load_prompts(spec).prompts] == conversations


# ── faults ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (3, "is a JSON int, not a prompt"),
        (None, "is a JSON NoneType, not a prompt"),
        ("", "is empty"),
        ("  \n", "is empty"),
        ("\ud800", "half of a surrogate pair"),
        ([], "is an empty list"),
        ([1, "a"], r"\[1\] is a JSON str, not a token id"),
        ([1, True], r"\[1\] is a JSON bool, not a token id"),
        ([1, 2.0], r"\[1\] is a JSON float, not a token id"),
        ([-1], r"\[0\] is -1, which is no token id"),
        ([2**31], r"\[0\] is 2147483648, which is no token id"),
        (["a", "b"], r"\[0\] is a JSON str, not a token id"),
        ([[1]], r"\[0\] is a JSON list, not a token id"),
        ({}, "has only no keys"),
        ({"text": "a", "x": 1}, "has only text, x"),
        ({"prompt": "a", "turns": ["a"]}, "has prompt and turns"),
        ({"prompt": [1]}, "prompt is a JSON list, not text"),
        ({"prompt": None}, "prompt is null, not text"),
        ({"prompt": ""}, "prompt is empty"),
        ({"turns": []}, "turns is an empty list"),
        ({"turns": "a"}, "turns is a JSON str, not a list"),
        ({"turns": ["a", " "]}, r"turns\[1\] is empty"),
        ({"turns": ["a", 1]}, r"turns\[1\] is a JSON int, not text"),
        ({"messages": []}, "messages is an empty list"),
        ({"messages": ["a"]}, "a message without role and content"),
        ({"messages": [{"role": "system", "content": "a"}]}, "a message of the role system"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "a message of the role assistant"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "is a JSON list, not text"),
        ({"token_ids": "1 2"}, "token_ids is a JSON str, not a list"),
        ({"token_ids": [1, -2]}, r"token_ids\[1\] is -2"),
        ({"prompt": "a", "id": ""}, "id is empty"),
        ({"prompt": "a", "id": 1.5}, "id is a JSON float, not text"),
        ({"prompt": "a", "category": ["x"]}, "category is a JSON list, not text"),
        ({"prompt": "a", "id": "\udfff"}, "id holds half of a surrogate pair"),
    ],
)
def test_what_is_no_prompt_is_named_with_its_place(tmp_path: Path, entry: object, fault: str) -> None:
    error = refused(jsonl(tmp_path / "p.jsonl", *([[1]] if isinstance(entry, list) else ["fine"]), entry))
    assert error.what.startswith("p.jsonl:2")
    assert str(tmp_path) not in str(error)
    with pytest.raises(BadPrompts, match=fault):
        raise error
    (tmp_path / "p.json").write_text(json.dumps([entry]), encoding="utf-8")
    assert refused(str(tmp_path / "p.json")).what.startswith("p.json entry 1")


@pytest.mark.parametrize(
    ("name", "data", "fault"),
    [
        ("p.jsonl", b'"a"\n{"prompt": "b"\n', "p.jsonl:2 is not valid JSON"),
        ("p.jsonl", b'"a"\n\n"\xff"\n', r"p.jsonl:3 is not UTF-8 text \(byte 2"),
        ("p.jsonl", b"[" * 100_000, "p.jsonl:1 is nested too deeply"),
        ("p.jsonl", b"\n \n", "p.jsonl holds no prompt"),
        ("p.jsonl", b'"a"\n[1]\n', "p.jsonl mixes texts and token ids"),
        ("p.jsonl", b'{"prompt": "a", "id": 1}\n"b"\n', "p.jsonl:2: the id 1 was taken at p.jsonl:1"),
        ("p.json", b'{"prompt": "a"}', "p.json holds a JSON dict"),
        ("p.json", b"[]", "p.json holds no prompt"),
        ("p.json", b"[1, 2]", "p.json entry 1 is a JSON int"),
        ("p.json", b"\xfe\xff", "p.json is not UTF-8 text"),
        ("p.txt", b"", "p.txt holds no prompt"),
        ("p.txt", b"fine\n\xc3\n", "p.txt:2 is not UTF-8 text"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, name: str, data: bytes, fault: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadPrompts, match=fault):
        load_prompts(str(tmp_path / name))


def test_a_huge_line_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROMPT", replace(limits.PROMPT, value=1 << 20))
    monkeypatch.setattr(limits, "PROMPTS", replace(limits.PROMPTS, value=1 << 20))
    for name in ("p.txt", "p.jsonl"):
        (tmp_path / name).write_bytes(b'"a"\n"' + b"a" * (1 << 20) + b'"')
        assert f"{name}:2 has more than 1048576 bytes; 1048576 is the limit" in refused(str(tmp_path / name)).what
    (tmp_path / "p.json").write_bytes(b'["' + b"a" * (1 << 20) + b'"]')
    assert "p.json has 1048580 bytes; 1048576 is the limit" in refused(str(tmp_path / "p.json")).what


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_prompts(str(tmp_path / "absent.jsonl"))
    (tmp_path / "p.csv").write_text("a", encoding="utf-8")
    with pytest.raises(UsageError, match=r"p\.csv is not a file of prompts"):
        load_prompts(str(tmp_path / "p.csv"))
    with pytest.raises(UsageError, match="neither a file of prompts nor a suite"):
        load_prompts("What is the capital of France? " * 200)


# ── languages ──────────────────────────────────────────────────────────────────────


def test_a_prompt_says_its_language(tmp_path: Path) -> None:
    entries = [
        {"prompt": "eins", "language": "de"},
        {"turns": ["zwei", "drei"], "language": "de", "category": "prose"},
        {"messages": [{"role": "user", "content": "four"}], "language": ""},
    ]
    found = load_prompts(jsonl(tmp_path / "p.jsonl", *entries)).prompts
    assert [prompt.language for prompt in found] == ["de", "de", ""]
    (tokens,) = load_prompts(jsonl(tmp_path / "t.jsonl", {"token_ids": [5], "language": "zh-Hans"})).prompts
    assert tokens == Prompt("0", "", tokens=(5,), language="zh-Hans")


@pytest.mark.parametrize("language", [["de"], {"de": 1}, None])
def test_a_language_that_is_no_text_is_refused(language: object, tmp_path: Path) -> None:
    error = refused(jsonl(tmp_path / "p.jsonl", {"prompt": "eins", "language": language}))
    assert "p.jsonl:1: language" in error.what


def test_prompts_without_languages_keep_their_hash() -> None:
    """As before a prompt could say its language; with one, other prompts are meant."""
    some = [Prompt("a", "prose", ("one", "two")), Prompt("b", "", tokens=(5,))]
    assert prompts_hash(some, [[1, 2], [5]]) == "b5fc64e18586e85d41c20a823633b69f9eb753b0b9ee4fd765bc73a24d9492d1"
    told = [replace(some[0], language="de"), some[1]]
    assert prompts_hash(told, [[1, 2], [5]]) != prompts_hash(some, [[1, 2], [5]])
