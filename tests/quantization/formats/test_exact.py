"""What must hold of every format: it gives back what it was given, and foretells what it writes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftconv.errors import DraftconvError, Refused, UsageError
from draftconv.quantization.formats import formats
from draftconv.quantization.formats.base import Declared
from draftconv.quantization.recipes import FORMATS, format_names
from draftconv.quantization.rounding import dequantize
from draftconv.quantization.scheme import DTYPES, Granularity, InputScheme, WeightDtype
from tests.quantization.formats import samples
from tests.quantization.formats.samples import FP8_TENSOR, FP8_TOKEN, INT8_TOKEN


@dataclass(frozen=True)
class Case:
    """One of the numbers that a format holds.

    Attributes:
        dtypes: of weights, whose scales have the same. wide: F32 scales are held beside any of them.
    """

    format: str
    dtype: WeightDtype
    granularity: Granularity
    dtypes: tuple[str, ...] = ("BF16", "F16", "F32")
    inputs: tuple[InputScheme | None, ...] = (None, INT8_TOKEN, FP8_TOKEN)
    wide: bool = False

    def __str__(self) -> str:
        return f"{self.format} {self.dtype} per {self.granularity}"


HALVES = ("BF16", "F16")
FP8_INPUTS = (None, FP8_TOKEN, FP8_TENSOR)
CASES = [
    Case("compressed-pack", "int4", "channel"),
    Case("compressed-pack", "int4", "group"),
    Case("compressed-pack", "int8", "channel"),
    Case("compressed-pack", "int8", "group"),
    Case("compressed-int", "int4", "channel"),
    Case("compressed-int", "int4", "group"),
    Case("compressed-int", "int8", "channel", wide=True),
    Case("compressed-int", "int8", "group", wide=True),
    Case("compressed-float", "fp8", "channel", inputs=FP8_INPUTS, wide=True),
    Case("compressed-float", "fp8", "tensor", inputs=FP8_INPUTS, wide=True),
    Case("gptq", "int4", "channel", HALVES, (None,)),
    Case("gptq", "int4", "group", HALVES, (None,)),
    Case("autoawq", "int4", "group", HALVES, (None,)),
]
every = pytest.mark.parametrize("case", CASES, ids=str)


def test_the_cases_are_all_that_these_formats_hold() -> None:
    for name in {case.format for case in CASES}:
        mine = [case for case in CASES if case.format == name]
        assert {(case.dtype, case.granularity) for case in mine} == formats()[name].holds
        assert {inputs for case in mine for inputs in case.inputs} == formats()[name].inputs


def test_formats_are_known_by_name_without_torch() -> None:
    """What recipes may name, and what kernels are listed for, is what the modules of this package hold."""
    assert {name: format.styles for name, format in formats().items() if name in FORMATS} == dict(FORMATS)
    assert formats().keys() == set(format_names())


@every
@settings(max_examples=25)
@given(data=st.data())
def test_there_and_back(case: Case, data: st.DataObject) -> None:
    format = formats()[case.format]
    group = data.draw(st.sampled_from([8, 16, 32])) if case.granularity == "group" else None
    rows, inputs = 8 * data.draw(st.integers(1, 4)), (group or 8) * data.draw(st.integers(1, 4))
    dtype = data.draw(st.sampled_from(case.dtypes))
    wide = case.wide and data.draw(st.booleans())
    activations = data.draw(st.sampled_from(case.inputs))
    style = data.draw(st.sampled_from([None, *format.styles]))
    weight = samples.weight(
        case.dtype, group, rows=rows, inputs=inputs, dtype=dtype, scale="F32" if wide else None,
        granularity=case.granularity,
        static=activations == FP8_TENSOR, seed=data.draw(st.integers(0, 2**32)),
    )  # fmt: skip
    tensors = format.store(weight, style)
    plan = samples.scheme(
        case.dtype, group, granularity=case.granularity, inputs=activations, scale_dtype="F32" if wide else "weight"
    )
    assert samples.found(tensors) == samples.foretold(format, (rows, inputs), plan, dtype)
    assert all(tensor.is_contiguous() for tensor in tensors.values())

    told = Declared(case.dtype, case.granularity, group, activations, style=style)
    untold = Declared(case.dtype, None, inputs=activations)
    for known in (told, untold):
        again = format.load(tensors, known, dtype)
        assert samples.same(again, weight)
        assert samples.equal(format.store(again, style), tensors)


@every
def test_one_wrong_code_is_seen(case: Case) -> None:
    """A check of the check: one nibble or byte changed is another weight."""
    format = formats()[case.format]
    group = 16 if case.granularity == "group" else None
    weight = samples.weight(case.dtype, group, granularity=case.granularity)
    tensors = format.store(weight)
    qvalues = next(iter(tensors))
    raw = tensors[qvalues].clone()
    raw.view(-1).view(torch.uint8)[37] ^= 1
    again = format.load(
        tensors | {qvalues: raw}, samples.declared(case.dtype, group, granularity=case.granularity), "BF16"
    )
    assert not samples.same(again, weight)
    assert int((dequantize(again.quantized) != dequantize(weight.quantized)).sum()) == 1


@every
@pytest.mark.parametrize("ignore", [(), ("lm_head", "re:.*fc$")])
def test_what_is_declared_is_read(case: Case, ignore: tuple[str, ...]) -> None:
    format = formats()[case.format]
    group = 128 if case.granularity == "group" else None
    for inputs in case.inputs:
        for style in format.styles or (None,):
            rules = tuple(f"-:{entry}" for entry in ignore) if case.format == "gptq" else ignore
            told = Declared(case.dtype, case.granularity, group, inputs, rules, style)
            declaration = format.declare(told, ["self_attn.qkv_proj", "mlp.down_proj"])
            assert declaration.sidecars == {}
            assert format.read(declaration.config, {}) == told
            others = [other for name, other in formats().items() if name != case.format]
            assert all(other.read(declaration.config, {}) is None for other in others)


@every
def test_what_a_format_has_no_room_for_is_refused(case: Case) -> None:
    format = formats()[case.format]
    other: WeightDtype = "fp8" if case.dtype != "fp8" else "int4"
    with pytest.raises(Refused, match=f"holds no {DTYPES[other].title} weights"):
        format.parts((16, 64), samples.scheme(other), "BF16")
    with pytest.raises(Refused, match=f"holds no {DTYPES[other].title} weights"):
        format.store(samples.weight(other))
    with pytest.raises(Refused, match=f"holds no {DTYPES[other].title} weights"):
        format.declare(samples.declared(other), ["fc"])
    group = 16 if case.granularity == "group" else None
    with pytest.raises(Refused, match="cannot declare activations as NVFP4"):
        format.declare(samples.declared(case.dtype, group, granularity=case.granularity, inputs=NVFP4), ["fc"])
    with pytest.raises(UsageError, match="has no style reverse"):
        format.store(samples.weight(case.dtype, group, granularity=case.granularity), "reverse")
    with pytest.raises(UsageError, match="scales per what of any number of inputs"):
        format.declare(Declared(case.dtype, None), ["fc"])


NVFP4 = InputScheme("nvfp4", "tensor", False)


@every
def test_nothing_is_dropped_on_the_way(case: Case) -> None:
    format = formats()[case.format]
    weight = samples.weight(case.dtype, 16 if case.granularity == "group" else None, granularity=case.granularity)
    ones = torch.ones(64, dtype=torch.bfloat16)
    smoothed = samples.with_(weight, pre_quant_scale=ones)
    assert samples.equal(format.store(smoothed), format.store(weight))
    ones[5] = 2
    with pytest.raises(Refused, match="cannot store pre_quant_scale"):
        format.store(samples.with_(weight, pre_quant_scale=ones))
    static = samples.with_(weight, input_scale=torch.tensor(0.5))
    if FP8_TENSOR in format.inputs:
        assert format.store(static)["input_scale"].tolist() == [0.5]
    else:
        with pytest.raises(Refused, match="cannot store input_scale"):
            format.store(static)


HOSTILE = [None, True, -1, 0, 1 << 70, 1.5, float("nan"), "x", "", [], [None], {}, {"a": 1}, [["q"]], "\x1b[31m"]


@every
@settings(max_examples=60)
@given(data=st.data())
def test_a_hostile_config_gets_an_answer(case: Case, data: st.DataObject) -> None:
    """Any value anywhere: what comes back is None, a declaration, or an error of draftconv's."""
    format = formats()[case.format]
    style = data.draw(st.sampled_from(format.styles or (None,)))
    told = Declared(
        case.dtype, case.granularity, 128 if case.granularity == "group" else None, case.inputs[-1], ("fc",), style
    )
    config = samples.spoilt(format.declare(told, ["o_proj"]).config, data.draw, st.sampled_from(HOSTILE))
    try:
        found = format.read(config, {})
    except DraftconvError as error:
        assert len(error.what) < 600
    else:
        assert found is None or isinstance(found, Declared)
