"""A run on its way: what it asks, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from draftconv.drafter.targets import Target
from draftconv.engines import EngineSpec
from draftconv.engines.client import RequestSettings
from draftconv.engines.live import Live
from draftconv.live.arms import LiveArm
from draftconv.live.benchmarks import Benchmarks
from draftconv.live.capabilities import live_of
from draftconv.live.launch import Launch
from draftconv.live.options import LiveOptions, Progress, Way
from draftconv.live.requests import LiveRequest
from draftconv.live.run_directory import ArmDirectory, RunDirectory, RunSettings
from draftconv.traces.conversations import turn_count
from draftconv.traces.prompts import Prompt
from draftconv.traces.target_prompts import TargetPrompts


@dataclass(frozen=True, slots=True)
class LiveRun:
    """All that does not change on the way.

    Attributes:
        terms: what its directory says of it. `store`: the directory.
        launches: by arm; empty with running servers. `benchmarks`: what else is measured of every server.
    """

    options: LiveOptions
    way: Way
    spec: EngineSpec
    goal: Target
    target_prompts: TargetPrompts
    arms: Sequence[LiveArm]
    launches: Sequence[Launch]
    benchmarks: Benchmarks | None
    terms: RunSettings
    store: RunDirectory
    progress: Progress | None

    @property
    def live(self) -> Live:
        return live_of(self.spec.name)

    @property
    def asking(self) -> RequestSettings:
        terms = self.terms
        return RequestSettings(terms.depth, terms.length, terms.ignore_eos, self.options.timeout, terms.sampling)

    @property
    def requests(self) -> int:
        return sum(map(turn_count, self.target_prompts.prompts))

    @property
    def rounds(self) -> int:
        """Turns of the longest conversation."""
        return max(map(turn_count, self.target_prompts.prompts))

    def turns(self, stored: ArmDirectory, number: int) -> Iterator[LiveRequest]:
        """Turn `number` (from 0) of every prompt whose earlier turns are answered in `stored`, the reference's."""
        for prompt, first in zip(self.target_prompts.prompts, self.target_prompts.first, strict=True):
            if number >= turn_count(prompt):
                continue
            past: list[tuple[Sequence[int], Sequence[int]]] = []
            ask = LiveRequest(_request_id(prompt, 0), prompt.id, prompt.category, first)
            for turn in range(1, number + 1):
                if (answer := stored.get(ask)) is None:
                    break
                past.append((ask.tokens, _until_end(answer.tokens, self.target_prompts.dialogue.eos)))
                ask = replace(
                    ask, id=_request_id(prompt, turn), tokens=tuple(self.target_prompts.dialogue.render(prompt, past))
                )
            else:
                yield ask

    def asks(self) -> list[LiveRequest]:
        """Every request, as far as the reference's answers lead; the same for every arm."""
        reference = self.store.arm(0)
        return [ask for number in range(self.rounds) for ask in self.turns(reference, number)]


def _request_id(prompt: Prompt, turn: int) -> str:
    return f"{prompt.id}/{turn + 1}" if turn_count(prompt) > 1 else prompt.id


def _until_end(tokens: Sequence[int], eos: Sequence[int]) -> Sequence[int]:
    """A text as it is quoted: what follows its end was written only to be counted."""
    return tokens[: next((at + 1 for at, token in enumerate(tokens) if token in eos), len(tokens))]
