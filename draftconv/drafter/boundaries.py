"""Captured target layers, held as boundaries only, translated here and nowhere else.

Boundary b (0…L) is the residual stream entering decoder layer b of the target; b = L is
the stream after the last layer, before the final norm. A producer's id n means either
"before layer n" (b = n) or "after layer n" (b = n + 1); some engines count one way or the
other by the target's family. A wrong convention moves every state by one layer: no crash, a
lower accept length (SGLang PR 25454: -0.10; vLLM PR 50170: 58.9 % → 1.2 %).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from draftconv.drafter.targets import Family
from draftconv.errors import Refused, UsageError

Convention = Literal["before", "after"]
Numbering = Literal["before", "after", "by family"]
"""How somebody counts captured layers; `by family` is `family_convention`."""

IDS = "eagle_aux_hidden_state_layer_ids"
"""config.json's key for captured layers, at the top level or in `eagle_config`."""


def default_triple(layers: int) -> tuple[int, ...]:
    """Boundaries that engines and trainers capture when told nothing: (2, L//2, L-3)."""
    return (2, layers // 2, layers - 3)


def from_ids(ids: Sequence[int], convention: Convention, layers: int | None) -> tuple[int, ...]:
    """Translate a producer's ids into boundaries, in the order listed.

    Raises:
        UsageError: a negative id (counted from the end) without a known layer count.
    """
    if min(ids) < 0 and layers is None:
        raise UsageError(
            f"layer ids {list(ids)} count from the end of the target",
            why="their boundaries depend on how many layers the target has",
            cure="give --target or --target-layers N",
        )
    absolute = [i + (layers or 0) if i < 0 else i for i in ids]
    return tuple(i + 1 if convention == "after" else i for i in absolute)


def family_convention(ids: Sequence[int], family: Family | None, layers: int | None) -> Convention | None:
    """What an id means by the target's family; None when that depends on a target nobody named.

    SGLang 0.5.23 counts so: `srt/models/deepseek_v2.py` adds one to all ids iff the first *listed* id is 1;
    `gpt_oss.py` takes ids as they are iff the largest equals the layer count; every other
    model adds one. An unnamed target with a first id of 1 can only be a gpt-oss one that is
    captured after its last layer, which no trainer's default does.
    """
    match family:
        case "deepseek":
            return "after" if ids and ids[0] == 1 else "before"
        case "gpt-oss":
            return "before" if ids and max(ids) == layers else "after"
        case None:
            return "after" if ids and ids[0] == 1 else None
        case _:
            return "after"


def family_captures(ids: Sequence[int], family: Family, layers: int) -> tuple[int, ...]:
    """Boundaries that are captured for ids counted by family, ascending.

    Loops of SGLang 0.5.23 that end at layer L-1 never deliver boundary L; only gpt-oss goes further.
    An id of -1 is boundary 0 (not counted from the end), except to gpt-oss and DeepSeek.
    """
    boundaries = [i + 1 for i in ids] if family_convention(ids, family, layers) == "after" else ids
    start = 1 if family == "gpt-oss" and layers not in boundaries else 0
    reach = layers if family == "gpt-oss" else layers - 1
    return tuple(sorted({b for b in boundaries if start <= b <= reach}))


def family_ids(boundaries: Sequence[int], family: Family | None, layers: int | None, reader: str) -> tuple[int, ...]:
    """Spell boundaries for a reader, named in messages, that counts by the target's family.

    Without a family only a first boundary of 2 can be spelled: b - 1 then starts with 1, which
    every family's rule turns back into b.

    Raises:
        Refused: they have no such spelling; who else can capture them is for the caller to say.
        UsageError: the spelling depends on the family and no target was given.
    """
    shifted = tuple(b - 1 for b in boundaries)
    if family is None:
        if boundaries[0] == 2 and layers not in boundaries:
            return shifted
        raise UsageError(
            f"{reader} numbers boundaries {list(boundaries)} differently per target family",
            why="DeepSeek/Kimi targets read an id as the layer entered, others as the layer left",
            cure="give --target (a name, a directory with a config.json, or a Hub id)",
        )
    if family == "deepseek" and boundaries[0] == 1:
        raise Refused(
            f"{reader} cannot capture boundary 1 first on a DeepSeek/Kimi target",
            why="it reads a first id of 1 as `all ids are one lower`",
        )
    if layers is not None and layers in boundaries:
        if family == "gpt-oss":
            return tuple(boundaries)
        raise Refused(
            f"{reader} cannot capture boundary {layers}, the state after the last layer",
            why="its capture loop ends before the last layer's output for every family but gpt-oss",
        )
    if family == "gpt-oss" and boundaries[0] == 0:
        raise Refused(
            f"{reader} cannot capture boundary 0 on a gpt-oss target",
            why="an id of -1 names no layer in its loop",  # SGLang 0.5.23 srt/models/gpt_oss.py
        )
    return tuple(boundaries) if family == "deepseek" else shifted
