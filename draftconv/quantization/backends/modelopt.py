"""nvidia-modelopt rounds the weights, and calibrates what has smoothing or static activations.

`modelopt.torch.quantization.quantize` calibrates; scales and quantized values come from the functions that
the exporter calls. Source: nvidia-modelopt 0.47 `torch/export/quant_utils.py`, run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftconv.errors import Refused, UsageError
from draftconv.quantization import pack_bytes
from draftconv.quantization.backends import Backend
from draftconv.quantization.backends.package import Kind, Package, linear, prepared, running
from draftconv.quantization.formats.base import Weight
from draftconv.quantization.formats.module_tensors import SPELLED
from draftconv.quantization.rounding import RoundedWeight, peak
from draftconv.quantization.scales import FP8_MAX
from draftconv.quantization.scheme import DTYPES, InputScheme, Scheme, WeightScheme

MODELOPT = Package("nvidia-modelopt", "modelopt", "modelopt", "w4a16-awq and w4a8-awq with --calibrate")

Settings = Mapping[str, object]

FP8: Settings = {"num_bits": (4, 3), "axis": None}

WEIGHTS: Mapping[Kind, Settings] = {
    ("int4", "channel", "max/7", "F32"): {"num_bits": 4},
    ("int4", "group", "max/7", "F32"): {"num_bits": 4},
    ("int8", "channel", "max/127", "F32"): {"num_bits": 8, "axis": 0},
    ("fp8", "tensor", "max/448", "F32"): FP8,
    ("fp8", "channel", "max/448", "F32"): {"num_bits": (4, 3), "axis": 0},
    ("nvfp4", "group", "max/6", "F8_E4M3"): {"num_bits": (2, 1)},
}
"""Settings of `weight_quantizer`; INT4 gets its blocks besides. The exporter has no INT4 per
channel: here that is INT4 in blocks as long as a row."""

FP8_STATIC = InputScheme("fp8", "tensor", dynamic=False)

ALGORITHMS: Mapping[tuple[str, InputScheme | None], str] = {
    ("int4", None): "awq_lite",
    ("int4", FP8_STATIC): "awq_lite",
    ("fp8", FP8_STATIC): "max",
}
"""How weights of a dtype are calibrated beside activations: as in INT4_AWQ_CFG, W4A8_AWQ_BETA_CFG, FP8_DEFAULT_CFG."""


def backend(scheme: WeightScheme) -> Backend:
    """ModelOpt for weights of a scheme.

    Raises:
        Refused: it has no such scheme.
        UsageError: it is not installed, or does not start.
    """
    MODELOPT.known(scheme, WEIGHTS)
    start()
    return quantize


def quantize(
    weight_OI: Tensor, scheme: WeightScheme, *, whole: Tensor | None = None, name: str = "the weight"
) -> RoundedWeight:
    """As `draftconv.quantization.rounding.quantize`, and with its bits."""
    MODELOPT.known(scheme, WEIGHTS)
    start()
    wide_OI = prepared(weight_OI, scheme, name)
    if scheme.dtype == "nvfp4":
        return _nvfp4(wide_OI, peak(wide_OI) if whole is None else whole)
    with running():
        layer = _calibrated_layer(wide_OI, scheme, None, "max", None)
        if scheme.whole and whole is not None:
            layer.weight_quantizer.amax = whole
        return _exported_weight(layer, scheme)


def smoothing(weights: Mapping[str, Tensor], scheme: Scheme, inputs: Sequence[Tensor]) -> Tensor:
    """What AWQ multiplies the inputs of these weights by, before it is rounded to what a file holds: float32 [I].

    Arguments and errors as of `calibrate`.
    """
    layer = _joined_layer(weights, scheme, inputs)
    with running():
        factor: Tensor | None = _export_utils().get_prequant_scaling_factor(layer)
    if factor is None:
        raise Refused(
            f"nvidia-modelopt finds no smoothing for {scheme}",
            why="AWQ is for INT4 weights",
            cure="leave --calibrate out",
        )
    return factor.float()


def calibrate(weights: Mapping[str, Tensor], scheme: Scheme, inputs: Sequence[Tensor]) -> dict[str, Weight]:
    """Weights as ModelOpt itself exports them: smoothed on real inputs (INT4), with static scales of activations.

    All of them read the same inputs, as q, k and v do: they are calibrated as one layer, so that
    they share `pre_quant_scale`, `input_scale` and `fp8_scale`, as engines that join them need.
    ModelOpt smooths in the weights' dtype by factors that a file of that dtype rounds: the
    oracle of outputs in float32, where nothing is rounded in between.

    Args:
        weights: name -> [O, I], of one dtype.
        inputs: [..., I] each, in that dtype.

    Returns:
        Name -> weight; its quantized values are those of the smoothed weight, w / pre_quant_scale.

    Raises:
        Refused: the scheme is none of `ALGORITHMS`, or ModelOpt does not have it.
        UsageError: no inputs, or ModelOpt is not installed.
        BadCheckpoint: a weight holds NaN or infinities.
    """
    layer = _joined_layer(weights, scheme, inputs)
    with running():
        quantized = _exported_weight(layer, scheme.weights)
        utils = _export_utils()
        smoothing_I: Tensor | None = utils.get_prequant_scaling_factor(layer)
        input_scale: Tensor | None = utils.get_activation_scaling_factor(layer)
        fp8_scale: Tensor | None = utils.get_weight_scaling_factor_2(layer)
    dtype = SPELLED[layer.weight.dtype]
    calibrated, first = dict[str, Weight](), 0
    for name, weight in weights.items():
        rows = slice(first, first := first + len(weight))
        scale = quantized.scale if scheme.weights.granularity == "tensor" else quantized.scale[rows]
        calibrated[name] = Weight(
            RoundedWeight(quantized.dtype, quantized.qvalues[rows], scale, quantized.unit),
            dtype,
            None if input_scale is None else input_scale.reshape(()),
            smoothing_I,
            None if fp8_scale is None else fp8_scale.reshape(()),
        )
    return calibrated


def _joined_layer(weights: Mapping[str, Tensor], scheme: Scheme, inputs: Sequence[Tensor]) -> Any:
    """One layer of all these weights, calibrated on the inputs that they share; see `calibrate`."""
    MODELOPT.known(scheme.weights, WEIGHTS)
    key = (scheme.weights.dtype, scheme.inputs)
    if key not in ALGORITHMS or scheme.weights.granularity == "channel":
        known = (f"{dtype} beside activations {activations or '16 bit'}" for dtype, activations in ALGORITHMS)
        raise Refused(
            f"nvidia-modelopt does not calibrate {scheme}",
            why=f"it calibrates {'; '.join(known)}",
            cure="--backend native quantizes everything that needs no inputs",
        )
    if not inputs:
        raise UsageError("nothing to calibrate on", cure="give inputs of these weights, from a trace")
    start()
    joined_OI = torch.cat([prepared(weight, scheme.weights, name) for name, weight in weights.items()])
    with running():
        return _calibrated_layer(joined_OI, scheme.weights, scheme.inputs, ALGORITHMS[key], inputs)


def _calibrated_layer(
    weight_OI: Tensor,
    scheme: WeightScheme,
    activations: InputScheme | None,
    algorithm: str,
    inputs: Sequence[Tensor] | None,
) -> Any:
    """A layer with quantizers that know their scales."""
    from modelopt.torch import quantization

    settings: Settings | list[Settings] = MODELOPT.known(scheme, WEIGHTS)
    if scheme.dtype == "int4":
        blocks = {-1: scheme.group or weight_OI.shape[1], "type": "static"}
        settings = {**WEIGHTS["int4", "group", "max/7", "F32"], "block_sizes": blocks}
        if activations is not None:
            settings = [settings, FP8]
    entries: list[dict[str, object]] = [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*weight_quantizer", "cfg": settings},
    ]
    if activations is not None:
        entries.append({"quantizer_name": "*input_quantizer", "cfg": FP8})

    def feed(model: Callable[[Tensor], Tensor]) -> None:
        for x in inputs or ():
            model(x.to(weight_OI))

    model = nn.Sequential(linear(weight_OI.clone()))  # smoothing changes it in place
    quantization.quantize(model, {"quant_cfg": entries, "algorithm": algorithm}, None if inputs is None else feed)
    return model[0]


def _exported_weight(layer: Any, scheme: WeightScheme) -> RoundedWeight:
    """Quantized values and scales as the exporter takes them from a calibrated layer."""
    utils = _export_utils()
    weight_OI: Tensor = layer.weight
    rows = len(weight_OI)
    export_format = utils.get_quantization_format(layer)
    if scheme.granularity == "tensor":
        high = layer.weight_quantizer.maxbound
        # Without dimensions, as in `unified_export_hf.py`: that decides in which dtype weights are divided.
        scale = torch.tensor((layer.weight_quantizer.amax.item() or high) / high, device=weight_OI.device)
        scale_OG = scale.reshape(1, 1)
    else:
        scale = utils.get_weight_scaling_factor(layer)
        scale_OG = scale.reshape(rows, -1)
    if scheme.dtype == "int4":
        # Two rows share a byte. A row of zeros fills the last; rows do not see each other.
        odd = rows % 2
        even_OI, even_OG = (functional.pad(t, (0, 0, 0, odd), value=1) for t in (weight_OI, scale_OG))
        packed: Tensor = utils.to_quantized_weight(
            even_OI, even_OG, export_format, None, utils.get_weight_block_size(layer)
        )
        qvalues_OI = pack_bytes.unpack(packed, 0, signed=True)[:rows]
    else:
        qvalues_OI = utils.to_quantized_weight(weight_OI, scale, export_format)
    return RoundedWeight(scheme.dtype, qvalues_OI, scale_OG, torch.ones((), device=weight_OI.device))


def _nvfp4(weight_OI: Tensor, whole: Tensor) -> RoundedWeight:
    """What the exporter does with a calibrated NVFP4 layer; calibrating one needs a GPU, and finds `whole`."""
    with running():
        from modelopt.torch.quantization.qtensor import NVFP4QTensor

        unit = torch.where(whole > 0, whole / (DTYPES["nvfp4"].high * FP8_MAX), 1)
        stored, scale, _ = NVFP4QTensor.quantize(weight_OI, 16, weights_scaling_factor_2=unit)
        packed: Tensor = stored._quantized_data
    return RoundedWeight("nvfp4", pack_bytes.unpack(packed, 1, signed=False), scale, unit)


@cache
def start() -> None:
    """Import ModelOpt: 5 to 15 s.

    Raises:
        UsageError: it is not installed, or does not start.
    """
    MODELOPT.look_for()
    with running():
        try:
            import modelopt.torch.export
            import modelopt.torch.quantization  # noqa: F401
        except (ImportError, RuntimeError) as error:
            raise UsageError(
                f"nvidia-modelopt does not start: {error}".rstrip("."),
                why="it is imported with the packages that are installed beside it",
                cure="pip install 'draftconv[modelopt]', or --backend native, which gives the same bits",
            ) from error


def _export_utils() -> Any:
    from modelopt.torch.export import quant_utils

    return quant_utils
