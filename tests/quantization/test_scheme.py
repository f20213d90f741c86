"""Schemes: what may be combined, and what each combination says of itself."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from draftconv.errors import UsageError
from draftconv.quantization.quantized_values import STORED
from draftconv.quantization.scales import DIVISORS, REFINEMENTS
from draftconv.quantization.scheme import (
    DTYPES,
    SCALE_RULES,
    InputScheme,
    ScaleRuleName,
    Scheme,
    WeightDtype,
    WeightScheme,
)


def test_the_tables_are_complete() -> None:
    assert set(DTYPES) == set(STORED) == set(get_args(WeightDtype))
    assert (
        set(SCALE_RULES) == set(get_args(ScaleRuleName)) == {rule for dtype in DTYPES.values() for rule in dtype.rules}
    )
    searched = {name for name, dtype in DTYPES.items() if "mse" in dtype.rules}
    assert searched == set(DIVISORS) == set(REFINEMENTS)
    for name in searched:
        assert {SCALE_RULES[rule].divisor for rule in DTYPES[name].rules} - {None} <= set(DIVISORS[name])
    for rule, row in SCALE_RULES.items():
        assert rule == "mse" if row.divisor is None else rule == f"max/{row.divisor:g}"


@pytest.mark.parametrize(
    ("parts", "what", "cure"),
    [
        (("int4", "tensor", "mse", "weight"), "granularity: INT4 weights know no tensor", "channel or group"),
        (
            ("int4", "channel", "max/127", "weight"),
            "scale_rule: INT4 weights know no max/127",
            "max/7.5 or max/7 or mse",
        ),
        (("int8", "channel", "max/7", "weight"), "scale_rule: INT8 weights know no max/7", "max/127"),
        (("int4", "channel", "mse", "E8M0"), "scale_dtype: INT4 weights know no E8M0", "weight or F32"),
        (("fp8", "channel", "mse", "F32"), "scale_rule: FP8 E4M3 weights know no mse", "max/448"),
        (("nvfp4", "channel", "max/6", "F8_E4M3"), "granularity: NVFP4 weights know no channel", "group"),
        (("int4", "channel", "mse", "weight", 128), "group: 128 beside granularity: channel", "granularity: group"),
        (("int4", "group", "mse", "weight"), "granularity: group lacks the size", "add group: 128"),
        (("int4", "group", "mse", "weight", 0), "group: 0 is no group size", "group: 128"),
        (("nvfp4", "group", "max/6", "F8_E4M3", 32), "group: 32 is no group size of NVFP4", "group: 16"),
        (("mxfp4", "group", "mse", "E8M0", 16), "group: 16 is no group size of MXFP4", "group: 32"),
    ],
)
def test_what_no_grid_has_is_refused(parts: Any, what: str, cure: str) -> None:
    with pytest.raises(UsageError) as caught:
        WeightScheme(*parts)
    assert what in caught.value.what
    assert cure in caught.value.cure


@pytest.mark.parametrize(
    "parts", [("int8", "token", False), ("int8", "tensor", False), ("fp8", "tensor", True), ("nvfp4", "token", True)]
)
def test_activations_that_no_engine_has_are_refused(parts: Any) -> None:
    with pytest.raises(UsageError, match="no engine has") as caught:
        InputScheme(*parts)
    assert "FP8 E4M3 per token, dynamic" in caught.value.cure


def test_a_scheme_reads_as_a_sentence() -> None:
    weights = WeightScheme("int4", "group", "mse", "weight", 128)
    assert str(Scheme(weights)) == "weights INT4 per group 128, mse; activations 16 bit"
    eight = Scheme(WeightScheme("fp8", "channel", "max/448", "F32"), InputScheme("fp8", "token", True))
    assert str(eight) == "weights FP8 E4M3 per channel, max/448; activations FP8 E4M3 per token, dynamic"


def test_which_scales_belong_to_a_whole_tensor() -> None:
    assert WeightScheme("fp8", "tensor", "max/448", "F32").whole
    assert WeightScheme("nvfp4", "group", "mse", "F8_E4M3", 16).whole
    assert not WeightScheme("mxfp4", "group", "mse", "E8M0", 32).whole
    assert not WeightScheme("int4", "channel", "mse", "weight").whole
