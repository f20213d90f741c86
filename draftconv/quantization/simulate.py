"""A drafter as a recipe would leave it, without writing anything.

Quantized weights are rounded to their dtype and back; where the scheme has activations,
the inputs of those weights are rounded per token and back. What is not quantized is
shared with the given drafter.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftconv.drafter.drafter import Drafter
from draftconv.errors import Refused
from draftconv.quantization.exclusions import WEIGHT, chosen, fused_with, select
from draftconv.quantization.recipes import Recipe
from draftconv.quantization.rounding import InputScales, dequantize, peak, quantize, round_to, round_trip
from draftconv.quantization.scheme import InputScheme
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.load import TORCH_DTYPES


class RoundedLinear(nn.Linear):
    """A Linear whose input is rounded first: per token, or under a fixed `scale` (float32 []).

    Before that it is multiplied by `factor` [I], if there is one (AWQ smoothing).
    """

    scale: Tensor | None
    factor: Tensor | None

    def __init__(
        self,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        inputs: InputScheme,
        scale: Tensor | None = None,
        factor: Tensor | None = None,
    ) -> None:
        with torch.device("meta"):
            super().__init__(weight_OI.shape[1], weight_OI.shape[0], bias=False)
        self.weight = nn.Parameter(weight_OI, requires_grad=False)
        if bias_O is not None:
            self.bias = nn.Parameter(bias_O, requires_grad=False)
        self.inputs = inputs
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("factor", factor, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        scale = self.scale
        input = input if self.factor is None else input * self.factor
        rounded = round_trip(input, self.inputs) if scale is None else round_to(input, self.inputs, scale)
        return functional.linear(rounded, self.weight, self.bias)


def simulate(
    model: DrafterModel,
    recipe: Recipe,
    *,
    only: Iterable[str] | None = None,
    stored: Mapping[str, torch.dtype] | None = None,
    qvalues: Callable[[str], Tensor] | None = None,
    scales: InputScales = MappingProxyType({}),
) -> DrafterModel:
    """A new drafter that computes what the recipe's output would.

    Args:
        only: canonical names of the weights to quantize, out of those the recipe quantizes;
            all of them by default. The scales are those of the whole recipe.
        stored: canonical name -> dtype of the tensor in its file (`stored_dtypes`), when the
            model was loaded in another one: scales follow the dtype that would be quantized.
        qvalues: canonical name -> what GPTQ rounded a weight to, [O, I].
        scales: of static activations, measured beforehand.

    Returns:
        A drafter in the model's dtype. Tensors that are not quantized share their storage
        with `model`, which stays as it is.

    Raises:
        Refused: static scales were not measured, or no replay has such activations; a group does not fit; or nothing
            was rounded by GPTQ beforehand.
        UsageError: the recipe does not fit the drafter, or `only` names no quantized weight.
        BadCheckpoint: a weight holds NaN or infinities.
    """
    for scheme in (recipe.scheme, *recipe.roles.values()):
        if scheme.has_static_inputs and not scales:
            raise Refused(
                f"recipe {recipe.name} cannot be simulated: its activations are {scheme.inputs}",
                why="a static scale is measured on the drafter's own inputs (calibration); nothing measured it here",
                cure="take a recipe with dynamic activations, or one that leaves them in 16 bits",
            )
        if scheme.rounding == "gptq" and qvalues is None:
            raise Refused(
                f"recipe {recipe.name} cannot be simulated: it rounds by GPTQ",
                why="that takes a trace to calibrate on",
                cure="add --calibrate TRACE, of other prompts than those that judge",
            )
    selection = select(recipe, model.facts)
    schemes = {name: recipe.of(role) for name, role in selection.roles.items()}
    weights = {name: model.get_parameter(name).detach() for name in selection.quantized}
    source = {name: weight.to((stored or {}).get(name, weight.dtype)) for name, weight in weights.items()}
    rounded: dict[str, Tensor] = {}
    for name in selection.quantized if only is None else chosen(selection, only):
        weights_scheme = schemes[name].weights
        together = fused_with(name, source) if weights_scheme.whole else ()
        whole = torch.stack([peak(source[other]) for other in together]).amax() if together else None
        quantized = quantize(source[name], weights_scheme, whole=whole, name=name)
        if qvalues is not None and schemes[name].rounding == "gptq":
            quantized = dataclasses.replace(quantized, qvalues=qvalues(name).to(quantized.qvalues.device))
        rounded[name] = dequantize(quantized, weights[name].dtype)
    static = {name: scale for name in rounded if (scale := scales.get(name.removesuffix(WEIGHT))) is not None}
    return replaced(model, rounded, {name: schemes[name].inputs for name in rounded}, static)


def replaced(
    model: DrafterModel,
    weights: Mapping[str, Tensor],
    inputs: Mapping[str, InputScheme | None] = MappingProxyType({}),
    scales: Mapping[str, Tensor] = MappingProxyType({}),
    factors: Mapping[str, Tensor] = MappingProxyType({}),
) -> DrafterModel:
    """The drafter with other weights in some of its Linears, sharing all the rest.

    Args:
        weights: canonical name -> [O, I], in the model's dtype.
        inputs: canonical name -> how the inputs of a Linear are rounded, if at all.
        scales: canonical name -> float32 [], of static activations.
        factors: canonical name -> [I], what activations are multiplied by before, in the model's dtype.
    """
    # Parameters of its own over shared storage: moving the new drafter must not move the given one.
    shared: dict[int, object] = {id(model.facts): model.facts}
    shared |= {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in model.parameters()}
    shared |= {id(buffer): buffer.detach() for buffer in model.buffers()}
    new = copy.deepcopy(model, shared)
    for name, weight_OI in weights.items():
        path = name.removesuffix(WEIGHT)
        linear = new.get_submodule(path)
        scheme = inputs.get(name)
        if scheme is None:
            linear.weight = nn.Parameter(weight_OI, requires_grad=False)
        else:
            parent, _, leaf = path.rpartition(".")
            bias_O = linear.bias if isinstance(linear.bias, Tensor) else None
            rounded = RoundedLinear(weight_OI, bias_O, scheme, scales.get(name), factors.get(name))
            rounded.train(linear.training)
            setattr(new.get_submodule(parent), leaf, rounded)
    return new


def stored_dtypes(drafter: Drafter) -> dict[str, torch.dtype]:
    """In which dtype each floating tensor of an opened drafter lies in its file, by canonical name."""
    return {name: TORCH_DTYPES[ref.dtype] for name, ref in drafter.tensors.items() if ref.dtype in TORCH_DTYPES}
