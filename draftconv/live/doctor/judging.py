"""Which reading of a drafter a server's counts are likeliest of, and when nothing is named.

A reading is named if its log likelihood is `MARGIN` nats above every other's, and if it leaves little elsewhere: at
most `MOST_ELSEWHERE` of the steps that accept anything, and a fault at most `MOST_LEFT` of what the right reading does.
The likeliest of some readings need not be likely. Readings that count the same of every text, or nearly so, cannot be
told apart and are named together; and where hardly anything is accepted, all that come to that are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from draftconv.live.doctor.asking import CountedText
from draftconv.live.doctor.likelihood import departure, elsewhere, log_likelihood
from draftconv.live.doctor.readings import AS_TRAINED, ServerReading
from draftconv.reference.accept_length import Counts

MARGIN = 7.0
"""Nats by which a reading must be likelier than every other: a thousand times."""
MOST_ELSEWHERE = 0.12
"""Steps that may accept another number of tokens than the reading that is named says, by those that accept any: a
server in bfloat16 held against a right replay in float32 has 0.09 at most, and two faults taken for one 0.2."""
MOST_LEFT = 0.25
"""Share of the steps that the right reading leaves elsewhere, of which a fault that is named may leave so many."""
ALIKE = 0.025
"""Share of steps up to which two readings that are about as likely count as one: neither costs more than the other."""
NEAR_ONE = 1.1
"""Accept length up to which causes are not told apart: so few drafts are accepted that their number says nothing."""
SEARCHED = 48
"""Lengths at which drafts may end that are tried at a time."""
FEWEST_STEPS = 100
"""Steps below which nothing is named."""
SURE = 3.0
"""Standard errors from which on a draft position departs."""

Health = Literal["sound", "fault", "unknown"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Readings that count the same of every text, against what was counted.

    Attributes:
        length: accept length that they come to. `equal`: requests whose counts are theirs.
        elsewhere: share of the other steps, as in `likelihood`. `behind`: nats by which they are less likely than the
            likeliest.
    """

    readings: tuple[ServerReading, ...]
    replayed: tuple[CountedText, ...]
    length: float
    equal: int
    elsewhere: float
    behind: float

    @property
    def sound(self) -> bool:
        """Whether the drafter is read as it was trained."""
        return any(reading.name == AS_TRAINED for reading in self.readings)


@dataclass(frozen=True, slots=True)
class Position:
    """How often draft j is accepted where those before it were, by the server and by the right replay.

    Attributes:
        departs: by how many standard errors; NaN where it cannot be told.
    """

    j: int
    server: float
    sound: float
    departs: float


@dataclass(frozen=True, slots=True)
class Judged:
    """What a server's counts are explained by.

    Attributes:
        named: the readings that are named, together; none where the outcome is unknown.
        explanations: the likeliest first. `sound`: the right one.
        positions: of every draft position. `why`: why nothing is named, in words.
    """

    outcome: Health
    named: tuple[ServerReading, ...]
    explanations: tuple[Explanation, ...]
    sound: Explanation
    server: Counts
    positions: tuple[Position, ...]
    why: str = ""

    @property
    def near_one(self) -> bool:
        """Whether so little is accepted that causes are not told apart."""
        return self.server.steps > 0 and self.server.accept_length <= NEAR_ONE

    @property
    def first_departure(self) -> Position | None:
        """The first draft position at which the server accepts less than it should.

        More than that is no sign: after a draft that fails, steps start elsewhere.
        """
        return next((one for one in self.positions if one.departs < -SURE), None)


def judge_readings(
    counted: Sequence[CountedText], readings: Sequence[ServerReading], depth: int, *, clipped: bool
) -> Judged:
    """Compare every reading with what was counted.

    Args:
        readings: the right one first. `clipped`: as in `ServerReading.counted`.
    """
    server = Counts.pooled(text.counts for text in counted)
    explanations = _explained(counted, _with_reach(counted, readings, depth, clipped), depth, clipped)
    sound = next(one for one in explanations if one.sound)
    positions = tuple(_position(counted, sound.replayed, j) for j in range(1, depth + 1))
    outcome, named, why = _decided(server, explanations)
    return Judged(outcome, named, explanations, sound, server, positions, why)


