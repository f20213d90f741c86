"""README.md of an output: the record in prose, with what to type next."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, cast

from draftconv.checkpoint.text import code, plain
from draftconv.drafter.facts import Facts, Gqa, describe_boundaries
from draftconv.drafter.kinds import kind_of
from draftconv.drafter.targets import Target
from draftconv.engines import parse_engine
from draftconv.layouts import layouts

if TYPE_CHECKING:
    from jinja2 import Template

    from draftconv.conversion.quantization_record import QuantizationRecord
    from draftconv.quantization.deviation import Total


def model_card(
    record: Mapping[str, object], facts: Facts, target: Target | None, quantization: QuantizationRecord | None
) -> str:
    """Render the card. Nothing that came from a checkpoint can act as markup in it."""
    layout = layouts()[str(record["layout"])]
    hub = target.repo if target and target.path is None else ""
    return _template().render(
        record=record,
        source=cast(Mapping[str, object], record["source"]),
        title=layout.title,
        serves=_engines(record, facts),
        left_out=record.get("left_out", ()),
        quantized=quantization,
        total=_total(quantization) if quantization and quantization.deviations else None,
        facts=facts,
        kind=kind_of(facts),
        attention=describe_attention(facts),
        boundaries=describe_boundaries(facts.boundaries),
        base_model=hub if re.fullmatch(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+", hub) else None,
        # A local path may not be told, and its base name alone would not work when pasted.
        target=shlex.quote(code(hub)) if hub else "TARGET",
    )


def _total(quantization: QuantizationRecord) -> Total:
    from draftconv.quantization.deviation import total

    return total(quantization.deviations)


def _engines(record: Mapping[str, object], facts: Facts) -> tuple[str, ...]:
    """The engines that were asked; with version and hardware where these decide what quantized weights run as."""
    asked = cast(Sequence[str], record["engines"])
    return tuple(asked) if facts.quantization else tuple(parse_engine(spec).name for spec in asked)


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters |= {"plain": plain, "code": code}
    return environment.from_string(files("draftconv.conversion").joinpath("card.md.j2").read_text(encoding="utf-8"))


def describe_attention(facts: Facts) -> str:
    match facts.attention:
        case Gqa(heads, kv_heads, head_dim):
            return f"{heads} heads over {kv_heads} key heads of {head_dim}"
        case mla:
            return f"MLA, {mla.heads} heads, latent {mla.kv_lora} + rope {mla.rope}"
