"""Who rounds the weights of a quantization: draftconv, or the package whose rule the recipe names.

Decided before a weight is read: a package that is missing, that does not start or that does not have
the scheme is refused here. What a package changes of a recipe is said in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.engines.deployed import Deployment
from draftconv.errors import UsageError
from draftconv.quantization.backends import BLOCKS, backend, installed
from draftconv.quantization.recipes import Recipe
from draftconv.quantization.scheme import Scheme

if TYPE_CHECKING:
    from draftconv.quantization.backends import Backend

SMOOTHED = "modelopt-awq"
"""The format that has room for smoothing."""

SEARCHES = "scale rule max/7 in place of mse: ModelOpt searches the smoothing of inputs, not the scales"


@dataclass(frozen=True, slots=True)
class RolePart:
    """How the weights of one role are rounded.

    Attributes:
        scheme: what is written: that of the recipe, with the package's own scale rule where it replaces one.
        smooths: whether activations are smoothed by AWQ.
    """

    scheme: Scheme
    rounds: Backend
    smooths: bool = False

    @property
    def calibrated(self) -> bool:
        """Whether it needs what is measured on a trace: static scales, what smooths activations, second moments."""
        return self.smooths or self.has_static_inputs or self.scheme.rounding == "gptq"

    @property
    def has_static_inputs(self) -> bool:
        """Whether its activations have fixed scales."""
        return self.scheme.has_static_inputs


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """How the weights of one output are rounded.

    Attributes:
        backend: its name.
        parts: of every role that has a scheme, `MAIN` among them.
        block: source bytes that are handed over at a time. `device`: where they are rounded.
        package: name and version of the package that rounds; None is draftconv itself.
        notes: what is not as the recipe says, in words.
    """

    backend: str
    parts: Mapping[str, RolePart]
    block: int
    device: str
    package: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def smooths(self) -> bool:
        """Whether activations of any role are smoothed by AWQ."""
        return any(part.smooths for part in self.parts.values())

    @property
    def calibrated(self) -> bool:
        """Whether any role needs what is measured on a trace."""
        return any(part.calibrated for part in self.parts.values())


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
    if name != "native" and any(part.scheme.rounding == "gptq" for part in deployment.parts.values()):
        raise UsageError(
            f"--backend {name} with recipe {recipe.name}, whose weights are rounded by GPTQ",
            why="GPTQ is draftconv's own here",
            cure="leave --backend out",
        )
    find_device(device)
    parts: dict[str, RolePart] = {}
    notes: list[str] = []
    for role, deployed in deployment.parts.items():
        scheme = deployed.scheme
        smoothable = name == "modelopt" and deployed.format == SMOOTHED
        if smoothable and scheme.weights.scale_rule == "mse":
            if trace is None:
                raise UsageError(
                    f"recipe {recipe.name} by nvidia-modelopt is AWQ, which is calibrated",
                    why="mse is draftconv's own search; ModelOpt searches what to multiply inputs with instead",
                    cure="make a trace with `draftconv trace`, then add --calibrate TRACE",
                )
            scheme = replace(scheme, weights=replace(scheme.weights, scale_rule="max/7"))
            notes.append(SEARCHES)
        parts[role] = RolePart(scheme, backend(name, scheme.weights), smoothable and trace is not None)
    return BackendChoice(name, parts, BLOCKS[name], device, installed(name), tuple(dict.fromkeys(notes)))
