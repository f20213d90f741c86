"""What one request came to, with counts that were checked against themselves and against the text.

An engine counts a step that starts before the end of the text, and then all of its accepted tokens:
one token comes from the prompt's own pass, and every step adds its accepted tokens and one of the
target's. So of a text of T tokens, in D steps with A accepted tokens,

    T <= 1 + D + A <= T + K

where the surplus was accepted beyond the end. Counts that do not fit are those of something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftconv.errors import NoDrafts, StepsWithoutDraft, Void
from draftconv.reference.accept_length import Counts

OTHERS = "let nothing else use the server, and start it with the options that `draftconv serve` prints"


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's greedy text and how its tokens came about.

    Attributes:
        tokens: generated ids, as the engine gives them. `counts`: of verify steps that carried a draft.
    """

    tokens: tuple[int, ...]
    counts: Counts


def counted(histogram: Sequence[int], steps: int, accepted: int, depth: int) -> Counts:
    """Counts that an engine gives in three ways, which must agree.

    Args:
        histogram: steps by accepted tokens; may end early.

    Raises:
        Void: more tokens accepted in a step than are drafted, or the histogram sums up to something else.
    """
    if any(count < 0 for count in (*histogram, steps, accepted)):
        raise Void("the engine reports a negative count", why="its counters were reset in between", cure=OTHERS)
    if beyond := [j for j, count in enumerate(histogram) if j > depth and count]:
        raise Void(
            f"the engine reports steps with {beyond[-1]} accepted tokens, {depth} are drafted per step",
            why="it drafts deeper than it was asked to, or counts something else",
            cure=f"start it with {depth} drafted tokens per step, or give --num-speculative-tokens {beyond[-1]}",
        )
    counts = Counts(tuple(histogram[: depth + 1]) + (0,) * (depth + 1 - len(histogram)))
    if (counts.steps, counts.accepted) != (steps, accepted):
        raise Void(
            f"the engine reports {steps} steps and {accepted} accepted tokens, its histogram {counts.steps} and "
            f"{counts.accepted}",
            why="nobody could say which of them was measured",
            cure=OTHERS,
        )
    return counts


def explained(tokens: Sequence[int], counts: Counts, *, hidden: int = 0) -> RequestOutput:
    """An answer whose text its counts account for.

    Args:
        hidden: tokens at the end of the text that the engine may leave out: the one that stopped it.

    Raises:
        NoDrafts: no step carried one. StepsWithoutDraft: fewer steps than the text took.
        Void: the counts are those of another text.
    """
    length, total = len(tokens), 1 + counts.steps + counts.accepted
    if length > 1 and not counts.steps:
        raise NoDrafts(
            f"the engine wrote {length} tokens and reports no draft",
            why="the drafter was not loaded, or acceptance is not reported",
            cure="start it with the options that `draftconv serve` prints",
            tokens=tuple(tokens),
            histogram=counts.histogram,
        )
    if not length <= total <= length + counts.depth + hidden:
        what = f"{counts.steps} steps with {counts.accepted} accepted tokens make {total} tokens, the text has {length}"
        why = "the counts are not those of this request: others were answered beside it, or steps had no draft"
        if total < length:
            raise StepsWithoutDraft(what, why=why, cure=OTHERS, tokens=tuple(tokens), histogram=counts.histogram)
        raise Void(what, why=why, cure=OTHERS)
    return RequestOutput(tuple(tokens), counts)


def clipped(tokens: Sequence[int], steps: Sequence[int], depth: int) -> RequestOutput:
    """An answer counted up to the last token of the text: A = T - 1 - D, for engines that tell no more for sure.

    Whether what the last step accepted beyond the end is reported differs; without it every arm is counted alike.

    Args:
        steps: accepted tokens of each step, in order.

    Raises:
        Void: as `explained`, or the surplus is more than the last step accepted.
    """
    surplus = 1 + len(steps) + sum(steps) - len(tokens)
    if steps and surplus > steps[-1]:
        raise Void(
            f"{len(steps)} steps with {sum(steps)} accepted tokens make {surplus} tokens more than the text has",
            why="a step that starts beyond the end was counted: another client's, or one that ran ahead",
            cure=f"{OTHERS}; if nothing does, set disable_overlap_scheduler: true",
        )
    explained(tokens, Counts.of(steps, depth))
    return RequestOutput(tuple(tokens), Counts.of([*steps[:-1], steps[-1] - surplus] if steps else [], depth))


def first_split(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two texts differ, a text that ends before the other included; None if none."""
    if tuple(one) == tuple(other):
        return None
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
