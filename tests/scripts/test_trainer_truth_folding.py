"""What folding a drafter's norm would cost, by a stand-in for ModelOpt's class of two norms: the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from truth.trainers import folding
from truth.trainers.judging import _of_modelopt
from truth.trainers.shared import READER, Directory, Makers, target_of
from truth.trainers.steps import Inputs, Steps, reference_steps
from truth.trainers.trainer import Origin

from draftconv.checkpoint import open_checkpoint
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.reference.load import load_drafter


class StandIn:
    """A trainer's module in small: a first layer of as many norms as it is told."""

    ORIGIN = Origin("Toy", package="toy")

    def __init__(self, base: str, norms: int) -> None:
        self.target, self.norms = target_of(base), norms

    def load(self, path: Path, embedding: Tensor) -> nn.Module:
        drafter = read_drafter(open_checkpoint(path), ReadOptions(target=self.target))
        model: Any = load_drafter(drafter, self.target)
        assert torch.equal(model.embed_tokens.weight, embedding)
        model.layers[0].double_norm = self.norms == 2
        found: nn.Module = model
        return found

    def run(self, model: nn.Module, inputs: Inputs) -> Steps:
        drafter: Any = model
        return reference_steps(drafter, inputs)


@pytest.fixture(scope="module")
def makers(tmp_path_factory: pytest.TempPathFactory) -> Makers:
    return Makers(tmp_path_factory.mktemp("folding"), READER)


@pytest.mark.parametrize("base", folding.SOURCES)
def test_a_folded_norm_is_equal_up_to_eps_and_rounding(base: str, makers: Makers) -> None:
    rows = tuple(folding.rows(StandIn(base, 2), base, _of_modelopt(base, makers), makers.work / "two"))
    assert [row.predicted.partition(":")[0] for row in rows] == ["equal", "differs", "differs"]
    assert all(row.agrees for row in rows), rows
    assert len({row.case for row in rows}) == len(folding.CASES)


def test_what_is_not_folded_is_noticed(makers: Makers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that reads the embedding and was left out, and a class of one norm that has no eps to count twice."""
    base = "llama-eagle3"
    path = _of_modelopt(base, makers)
    (_, small, _) = folding.rows(StandIn(base, 1), base, path, makers.work / "one")
    assert (small.observed, small.agrees) == ("equal", False)
    monkeypatch.setattr(folding, "READERS", ("q_proj", "k_proj"))
    (whole, _, _) = folding.rows(StandIn(base, 2), base, path, makers.work / "without-v")
    assert (whole.observed, whole.agrees) == ("differs", False)


def test_only_the_embedding_s_half_takes_the_norm(makers: Makers) -> None:
    before = Directory.open(_of_modelopt("llama-eagle3", makers))
    after = folding.folded(before, torch.float32)
    name, hidden = "layers.0.self_attn.q_proj.weight", len(before.tensors[folding.NORM])
    was, now = before.tensors[name].float(), after.tensors[name]
    assert torch.equal(now[:, hidden:], was[:, hidden:])
    assert torch.equal(now[:, :hidden], was[:, :hidden] * before.tensors[folding.NORM].float())
    assert torch.equal(after.tensors[folding.NORM], torch.ones(hidden))
    kept = replace(after, tensors={key: t for key, t in after.tensors.items() if "self_attn" not in key})
    same = {key: t.float() for key, t in before.tensors.items() if "self_attn" not in key and key != folding.NORM}
    assert all(torch.equal(kept.tensors[key], t) for key, t in same.items())
