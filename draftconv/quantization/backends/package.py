"""What the packages have in common: imported late, run one at a time and silently, refused where they do not reach."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from threading import RLock
from typing import TypeVar

import torch
from torch import Tensor, nn

from draftconv.errors import Refused, UsageError
from draftconv.quantization.recipes import find_recipe, recipe_names
from draftconv.quantization.rounding import check_inputs, not_finite
from draftconv.quantization.scheme import Granularity, ScaleDtype, ScaleRuleName, WeightDtype, WeightScheme

Kind = tuple[WeightDtype, Granularity, ScaleRuleName, ScaleDtype]
"""A weight scheme but for its group size."""

T = TypeVar("T")

_ONE_AT_A_TIME = RLock()


@dataclass(frozen=True, slots=True)
class Package:
    """A quantizer that is not ours.

    Attributes:
        name: as a package index knows it. `module`: its top-level module.
        extra: of draftconv, that installs it.
        besides: shipped recipes that it has under a condition, for a message.
    """

    name: str
    module: str
    extra: str
    besides: str = ""

    def __str__(self) -> str:
        """Name and version, of an installed one."""
        self.look_for()
        return f"{self.name} {version(self.name)}"

    def look_for(self) -> None:
        """Raises UsageError when it is not installed."""
        if find_spec(self.module) is None:
            raise UsageError(
                f"{self.name} is not installed",
                why=f"--backend {self.extra} has it round the weights",
                cure=f"pip install 'draftconv[{self.extra}]', or --backend native, which gives the same bits",
            )

    def known(self, scheme: WeightScheme, kinds: Mapping[Kind, T]) -> T:
        """What `kinds` has for a scheme.

        Raises:
            Refused: nothing.
        """
        kind = _kind(scheme)
        if kind not in kinds:
            shipped = [name for name in recipe_names() if _kind(find_recipe(name).scheme.weights) in kinds]
            raise Refused(
                f"{self.name} has no weights {scheme}, scales in {scheme.scale_dtype}",
                why=f"it has {'; '.join(' '.join(known) for known in kinds)}",
                cure=f"shipped recipes that it has: {', '.join(filter(None, (*shipped, self.besides)))}; "
                "--backend native has every scheme",
            )
        return kinds[kind]


def _kind(scheme: WeightScheme) -> Kind:
    return scheme.dtype, scheme.granularity, scheme.scale_rule, scheme.scale_dtype


def prepared(weight_OI: Tensor, scheme: WeightScheme, name: str) -> Tensor:
    """A weight as a package is given it: F64 as F32, like `native`.

    Raises:
        BadCheckpoint: the weight holds NaN or infinities.
        UsageError: the inputs are no multiple of the group.
    """
    check_inputs(weight_OI.shape[1], scheme, name)
    if not weight_OI.isfinite().all():
        raise not_finite(name)
    return weight_OI.float() if weight_OI.dtype == torch.float64 else weight_OI


def linear(weight_OI: Tensor) -> nn.Linear:
    """The layer that a weight belongs to, without a copy."""
    layer = nn.Linear(weight_OI.shape[1], weight_OI.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight_OI, requires_grad=False)
    return layer


@contextmanager
def running() -> Iterator[None]:
    """One call of a package: no gradients, no other call beside it, and none of its prints and progress bars.

    The packages change state of the process, and print to stdout, which carries draftconv's data.
    """
    silence = io.StringIO()
    with _ONE_AT_A_TIME, torch.no_grad(), redirect_stdout(silence), redirect_stderr(silence):
        yield
