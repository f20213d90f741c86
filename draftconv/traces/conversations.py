"""Conversations on their way: prompts in batches, turn by turn, through whatever runs the target.

Which requests share a batch depends on the prompts and the batch size alone, so a run that
was stopped and goes on computes what it would have computed anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from draftconv.checkpoint import show
from draftconv.errors import UsageError
from draftconv.traces.chat_template import ChatTemplate
from draftconv.traces.options import Progress
from draftconv.traces.prompts import Prompt
from draftconv.traces.trace import Trace
from draftconv.traces.writer import CapturedText, Slot, TraceWriter

_Answered: TypeAlias = tuple[list[int], list[int]]


class Capturer(Protocol):
    """Runs the target and gives its states."""

    def capture(self, prompts: Sequence[Sequence[int]], advance: Callable[[int], None]) -> Sequence[CapturedText]:
        """Continue every prompt to its counted end and `depth` tokens beyond.

        Args:
            prompts: token ids, one list per request.
            advance: called with the number of tokens generated since the last call.

        Raises:
            Void: what came back is not to be trusted.
        """


@dataclass(frozen=True, slots=True)
class _Turn:
    """Turn `number` (from 0) of a prompt, which is request `index` of the trace."""

    prompt: Prompt
    number: int
    index: int


def turn_count(prompt: Prompt) -> int:
    """Requests that a prompt makes."""
    return 1 if prompt.tokens else len(prompt.turns)


def slots(prompts: Sequence[Prompt]) -> list[Slot]:
    """The requests of a trace in order: one per turn, `81/1` and `81/2` where a prompt has several.

    Raises:
        UsageError: two requests would have one id.
    """
    by_name: dict[str, Slot] = {}
    for prompt in prompts:
        count = turn_count(prompt)
        for number in range(1, count + 1):
            name = f"{prompt.id}/{number}" if count > 1 else prompt.id
            if name in by_name:
                raise UsageError(f"two requests would be called {show(name)}", cure="give the prompts other ids")
            by_name[name] = Slot(name, prompt.id, prompt.category, prompt.language)
    return list(by_name.values())


def capture_all(
    writer: TraceWriter,
    prompts: Sequence[Prompt],
    dialogue: ChatTemplate,
    capturer: Capturer,
    *,
    batch: int,
    progress: Progress | None = None,
) -> Trace:
    """Capture every request that the trace does not hold yet, and finish it.

    Raises:
        Void: the target gave what is not to be trusted. WriteError: the file system refuses.
    """
    most = writer.about.max_tokens + writer.about.depth
    meter = _Meter(progress or (lambda _, __: None), most * len(writer.slots))
    answers: dict[int, _Answered] = {}
    for turns in _batches(prompts, batch):
        texts = [writer.held(turn.index) for turn in turns]
        if None in texts:
            earlier = [[answers[i] for i in range(turn.index - turn.number, turn.index)] for turn in turns]
            rendered = [dialogue.render(turn.prompt, past) for turn, past in zip(turns, earlier, strict=True)]
            texts = list(capturer.capture(rendered, meter.advance))
            for turn, captured in zip(turns, texts, strict=True):
                if captured is not None:
                    writer.write(turn.index, captured)
        answers |= {turn.index: _split(captured) for turn, captured in zip(turns, texts, strict=True) if captured}
        meter.settle(most * len(turns))
    return writer.finish()


@dataclass(slots=True)
class _Meter:
    """Adds up what is done. A text that ended early counts as full length once its batch is over."""

    tell: Progress
    total: int
    generated: int = 0
    settled: int = 0
    running: int = 0

    def advance(self, count: int) -> None:
        self.generated += count
        self.running += count
        self.tell(self.generated, (self.settled + self.running) / self.total)

    def settle(self, count: int) -> None:
        self.settled += count
        self.running = 0
        self.tell(self.generated, self.settled / self.total)


def _batches(prompts: Sequence[Prompt], batch: int) -> Iterator[list[_Turn]]:
    """Batches of prompts; of each, the first turns, then the second turns of those that have one, and so on."""
    index = 0
    for start in range(0, len(prompts), batch):
        turns: list[_Turn] = []
        for prompt in prompts[start : start + batch]:
            turns += [_Turn(prompt, number, index + number) for number in range(turn_count(prompt))]
            index += turn_count(prompt)
        for number in range(max(turn.number for turn in turns) + 1):
            yield [turn for turn in turns if turn.number == number]


def _split(captured: CapturedText) -> _Answered:
    """Its prompt and its counted answer."""
    tokens = captured.tokens_N.tolist()
    return tokens[: captured.prompt], tokens[captured.prompt : captured.prompt + captured.counted]
