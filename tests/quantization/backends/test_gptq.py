"""nvidia-modelopt's GPTQ beside draftconv's, on the same second moments: `scripts/test-oracles`.

It rounds inputs as they come and knows no mse, so it is given inputs in the order of their second moments, and the
scales of a max rule.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scheme import WeightScheme
from tests.quantization.backends.real import needs
from tests.quantization.second_moment import Case, case, gptq

pytestmark = needs("modelopt")

CHANNEL = WeightScheme("int4", "channel", "max/7", "F32")
GROUP = WeightScheme("int4", "group", "max/7", "F32", 32)
INT8 = WeightScheme("int8", "channel", "max/127", "F32")


def theirs(found: Case, ours: RoundedWeight, scheme: WeightScheme, damping: float = 0.01) -> Tensor:
    """The values that ModelOpt's update and its own quantizer give, in units of the scale: [O, I]."""
    from draftconv.quantization.backends import modelopt

    modelopt.start()
    from modelopt.torch.quantization.utils.calib_utils import compute_hessian_inverse, gptq_blockwise_update

    layer = modelopt._calibrated_layer(found.weight_OI, scheme, None, "max", None)
    weight_OI = found.weight_OI.double()
    factor_II = compute_hessian_inverse(found.moment_II, weight_OI, damping)
    gptq_blockwise_update(weight_OI, factor_II, 128, lambda whole_OI: layer.weight_quantizer(whole_OI.float()).double())
    columns = weight_OI.shape[1] // ours.scale.shape[1]
    return (weight_OI / ours.scale.double().repeat_interleave(columns, 1)).round()


@pytest.mark.parametrize("scheme", [CHANNEL, GROUP, INT8], ids=str)
def test_every_value_is_modelopt_s(scheme: WeightScheme) -> None:
    found = case(2, descending=True)
    ours = gptq(found, scheme)
    assert torch.equal(ours.qvalues.double(), theirs(found, ours, scheme))


def test_another_rounding_would_be_noticed() -> None:
    found = case(2, descending=True)
    ours = gptq(found, CHANNEL)
    assert not torch.equal(ours.qvalues.double(), theirs(found, ours, CHANNEL, damping=0.02))
    mixed = case(2)
    assert not torch.equal(gptq(mixed, CHANNEL).qvalues.double(), theirs(mixed, gptq(mixed, CHANNEL), CHANNEL))
