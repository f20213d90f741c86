"""Recipes: a scheme and what it leaves alone, under a name or in a file of the user's own.

Shipped recipes are `recipes/*.yaml`; a name that ends in .yaml or .yml is a path. The
file's shape is `draftconv.quantization.recipe_schema`, imported only when one is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from draftconv.drafter.shipped_files import find_written
from draftconv.drafter.shipped_files import recipes as shipped_directory
from draftconv.plugins import names
from draftconv.quantization.scheme import Scheme

NO_RECIPES = frozenset({"targets.yaml"})
"""Files beside the recipes that hold something else."""

FormatName: TypeAlias = str
"""The id of a format: a key of `FORMATS`, or one that another package brings."""

TableRole = Literal["lm_head", "fc"]
TABLES: tuple[TableRole, ...] = get_args(TableRole)
"""Roles that engines treat apart from the linears of a layer."""

MAIN = ""
"""The role of weights that none of a recipe's `roles` names."""

PER_MODULE = "trtllm"
"""The style of ModelOpt's formats that names every quantized module: one that is not named never is. Published records
call it after the engine that it was made for."""

FORMATS: Mapping[FormatName, tuple[str, ...]] = {
    "compressed-pack": (),
    "compressed-int": (),
    "compressed-float": (),
    "gptq": (),
    "autoawq": ("awq", "auto-round"),
    "quark-int4": ("reorder", "order"),
    "quark-mxfp4": ("reorder",),
    "modelopt-awq": ("plain", PER_MODULE),
    "modelopt-fp8": ("plain", PER_MODULE),
    "modelopt-nvfp4": ("plain", PER_MODULE),
}
"""Draftconv's own formats, with their styles, the usual one first: those of `draftconv.quantization.formats`, which
imports torch."""

FAMILIES: tuple[tuple[FormatName, ...], ...] = (
    ("compressed-pack", "compressed-int", "compressed-float"),
    ("modelopt-awq", "modelopt-fp8", "modelopt-nvfp4"),
)
"""Formats that one file may hold, each of other weights. Every other format is alone in its file."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to quantize, and how.

    Attributes:
        about: one line for a listing.
        scheme: of every weight that none of `roles` names.
        exclude: roles (`draftconv.quantization.exclusions.ROLES`) and patterns of tensor
            names; every weight that none of them names is quantized.
        format: the one format it is meant for; None leaves the choice to whoever serves it.
        roles: role or pattern → the scheme of the weights that it names; of several, the first one's.
        may_stay: those of `TABLES` that stay as they are where an engine does not multiply them so.
    """

    name: str
    about: str
    scheme: Scheme
    exclude: tuple[str, ...]
    format: FormatName | None = None
    roles: Mapping[str, Scheme] = field(default_factory=dict)
    may_stay: tuple[TableRole, ...] = ()

    def keeping(self, kept: Iterable[str]) -> Recipe:
        """The recipe that leaves these roles as they are."""
        added = tuple(role for role in kept if role not in self.exclude)
        roles = {role: scheme for role, scheme in self.roles.items() if role not in added}
        return replace(self, exclude=(*self.exclude, *added), roles=roles)

    def of(self, role: str) -> Scheme:
        """The scheme of a role; of all others for `MAIN`."""
        return self.roles.get(role, self.scheme)

    @property
    def has_static_inputs(self) -> bool:
        """Whether some activations have scales that are measured beforehand."""
        return any(scheme.has_static_inputs for scheme in (self.scheme, *self.roles.values()))

    @property
    def numbers(self) -> str:
        """Every scheme in words."""
        roles = (f"{role}: {scheme}" for role, scheme in self.roles.items() if scheme != self.scheme)
        return "; ".join((str(self.scheme), *roles))


def in_one_file(name: FormatName) -> tuple[FormatName, ...]:
    """A format, and after it all others that a file of it may hold."""
    family = next((family for family in FAMILIES if name in family), ())
    return (name, *(other for other in family if other != name))


def format_names() -> tuple[FormatName, ...]:
    """The formats that a recipe may name; no package is imported for those that come from outside."""
    return (*FORMATS, *names("draftconv.formats"))


def recipe_names() -> tuple[str, ...]:
    """The shipped recipes, in alphabetical order."""
    files = (entry.name for entry in shipped_directory().iterdir())
    return tuple(sorted(Path(name).stem for name in files if name.endswith(".yaml") and name not in NO_RECIPES))


def find_recipe(spec: str) -> Recipe:
    """The shipped recipe of this name, or the one in this .yaml file.

    Raises:
        UsageError: no such recipe or file, or the file is not a recipe; says which key and why.
    """
    from draftconv.quantization.recipe_schema import parse

    written = find_written(spec, "recipe", recipe_names())
    return parse(written.text, written.name, written.where)
