"""Backends: who rounds the weights, draftconv or the package whose rule it follows.

`native` does every scheme. `quark` and `modelopt` are amd-quark and nvidia-modelopt
themselves, installed as extras and imported when they are asked for; each does the
schemes that it exports, with the bits of `native` (MXFP4: with its values). No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from draftconv.errors import UsageError, did_you_mean
from draftconv.quantization.scheme import WeightScheme

if TYPE_CHECKING:
    from torch import Tensor

    from draftconv.quantization.rounding import RoundedWeight

BackendName = Literal["native", "quark", "modelopt"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)

MB = 1024 * 1024
BLOCKS: Mapping[str, int] = {"native": MB, "quark": 16 * MB, "modelopt": 16 * MB}
"""Source bytes to hand over at a time. For `native` so few that a block and what is computed of it stay in a core's
cache. The packages are slow per call, Quark 0.3 s whatever it is given: at 1, 16 and 126 MB it rounds 3, 21 and
19 MB/s, ModelOpt 44, 60 and 31 (one core), and what they hold grows with the block."""


class Backend(Protocol):
    """Rounds a weight as `draftconv.quantization.rounding.quantize` does, with the same arguments and errors."""

    def __call__(
        self, weight_OI: Tensor, scheme: WeightScheme, *, whole: Tensor | None = None, name: str = "the weight"
    ) -> RoundedWeight: ...


def installed(name: str) -> str | None:
    """The package that a backend runs, with its version; None for `native`.

    Raises:
        UsageError: it is not installed.
    """
    match name:
        case "quark":
            from draftconv.quantization.backends import quark

            return str(quark.QUARK)
        case "modelopt":
            from draftconv.quantization.backends import modelopt

            return str(modelopt.MODELOPT)
    return None


def backend(name: str, scheme: WeightScheme) -> Backend:
    """What rounds weights to this scheme, with its package imported.

    The packages of `quark` and `modelopt` take 5 to 60 seconds to import.

    Raises:
        UsageError: no backend is called so, or its package is missing or does not start.
        Refused: the package does not have the scheme.
    """
    match name:
        case "native":
            from draftconv.quantization.rounding import quantize

            return quantize
        case "quark":
            from draftconv.quantization.backends import quark

            return quark.backend(scheme)
        case "modelopt":
            from draftconv.quantization.backends import modelopt

            return modelopt.backend(scheme)
    raise UsageError(
        f"no backend is called {name}", cure=did_you_mean(name, BACKENDS, f"backends: {', '.join(BACKENDS)}")
    )
