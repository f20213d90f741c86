"""Writers by themselves: what they say of every variant, how they name its tensors, and that it is read back so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.drafter.boundaries import IDS
from draftconv.drafter.facts import AuxLayers, Facts
from draftconv.drafter.targets import Family, Target
from draftconv.errors import Refused
from draftconv.layouts import MARK, writable
from draftconv.layouts.base import Writing
from draftconv.layouts.config_json import after_ids
from draftconv.layouts.tensor_names import spell
from tests import tiny
from tests.layouts.spelled import NO_TABLE, REFUSED, WRITABLE, check_config, file_name, refusal, spelled_here, writer_of
from tests.opening import read


def drafters(to: str) -> Iterator[tuple[str, tiny.Spelled]]:
    """Every variant of every producer that this layout holds."""
    for producer, variant in tiny.PAIRS:
        spelled = tiny.spell(variant, producer)
        if refusal(to, variant, spelled.facts) is None:
            yield variant, spelled


def config_of(facts: Facts, to: str) -> dict[str, object]:
    boundaries = None if isinstance(facts.boundaries, AuxLayers) else facts.boundaries
    return writer_of(to).config(Writing(facts, boundaries, None, {}, "bfloat16"))


@pytest.mark.parametrize("to", WRITABLE)
def test_somebody_wrote_down_what_it_looks_like(to: str) -> None:
    spelled_here(to)


def test_a_layout_that_nobody_wrote_down_is_noticed() -> None:
    with pytest.raises(pytest.fail.Exception, match="toy is writable, and nothing"):
        spelled_here("toy")
    assert set(REFUSED) <= set(WRITABLE)


@pytest.mark.parametrize("to", WRITABLE)
def test_a_config_says_what_its_reader_needs(to: str) -> None:
    every = list(drafters(to))
    assert len(every) > 10
    for _, spelled in every:
        check_config(config_of(spelled.facts, to), spelled.facts, to)


@pytest.mark.parametrize("to", WRITABLE)
def test_tensors_are_named_as_its_reader_names_them(to: str) -> None:
    for variant, spelled in drafters(to):
        layers = spelled.facts.layers
        for canonical in spelled.canonical:
            assert spell(canonical, writer_of(to).spelling, layers) == file_name(canonical, to, layers), variant


@pytest.mark.parametrize("to", WRITABLE)
def test_a_reader_of_the_mask_gets_ascending_ids(to: str) -> None:
    """Who indexes logits with t2d gives the draft ids the order of the target's."""
    spelling = writer_of(to).spelling
    assert (spelling.order == "ascending") is spelling.t2d


@pytest.mark.parametrize(
    ("boundaries", "family", "ids"),
    [
        ((2, 4, 5), "deepseek", [1, 3, 4]),
        ((1, 4, 5), "llama", [0, 3, 4]),
        ((1, 4, 5), None, [0, 3, 4]),
        ((3, 4, 5), "llama", [2, 3, 4]),
        ((1, 4, 5), "deepseek", "a trainer may mis-read"),
        ((3, 4, 5), "deepseek", "a trainer may mis-read"),
        ((0, 4, 5), "llama", "boundary 0 has no number"),
    ],
)
def test_trainers_ids(boundaries: tuple[int, ...], family: Family | None, ids: list[int] | str) -> None:
    """Of DeepSeek targets only a first id of 1 means the same, whoever captured for the trainer."""
    writing = Writing(tiny.BASE, boundaries, Target("t", 8, family) if family else None, {}, "bfloat16")
    if isinstance(ids, list):
        assert after_ids(writing) == {IDS: ids}
    else:
        with pytest.raises(Refused, match=ids):
            after_ids(writing)


@pytest.mark.parametrize("to", WRITABLE)
def test_what_is_written_is_read_back(to: str, tmp_path: Path) -> None:
    """Facts of every variant, whoever trained it; without the passes of a conversion the order of a map is not set."""
    layout = writable()[to]
    for variant, spelled in drafters(to):
        facts, names = (
            spelled.facts,
            {n: spell(n, writer_of(to).spelling, spelled.facts.layers) for n in spelled.canonical},
        )
        tensors = {names[name]: spelled.tensors[file] for name, file in spelled.canonical.items()}
        config = config_of(facts, to) | {MARK: layout.id}
        path = tmp_path / f"{spelled.layout}-{variant}"
        tiny.Spelled(layout.id, facts, tensors, config, names, {"format": "pt"}).write(path)
        found = read(path)
        assert found.detection.layout == layout.id
        assert replace(found.facts, vocab_order=facts.vocab_order) == facts, path.name


@pytest.mark.parametrize("to", REFUSED)
def test_refusals_of_the_tables_are_the_writers_own(to: str) -> None:
    """All but the one that depends on the target's weights, which the conversion makes."""
    for producer, variant in tiny.PAIRS:
        facts = tiny.spell(variant, producer).facts
        words = refusal(to, variant, facts)
        found = [limit.what for limit in writer_of(to).refuses if limit.holds(facts)]
        if words in (None, NO_TABLE):
            assert not found, (producer, variant)
        else:
            assert re.search(words, found[0]), (producer, variant)
