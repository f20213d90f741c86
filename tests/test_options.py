"""Keyword arguments by the names of today and by former ones, and choices as people type them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from draftconv.errors import FormerName
from draftconv.options import (
    DTYPES,
    NUM_SPECULATIVE_TOKENS,
    TENSOR_PARALLEL_SIZE,
    arguments_of,
    dtype_option,
    option,
    takes,
    without_places,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a toy is run."""

    num_speculative_tokens: int = option(3, NUM_SPECULATIVE_TOKENS)
    tensor_parallel_size: int = option(1, TENSOR_PARALLEL_SIZE)
    dtype: str | None = option(None, dtype_option("What it is.", ("float32", "bfloat16"), former_values=("bf16",)))


@takes(Settings)
def run(name: str, settings: Settings) -> tuple[object, ...]:
    """Run it."""
    return name, settings.num_speculative_tokens, settings.tensor_parallel_size, settings.dtype


@pytest.mark.parametrize(
    ("former", "told", "found"),
    [
        ({"depth": 5}, "depth is now num_speculative_tokens;", ("a", 5, 1, None)),
        ({"drafts": 5}, "drafts is now num_speculative_tokens;", ("a", 5, 1, None)),
        ({"tp": 8}, "tp is now tensor_parallel_size;", ("a", 3, 8, None)),
        ({"tensor_parallel": 8}, "tensor_parallel is now tensor_parallel_size;", ("a", 3, 8, None)),
        ({"dtype": "bf16"}, "dtype='bf16' is now dtype='bfloat16';", ("a", 3, 1, "bfloat16")),
    ],
)
def test_a_former_keyword_works_and_says_so_where_it_stands(
    former: dict[str, Any], told: str, found: tuple[object, ...]
) -> None:
    with pytest.warns(FormerName, match=told) as caught:
        assert run("a", **former) == found
    assert [warning.filename for warning in caught] == [__file__]


def test_one_argument_under_two_names() -> None:
    both: dict[str, Any] = {"tp": 2, "tensor_parallel_size": 2}
    with (
        pytest.warns(FormerName),
        pytest.raises(TypeError, match="tp and tensor_parallel_size are the same argument; give tensor_parallel_size"),
    ):
        run("a", **both)
    nobody: dict[str, Any] = {"tpp": 2}
    with pytest.raises(TypeError, match="unexpected keyword argument 'tpp'"):
        run("a", **nobody)


def test_names_of_today_say_nothing() -> None:
    assert run("a", num_speculative_tokens=2, tensor_parallel_size=4, dtype="float32") == ("a", 2, 4, "float32")


@pytest.mark.parametrize(
    ("typed", "found"),
    [("fp32", "float32"), ("F32", "float32"), ("Float", "float32"), ("BFLOAT16", "bfloat16"), ("BF16", "bfloat16"),
     ("half", "half"), ("int4", "int4"), ("", "")],
)  # fmt: skip
def test_what_people_call_a_dtype(typed: str, found: str) -> None:
    """What a command has no use for it is given as it is, to refuse it in its own words."""
    assert run("a", dtype=typed)[-1] == found


def test_no_word_stands_for_two_dtypes() -> None:
    words = [word for name, others in DTYPES.items() for word in (name, *others)]
    assert len(words) == len({*words})


# ── options as they are typed ──────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """Every kind of option."""

    vocab: int = option(..., "Rows.")
    counts: tuple[str, ...] = option((), "Text.")
    card: bool = option(True, "None.", flag="--no-card")
    force: bool = option(False, "All the same.")


def test_options_are_typed_by_their_flags_and_defaults_are_left_out() -> None:
    assert arguments_of(Typed(vocab=3)) == ["--vocab", "3"]
    every = Typed(vocab=3, counts=("a", "b=2:c"), card=False, force=True)
    assert arguments_of(every) == ["--vocab", "3", "--counts", "a", "--counts", "b=2:c", "--no-card", "--force"]


def test_a_command_in_a_report_names_no_place_on_this_machine() -> None:
    assert without_places(["draftconv", "accept", "/home/me/drafter", "rel/trace", "-k", "3"]) == (
        "draftconv", "accept", "drafter", "rel/trace", "-k", "3",
    )  # fmt: skip
