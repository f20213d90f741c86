"""README.md of an output: what the Hub indexes, the record in prose, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, cast

from draftconv.checkpoint.text import code, plain
from draftconv.conversion.card_sections import EMPTY_RESULTS, EMPTY_SECTION, REPORT_SECTION
from draftconv.conversion.card_steps import Steps, pruned_rows
from draftconv.conversion.front_matter import write_front_matter
from draftconv.conversion.licenses import SourceTerms, license_keys
from draftconv.conversion.start_commands import HUB_ID, PLACEHOLDER, hub_target, start_commands
from draftconv.conversion.working_drafter import Change, grouped
from draftconv.drafter.config import Config
from draftconv.drafter.describe import join_words
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts, Gqa, describe_boundaries
from draftconv.drafter.kinds import kind_of
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES, parse_engine
from draftconv.errors import DraftconvError
from draftconv.layouts import layouts
from draftconv.layouts.portable import PORTABLE

if TYPE_CHECKING:
    from jinja2 import Template

    from draftconv.conversion.quantization_record import QuantizationRecord
    from draftconv.quantization.deviation import Total


@dataclass(frozen=True, slots=True)
class Carded:
    """What a card is made of beside the record.

    Attributes:
        drafter: as it will be written. `target`: the one that was named.
        terms: of everything that it is made from. `changes`: since then.
        quantization: of this output, where it was quantized now.
    """

    drafter: Drafter
    target: Target | None
    terms: tuple[SourceTerms, ...]
    changes: tuple[Change, ...]
    quantization: QuantizationRecord | None


def model_card(record: Mapping[str, object], about: Carded) -> str:
    """Render the card. Nothing that came from a checkpoint can act as markup or YAML in it."""
    layout = str(record["layout"])
    facts, quantization = about.drafter.facts, about.quantization
    asked = [parse_engine(name) for name in cast(Sequence[str], record["engines"])]
    # Version and hardware decide what quantized weights run as; other files are for every version.
    specs = asked if facts.quantization else [parse_engine(spec.name) for spec in asked]
    target, steps = about.target, Steps.of(record)
    pruned = pruned_rows(steps, facts)
    titles = list(dict.fromkeys(ENGINES[spec.name].title for spec in specs))
    return _template().render(
        front_matter=write_front_matter(_front_matter(record, about, [spec.name for spec in specs])),
        results=EMPTY_RESULTS,
        section=REPORT_SECTION if "certificate" in record else EMPTY_SECTION,
        record=record,
        certificate=record.get("certificate"),
        steps=steps,
        source=steps.source,
        pruned=pruned,
        unrun=_unrun(about, pruned=pruned is not None),
        title=layouts()[layout].title if layout != PORTABLE else join_words(titles, "and") if titles else "",
        starts=start_commands(about.drafter, specs, target),
        left_out=record.get("left_out", ()),
        quantized=quantization,
        total=_total(quantization) if quantization and quantization.deviations else None,
        facts=facts,
        kind=kind_of(facts),
        attention=describe_attention(facts),
        boundaries=describe_boundaries(facts.boundaries),
        target=target,
        hub_target=hub_target(target),
        placeholder=PLACEHOLDER,
        source_id=_source_id(steps.source),
        licenses=[
            line
            for source in about.terms
            for line in _license_lines(replace(source, source=steps.known_as(source.source)))
        ],
        changes=grouped(about.changes),
    )


def _front_matter(record: Mapping[str, object], about: Carded, engines: Sequence[str]) -> dict[str, object]:
    """What the Hub reads, in the order in which its own pages list it."""
    card = about.terms[0].card
    base, relation = _base_model(record, about)
    return {
        **license_keys(about.terms),
        "language": card.values.get("language"),
        "datasets": card.values.get("datasets"),
        "library_name": "draftconv",
        "pipeline_tag": "text-generation",
        "tags": tuple(dict.fromkeys(("eagle3", "speculative-decoding", *map(_tag, engines), *_methods(about.drafter)))),
        "base_model": base,
        "base_model_relation": relation,
    }


def _tag(engine: str) -> str:
    """What models on the Hub are tagged with that are for this engine."""
    return ENGINES[engine].title.lower().replace(" ", "-")


def _methods(drafter: Drafter) -> tuple[str, ...]:
    """How its weights are quantized: the method of its config.json, and the dtypes."""
    if drafter.facts.quantization is None:
        return ()
    from draftconv.quantization.weight_detection import find_quantized

    method = Config(drafter.config).section("quantization_config").text("quant_method")
    try:
        dtypes = tuple(dict.fromkeys(str(match.declared.dtype) for match in find_quantized(drafter).parts))
    except DraftconvError:  # the tags of the Hub are for finding it; what is in the file was checked before
        dtypes = ()
    return tuple(filter(None, (method, *dtypes)))


def _base_model(record: Mapping[str, object], about: Carded) -> tuple[str | None, str | None]:
    """The drafter on the Hub that this was made from, and how; else the target that it drafts for.

    The Hub knows `adapter`, `merge`, `quantized` and `finetune`. A conversion is none of them and claims none; what it
    was made for is no quantization of the target, which the Hub would take it for, so that is said.
    """
    steps = (record, *cast(Sequence[Mapping[str, object]], record["earlier"]))
    for number, step in enumerate(steps):
        source = cast(Mapping[str, object], step["source"])
        if source.get("revision") and HUB_ID.fullmatch(str(source.get("name"))):
            rounded = any(earlier.get("quantization") for earlier in steps[: number + 1])
            return str(source["name"]), "quantized" if rounded and about.drafter.facts.quantization else None
    repo = hub_target(about.target)
    return (repo.partition("@")[0], "finetune") if repo else (None, None)


def _unrun(about: Carded, *, pruned: bool) -> str:
    """What of the files no engine was seen to run on its hardware; empty for floats in a whole head."""
    quantization = about.quantization
    unseen = about.drafter.facts.quantization is not None and (quantization is None or quantization.evidence != "run")
    return " and ".join(["these weights"] * unseen + ["a head of fewer rows"] * pruned)


def _source_id(source: Mapping[str, object]) -> str | None:
    """The source as a command takes it, where it is on the Hub."""
    name, revision = str(source["name"]), source["revision"]
    return f"{name}@{revision}" if revision and HUB_ID.fullmatch(name) else None


def _license_lines(source: SourceTerms) -> Iterator[str]:
    """What a source says of its license, in Markdown, and what of that is not taken over."""
    name = f"`{code(source.source)}`"
    if source.found:
        ids = ", ".join(f"`{code(license_id)}`" for license_id in source.licenses)
        called = f" ({plain(source.name)})" if source.name else ""
        at = f", see `{code(source.link)}`" if source.link else ""
        along = ", ".join(f"`{code(file)}`" for file in source.files)
        yield f"{name}: {ids or 'its card names none'}{called}{at}{f'; taken along: {along}' if along else ''}"
    else:
        yield f"No license was found beside {name}: ask who published it before you pass this on."
    yield from (f"Not taken over from {name}: {plain(fault)}" for fault in source.faults)


def _total(quantization: QuantizationRecord) -> Total:
    from draftconv.quantization.deviation import total

    return total(quantization.deviations)


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
