"""What every trainer's module has, and all of them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

from torch import Tensor, nn

from truth.trainers.steps import Inputs, Steps


class Trainer(Protocol):
    """A module of this package."""

    ORIGIN: Origin

    def load(self, path: Path, embedding: Tensor) -> nn.Module:
        """Open a directory by the trainer's own class, in float32.

        Args:
            embedding: the table that the drafter reads, for trainers that never store it.
        """

    def run(self, model: nn.Module, inputs: Inputs) -> Steps:
        """Three steps of the trainer's own training loop, or of its own drafting."""


class Producer(Trainer, Protocol):
    """A trainer that was asked to make drafters as well."""

    WRITES: str
    """The layout of what it saves."""

    def build(self, config: Mapping[str, Any], embedding: Tensor | None) -> nn.Module:
        """A drafter by its own class, from a config as that trainer writes it."""

    def save(self, model: nn.Module, path: Path) -> None:
        """Write a drafter by its own function."""


class Quantizer(Producer, Protocol):
    """A trainer that quantizes drafters of its own and exports them."""

    SCHEMES: Mapping[str, str]
    """What a scheme is called → what it is called there."""

    def quantize(self, model: nn.Module, scheme: str, inputs: Inputs) -> nn.Module:
        """Quantize a drafter by the trainer's own function, calibrated on inputs, and ready to be saved."""

    def as_stored(self, model: nn.Module) -> nn.Module:
        """A copy that runs on the weights that will be stored, its activations not rounded."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a trainer's code comes from: a pinned package, or a source that the user names.

    Attributes:
        title: as people call it. `package`: its name in the index; empty without one.
        variable: of the environment; names a checkout or an unpacked archive. `commit`: another, says which it is.
        bare: packages whose own __init__ is not run, because it imports what drafters do not need.
    """

    title: str
    package: str = ""
    variable: str = ""
    commit: str = ""
    bare: tuple[str, ...] = ()

    @property
    def absent(self) -> str:
        """Why it cannot be asked; empty when it can."""
        if self.package:
            try:
                version(self.package)
            except PackageNotFoundError:
                return f"{self.package} is not installed"
            return ""
        named = os.environ.get(self.variable)
        if not named:
            return f"{self.variable} names no source of it"
        return "" if Path(named).is_dir() else f"{self.variable} is no directory: {named}"

    @property
    def version(self) -> str:
        """Which of it is asked."""
        if self.package:
            return f"{self.package} {version(self.package)}"
        return f"{self.title} {os.environ.get(self.commit, 'of a named source')}"

    def prepare(self) -> None:
        """Make it importable."""
        if not self.package:
            sys.path.insert(0, os.environ[self.variable])
        for name in self.bare:
            _register_bare(name)


def _register_bare(name: str) -> None:
    """Let submodules of a package be imported while its own __init__ is not run."""
    if name in sys.modules:
        return
    parent, _, last = name.rpartition(".")
    roots = sys.modules[parent].__path__ if parent else sys.path
    places = [str(Path(root) / last) for root in roots if (Path(root) / last).is_dir()]
    module = ModuleType(name)
    module.__path__ = places[:1]
    sys.modules[name] = module
    if parent:
        setattr(sys.modules[parent], last, module)


NAMES = ("speculators", "specforge", "modelopt", "automodel", "angelslim", "torchspec", "safeailab")


def trainer(name: str) -> Trainer:
    """One of `NAMES`."""
    return cast(Trainer, importlib.import_module(f"truth.trainers.{name}"))
