"""Switches with which an engine makes acceptance up, or accepts what its target would not have written.

They exist for speed tests, where the text does not matter. A parity run with one of them measures the switch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from draftconv.checkpoint import show
from draftconv.engines import ENGINES
from draftconv.engines.live import Switch
from draftconv.engines.request_output import RequestOutput, first_split
from draftconv.errors import Void
from draftconv.reference.accept_length import Counts

FEWEST_STEPS = 100
"""Steps after which equal acceptance in each is no accident."""
FEWEST_TEXTS = 5
"""Texts of which most must be as no target writes them."""
EARLY = 8
"""Tokens at the start of a text on which two runs of a target agree."""


def variables() -> dict[str, str]:
    """Environment variables of all engines: one in the environment may reach whichever is started."""
    return {
        name: source for engine in ENGINES.values() if engine.live for name, source in engine.live.variables.items()
    }


def switches() -> tuple[Switch, ...]:
    """Settings of all engines."""
    return tuple(switch for engine in ENGINES.values() if engine.live for switch in engine.live.switches)


def refuse_switches(texts: Iterable[str], environment: Mapping[str, str]) -> None:
    """Refuse to start an engine with such a switch.

    Args:
        texts: arguments, and the text of the files that it reads.

    Raises:
        Void: there is one.
    """
    for name, source in variables().items():
        if _is_on(environment.get(name)):
            raise Void(
                f"{show(name)} would decide what is accepted ({source})",
                why="the run would measure the switch, not the drafter",
                cure=f"unset {name}",
            )
    text = " ".join(texts)
    for switch in switches():
        if found := re.search(switch.pattern, text):
            named = found[0].replace('"', "")
            raise Void(
                f"{show(named.strip())} would decide what is accepted: {switch.says} ({switch.source})",
                why="the run would measure the switch, not the drafter, and no replay follows such a rule",
                cure="leave it out",
            )


def _unswitched_cure() -> str:
    return f"start the servers alike, without {', '.join(variables())} and synthetic acceptance"


def _is_on(value: str | None) -> bool:
    try:
        return value is not None and float(value) > 0
    except ValueError:
        return bool(value)


def refuse_forced(arm: str, answers: Sequence[RequestOutput]) -> None:
    """Refuse answers that no drafter gives: the same number accepted in every step, or always the same token.

    A running server does not tell its environment, but this is what it looks like. Where the last step is cut at
    the end of the text, every request has one step that accepts less, the same one at the same length.

    Raises:
        Void: they are such.
    """
    counts = Counts.pooled(answer.counts for answer in answers)
    if counts.steps < FEWEST_STEPS:
        return
    used = [j for j, steps in enumerate(counts.histogram) if steps]
    alike = len(answers) >= FEWEST_TEXTS and len({answer.counts for answer in answers}) == 1
    forced = len(used) == 1 or (alike and counts.steps - counts.histogram[used[-1]] == len(answers))
    if forced and used[-1]:
        raise Void(
            f"{show(arm)} accepted exactly {used[-1]} tokens in each of {counts.steps} steps",
            why="a server that was told how many to accept does so, a drafter does not",
            cure=_unswitched_cure(),
        )
    written = {token for answer in answers for token in answer.tokens[1:]}
    if len(answers) >= FEWEST_TEXTS and len(written) == 1:
        raise Void(
            f"{show(arm)} wrote nothing but token {written.pop()}, whatever it was asked",
            why="an engine that makes acceptance up may write one token in place of every draft",
            cure=_unswitched_cure(),
        )


def refuse_other_texts(arm: str, ours: Sequence[RequestOutput], theirs: Sequence[RequestOutput]) -> None:
    """Refuse answers of which most part from the reference's at once: greedy text is the target's own.

    In 16 bits near ties make texts part later on. Acceptance that is made up by chance does so within a step or two.

    Args:
        ours: the reference's. `theirs`: the arm's to the same requests.

    Raises:
        Void: they do.
    """
    splits = [first_split(a.tokens[:EARLY], b.tokens[:EARLY]) for a, b in zip(ours, theirs, strict=True)]
    parted = sum(split is not None for split in splits)
    if len(splits) >= FEWEST_TEXTS and 2 * parted > len(splits):
        raise Void(
            f"{parted} of {len(splits)} texts of {show(arm)} differ from the reference's in the first {EARLY} tokens",
            why="greedy text is the target's own and does not depend on the drafter: the servers hold different "
            "targets, sample, or make acceptance up",
            cure=_unswitched_cure(),
        )
