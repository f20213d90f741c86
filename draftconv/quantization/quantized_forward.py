"""A quantized drafter in the reference forward: weights as they are stored, inputs rounded as it declares."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from draftconv.checkpoint import TensorRef
from draftconv.drafter.drafter import Drafter
from draftconv.quantization.computations import floats
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.formats.base import Weight
from draftconv.quantization.rounding import dequantize, refuse_unsimulated
from draftconv.quantization.simulate import replaced
from draftconv.quantization.weight_detection import find_quantized
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.load import load_drafter


def load_quantized(
    drafter: Drafter, tables: Mapping[str, TensorRef], dtype: torch.dtype, *, rounds: Collection[str] | None = None
) -> DrafterModel:
    """Load a drafter of any format that draftconv reads.

    Args:
        tables: as `load_drafter` takes them. `dtype`: of every floating parameter.
        rounds: canonical weights whose inputs are rounded as the file declares; those of the others stay as they are,
            as under some kernels. None is all of them.

    Returns:
        What an engine computes that runs the scheme as the file declares it, or its weights alone.

    Raises:
        Refused: no format that is known, or activations that are not simulated (NVFP4).
        BadCheckpoint: tensors do not fit each other or what is declared.
    """
    stored = find_quantized(drafter)
    declared = {f"{module}{WEIGHT}": stored.matches[module].declared.inputs for module in stored.modules}
    inputs = {name: scheme if rounds is None or name in rounds else None for name, scheme in declared.items()}
    for rounded in {scheme for scheme in inputs.values() if scheme is not None}:
        refuse_unsimulated(rounded)
    loaded = {f"{module}{WEIGHT}": stored.load(module) for module in stored.modules}
    parts = {f"{module}.{suffix}" for module, suffixes in stored.modules.items() for suffix in suffixes}
    plain = replace(
        drafter,
        facts=replace(drafter.facts, quantization=None),
        tensors={name: ref for name, ref in drafter.tensors.items() if name not in parts},
    )
    # Inputs that are rounded are smoothed before; those that are not may leave it to the weights.
    restored = {name: floats(weight) if inputs[name] is None else _smoothed(weight) for name, weight in loaded.items()}
    model = load_drafter(plain, tables=tables, computed=restored, dtype=dtype)
    weights = {name: model.get_parameter(name) for name, scheme in inputs.items() if scheme is not None}
    if not weights:
        return model
    scales = {name: weight.input_scale for name, weight in loaded.items() if weight.input_scale is not None}
    factors = {name: w.pre_quant_scale.to(dtype) for name, w in loaded.items() if w.pre_quant_scale is not None}
    return replaced(model, weights, inputs, scales, factors)


def _smoothed(weight: Weight) -> Tensor:
    """What the quantized values stand for, which meets inputs that were multiplied by `pre_quant_scale`."""
    return dequantize(weight.quantized)
