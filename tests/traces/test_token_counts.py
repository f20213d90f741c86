"""Counting: which conversations choose and which judge, and what cannot be counted."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import huggingface_hub
import numpy as np
import pytest

from draftconv.errors import UsageError
from draftconv.traces import token_counts
from draftconv.traces.text_places import text_places
from draftconv.traces.token_counts import HELD_OUT, PARTS, DomainCounts, count_tokens

VOCAB = 50


class Letters:
    """A tokenizer: a token for every letter."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, *_: object, **__: object) -> str:
        raise NotImplementedError

    apply_chat_template = decode


def write(path: Path, entries: Sequence[object]) -> str:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return str(path)


def count(*specs: str, most: int = 1 << 30, told: list[tuple[int, int]] | None = None) -> tuple[DomainCounts, ...]:
    progress = None if told is None else lambda done, total: told.append((done, total))
    return count_tokens(text_places(specs), VOCAB, Letters, most=most, progress=progress)  # type: ignore[arg-type]


def test_a_tenth_of_the_conversations_is_held_out_and_the_rest_lies_in_eight_parts(tmp_path: Path) -> None:
    (domain,) = count(write(tmp_path / "a.jsonl", [[i % VOCAB] * (i + 1) for i in range(200)]))
    held = [i for i in range(200) if i % 10 == 1]
    expected = np.zeros(VOCAB, np.int64)
    for i in held:
        expected[i % VOCAB] += i + 1
    assert domain.held_V.tolist() == expected.tolist()
    assert domain.tokens + domain.held_tokens == sum(range(1, 201))
    sizes = (domain.parts_PV > 0).sum(1)
    assert len(domain.parts_PV) == PARTS
    assert sizes.min() > 0
    assert domain.conversations == 200
    assert len(held) == 200 // HELD_OUT
    assert domain.choosing_V.tolist() == domain.parts_PV.sum(0).tolist()


def test_conversations_stay_together_wherever_their_requests_stand(tmp_path: Path) -> None:
    def request(name: int, turn: int) -> object:
        asked = [{"role": "user", "content": f"question {name}"}, {"role": "user", "content": f"turn {turn}"}]
        return {"messages": asked, "choices": [{"message": {"role": "assistant", "content": chr(97 + name)}}]}

    (domain,) = count(write(tmp_path / "a.jsonl", [request(name, turn) for turn in range(3) for name in range(10)]))
    assert domain.conversations == 10
    assert domain.held_V.nonzero()[0].tolist() == [1]
    assert domain.held_V[1] == 3
    assert sorted(domain.choosing_V.nonzero()[0].tolist()) == [0, *range(2, 10)]


def test_places_of_a_domain_are_counted_together_and_text_goes_through_the_tokenizer(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.jsonl", ["ab", "cd", "ee"]), write(tmp_path / "b.jsonl", [[7], [8], [9]])
    told: list[tuple[int, int]] = []
    first, second = count(f"x=2:{one}", f"y=1:{two}", f"x=2:{two}", told=told)
    assert (first.name, first.weight, first.places) == ("x", 2.0, ("a.jsonl", "b.jsonl"))
    assert (second.name, second.weight, second.tokens + second.held_tokens) == ("y", 1.0, 3)
    assert first.choosing_V.nonzero()[0].tolist() == [0, 1, 4, 7, 8, 9]
    assert first.held_V.nonzero()[0].tolist() == [2, 3]
    assert told[-1][0] == told[-1][1] == sum(Path(name).stat().st_size for name in (one, two, two))
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_batches_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", [[i % VOCAB, (7 * i) % VOCAB] for i in range(500)])
    (whole,) = count(path)
    monkeypatch.setattr(token_counts, "AT_ONCE", 7)
    (small,) = count(path)
    assert np.array_equal(whole.parts_PV, small.parts_PV)
    assert np.array_equal(whole.held_V, small.held_V)


def test_the_tokenizer_is_opened_for_text_alone(tmp_path: Path) -> None:
    def never() -> Letters:
        raise AssertionError

    path = write(tmp_path / "a.jsonl", [[1], [2]])
    (domain,) = count_tokens(text_places([path]), VOCAB, never, most=1)  # type: ignore[arg-type]
    assert domain.tokens == domain.held_tokens == 1


def test_conversations_in_which_the_target_is_silent_are_told(tmp_path: Path) -> None:
    silent = {"messages": [{"role": "user", "content": "a"}]}
    (domain,) = count(write(tmp_path / "a.jsonl", [silent, [1], [2], silent]))
    assert domain.silent == 2


def test_a_data_set_is_read_until_there_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, module = iter([{"text": chr(97 + i) * 3} for i in range(10)]), ModuleType("datasets")
    module.load_dataset = lambda *_, **__: rows  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: SimpleNamespace(sha="0" * 40))
    monkeypatch.chdir(tmp_path)
    (domain,) = count("hf://datasets/o/d", most=12)
    assert domain.tokens + domain.held_tokens == 12
    assert domain.cut == ("hf://datasets/o/d",)
    assert next(rows) == {"text": "eee"}


@pytest.mark.parametrize(
    ("entries", "what", "part"),
    [
        ([], "holds nothing that the target wrote", "it is empty"),
        ([[]], "holds nothing that the target wrote", "it is empty"),
        (
            [{"messages": [{"role": "user", "content": "a"}]}] * 3,
            "holds nothing that",
            "3 entries are conversations with",
        ),
        ([[1, 2, 3]], "holds a single conversation", "did not choose"),
        ([[1], [50]], "a.jsonl:2 holds token 50; the target has 50 tokens", "wrong rows"),
        ([[2], [49, 51]], "a.jsonl:2 holds token 51", "wrong rows"),
    ],
)
def test_what_cannot_be_counted_is_told(entries: list[object], what: str, part: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        count(write(tmp_path / "a.jsonl", entries))
    assert what in caught.value.what
    assert part in caught.value.why
    assert caught.value.cure
