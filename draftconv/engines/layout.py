"""What layouts of engines have in common: boundaries at the top level, whatever the engine itself looks at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from draftconv.drafter.boundaries import IDS
from draftconv.layouts import MARK
from draftconv.layouts.base import Clue, IdChoice, Layout, ProducerIds, Writer, Writing
from draftconv.layouts.config_json import eagle_section, explicit_config, top_ids

BOUNDARIES = ProducerIds("vllm", "before", True, source="vLLM 0.33.0: ids are used as they are")
"""What ids at the top level are, in every layout here."""


def engine_layout(
    name: str,
    title: str,
    writer: Writer,
    source: str,
    *,
    ids: ProducerIds = BOUNDARIES,
    ids_at: Literal["top", "nested"] = "top",
    unmarked: tuple[Clue, ...] | None = None,
) -> Layout:
    """A layout that is written for one engine, and that draftconv can read alone because boundaries are in it.

    Other ids are not draftconv's (`--from` named the layout): `ids` says by whose rule they count then.
    """
    return Layout(
        name,
        title,
        0,
        "certain",
        None,
        IdChoice(
            tuple(dict.fromkeys((BOUNDARIES, ids))),
            lambda e: BOUNDARIES if e.config.has(MARK if ids_at == "nested" else IDS) else ids,
        ),
        source,
        writer=writer,
        ids_at=ids_at,
        unmarked=unmarked,
    )


def engine_config(writing: Writing, nested: Mapping[str, object]) -> dict[str, object]:
    """config.json with boundaries at the top level; `nested` are further keys of eagle_config."""
    return explicit_config(writing) | top_ids(writing) | {"eagle_config": {**eagle_section(writing.facts), **nested}}
