"""Requests through an engine as a trace holds them: answered, cut at the end of the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from draftconv.engines.tracing import Extracted, Extractor
from draftconv.errors import UsageError
from draftconv.traces.writer import CapturedText


@dataclass(frozen=True, slots=True)
class ExtractedTarget:
    """A target that an engine runs; see `conversations.Capturer`.

    Every text is generated to its full length with EOS ignored, then cut: how far beyond EOS the
    tokens are wanted cannot be said in a request.

    Attributes:
        eos: ids that end the counted text. `max_tokens`: where it ends at the latest.
        depth: tokens kept beyond the counted end.
    """

    extractor: Extractor
    max_tokens: int
    depth: int
    eos: tuple[int, ...]

    def check(self, prompt: Sequence[int]) -> None:
        """Ask for two tokens, so that an engine which extracts nothing is found before a trace is begun.

        Raises: see `capture`.
        """
        self._check_room(len(prompt))
        for _ in self.extractor.extract([tuple(prompt)], 2):
            pass

    def capture(self, prompts: Sequence[Sequence[int]], advance: Callable[[int], None]) -> list[CapturedText]:
        """See `conversations.Capturer`.

        Raises:
            UsageError: a prompt leaves no room for its text.
            EngineError: the engine failed. Void: a check of an answer or its states failed.
        """
        self._check_room(max(map(len, prompts)))
        length = self.max_tokens + self.depth
        texts = []
        for extracted in self.extractor.extract([tuple(prompt) for prompt in prompts], length):
            texts.append(cut(extracted, self.eos, self.max_tokens, self.depth))
            advance(length)
        return texts

    def _check_room(self, longest: int) -> None:
        room = self.extractor.room
        if room is not None and longest + self.max_tokens + self.depth > room:
            raise UsageError(
                f"a prompt of {longest} tokens and a text of {self.max_tokens} + {self.depth} do not fit into "
                f"the engine's {room}",
                why="the text would end early and its last steps be clipped",
                cure="start the server with more room, or lower --max-tokens",
            )


def cut(extracted: Extracted, eos: Sequence[int], max_tokens: int, depth: int) -> CapturedText:
    """What a trace keeps of a text of `max_tokens + depth` tokens: up to the first EOS, and `depth` more."""
    ends = (i + 1 for i, token in enumerate(extracted.generated[:max_tokens]) if token in eos)
    counted = next(ends, max_tokens)
    tokens = (*extracted.prompt, *extracted.generated[: counted + depth])
    logprobs_N = None if extracted.logprobs_N is None else extracted.logprobs_N[: counted + depth]
    states_TAW = extracted.states_TAW[: len(tokens) - 1]
    return CapturedText(len(extracted.prompt), counted, torch.tensor(tokens), states_TAW, logprobs_N)
