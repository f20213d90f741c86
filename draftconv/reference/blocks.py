"""The two pieces every model here shares besides attention: the norm and the gated MLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftconv.errors import UsageError


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
