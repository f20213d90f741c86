"""Bytes that a draft step reads, counted by hand from the sizes of drafters."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_synthetic import read_spec, write_checkpoint

from draftconv.api.quantize import QuantizeOptions, prepare
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.step_bytes import StepBytes, planned_step_bytes, step_bytes
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import described

SPECS = Path(__file__).parents[2] / "scripts" / "specs"
VOCAB, HIDDEN = 163840, 7168


def fixture(name: str) -> Drafter:
    return read_drafter(open_checkpoint(DATA / "drafters" / name), ReadOptions(target=described("llama")))


def full_size(name: str, tmp_path: Path) -> Drafter:
    """Its headers; the bytes behind them are a hole in the file."""
    write_checkpoint(read_spec(SPECS / f"{name}.json"), tmp_path / name, sparse=True)
    return read_drafter(open_checkpoint(tmp_path / name), ReadOptions(aux_convention="after"))


def test_every_weight_is_read_in_a_step_but_for_what_is_fused_or_looked_up() -> None:
    drafter = fixture("llama-eagle3-reduced")
    sizes = {name: ref.nbytes for name, ref in drafter.tensors.items()}
    fc = sizes["fc.weight"]
    looked_up = sum(sizes.get(name, 0) for name in ("embed_tokens.weight", "d2t", "t2d"))
    assert step_bytes(drafter, lent_head=False) == StepBytes(fc, sum(sizes.values()) - fc - looked_up)


def test_a_lent_head_has_the_targets_width_in_16_bit() -> None:
    drafter = fixture("llama-eagle3")
    own, lent = (step_bytes(drafter, lent_head=each) for each in (False, True))
    head, facts = drafter.tensors["lm_head.weight"].nbytes, drafter.facts
    assert lent.each - own.each == 2 * facts.draft_vocab * facts.target_hidden - head
    assert lent.once == own.once


def test_a_round_shares_its_fusion() -> None:
    assert [StepBytes(60, 100).per_step(depth) for depth in (1, 3, 6)] == [160, 120, 110]


@pytest.mark.parametrize(
    ("name", "gigabytes", "once"),
    [
        ("kimi-k2.5-eagle3", 3.80, 2 * 3 * HIDDEN * HIDDEN),
        ("eagle3-kimik2.5-w4a8", 2.71, 3 * HIDDEN * HIDDEN // 2 + 2 * HIDDEN),
    ],
    ids=["BF16", "INT4 with a packed fc"],
)
def test_kimi_size(name: str, gigabytes: float, once: int, tmp_path: Path) -> None:
    """Head 2.35 GB; fc 0.31 GB and the layer 1.35 GB, of which INT4 leaves a quarter and a scale per row."""
    found = step_bytes(full_size(name, tmp_path), lent_head=False)
    assert found.once == once
    assert round(found.per_step(3) / 1e9, 2) == gigabytes
    assert found.each > 2 * VOCAB * HIDDEN


@pytest.mark.parametrize(
    ("recipe", "gigabytes", "at_most"),
    [
        ("w4a16", 2.79, 1),
        ("fp8-all", 1.90, 0.51),
        ("int8-all", 1.90, 0.51),
        ("w4a16-g128-all", 1.57, 0.42),
    ],
)
def test_what_recipes_leave_of_a_step(recipe: str, gigabytes: float, at_most: float, tmp_path: Path) -> None:
    """Kimi-K2.5 in full size, Llama-style: the mean of a round with K = 3, as it would be written for vLLM."""
    drafter = full_size("kimi-k2.5-eagle3", tmp_path)
    options = QuantizeOptions(recipe=recipe, engines="vllm:h200", target="kimi-k2.5", aux_convention="after")
    made = prepare(tmp_path / "kimi-k2.5-eagle3", options, calibrated=False).conversion.work
    sizes = {name: tensor.nbytes for name, tensor in made.tensors.items()}
    left = planned_step_bytes(sizes, made.facts, lent_head=False).per_step(3)
    assert round(left / 1e9, 2) == gigabytes
    assert left / step_bytes(drafter, lent_head=False).per_step(3) <= at_most
