"""The path of a search: from the drafter as it is to the smallest, the cheapest loss first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draftconv.search.path import Measured, MeasuredChoice, search_path

CHOICES = {
    "layers": (
        MeasuredChoice("layers", "16 bit", 800, 0.0),
        MeasuredChoice("layers", "INT8", 400, 0.0002),
        MeasuredChoice("layers", "INT4", 200, 0.004),
    ),
    "head": (MeasuredChoice("head", "16 bit", 2000, 0.0), MeasuredChoice("head", "INT8", 1000, 0.0003)),
    "fc": (MeasuredChoice("fc", "16 bit", 100, 0.0), MeasuredChoice("fc", "INT4", 25, 0.02)),
}


def names(path: tuple[Measured, ...]) -> list[tuple[str, ...]]:
    return [tuple(choice.name for choice in at.values()) for at in path]


def test_the_cheapest_loss_per_byte_comes_first() -> None:
    assert names(search_path(CHOICES)) == [
        ("16 bit", "16 bit", "16 bit"),
        ("16 bit", "INT8", "16 bit"),
        ("INT8", "INT8", "16 bit"),
        ("INT4", "INT8", "16 bit"),
        ("INT4", "INT8", "INT4"),
    ]


def test_a_choice_that_saves_nothing_is_never_taken() -> None:
    worse = {"head": (CHOICES["head"][0], MeasuredChoice("head", "larger", 2000, -0.01))}
    assert names(search_path(worse)) == [("16 bit",)]


def test_what_gains_counts_as_losing_nothing() -> None:
    roles = {
        "head": (CHOICES["head"][0], MeasuredChoice("head", "lucky", 1990, -0.01)),
        "fc": (CHOICES["fc"][0], MeasuredChoice("fc", "INT8", 50, 0.00005)),
    }
    assert names(search_path(roles))[1] == ("16 bit", "INT8")


def test_what_the_engine_does_not_run_is_no_step() -> None:
    def runs(at: Measured) -> bool:
        return at["head"].name != "INT8" or at["layers"].name != "16 bit"

    assert names(search_path(CHOICES, runs)) == [
        ("16 bit", "16 bit", "16 bit"),
        ("INT8", "16 bit", "16 bit"),
        ("INT8", "INT8", "16 bit"),
        ("INT4", "INT8", "16 bit"),
        ("INT4", "INT8", "INT4"),
    ]


MEASURED = st.builds(
    MeasuredChoice, st.just(""), st.text("ab", max_size=3), st.integers(1, 1000), st.floats(-0.01, 0.1)
)


@given(st.lists(st.lists(MEASURED, min_size=1, max_size=5), min_size=1, max_size=4))
def test_every_step_of_a_path_is_smaller_and_its_end_is_the_smallest(rows: list[list[MeasuredChoice]]) -> None:
    roles = {
        str(number): tuple(MeasuredChoice(str(number), c.name, c.bytes, c.loss) for c in choices)
        for number, choices in enumerate(rows)
    }
    path = search_path(roles)
    sizes = [sum(choice.bytes for choice in at.values()) for at in path]
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[-1] == sum(min(c.bytes for c in choices) for choices in roles.values())
