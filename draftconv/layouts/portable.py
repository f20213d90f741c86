"""The one spelling that several engines read rightly, made of what each of them asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from draftconv.drafter.boundaries import IDS
from draftconv.drafter.describe import join_words
from draftconv.drafter.facts import Facts, Gqa
from draftconv.drafter.tensors import expected
from draftconv.layouts.base import IdChoice, Layout, Refusal, Spelling, Writer
from draftconv.layouts.tensor_names import spell

PORTABLE = "portable"
"""The layout that every engine reads which takes part in it."""

_LENT_HEAD = Refusal(
    lambda f: isinstance(f.attention, Gqa) and not f.own_head,
    "a Llama-style drafter without lm_head has no spelling that all engines read",
    "a null draft_vocab_size shares the target's head in one engine, and others are not known to take it",
)


def portable_layout(readers: Sequence[Layout]) -> Layout:
    """The layout whose directories all these engines read, as each reads its own.

    Whatever engines it is made for, it is read back in the same way: boundaries are at the top level.
    """
    writers = [reader.writer for reader in readers if reader.writer]
    rules = dict.fromkeys(rule for reader in readers for rule in reader.id_rules)
    # boundaries are at the top level; ids elsewhere are not draftconv's, and mean what their reader takes them for
    top = next(rule for rule in rules if rule.convention == "before")
    nested = next((rule for rule in rules if rule.convention == "by family"), top)
    return Layout(
        PORTABLE,
        PORTABLE,
        0,
        "certain",
        None,
        IdChoice((top, nested), lambda e: top if e.config.has(IDS) else nested),
        f"the one spelling that {join_words([reader.title for reader in readers], 'and')} read alike",
        writer=Writer(
            writers[0].spelling,
            lambda writing: _shared_keys([writer.config(writing) for writer in writers]),
            _unique_refusals(
                (*_spelling_refusals({writer.spelling for writer in writers}), _LENT_HEAD),
                *(w.refuses for w in writers),
            ),
            serves=tuple(engine for writer in writers for engine in writer.serves),
        ),
        ids_at="top",
    )


def _shared_keys(configs: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The keys of all of them; one on which they disagree is left out, so that each reader has its own default."""
    agreed: dict[str, object] = {}
    for key in dict.fromkeys(key for config in configs for key in config):
        values = [config[key] for config in configs if key in config]
        sections = [value for value in values if isinstance(value, Mapping)]
        if len(sections) == len(values):
            agreed[key] = _shared_keys(sections)
        elif all(value == values[0] for value in values):
            agreed[key] = values[0]
    return agreed


def _spelling_refusals(spellings: set[Spelling]) -> tuple[Refusal, ...]:
    """Drafters that these spellings name differently, or give other biases."""
    flags = {spelling.o_bias for spelling in spellings}

    def named_apart(facts: Facts) -> bool:
        return any(len({spell(name, s, facts.layers) for s in spellings}) > 1 for name in expected(facts))

    def biased_apart(facts: Facts) -> bool:
        return len(flags) > 1 and isinstance(facts.attention, Gqa) and facts.attention.o_bias

    return (
        Refusal(
            named_apart,
            "no one spelling of a drafter with several layers suits every engine",
            "engines look for the tensors of later layers under different names",
        ),
        Refusal(
            biased_apart,
            "attention_bias means o_proj alone to one engine and q, k, v and o to another",
            "one config.json cannot say both",
        ),
    )


def _unique_refusals(*tables: Iterable[Refusal]) -> tuple[Refusal, ...]:
    return tuple({refusal.what: refusal for table in tables for refusal in table}.values())