def _decided(server: Counts, explanations: Sequence[Explanation]) -> tuple[Health, tuple[ServerReading, ...], str]:
    best = explanations[0]
    if server.steps < FEWEST_STEPS:
        return "unknown", (), f"{server.steps:g} steps are too few to tell; at least {FEWEST_STEPS} are needed"
    if server.accept_length <= NEAR_ONE:
        alike = [one for one in explanations if one.length <= NEAR_ONE]
        if any(one.sound for one in alike):
            return "unknown", (), "the drafter itself accepts next to nothing on this text, however it is read"
        named = tuple(reading for one in alike for reading in one.readings)
        why = "next to nothing is accepted, which no reading that was replayed comes to"
        return ("fault", named, "") if named else ("unknown", (), why)
    if best.elsewhere > MOST_ELSEWHERE:
        return "unknown", (), (
            f"no reading that was replayed explains these counts: the likeliest leaves {100 * best.elsewhere:.1f} % of "
            f"the steps that accept anything elsewhere, {100 * MOST_ELSEWHERE:g} % are allowed"
        )  # fmt: skip
    sound = next(one for one in explanations if one.sound)
    if best.elsewhere > MOST_LEFT * sound.elsewhere and not best.sound:
        return "unknown", (), (
            f"no reading that was replayed explains enough: the likeliest leaves {100 * best.elsewhere:.1f} % of the "
            f"steps elsewhere, the right one {100 * sound.elsewhere:.1f} %; a share of {MOST_LEFT:g} of that is allowed"
        )  # fmt: skip
    rivals = [one for one in explanations[1:] if one.behind < MARGIN]
    apart = next((one for one in rivals if _elsewhere(best.replayed, one.replayed) > ALIKE), None)
    if apart is not None:
        return "unknown", (), (
            f"two readings are about as likely: the second is {apart.behind:.1f} nats behind, {MARGIN:g} are asked for"
        )  # fmt: skip
    group = (best, *rivals)
    named = tuple(reading for one in group for reading in one.readings)
    return ("sound" if any(one.sound for one in group) else "fault"), named, ""


def _with_reach(
    counted: Sequence[CountedText], readings: Sequence[ServerReading], depth: int, clipped: bool
) -> list[tuple[ServerReading, int | None]]:
    """The readings; and where the right one does not explain all, it with the length that drafts fit best to end at."""
    right = readings[0]
    found: list[tuple[ServerReading, int | None]] = [(reading, None) for reading in readings]

    def missed(reach: int | None) -> float:
        texts = [right.counted(text, depth, clipped=clipped, reach=reach) for text in counted]
        return _elsewhere(counted, texts)

    if missed(None) <= ALIKE:
        return found
    prompts = [right.records[text.id].prompt for text in counted]
    first, last = min(prompts), max(prompt + text.length for prompt, text in zip(prompts, counted, strict=True))
    while True:
        pace = max(1, (last - first) // SEARCHED)
        best = min(range(first, last + 1, pace), key=missed)
        if pace == 1:
            says = f"the drafter takes {best} tokens of prompt and text, and what it drafts beyond them fails"
            return [*found, (replace(right, name=f"drafts end at {best}", says=says), best)]
        first, last = best - pace, best + pace


def _explained(
    counted: Sequence[CountedText], readings: Sequence[tuple[ServerReading, int | None]], depth: int, clipped: bool
) -> tuple[Explanation, ...]:
    groups: dict[tuple[CountedText, ...], list[ServerReading]] = {}
    for reading, reach in readings:
        replayed = tuple(reading.counted(text, depth, clipped=clipped, reach=reach) for text in counted)
        groups.setdefault(replayed, []).append(reading)
    chances = {replayed: _likelihood(counted, replayed) for replayed in groups}
    best = max(chances.values())
    return tuple(
        sorted(
            (
                Explanation(
                    readings=tuple(group),
                    replayed=replayed,
                    length=_length(replayed),
                    equal=sum(one == other for one, other in zip(counted, replayed, strict=True)),
                    elsewhere=_elsewhere(counted, replayed),
                    behind=best - chances[replayed],
                )
                for replayed, group in groups.items()
            ),
            key=lambda one: one.behind,
        )
    )


def _columns(texts: Sequence[CountedText]) -> list[Counts]:
    """Counts with steps that carried no draft as a kind of their own."""
    return [Counts((*text.counts.histogram, text.bare)) for text in texts]


def _likelihood(counted: Sequence[CountedText], replayed: Sequence[CountedText]) -> float:
    return log_likelihood(_columns(counted), _columns(replayed))


def _elsewhere(counted: Sequence[CountedText], replayed: Sequence[CountedText]) -> float:
    return elsewhere(_columns(counted), _columns(replayed))


def _length(texts: Sequence[CountedText]) -> float:
    pooled = Counts.pooled(text.counts for text in texts)
    return pooled.accept_length if pooled.steps else 1.0


def _position(counted: Sequence[CountedText], sound: Sequence[CountedText], j: int) -> Position:
    ours, theirs = ([text.counts for text in texts] for texts in (counted, sound))
    apart, error = departure(ours, theirs, j)
    return Position(
        j,
        Counts.pooled(ours).conditional(j),
        Counts.pooled(theirs).conditional(j),
        apart / error if error else (0.0 if not apart else math.copysign(math.inf, apart)),
    )


MEANINGS: Mapping[bool, str] = {
    True: "the first draft departs: what goes in is other than in training (captured layers, norms before fc, tables, "
    "head, map, weights), or the drafter is another one",
    False: "the first draft is right and a later one departs: what is fed back is other than in training (norm_output, "
    "positions, rope, window)",
}
"""Whether the first draft position is the one that departs → what that means."""
