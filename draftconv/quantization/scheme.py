"""Schemes: what numbers weights and activations may be, and how their scales are found.

A weight becomes `value * scale`, where a `DtypeSpec` says which values there are and a scale is shared by the
whole tensor, by one output row (channel) or by a group of consecutive inputs of one row.
`DTYPES` is the table of dtypes and of the scale rules that each allows; `SCALE_RULES` says where a
rule comes from. No torch here: the arithmetic is in `draftconv.quantization.rounding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from draftconv.errors import UsageError

WeightDtype = Literal["int4", "int8", "fp8", "nvfp4", "mxfp4"]
Granularity = Literal["tensor", "channel", "group"]
ScaleRuleName = Literal["max/7.5", "max/7", "max/127", "max/448", "max/6", "max/3.5", "mse"]
ScaleDtype = Literal["weight", "F32", "F8_E4M3", "E8M0"]
InputDtype = Literal["int8", "fp8", "nvfp4"]
InputGranularity = Literal["token", "tensor"]
RoundingName = Literal["nearest", "gptq"]


@dataclass(frozen=True, slots=True)
class DtypeSpec:
    """The quantized values that a weight may have, in units of its scale.

    Attributes:
        low, high: smallest and largest of them.
        granularity: what may share a scale.
        rules: how a scale may be found, see `SCALE_RULES`.
        scales: dtypes that a scale may be stored in; `weight` is the dtype of the weight itself.
        group: the only group size, where the format fixes it.
    """

    title: str
    bits: int
    low: float
    high: float
    granularity: tuple[Granularity, ...]
    rules: tuple[ScaleRuleName, ...]
    scales: tuple[ScaleDtype, ...]
    group: int | None = None


DTYPES: Mapping[WeightDtype, DtypeSpec] = {
    "int4": DtypeSpec("INT4", 4, -8, 7, ("channel", "group"), ("max/7.5", "max/7", "mse"), ("weight", "F32")),
    "int8": DtypeSpec("INT8", 8, -128, 127, ("channel", "group"), ("max/127", "mse"), ("weight", "F32")),
    "fp8": DtypeSpec("FP8 E4M3", 8, -448, 448, ("tensor", "channel"), ("max/448",), ("F32", "weight")),
    "nvfp4": DtypeSpec("NVFP4", 4, -6, 6, ("group",), ("max/6", "mse"), ("F8_E4M3",), 16),
    "mxfp4": DtypeSpec("MXFP4", 4, -6, 6, ("group",), ("max/3.5", "mse"), ("E8M0",), 32),
}
"""NVFP4 and MXFP4 quantized values are E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. An NVFP4
scale is E4M3 in units of one F32 scale for the tensor; an MXFP4 scale is a power of two."""


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """How a scale follows from the largest magnitude it has to cover, and how quantized values follow from it.

    Attributes:
        divisor: scale = largest magnitude / divisor, rounded to the scale's dtype; for
            `mse` the divisor is searched.
        reciprocal: quantized values are rounded from w * (1 / scale), not from w / scale: the two
            differ in the last bit, and so now and then in a value.
        floor: no scale is smaller than this; None means that a scale of zero becomes 1.
    """

    divisor: float | None
    reciprocal: bool
    floor: float | None
    says: str
    source: str


_EPS = 2.0**-23  # torch.finfo(torch.float32).eps

GPTQ_DTYPES: tuple[WeightDtype, ...] = ("int4", "int8")
"""Whose weights GPTQ rounds here."""

SCALE_RULES: Mapping[ScaleRuleName, ScaleRule] = {
    "max/7.5": ScaleRule(7.5, True, _EPS, "the largest magnitude lies between values 7 and 8",
                    "amd-quark 0.13 torch/quantization/observer/observer.py, run"),
    "max/7": ScaleRule(7, False, None, "nothing is clipped, value -8 is never used",
                  "nvidia-modelopt 0.47 torch/export/quant_utils.py, run"),
    "max/127": ScaleRule(127, False, None, "nothing is clipped, value -128 is never used",
                    "nvidia-modelopt 0.47 torch/export/quant_utils.py, run"),
    "max/448": ScaleRule(448, False, None, "nothing is clipped",
                    "nvidia-modelopt 0.47 torch/export/quant_utils.py, run"),
    "max/6": ScaleRule(6, False, None, "nothing is clipped but by rounding the scale itself to E4M3",
                  "nvidia-modelopt 0.47 torch/quantization/qtensor/nvfp4_tensor.py, run"),
    "max/3.5": ScaleRule(3.5, False, None,
                         "largest power of two not above max/3.5: magnitudes above 6 scales are clipped",
                    "amd-quark 0.13 torch/quantization/utils.py even_round, run"),
    "mse": ScaleRule(None, True, _EPS,
                     "the scale of least squared error among a few, those of the max rules among them",
                "draftconv"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """How weights are rounded.

    Attributes:
        group: inputs that share a scale, with `granularity` group.
        scale_dtype: what the scale is rounded to before quantized values are taken.

    Raises:
        UsageError: a combination that `DTYPES` does not have.
    """

    dtype: WeightDtype
    granularity: Granularity
    scale_rule: ScaleRuleName
    scale_dtype: ScaleDtype
    group: int | None = None

    def __post_init__(self) -> None:
        dtype = DTYPES[self.dtype]
        for key, value, known in (
            ("granularity", self.granularity, dtype.granularity),
            ("scale_rule", self.scale_rule, dtype.rules),
            ("scale_dtype", self.scale_dtype, dtype.scales),
        ):
            if value not in known:
                raise UsageError(
                    f"{key}: {dtype.title} weights know no {value}", cure=f"write {key}: {' or '.join(known)}"
                )
        if self.granularity == "group" and self.group is None:
            raise UsageError("granularity: group lacks the size of a group", cure=f"add group: {dtype.group or 128}")
        if self.granularity != "group" and self.group is not None:
            raise UsageError(
                f"group: {self.group} beside granularity: {self.granularity}",
                why="only scales per group have a group size",
                cure="write granularity: group, or leave group out",
            )
        if self.group is not None and (self.group < 1 or dtype.group not in (None, self.group)):
            raise UsageError(
                f"group: {self.group} is no group size of {dtype.title}",
                cure=f"write group: {dtype.group or 128}",
            )

    @property
    def whole(self) -> bool:
        """True when a scale belongs to the whole tensor, alone or over the scales of groups."""
        return self.granularity == "tensor" or self.dtype == "nvfp4"

    @property
    def title(self) -> str:
        """What a weight becomes, however its scales are found."""
        granularity = f"group {self.group}" if self.granularity == "group" else self.granularity
        return f"{DTYPES[self.dtype].title} per {granularity}"

    def __str__(self) -> str:
        return f"{self.title}, {self.scale_rule}"


_INPUTS: Mapping[tuple[InputDtype, InputGranularity, bool], str] = {
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

    dtype: InputDtype
    granularity: InputGranularity
    dynamic: bool

    def __post_init__(self) -> None:
        if (self.dtype, self.granularity, self.dynamic) not in _INPUTS:
            kind = "dynamic" if self.dynamic else "static"
            raise UsageError(
                f"activations: no engine has {self.dtype} per {self.granularity}, {kind}",
                cure=f"one of: {'; '.join(_INPUTS.values())}",
            )

    def __str__(self) -> str:
        return _INPUTS[self.dtype, self.granularity, self.dynamic]


@dataclass(frozen=True, slots=True)
class Scheme:
    """The numbers of one recipe; `inputs` None leaves activations in 16 bits.

    Attributes:
        rounding: how values are chosen once scales are found: the nearest one of each weight, or by GPTQ, which wants
            a trace.
        sequential: with GPTQ, weights see inputs of a drafter whose earlier weights are quantized already.

    Raises:
        UsageError: GPTQ of a dtype that it is not made for here, or `sequential` without it.
    """

    weights: WeightScheme
    inputs: InputScheme | None = None
    rounding: RoundingName = "nearest"
    sequential: bool = False

    def __post_init__(self) -> None:
        if self.rounding == "gptq" and self.weights.dtype not in GPTQ_DTYPES:
            known = " and ".join(DTYPES[dtype].title for dtype in GPTQ_DTYPES)
            raise UsageError(
                f"rounding: gptq rounds {known} weights, not {DTYPES[self.weights.dtype].title}",
                why="floats have other steps everywhere: what GPTQ does to them was not measured",
                cure="leave rounding out",
            )
        if self.sequential and self.rounding != "gptq":
            raise UsageError(
                "sequential: true beside rounding: nearest",
                why="only GPTQ looks at the inputs of a weight",
                cure="write rounding: gptq, or leave sequential out",
            )

    @property
    def has_static_inputs(self) -> bool:
        """Whether its activations have scales that are measured beforehand."""
        return self.inputs is not None and not self.inputs.dynamic

    def __str__(self) -> str:
        rounding = {"nearest": "", "gptq": " by GPTQ"}[self.rounding] + (" in sequence" if self.sequential else "")
        return f"weights {self.weights}{rounding}; activations {self.inputs or '16 bit'}"


def told_inputs(inputs: Mapping[str, InputScheme | None]) -> str:
    """What the inputs of some modules are rounded to, in words: one text where it is the same for all, else of each."""
    modules: dict[str, list[str]] = {}
    for module, scheme in sorted(inputs.items()):
        modules.setdefault(str(scheme or "16 bit"), []).append(module)
    if len(modules) == 1:
        return next(iter(modules))
    return "; ".join(f"{text}: {', '.join(names)}" for text, names in modules.items())


RECORDED: Mapping[str, str] = {"dtype": "grid", "granularity": "per"}
"""What `draftconv.json` calls a field; the others have their own names there."""


def recorded(part: WeightScheme | InputScheme) -> dict[str, object]:
    """The fields of one half of a scheme, as `draftconv.json` names them."""
    return {RECORDED.get(name, name): value for name, value in asdict(part).items()}
