"""A kind of drafter is one place: what it adds is expected, told and run, and undecided to engines, without an edit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from draftconv.drafter import kinds
from draftconv.drafter.facts import Facts
from draftconv.drafter.kinds import KINDS, DrafterKind, eagle3, eagle31, kind_of
from draftconv.drafter.rows import Row
from draftconv.drafter.tensors import expected
from draftconv.drafter.words import facts_json
from draftconv.engines import ENGINES, parse_engine
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.load import forward_of
from tests.engines.views import LLAMA, LLAMA_TARGET, MLA, written


class Wide(DrafterModel):
    """The forward pass of a kind that is none: a drafter with a gate."""


GATED = DrafterKind(
    "gated",
    "a drafter with a gate",
    lambda facts: facts.intermediate == LLAMA.intermediate,
    (*eagle3.ROWS, Row("gate.weight", ("H", "H"), "fc", "none")),
    f"{__name__}:Wide",
)


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "KINDS", [GATED, *KINDS])


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (LLAMA, "3"),
        (MLA, "3"),
        (replace(LLAMA, fusion="fc_norm"), "3.1"),
        (replace(LLAMA, fusion="norm_before_fc"), "3"),
        (replace(LLAMA, feedback="post-norm"), "3.1"),
        (replace(MLA, fusion="fc_norm", feedback="post-norm"), "3.1"),
    ],
)
def test_eagle_3_and_3_1(facts: Facts, name: str) -> None:
    assert kind_of(facts).name == facts_json(facts)["eagle"] == name


def test_every_drafter_has_a_kind_and_every_kind_a_forward_pass() -> None:
    assert KINDS[-1] is eagle3.KIND
    assert eagle3.KIND.holds(LLAMA)
    assert forward_of(LLAMA) is forward_of(replace(LLAMA, fusion="fc_norm")) is DrafterModel
    assert not any(row.name.startswith("fc_norm") for row in eagle3.ROWS)
    assert {row.name for row in eagle31.ROWS} - {row.name for row in eagle3.ROWS} == {"fc_norm.{a}.weight"}


@pytest.mark.usefixtures("gated")
def test_what_another_kind_has() -> None:
    assert expected(LLAMA)["gate.weight"].shape == (LLAMA.hidden, LLAMA.hidden)
    assert "gate.weight" not in expected(replace(LLAMA, intermediate=16))
    assert facts_json(LLAMA)["eagle"] == "gated"
    with torch.device("meta"):
        assert isinstance(forward_of(LLAMA)(LLAMA), Wide)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_that_never_spoke_of_a_kind_does_not_say_that_it_loads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, spec = written(LLAMA, name, LLAMA_TARGET), parse_engine(name)
    assert ENGINES[name].check(view, LLAMA, LLAMA_TARGET, spec).status == "loads"
    monkeypatch.setattr(kinds, "KINDS", [replace(GATED, rows=eagle3.ROWS), *KINDS])
    verdict = ENGINES[name].check(view, LLAMA, LLAMA_TARGET, spec)
    assert verdict.status == "undecided"
    assert verdict.reason is not None
    assert (verdict.reason.rule.code, verdict.reason.detail) == (f"{name}-kind", "of the kind a drafter with a gate")
