"""The prompts of a trace, asked of a server: counts of the texts that are the trace's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from draftconv.engines.client import Client
from draftconv.engines.request_output import RequestOutput, first_split
from draftconv.errors import StepsWithoutDraft, Void
from draftconv.live.requests import LiveRequest, RetryPolicy, answers, most_failures
from draftconv.reference.accept_length import Counts

SHORTEST = 8
"""Tokens that a text must have for its counts to say anything."""


@dataclass(frozen=True, slots=True)
class TracedText:
    """A request of the trace: its prompt, and what the target wrote."""

    id: str
    cluster: str
    category: str
    prompt: tuple[int, ...]
    text: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CountedText:
    """A text that the server wrote as the trace has it.

    Attributes:
        length: its tokens, which may be fewer than the trace counts.
        counts: of steps that carried a draft. `bare`: steps that carried none.
    """

    id: str
    length: int
    counts: Counts
    bare: int = 0


@dataclass(frozen=True, slots=True)
class AskedTexts:
    """What became of a trace's requests.

    Attributes:
        departed: where each text that is not the trace's parts from it, in tokens from its start.
        failed: requests without an answer, and why. `cut`: requests that were shortened so that their last drafts fit
            into the server's room, or left out because nothing of them fits.
    """

    counted: tuple[CountedText, ...]
    departed: Mapping[str, int]
    failed: Mapping[str, str]
    cut: tuple[str, ...]

    @property
    def shortened(self) -> int:
        """Texts of `departed` whose first part, which agrees, was asked for and is counted."""
        return sum(one.id in self.departed for one in self.counted)


def ask_texts(
    client: Client,
    texts: Sequence[TracedText],
    *,
    depth: int,
    room: int | None,
    patience: RetryPolicy,
    done: Callable[[int], None],
) -> AskedTexts:
    """Ask a server everything, one request at a time; where a text departs, once more for the part that agrees.

    A step that starts before the end of a text counts all that it accepts, so the last `depth` tokens that agree are
    not asked for: what was accepted beyond the end must be the trace's too. Nor are those for which the server would
    have to draft beyond its room.

    Args:
        room: tokens that a prompt and its text may have together.
        done: told how many requests have been answered.

    Raises:
        Void: counts that are not to be trusted, or more than 5 % of the requests failed.
    """
    reach = None if room is None else room - 2 * depth
    lengths = {one.id: len(one.text) if reach is None else min(len(one.text), reach - len(one.prompt)) for one in texts}
    cut = tuple(one.id for one in texts if lengths[one.id] < len(one.text))
    asked = [one for one in texts if lengths[one.id] >= min(SHORTEST, len(one.text)) and lengths[one.id] > 1]
    found, failed = _ask(client, asked, lengths, depth, patience, done)
    departed, counted = {}, []
    for one in asked:
        if (answer := found.get(one.id)) is None:
            continue
        split = first_split(answer.tokens, one.text[: lengths[one.id]])
        if split is None:
            counted.append(answer.told)
        else:
            departed[one.id] = split
    again = {id: split - depth for id, split in departed.items() if split - depth >= SHORTEST}
    agreeing = [one for one in asked if one.id in again]
    repeated, lost = _ask(client, agreeing, again, depth, patience, lambda _: None)
    for one in agreeing:
        answer = repeated.get(one.id)
        if answer is not None and answer.tokens == one.text[: again[one.id]]:
            counted.append(answer.told)
    return AskedTexts(tuple(counted), departed, {**failed, **lost}, cut)


@dataclass(frozen=True, slots=True)
class _Answer:
    tokens: tuple[int, ...]
    told: CountedText


def _ask(
    client: Client,
    texts: Sequence[TracedText],
    lengths: Mapping[str, int],
    depth: int,
    patience: RetryPolicy,
    done: Callable[[int], None],
) -> tuple[dict[str, _Answer], dict[str, str]]:
    """Answers and failures, by request."""
    asks = [LiveRequest(one.id, one.cluster, one.category, one.prompt, lengths[one.id]) for one in texts]
    found: dict[str, _Answer] = {}
    failed: dict[str, str] = {}
    for number, (ask, result) in enumerate(answers(client, asks, 1, patience), 1):
        match result:
            case RequestOutput(tokens, counts):
                found[ask.id] = _Answer(tokens, CountedText(ask.id, len(tokens), counts))
            case StepsWithoutDraft(tokens=tokens, histogram=histogram) if tokens:
                counts = Counts(histogram or (0,) * (depth + 1))
                bare = len(tokens) - 1 - int(counts.steps + counts.accepted)
                found[ask.id] = _Answer(tokens, CountedText(ask.id, len(tokens), counts, bare))
            case Void():
                raise result
            case _:
                failed[ask.id] = result.what
                if len(failed) > most_failures(len(asks)):
                    raise Void(
                        f"{len(failed)} of {len(asks)} requests failed, the last one: {result.what}",
                        why="what a server answers now and then is not to be trusted",
                        cure=result.cure or "look at the log of the server",
                    ) from result
        done(number)
    return found, failed
