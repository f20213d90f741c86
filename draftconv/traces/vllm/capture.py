"""Requests through vLLM as a trace holds them: answered, read, cut at the end of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from draftconv.errors import UsageError
from draftconv.traces.vllm.states import PATIENCE, Answer, Wanted, take_states
from draftconv.traces.writer import Captured


@dataclass(frozen=True, slots=True)
class VllmTarget:
    """A target that vLLM runs; see `turns.Capturer`.

    Every text is generated to its full length with EOS ignored, then cut: how far beyond EOS the
    tokens are wanted cannot be said in a request.

    Attributes:
        complete: continues prompts by so many tokens, in order; `Engine.complete` or `Server.complete_all`.
        storage: directory that the hidden states are read from, and removed.
        room: tokens that prompt and text may have together, None when unknown.
        eos: ids that end the counted text. `max_tokens`: where it ends at the latest.
        depth: tokens kept beyond the counted end.
        patience: seconds to wait for the states of an answered request.
    """

    complete: Callable[[Sequence[tuple[int, ...]], int], Iterable[Answer]]
    wanted: Wanted
    storage: Path
    room: int | None
    max_tokens: int
    depth: int
    eos: tuple[int, ...]
    patience: float = PATIENCE

    def check(self, prompt: Sequence[int]) -> None:
        """Ask for two tokens, so that an engine which extracts nothing is found before a trace is begun.

        Raises: see `capture`.
        """
        self._fits(len(prompt))
        for answer in self.complete([tuple(prompt)], 2):
            take_states(answer, self.wanted, self.storage, patience=self.patience)

    def capture(self, prompts: Sequence[Sequence[int]], advance: Callable[[int], None]) -> list[Captured]:
        """See `turns.Capturer`.

        Raises:
            UsageError: a prompt leaves no room for its text.
            EngineError: vLLM failed. Void: a check of an answer or its file failed.
        """
        self._fits(max(map(len, prompts)))
        length = self.max_tokens + self.depth
        found = []
        for answer in self.complete([tuple(prompt) for prompt in prompts], length):
            states_TAW = take_states(answer, self.wanted, self.storage, patience=self.patience)
            found.append(cut(answer, states_TAW, self.eos, self.max_tokens, self.depth))
            advance(length)
        return found

    def _fits(self, longest: int) -> None:
        if self.room is not None and longest + self.max_tokens + self.depth > self.room:
            raise UsageError(
                f"a prompt of {longest} tokens and a text of {self.max_tokens} + {self.depth} do not fit into "
                f"the engine's {self.room}",
                why="the text would end early and its last steps be clipped",
                cure="start the server with a larger --max-model-len, or lower --max-tokens",
            )


def cut(answer: Answer, states_TAW: Tensor, eos: Sequence[int], max_tokens: int, depth: int) -> Captured:
    """What a trace keeps of a text of `max_tokens + depth` tokens: up to the first EOS, and `depth` more."""
    ends = (i + 1 for i, token in enumerate(answer.generated[:max_tokens]) if token in eos)
    counted = next(ends, max_tokens)
    tokens = (*answer.prompt, *answer.generated[: counted + depth])
    return Captured(len(answer.prompt), counted, torch.tensor(tokens), states_TAW[: len(tokens) - 1])
