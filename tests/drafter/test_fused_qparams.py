"""Values beside joined weights: what is one for all of them is no problem, whatever else lies there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftconv.drafter.fused_qparams import CODES
from tests import tiny
from tests.opening import findings
from tests.tiny import spell

GATE, UP = "layers.0.mlp.gate_proj", "layers.0.mlp.up_proj"
Q, K, VALUE = (f"layers.0.self_attn.{part}_proj" for part in "qkv")


def told(tmp_path: Path, beside: dict[str, Any], dtype: str = "F32") -> dict[str, str]:
    """The problems of joined values of a drafter with these tensors, by code."""
    spelled = spell("llama", "torchspec-native")
    for name, value in beside.items():
        kind = "<f4" if dtype == "F32" else "<f2"
        data = np.array(value, kind)
        spelled.put(name, tiny.Tensor(dtype, data.shape, data.tobytes()))
    problems = findings(spelled.write(tmp_path / "drafter")).problems
    return {problem.code: problem.detail for problem in problems if problem.code in CODES}


@pytest.mark.parametrize(
    "beside",
    [
        {f"{GATE}.weight_scale_2": 0.5, f"{UP}.weight_scale_2": 0.5},
        {f"{GATE}.weight_scale_2": 0.5, f"{UP}.weight_scale_2": [0.5]},
        {f"{GATE}.weight_scale_2": 0.5, f"{Q}.weight_scale_2": 0.25},
        {f"{GATE}.weight_scale": [[0.5], [0.25]], f"{UP}.weight_scale": [[0.5], [0.125]]},
        {f"{GATE}.pre_quant_scale": [1, 1], f"{UP}.pre_quant_scale": [1, 1]},
        {f"{GATE}.pre_quant_scale": [1, 1]},
        {f"{GATE}.pre_quant_scale": [1, 2], f"{UP}.pre_quant_scale": [1, 2],
         f"{GATE}.input_scale": 0.5, f"{UP}.input_scale": 0.5},
        {"layers.0.self_attn.o_proj.pre_quant_scale": [1, 2], "layers.0.mlp.down_proj.pre_quant_scale": [2, 1]},
    ],
    ids=["equal", "equal in another shape", "of weights that are not joined", "per channel", "ones",
         "ones of one weight", "one smoothing beside FP8 activations", "smoothing of weights that are not joined"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_healthy(beside: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    assert told(tmp_path, beside, dtype) == {}


def test_every_value_is_told(tmp_path: Path) -> None:
    beside = {f"{Q}.weight_scale_2": 0.5, f"{K}.weight_scale_2": 0.25, f"{VALUE}.weight_scale_2": 0.5}
    assert told(tmp_path, beside) == {"joined-weight-scales": f"weight_scale_2: {Q} 0.5, {K} 0.25, {VALUE} 0.5"}


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        ({f"{GATE}.pre_quant_scale": [1, 2], f"{UP}.pre_quant_scale": [1, 2]},
         f"pre_quant_scale of {GATE}, {UP} beside 16-bit activations"),
        ({f"{GATE}.pre_quant_scale": [1, 2], f"{UP}.pre_quant_scale": [2, 1], f"{GATE}.input_scale": 0.5},
         f"pre_quant_scale is another one in each of {GATE}, {UP}"),
        ({f"{GATE}.pre_quant_scale": [1, 2], f"{UP}.pre_quant_scale": [1, 3], f"{GATE}.input_scale": 0.5},
         f"pre_quant_scale is another one in each of {GATE}, {UP}"),
    ],
)  # fmt: skip
def test_smoothing_is_lost_in_two_ways(beside: dict[str, Any], says: str, tmp_path: Path) -> None:
    assert told(tmp_path, beside) == {"joined-smoothing": says}


def test_no_number_is_no_equal_one(tmp_path: Path) -> None:
    assert set(told(tmp_path, dict.fromkeys((f"{GATE}.input_scale", f"{UP}.input_scale"), float("nan")))) == {
        "joined-input-scales"
    }
