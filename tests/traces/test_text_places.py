"""Where counts come from: what a person names, and every file or data set that it may be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import huggingface_hub
import pytest

from draftconv.errors import BadPrompts, UsageError
from draftconv.traces.text_places import PIECE, TextPlace, read_place, size_of, text_places


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.txt"):
        (tmp_path / name).write_text('"text"\n')
    return tmp_path


def test_a_place_has_a_domain_and_a_weight() -> None:
    found = text_places(["a.jsonl", "code=3:b.txt", "code=3:a.jsonl", "prose=0.5:hf://datasets/o/d@main:test"])
    assert found == (
        TextPlace("a.jsonl", "text", 1.0),
        TextPlace("b.txt", "code", 3.0),
        TextPlace("a.jsonl", "code", 3.0),
        TextPlace("hf://datasets/o/d@main:test", "prose", 0.5),
    )
    assert [place.name for place in found] == ["a.jsonl", "b.txt", "a.jsonl", "hf://datasets/o/d@main:test"]
    assert [size_of(place) for place in found] == [7, 7, 7, 0]


def test_a_file_whose_name_looks_like_a_domain_is_that_file(files: Path) -> None:
    (files / "x=1:y").write_text("text")
    assert text_places(["x=1:y"]) == (TextPlace("x=1:y"),)


@pytest.mark.parametrize(
    ("specs", "fault", "cure"),
    [
        ([], "--counts names nothing", "give --counts FILE"),
        (["absent.jsonl"], "absent.jsonl: no such file", "check the path"),
        (["code:a.jsonl"], "code:a.jsonl: no such file", "write code=1:a.jsonl"),
        (["code=:a.jsonl"], "nothing is no weight", "code=3:logs.jsonl"),
        (["code=x:a.jsonl"], "x is no weight", "code=3:logs.jsonl"),
        (["code=0:a.jsonl"], "0 is no weight", "above 0"),
        (["code=-1:a.jsonl"], "-1 is no weight", "above 0"),
        (["code=nan:a.jsonl"], "nan is no weight", "above 0"),
        (["code=inf:a.jsonl"], "inf is no weight", "above 0"),
        (["code=1:a.jsonl", "code=2:b.txt"], "code has the weights 1 and 2", "the same weight"),
        (["hf://o/d"], "hf://o/d: no such file", "hf://datasets/OWNER/NAME"),
        (["."], "is no file", "one by one"),
        (["x" * 5000], "no such file", ""),
    ],
)
def test_what_names_nothing_is_told(specs: list[str], fault: str, cure: str) -> None:
    with pytest.raises(UsageError) as caught:
        text_places(specs)
    assert fault in caught.value.what
    assert cure in caught.value.cure


def read(name: str, data: bytes) -> list[tuple[str, tuple[str, ...], tuple[int, ...]]]:
    Path(name).write_bytes(data)
    found = read_place(TextPlace(name))
    return [(where, text.texts, text.tokens) for where, text in found if text is not None]


def test_entries_are_read_one_by_one_and_name_their_line() -> None:
    assert read("x.jsonl", b'\xef\xbb\xbf"a"\n\n{"token_ids": [1]}\n') == [
        ("x.jsonl:1", ("a",), ()),
        ("x.jsonl:3", (), (1,)),
    ]
    assert read("x.json", b'["a", [2]]') == [("x.json entry 1", ("a",), ()), ("x.json entry 2", (), (2,))]


def test_any_other_file_is_a_text_in_pieces_of_whole_lines() -> None:
    """Blank lines and line ends belong to it: they are tokens too."""
    line = "x" * 999 + "\n"
    text = line * 40 + "\n\nthe end"
    found = read("x.md", text.encode())
    assert "".join(part for _, (part,), _ in found) == text
    assert all(part.endswith("\n") for _, (part,), _ in found[:-1])
    assert [where for where, _, _ in found] == ["x.md:1", "x.md:18", "x.md:35"]
    assert all(PIECE <= len(part) < PIECE + len(line) for _, (part,), _ in found[:-1])


@pytest.mark.parametrize(
    ("name", "data", "fault"),
    [
        ("x.jsonl", b'"a"\n{"a"\n', "x.jsonl:2 is not valid JSON"),
        ("x.jsonl", b'"a"\nnull\n', "x.jsonl:2 is null"),
        ("x.jsonl", b"[" * 100 + b"]" * 100, "nested more than 64 deep"),
        ("x.json", b'{"text": "a"}', "x.json holds a JSON dict, not a list"),
        ("x.txt", b"a\n\xff\n", "x.txt:2 is not UTF-8"),
        ("x.bin", b"\0\0\0\0", "zero byte"),
        ("x.parquet", b"PAR1\x15\x04\xff", "x.parquet:1 is not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(name: str, data: bytes, fault: str) -> None:
    with pytest.raises(BadPrompts) as caught:
        read(name, data)
    assert fault in caught.value.what


def test_progress_is_told_in_bytes() -> None:
    Path("x.jsonl").write_text('"a"\n"b"\n')
    told: list[int] = []
    list(read_place(TextPlace("x.jsonl"), told.append))
    assert told == [4, 8]


# ── the Hub ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a data set of three rows was asked for."""
    found: list[object] = []

    def load_dataset(path: str, name: None, *, split: str, revision: str, streaming: bool) -> Iterator[object]:
        found.append((path, name, split, revision, streaming))
        return iter([{"text": "a"}, {"messages": [{"role": "user", "content": "q"}]}, {"text": "b"}])

    def dataset_info(_: object, repo: str, *, revision: str | None) -> SimpleNamespace:
        found.append((repo, revision))
        return SimpleNamespace(sha="0" * 40)

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    return found


def test_a_data_set_is_streamed_at_one_commit(asked: list[object]) -> None:
    found = list(read_place(TextPlace("hf://datasets/o/d")))
    assert [(where, text and text.texts) for where, text in found] == [
        ("o/d row 0", ("a",)),
        ("o/d row 1", None),
        ("o/d row 2", ("b",)),
    ]
    assert asked == [("o/d", None), ("o/d", None, "train", "0" * 40, True)]
    asked.clear()
    next(iter(read_place(TextPlace("hf://datasets/o/d@v1:validation"))))
    assert asked == [("o/d", "v1"), ("o/d", None, "validation", "0" * 40, True)]


def test_a_data_set_that_is_a_directory_here_is_refused(asked: list[object], files: Path) -> None:
    (files / "o/d").mkdir(parents=True)
    with pytest.raises(BadPrompts, match="there is a directory o/d here"):
        list(read_place(TextPlace("hf://datasets/o/d")))
    assert asked == []


def test_a_row_that_holds_no_text_is_named(monkeypatch: pytest.MonkeyPatch, asked: list[object]) -> None:
    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", lambda *_, **__: iter([{"question": "a"}]))
    with pytest.raises(BadPrompts, match="o/d row 0 has only question"):
        list(read_place(TextPlace("hf://datasets/o/d")))
    assert asked == [("o/d", None)]
