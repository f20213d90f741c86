"""What every model here shares besides attention: the norm, the gated MLP, and the look at its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftconv.checkpoint import show_some
from draftconv.errors import BadCheckpoint, UsageError


class RmsNorm(nn.Module):
    """w * x / sqrt(mean(x^2) + eps), with statistics in float32 or better.

    The normed value is cast back to the input's dtype *before* the multiply, as
    transformers and the engines' reference kernels do.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class Mlp(nn.Module):
    """down(act(gate x) * up x)."""

    def __init__(self, hidden: int, intermediate: int, *, bias: bool, activation: str) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=bias)
        self.up_proj = nn.Linear(hidden, intermediate, bias=bias)
        self.down_proj = nn.Linear(intermediate, hidden, bias=bias)
        self.act = _activation(activation)

    def forward(self, x_BTH: Tensor) -> Tensor:
        out_BTH: Tensor = self.down_proj(self.act(self.gate_proj(x_BTH)) * self.up_proj(x_BTH))
        return out_BTH


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], whose: str, cure: str = "") -> None:
    """Refuse tensors that are not exactly those of a model's `state_dict`, by name and shape.

    Args:
        whose: what the tensors belong to, for the message.

    Raises:
        BadCheckpoint: tensors are missing, superfluous or of another shape.
    """
    missing = sorted(expected.keys() - tensors.keys())
    unexpected = sorted(tensors.keys() - expected.keys())
    misshapen = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in sorted(expected.keys() & tensors.keys())
        if tensors[name].shape != expected[name].shape
    ]
    faults = (("missing", missing), ("unexpected", unexpected), ("of the wrong shape", misshapen))
    if any(names for _, names in faults):
        detail = "; ".join(f"{len(names)} {fault}: {show_some(names, 4)}" for fault, names in faults if names)
        raise BadCheckpoint(
            f"the tensors of {whose} do not fit its config.json: {detail}",
            why="the forward pass would run on weights that were never trained",
            cure=cure,
        )


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": functional.relu,
}


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    try:
        return _ACTIVATIONS[name]
    except KeyError:
        raise UsageError(
            f"activation {name!r} has no reference forward",
            cure=f"known activations: {', '.join(sorted(_ACTIVATIONS))}",
        ) from None
