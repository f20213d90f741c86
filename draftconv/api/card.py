"""README.md of an output: the record in prose, with what to type next."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import cast

from draftconv.drafter.facts import Facts, Gqa, Taps
from draftconv.drafter.targets import Target
from draftconv.layouts import layouts


def model_card(record: Mapping[str, object], facts: Facts, target: Target | None) -> str:
    """Render the card. Everything that came from a checkpoint is stripped of markup."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters["plain"] = plain
    template = environment.from_string(files("draftconv.api").joinpath("card.md.j2").read_text(encoding="utf-8"))
    layout = layouts()[str(record["layout"])]
    return template.render(
        record=record,
        source=cast(Mapping[str, object], record["source"]),
        title=layout.title,
        serves=layout.writer.serves if layout.writer else (),
        facts=facts,
        attention=describe_attention(facts),
        boundaries=describe_boundaries(facts),
        base_model=target.repo if target and re.fullmatch(r"[\w.-]+/[\w.-]+", target.repo) else None,
        target=plain(target.repo or target.name.rsplit("/", 1)[-1]) if target else "TARGET",
    )


def plain(value: object) -> str:
    """Text without control characters, markup or line breaks, for use inside Markdown."""
    return re.sub(r"[^\w .,:;()\[\]{}/+=@%…→≥≤'\"-]", "?", str(value))[:400]


def describe_attention(facts: Facts) -> str:
    match facts.attention:
        case Gqa(heads, kv_heads, head_dim):
            return f"{heads} heads over {kv_heads} key heads of {head_dim}"
        case mla:
            return f"MLA, {mla.heads} heads, latent {mla.kv_lora} + rope {mla.rope}"


def describe_boundaries(facts: Facts) -> str:
    match facts.boundaries:
        case Taps.DEFAULT:
            return "the default triple (2, L//2, L-3)"
        case Taps.UNKNOWN:
            return "unknown"
        case found:
            return ", ".join(map(str, found))
