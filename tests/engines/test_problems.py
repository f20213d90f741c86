"""What engines make of a drafter's problems, beside what is wrong with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftconv.drafter.problems import KINDS
from draftconv.engines import ENGINES
from draftconv.engines.problems import why


@pytest.mark.parametrize("engine", ENGINES)
def test_every_code_that_an_engine_speaks_of_exists(engine: str) -> None:
    spoken = ENGINES[engine].problems
    assert spoken
    assert set(spoken) <= set(KINDS)
    assert not any(text.endswith(".") or text[0].isupper() for text in spoken.values())


def test_both_are_told() -> None:
    assert why("d2t-missing") == (
        "which target tokens the rows of lm_head stand for is lost; "
        "vLLM loads it silently with an all-zero map and acceptance collapses (run); "
        "TensorRT-LLM stops with an assertion"
    )
    assert why("fc-width") == KINDS["fc-width"].why


def test_another_engine_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = replace(ENGINES["vllm"], name="odd", rules=(), covers=(), title="Odd", problems={"fc-width": "guesses"})
    monkeypatch.setitem(ENGINES.by_name, "odd", odd)
    assert why("fc-width").endswith("; Odd guesses")
