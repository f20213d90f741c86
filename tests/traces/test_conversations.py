"""Turns: who shares a batch, what the second turn is asked, and how a stopped run goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
import torch

from draftconv.errors import UsageError
from draftconv.traces.chat_template import ChatTemplate, Tokenizer
from draftconv.traces.conversations import capture_all, slots
from draftconv.traces.prompts import Prompt
from draftconv.traces.writer import CapturedText, TraceWriter
from tests.traces import made

PROMPTS = (
    Prompt("a", "x", ("aa", "bb")),
    Prompt("b", "x", ("c",)),
    Prompt("c", "y", ("dddd", "e", "f")),
    Prompt("d", "y", tokens=(9, 8)),
)
ABOUT = replace(made.ABOUT, eos=())


class Letters:
    """Every character is a token."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        del add_special_tokens
        return [ord(letter) % 40 for letter in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        raise NotImplementedError

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool, return_dict: bool
    ) -> list[int]:
        raise NotImplementedError


@dataclass
class Echo:
    """A target that answers a prompt of n tokens with n % 4 + 1 counted ones; dies before its `die`th batch."""

    die: int = -1
    asked: list[list[list[int]]] = field(default_factory=list)

    def capture(self, prompts: Sequence[Sequence[int]], advance: Callable[[int], None]) -> list[CapturedText]:
        if len(self.asked) == self.die:
            raise KeyboardInterrupt
        self.asked.append([list(prompt) for prompt in prompts])
        advance(len(prompts))
        return [self.answer(prompt) for prompt in prompts]

    def answer(self, prompt: Sequence[int]) -> CapturedText:
        counted = len(prompt) % 4 + 1
        tokens = [*prompt, *range(counted + ABOUT.depth)]
        states = torch.full((len(tokens) - 1, 3, 6), float(len(tokens)), dtype=torch.bfloat16)
        return CapturedText(len(prompt), counted, torch.tensor(tokens), states)


def writer(out: Path) -> TraceWriter:
    return made.writer(out, ABOUT, slots(PROMPTS))


DIALOGUE = ChatTemplate(cast(Tokenizer, Letters()), False, ())


def test_a_request_per_turn_and_a_cluster_per_prompt() -> None:
    assert [(slot.id, slot.cluster, slot.category) for slot in slots(PROMPTS)] == [
        ("a/1", "a", "x"),
        ("a/2", "a", "x"),
        ("b", "b", "x"),
        ("c/1", "c", "y"),
        ("c/2", "c", "y"),
        ("c/3", "c", "y"),
        ("d", "d", "y"),
    ]
    with pytest.raises(UsageError, match="two requests would be called a/1"):
        slots([PROMPTS[0], Prompt("a/1", "", ("x",))])


def test_turns_of_a_batch_run_together_and_quote_the_answers(tmp_path: Path) -> None:
    target = Echo()
    with writer(tmp_path / "out") as out:
        trace = capture_all(out, PROMPTS, DIALOGUE, target, batch=2)
    aa, bb, c = ([ord(letter) % 40 for letter in text] for text in ("aa", "\n\nbb", "c"))
    assert target.asked[:2] == [[aa, c], [[*aa, 0, 1, 2, *bb]]]
    assert [len(asked) for asked in target.asked] == [2, 1, 2, 1, 1]
    assert target.asked[2][1] == [9, 8]
    assert [(entry.id, entry.prompt, entry.counted) for entry in trace.entries[:3]] == [
        ("a/1", 2, 3),
        ("a/2", 9, 2),
        ("b", 1, 2),
    ]


@pytest.mark.parametrize("die", range(5))
def test_a_stopped_run_computes_what_it_would_have_computed(tmp_path: Path, die: int) -> None:
    whole, before, after = Echo(), Echo(die), Echo()
    with writer(tmp_path / "whole") as out:
        capture_all(out, PROMPTS, DIALOGUE, whole, batch=2)
    with pytest.raises(KeyboardInterrupt), writer(tmp_path / "cut") as out:
        capture_all(out, PROMPTS, DIALOGUE, before, batch=2)
    with writer(tmp_path / "cut") as out:
        capture_all(out, PROMPTS, DIALOGUE, after, batch=2)
    assert before.asked + after.asked == whole.asked
    for path in (tmp_path / "whole").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "cut" / path.relative_to(tmp_path / "whole")).read_bytes()


def test_a_half_written_batch_is_run_again_whole(tmp_path: Path) -> None:
    with writer(tmp_path / "cut") as out:
        out.write(0, Echo().answer([ord("a") % 40] * 2))
    target = Echo()
    with writer(tmp_path / "cut") as out:
        capture_all(out, PROMPTS, DIALOGUE, target, batch=2)
    assert [len(asked) for asked in target.asked] == [2, 1, 2, 1, 1]


def test_progress_counts_what_this_run_generated_and_ends_at_one(tmp_path: Path) -> None:
    told: list[tuple[int, float]] = []
    with pytest.raises(KeyboardInterrupt), writer(tmp_path / "out") as out:
        capture_all(out, PROMPTS, DIALOGUE, Echo(2), batch=2, progress=lambda *now: told.append(now))
    with writer(tmp_path / "out") as out:
        capture_all(out, PROMPTS, DIALOGUE, Echo(), batch=2, progress=lambda *now: told.append(now))
    first, second = told[:4], told[4:]
    assert first == [(2, 2 / 49), (2, 14 / 49), (3, 15 / 49), (3, 21 / 49)]
    assert second[0] == (0, 14 / 49)
    assert second[-1] == (4, 1.0)
    shares = [share for _, share in second]
    assert shares == sorted(shares)
