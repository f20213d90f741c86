"""Every fault changes what is accepted, on every trained drafter that can have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.tensors import HEAD
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.quantization.recipes import find_recipe
from draftconv.quantization.simulate import simulate, stored_dtypes
from draftconv.reference.accept_length import Counts
from draftconv.reference.load import load_drafter
from draftconv.replay.controls import FAULTS, INT4, ControlSubject, subject
from draftconv.replay.replay import Arm, replay
from draftconv.report.statistics import Pair
from draftconv.report.verdict import EXACT, Gate, Outcome, judge
from tests.reference.test_fixtures import DATA, DRAFTERS
from tests.reference.variants import LLAMA
from tests.replay.scripted import random_arm
from tests.traces.recorded import HELD, described, requests

LAYERS = 8
FAULT = {fault.name: fault for fault in FAULTS}
NAMES = pytest.mark.parametrize("name", FAULT)

PLAIN = {
    "d2t zeroed": "it drafts the whole vocabulary, without a map",
    "fusion norm": "nothing norms its states before fc",
}
INAPPLICABLE: Mapping[str, Sequence[str]] = {
    "llama-eagle3": ("d2t zeroed", "fusion norm"),
    "llama-eagle3-reduced": ("fusion norm",),
    "llama-eagle3.1": ("d2t zeroed",),
    "mla-eagle3": ("d2t zeroed", "fusion norm"),
    "mla-eagle3.1": ("d2t zeroed",),
}


def opened(name: str) -> Drafter:
    return read_drafter(
        open_checkpoint(DATA / "drafters" / name), ReadOptions(target=described(name.partition("-")[0]))
    )


@cache
def trained(name: str) -> ControlSubject:
    drafter = opened(name)
    model = load_drafter(drafter, described(name.partition("-")[0]))
    assert isinstance(drafter.facts.boundaries, tuple)
    return subject(Arm(name, model, drafter.facts.boundaries), LAYERS, HELD, stored_dtypes(drafter))


def counts(name: str, arms: Sequence[Arm]) -> list[list[Counts]]:
    """Per arm, the counts of each request."""
    found = [outcomes for _, outcomes in replay(arms, requests(name.partition("-")[0]), HELD, depth=3)]
    return [[outcomes[i].counts for outcomes in found] for i in range(len(arms))]


@DRAFTERS
def test_every_fault_that_applies_changes_counts(name: str) -> None:
    of = trained(name)
    made = {fault.name: fault.apply(of) for fault in FAULTS}
    notes = {fault: arm for fault, arm in made.items() if isinstance(arm, str)}
    assert notes == {fault: PLAIN[fault] for fault in INAPPLICABLE[name]}
    broken = {fault: arm for fault, arm in made.items() if not isinstance(arm, str)}
    whole, again, twin, *others = counts(name, [of.arm, of.arm, of.with_qvalues(), *broken.values()])
    assert whole == again
    for fault, found in zip(broken, others, strict=True):
        assert found != (twin if FAULT[fault].base == "int4" else whole), fault


@pytest.mark.parametrize("name", ["mla-eagle3", "mla-eagle3.1"])
def test_one_layer_off_changes_most_requests_on_mla(name: str) -> None:
    of = trained(name)
    shifted = [FAULT[f"boundaries {sign} 1"].apply(of) for sign in "-+"]
    whole, *others = counts(name, [of.arm, *(arm for arm in shifted if isinstance(arm, Arm))])
    assert len(others) == 2
    for found in others:
        assert sum(mine != theirs for mine, theirs in zip(whole, found, strict=True)) >= 6  # of 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("mla-eagle3", {"boundaries - 1": "fail", "boundaries + 1": "fail", "rope pairs": "inconclusive"}),
        ("mla-eagle3.1", {"boundaries - 1": "fail", "boundaries + 1": "inconclusive", "rope pairs": "fail"}),
    ],
)
def test_what_a_gate_of_two_percent_would_have_noticed(name: str, outcomes: Mapping[str, Outcome]) -> None:
    """On all 32 prompts. Wrong wiring can cost less than the margin: that is why a conversion is judged exactly."""
    of = trained(name)
    arms = {fault: FAULT[fault].apply(of) for fault in outcomes}
    texts = requests("mla", count=32)
    broken = [arm for arm in arms.values() if isinstance(arm, Arm)]
    found = [[outcome.counts for outcome in row] for _, row in replay([of.arm, *broken], texts, HELD, depth=3)]
    for i, (fault, outcome) in enumerate(outcomes.items(), start=1):
        pairs = [
            Pair(text.id, text.cluster, text.category, row[0], row[i]) for text, row in zip(texts, found, strict=True)
        ]
        assert judge(pairs, Gate(0.02), how="replay").outcome == outcome, fault
        assert judge(pairs, EXACT, how="replay").outcome == "fail", fault


@DRAFTERS
def test_faults_leave_the_drafter_as_it_is(name: str) -> None:
    of = trained(name)
    before = {key: tensor.clone() for key, tensor in of.model.state_dict().items()}
    for fault in FAULTS:
        fault.apply(of)
    assert all(torch.equal(tensor, before[key]) for key, tensor in of.model.state_dict().items())


@NAMES
def test_a_fault_is_the_same_every_time(name: str) -> None:
    first, second = (FAULT[name].apply(trained("llama-eagle3-reduced")) for _ in range(2))
    if isinstance(first, str) or isinstance(second, str):
        assert first == second
        return
    assert first.boundaries == second.boundaries
    assert first.model.facts == second.model.facts
    other = second.model.state_dict()
    assert all(torch.equal(tensor, other[key]) for key, tensor in first.model.state_dict().items())


# ── the INT4 twin ──────────────────────────────────────────────────────────────────


@DRAFTERS
def test_the_twin_is_what_the_recipe_would_leave(name: str) -> None:
    of, drafter = trained(name), opened(name)
    simulated = simulate(of.model, find_recipe(INT4), stored=stored_dtypes(drafter)).state_dict()
    twin = of.with_qvalues().model.state_dict()
    assert twin.keys() == simulated.keys()
    assert all(torch.equal(tensor, simulated[key]) for key, tensor in twin.items())
    assert any(not torch.equal(tensor, of.model.state_dict()[key]) for key, tensor in twin.items())


def test_permuted_nibbles_move_codes_within_words_of_eight() -> None:
    of = trained("llama-eagle3")
    broken = FAULT["permuted nibbles"].apply(of)
    assert isinstance(broken, Arm)
    twin = of.with_qvalues().model
    for name in of.qvalues:
        right_OGW = twin.get_parameter(name).unflatten(1, (-1, 8))
        wrong_OGW = broken.model.get_parameter(name).unflatten(1, (-1, 8))
        assert not torch.equal(right_OGW, wrong_OGW)
        assert torch.equal(right_OGW.sort(-1).values, wrong_OGW.sort(-1).values)


def test_doubled_scales_double_one_weight() -> None:
    of = trained("llama-eagle3")
    broken = FAULT["doubled scales"].apply(of)
    assert isinstance(broken, Arm)
    right, wrong = of.with_qvalues().model.state_dict(), broken.model.state_dict()
    assert {name for name in right if not torch.equal(right[name], wrong[name])} == {"layers.0.mlp.down_proj.weight"}
    assert torch.equal(wrong["layers.0.mlp.down_proj.weight"], 2 * right["layers.0.mlp.down_proj.weight"])


def test_a_random_head_is_as_large_as_the_drafters() -> None:
    of = trained("llama-eagle3")
    broken = FAULT["random lm_head"].apply(of)
    assert isinstance(broken, Arm)
    head, noise = of.model.state_dict()[HEAD], broken.model.state_dict()[HEAD]
    assert float(noise.std() / head.std()) == pytest.approx(1, rel=0.01)


# ── why a fault does not apply ─────────────────────────────────────────────────────


def test_a_boundary_that_the_trace_lacks_is_named_with_its_cure() -> None:
    of = replace(trained("mla-eagle3"), trace_boundaries=(1, 2, 3, 4, 5))
    assert isinstance(FAULT["boundaries - 1"].apply(of), Arm)
    why = "the trace lacks boundary 6: make one with --boundaries 1,2,3,4,5,6"
    assert FAULT["boundaries + 1"].apply(of) == why


@pytest.mark.parametrize(("boundaries", "fault", "beyond"), [((0, 4, 5), "-", -1), ((2, 4, 8), "+", 9)])
def test_a_boundary_that_no_target_has_is_not_asked_for(boundaries: tuple[int, ...], fault: str, beyond: int) -> None:
    of = trained("mla-eagle3")
    shifted = FAULT[f"boundaries {fault} 1"].apply(replace(of, arm=replace(of.arm, boundaries=boundaries)))
    assert shifted == f"the target has no boundary {beyond}"


def test_rows_that_fill_no_words_have_no_nibbles_to_permute() -> None:
    narrow = replace(LLAMA, intermediate=20)
    of = subject(random_arm(narrow), LAYERS, HELD)
    assert FAULT["permuted nibbles"].apply(of) == "its projections do not fill words of eight nibbles"
