"""Who rounds the weights of a quantization: draftconv, or the package whose rule the recipe names.

Decided before a weight is read: a package that is missing, that does not start or that does not have
the scheme is refused here. What a package changes of a recipe is said in words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.engines.deployment import Deployment
from draftconv.errors import UsageError
from draftconv.quantization.backends import BLOCKS, backend, installed
from draftconv.quantization.recipes import Recipe
from draftconv.quantization.scheme import Scheme

if TYPE_CHECKING:
    from draftconv.quantization.backends import Backend

SMOOTHED = "modelopt-awq"
"""The format that has room for smoothing."""


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """How the weights of one output are rounded.

    Attributes:
        backend: its name.
        scheme: what is written: that of the recipe, with the package's own scale rule where it replaces one.
        block: source bytes that are handed over at a time. `device`: where they are rounded.
        package: name and version of the package that rounds; None is draftconv itself.
        smooths: whether activations are smoothed by AWQ.
        notes: what is not as the recipe says, in words.
    """

    backend: str
    scheme: Scheme
    rounds: Backend
    block: int
    device: str
    package: str | None = None
    smooths: bool = False
    notes: tuple[str, ...] = ()

    @property
    def calibrated(self) -> bool:
        """Whether it needs what is measured on a trace: static scales of activations, or what smooths them."""
        return self.smooths or (self.scheme.inputs is not None and not self.scheme.inputs.dynamic)


def choose_backend(name: str, recipe: Recipe, deployment: Deployment, trace: Path | None, device: str) -> BackendChoice:
    """The rounding by one backend, its package imported.

    Args:
        name: of a backend. `trace`: what activations are measured on, if anything. `device`: for torch.

    Raises:
        UsageError: no such backend or device, its package is missing or does not start, or it needs a trace.
        Refused: it does not have the scheme.
    """
    from draftconv.reference.devices import find_device

    if name != "native" and device != "cpu":
        raise UsageError(
            f"--backend {name} on {device}",
            why="the packages were compared with draftconv on a CPU only",
            cure="leave out --device, or take --backend native, which gives the same bits",
        )
    find_device(device)
    scheme = deployment.scheme
    smoothable = name == "modelopt" and deployment.format == SMOOTHED
    searched = scheme.weights.scale_rule == "mse"
    notes: tuple[str, ...] = ()
    if smoothable and searched:
        if trace is None:
            raise UsageError(
                f"recipe {recipe.name} by nvidia-modelopt is AWQ, which is calibrated",
                why="mse is draftconv's own search; ModelOpt searches what to multiply inputs with instead",
                cure="make a trace with `draftconv trace`, then add --calibrate TRACE",
            )
        scheme = replace(scheme, weights=replace(scheme.weights, scale_rule="max/7"))
        notes = ("scale rule max/7 in place of mse: ModelOpt searches the smoothing of inputs, not the scales",)
    rounds = backend(name, scheme.weights)
    smooths = smoothable and trace is not None
    return BackendChoice(name, scheme, rounds, BLOCKS[name], device, installed(name), smooths, notes)
