"""Schemes: what numbers weights and activations may be, and how their scales are found.

A weight becomes `code * scale`, where codes lie on a `Grid` and a scale is shared by the
whole tensor, by one output row (channel) or by a group of consecutive inputs of one row.
`GRIDS` is the table of grids and of the scale rules that each allows; `RULES` says where a
rule comes from. No torch here: the arithmetic is in `draftconv.quantization.grids`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from draftconv.errors import UsageError

GridName = Literal["int4", "int8", "fp8", "nvfp4", "mxfp4"]
Per = Literal["tensor", "channel", "group"]
RuleName = Literal["max/7.5", "max/7", "max/127", "max/448", "max/6", "max/3.5", "mse"]
ScaleDtype = Literal["weight", "F32", "F8_E4M3", "E8M0"]
InputGrid = Literal["int8", "fp8", "nvfp4"]
InputPer = Literal["token", "tensor"]


@dataclass(frozen=True, slots=True)
class Grid:
    """The codes that a weight may have, in units of its scale.

    Attributes:
        low, high: smallest and largest code.
        per: what may share a scale.
        rules: how a scale may be found, see `RULES`.
        scales: dtypes that a scale may be stored in; `weight` is the dtype of the weight itself.
        group: the only group size, where the format fixes it.
    """

    title: str
    bits: int
    low: float
    high: float
    per: tuple[Per, ...]
    rules: tuple[RuleName, ...]
    scales: tuple[ScaleDtype, ...]
    group: int | None = None


GRIDS: Mapping[GridName, Grid] = {
    "int4": Grid("INT4", 4, -8, 7, ("channel", "group"), ("max/7.5", "max/7", "mse"), ("weight", "F32")),
    "int8": Grid("INT8", 8, -128, 127, ("channel", "group"), ("max/127", "mse"), ("weight", "F32")),
    "fp8": Grid("FP8 E4M3", 8, -448, 448, ("tensor", "channel"), ("max/448",), ("F32", "weight")),
    "nvfp4": Grid("NVFP4", 4, -6, 6, ("group",), ("max/6", "mse"), ("F8_E4M3",), 16),
    "mxfp4": Grid("MXFP4", 4, -6, 6, ("group",), ("max/3.5", "mse"), ("E8M0",), 32),
}
"""NVFP4 and MXFP4 codes are E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. An NVFP4
scale is E4M3 in units of one F32 scale for the tensor; an MXFP4 scale is a power of two."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How a scale follows from the largest magnitude it has to cover, and how codes follow from it.

    Attributes:
        divisor: scale = largest magnitude / divisor, rounded to the scale's dtype; for
            `mse` the divisor is searched.
        reciprocal: codes are rounded from w * (1 / scale), not from w / scale: the two
            differ in the last bit, and so now and then in a code.
        floor: no scale is smaller than this; None means that a scale of zero becomes 1.
    """

    divisor: float | None
    reciprocal: bool
    floor: float | None
    says: str
    source: str


_EPS = 2.0**-23  # torch.finfo(torch.float32).eps

RULES: Mapping[RuleName, Rule] = {
    "max/7.5": Rule(7.5, True, _EPS, "the largest magnitude lies between codes 7 and 8",
                    "amd-quark 0.13 torch/quantization/observer/observer.py, run"),
    "max/7": Rule(7, False, None, "nothing is clipped, code -8 is never used",
                  "nvidia-modelopt 0.47 torch/export/quant_utils.py, run"),
    "max/127": Rule(127, False, None, "nothing is clipped, code -128 is never used",
                    "nvidia-modelopt 0.47 torch/export/quant_utils.py, run"),
    "max/448": Rule(448, False, None, "nothing is clipped",
                    "nvidia-modelopt 0.47 torch/export/quant_utils.py, run"),
    "max/6": Rule(6, False, None, "nothing is clipped but by rounding the scale itself to E4M3",
                  "nvidia-modelopt 0.47 torch/quantization/qtensor/nvfp4_tensor.py, run"),
    "max/3.5": Rule(3.5, False, None, "largest power of two not above max/3.5: magnitudes above 6 scales are clipped",
                    "amd-quark 0.13 torch/quantization/utils.py even_round, run"),
    "mse": Rule(None, True, _EPS, "the scale of least squared error among a few, those of the max rules among them",
                "draftconv"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """How weights are rounded.

    Attributes:
        group: inputs that share a scale, with `per` group.
        scale_dtype: what the scale is rounded to before codes are taken.

    Raises:
        UsageError: a combination that `GRIDS` does not have.
    """

    grid: GridName
    per: Per
    scale_rule: RuleName
    scale_dtype: ScaleDtype
    group: int | None = None

    def __post_init__(self) -> None:
        grid = GRIDS[self.grid]
        for key, value, known in (
            ("per", self.per, grid.per),
            ("scale_rule", self.scale_rule, grid.rules),
            ("scale_dtype", self.scale_dtype, grid.scales),
        ):
            if value not in known:
                raise UsageError(
                    f"{key}: {grid.title} weights know no {value}", cure=f"write {key}: {' or '.join(known)}"
                )
        if self.per == "group" and self.group is None:
            raise UsageError("per: group lacks the size of a group", cure=f"add group: {grid.group or 128}")
        if self.per != "group" and self.group is not None:
            raise UsageError(
                f"group: {self.group} beside per: {self.per}",
                why="only scales per group have a group size",
                cure="write per: group, or leave group out",
            )
        if self.group is not None and (self.group < 1 or grid.group not in (None, self.group)):
            raise UsageError(
                f"group: {self.group} is no group size of {grid.title}",
                cure=f"write group: {grid.group or 128}",
            )

    @property
    def whole(self) -> bool:
        """True when a scale belongs to the whole tensor, alone or over the scales of groups."""
        return self.per == "tensor" or self.grid == "nvfp4"

    @property
    def title(self) -> str:
        """What a weight becomes, however its scales are found."""
        per = f"group {self.group}" if self.per == "group" else self.per
        return f"{GRIDS[self.grid].title} per {per}"

    def __str__(self) -> str:
        return f"{self.title}, {self.scale_rule}"


_INPUTS: Mapping[tuple[InputGrid, InputPer, bool], str] = {
    ("int8", "token", True): "INT8 per token, dynamic",
    ("fp8", "token", True): "FP8 E4M3 per token, dynamic",
    ("fp8", "tensor", False): "FP8 E4M3 per tensor, static",
    ("nvfp4", "tensor", False): "NVFP4 per block of 16, under a static scale per tensor",
}
"""What engines have kernels for."""


@dataclass(frozen=True, slots=True)
class InputScheme:
    """How the inputs of a quantized weight are rounded while the drafter runs.

    Attributes:
        dynamic: the scale is taken from each token as it comes; otherwise it is fixed
            beforehand by calibration and stored.

    Raises:
        UsageError: no engine has it.
    """

    grid: InputGrid
    per: InputPer
    dynamic: bool

    def __post_init__(self) -> None:
        if (self.grid, self.per, self.dynamic) not in _INPUTS:
            told = "dynamic" if self.dynamic else "static"
            raise UsageError(
                f"activations: no engine has {self.grid} per {self.per}, {told}",
                cure=f"one of: {'; '.join(_INPUTS.values())}",
            )

    def __str__(self) -> str:
        return _INPUTS[self.grid, self.per, self.dynamic]


@dataclass(frozen=True, slots=True)
class Scheme:
    """The numbers of one recipe; `inputs` None leaves activations in 16 bits."""

    weights: WeightScheme
    inputs: InputScheme | None = None

    def __str__(self) -> str:
        return f"weights {self.weights}; activations {self.inputs or '16 bit'}"
