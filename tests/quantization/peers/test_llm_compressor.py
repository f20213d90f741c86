"""llm-compressor's GPTQ beside draftconv's, on the same second moments and scales: `scripts/test-oracles`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from draftconv.quantization.rounding import RoundedWeight, dequantize
from draftconv.quantization.scheme import WeightScheme
from tests.quantization.backends.real import needs
from tests.quantization.second_moment import CHANNEL, GROUP, INT8, SCHEMES, Case, case, gptq

pytestmark = needs("llmcompressor")

SEEDS = range(7)


@pytest.fixture(autouse=True)
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both in float64: in float32 a weight half way between two values falls to either side."""
    from llmcompressor.modifiers.gptq import gptq_quantize, helpers

    for module in (gptq_quantize, helpers):
        monkeypatch.setattr(module, "GPTQ_PRECISION", torch.float64)


def theirs(
    found: Case, ours: RoundedWeight, scheme: WeightScheme, *, damping: float = 0.01, order: str | None = "weight"
) -> Tensor:
    """The values that llm-compressor gives, in units of the scale: [O, I]."""
    from compressed_tensors.quantization import QuantizationArgs
    from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight

    told = QuantizationArgs(
        num_bits=4 if scheme.dtype == "int4" else 8,
        type="int",
        symmetric=True,
        strategy=scheme.granularity,
        group_size=scheme.group,
        actorder=order,
    )
    scale_OG = ours.scale.double()
    weight_OI, _, failed = quantize_weight(
        found.weight_OI.double()[None],
        found.moment_II[None].clone(),
        scale_OG[None],
        torch.zeros_like(scale_OG)[None],
        None,
        told,
        percdamp=damping,
    )
    assert not failed.any()
    columns = found.weight_OI.shape[1] // scale_OG.shape[1]
    units_OI: Tensor = weight_OI[0] / scale_OG.repeat_interleave(columns, 1)
    return units_OI.round()


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_value_is_llm_compressor_s(scheme: WeightScheme, seed: int) -> None:
    found = case(seed)
    ours = gptq(found, scheme)
    assert torch.equal(ours.qvalues.double(), theirs(found, ours, scheme))


@pytest.mark.parametrize("damping", [0.1, 0.3, 1.0])
def test_every_damping_is_theirs(damping: float) -> None:
    found = case(11, inputs=320)
    ours = gptq(found, GROUP, damping)
    assert torch.equal(ours.qvalues.double(), theirs(found, ours, GROUP, damping=damping))


@pytest.mark.parametrize(
    ("damping", "order"), [(0.011, "weight"), (0.01, None)], ids=["another damping", "inputs as they come"]
)
def test_another_rounding_would_be_noticed(damping: float, order: str | None) -> None:
    found = case(3)
    ours = gptq(found, CHANNEL)
    assert not torch.equal(ours.qvalues.double(), theirs(found, ours, CHANNEL, damping=damping, order=order))


def test_one_value_would_be_noticed() -> None:
    found = case(5)
    ours = gptq(found, INT8)
    ours.qvalues[7, 11] += 1
    assert not torch.equal(ours.qvalues.double(), theirs(found, ours, INT8))
    assert dequantize(ours).isfinite().all()
