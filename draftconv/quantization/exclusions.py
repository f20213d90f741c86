"""Which weights a recipe quantizes in a drafter, tensor by tensor, and why the others stay.

Every weight that no entry of the recipe's `exclude` names is quantized, to the scheme of the first
entry of its `roles` that names it, else to the recipe's own. Names are canonical
(`draftconv.drafter.tensors`): `layers.0.mlp.down_proj.weight` whatever the file calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from draftconv.checkpoint import show_some
from draftconv.drafter.facts import Facts
from draftconv.drafter.fused_projections import GROUPS
from draftconv.drafter.tensor_specs import Role
from draftconv.drafter.tensors import HEAD, ExpectedTensor, expected
from draftconv.errors import Refused, UsageError, did_you_mean
from draftconv.quantization.recipes import MAIN, Recipe
from draftconv.quantization.scheme import DTYPES

WEIGHT = ".weight"

ROLES: Mapping[str, Callable[[str, Role], bool]] = {
    "embed": lambda _, role: role == "embed",
    "lm_head": lambda _, role: role == "head",
    "fc": lambda _, role: role == "fc",
    "norms": lambda _, role: role == "norm",
    "kv_b": lambda name, _: name.endswith(".self_attn.kv_b_proj.weight"),
    "a_projections": lambda name, _: name.endswith((".q_a_proj.weight", ".kv_a_proj_with_mqa.weight")),
}
"""What `exclude` and `roles` may say instead of tensor names. A role that a drafter does not have names nothing
there."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One weight: quantized, or kept for a reason."""

    name: str
    shape: tuple[int, ...]
    kept: str | None
    """The entry of `exclude` that keeps it; None when it is quantized."""
    role: str = MAIN
    """The entry of `roles` whose scheme it has when it is quantized."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Every weight of a drafter, in canonical order."""

    choices: tuple[Choice, ...]

    @property
    def quantized(self) -> tuple[str, ...]:
        return tuple(choice.name for choice in self.choices if choice.kept is None)

    @property
    def roles(self) -> Mapping[str, str]:
        """Quantized weight → the entry of `roles` whose scheme it has, or `MAIN`."""
        return {choice.name: choice.role for choice in self.choices if choice.kept is None}

    @property
    def kept(self) -> Mapping[str, str]:
        """Tensor name → the entry that keeps it."""
        return {choice.name: choice.kept for choice in self.choices if choice.kept is not None}


def role_of(recipe: Recipe, name: str, role: Role) -> str | None:
    """The entry of `roles` whose scheme a weight has, or `MAIN`; None where it is kept."""
    if _first_entry(recipe.exclude, name, role) is not None:
        return None
    return _first_entry(recipe.roles, name, role) or MAIN


def is_pattern(entry: str) -> bool:
    """Whether an entry of `exclude` names tensors rather than a role."""
    return any(mark in entry for mark in ".*?[")


def select(recipe: Recipe, facts: Facts) -> Selection:
    """Decide for every weight of a drafter.

    Biases and vocabulary maps are no weights: they are never quantized and not listed.

    Raises:
        UsageError: a pattern names no tensor, a fused group is torn apart, nothing is left
            to quantize, or something would be that is never multiplied as a matrix.
        Refused: a weight's inputs are no multiple of its group.
    """
    weights = {name: tensor for name, tensor in expected(facts).items() if name.endswith(WEIGHT)}
    choices = tuple(
        Choice(
            name,
            tensor.shape,
            _first_entry(recipe.exclude, name, tensor.role),
            _first_entry(recipe.roles, name, tensor.role) or MAIN,
        )
        for name, tensor in weights.items()
    )
    selection = Selection(choices)
    _check_patterns(recipe, weights)
    _check_kinds(recipe, selection, weights)
    _check_fused(recipe, selection)
    _check_groups(recipe, selection, weights)
    return selection


def refuse_nearest_head(recipe: Recipe, selection: Selection) -> None:
    """Keep a head of 4 bits from being written that is rounded to nearest.

    Raises:
        Refused: the recipe makes one.
    """
    scheme = recipe.of(selection.roles[HEAD]) if HEAD in selection.roles else None
    if scheme is not None and scheme.rounding == "nearest" and DTYPES[scheme.weights.dtype].bits == 4:
        raise Refused(
            f"recipe {recipe.name} rounds {HEAD} to the nearest of 4 bits",
            why="what that costs differs from drafter to drafter: on three that no choice was made on, accept length "
            "was 0.957 to 1.012 of what it was",
            cure="round it by GPTQ, give lm_head 8 bits among roles, or add it to exclude; --force writes it all the "
            "same, and `draftconv parity --fake-quant` tells beforehand what it costs this drafter",
        )


def chosen(selection: Selection, names: Iterable[str]) -> tuple[str, ...]:
    """Some of the quantized weights, by name.

    Raises:
        UsageError: a name is not among them.
    """
    names = tuple(names)
    for name in names:
        if name not in selection.quantized:
            entry = selection.kept.get(name)
            raise UsageError(
                f"{name} is kept by exclude: {entry}" if entry else f"the drafter has no weight {name}",
                cure=did_you_mean(name, selection.quantized, f"quantized: {show_some(selection.quantized, 4)}"),
            )
    return names


def fused_with(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that engines join with this weight, itself included."""
    for group in GROUPS:
        for member in group:
            if name.endswith(f".{member}{WEIGHT}"):
                stem = name.removesuffix(f"{member}{WEIGHT}")
                together = {f"{stem}{other}{WEIGHT}" for other in group}
                return tuple(other for other in names if other in together)
    return (name,)


def _first_entry(entries: Iterable[str], name: str, role: Role) -> str | None:
    return next((entry for entry in entries if _entry_matches(entry, name, role)), None)


def _entry_matches(entry: str, name: str, role: Role) -> bool:
    if entry in ROLES:
        return ROLES[entry](name, role)
    return fnmatchcase(name, entry) or fnmatchcase(name.removesuffix(WEIGHT), entry)


def _check_patterns(recipe: Recipe, weights: Mapping[str, ExpectedTensor]) -> None:
    for key, entries, why in (
        ("exclude", recipe.exclude, "what it was meant to keep would be quantized"),
        ("roles", recipe.roles, "what it was meant for would be quantized otherwise"),
    ):
        for entry in entries:
            if entry not in ROLES and not any(_entry_matches(entry, name, t.role) for name, t in weights.items()):
                raise UsageError(
                    f"recipe {recipe.name}: {key}: {entry} matches no weight of this drafter",
                    why=why,
                    cure=did_you_mean(entry, weights, f"canonical names: {show_some(list(weights), 4)}"),
                )


def _check_kinds(recipe: Recipe, selection: Selection, weights: Mapping[str, ExpectedTensor]) -> None:
    for role, entry in (("embed", "embed"), ("norm", "norms")):
        if names := [name for name in selection.quantized if weights[name].role == role]:
            raise UsageError(
                f"recipe {recipe.name} would quantize {show_some(names, 4)}",
                why="no engine reads a quantized embedding or norm: neither is multiplied as a matrix",
                cure=f"add {entry} to exclude",
            )
    if not selection.quantized:
        raise UsageError(f"recipe {recipe.name} excludes every weight of this drafter", cure="exclude less")


def _check_fused(recipe: Recipe, selection: Selection) -> None:
    names = [choice.name for choice in selection.choices]
    for name in selection.quantized:
        if torn := [other for other in fused_with(name, names) if other in selection.kept]:
            raise UsageError(
                f"recipe {recipe.name} quantizes {name} but keeps {show_some(torn, 4)}",
                why="engines join these into one weight, which is quantized or not as a whole",
                cure=f"exclude {name} too, or take {selection.kept[torn[0]]} out of exclude",
            )
        scheme = recipe.of(selection.roles[name])
        if torn := [n for n in fused_with(name, selection.quantized) if recipe.of(selection.roles[n]) != scheme]:
            raise UsageError(
                f"recipe {recipe.name} gives {name} and {show_some(torn, 4)} different schemes",
                why="engines join these into one weight, which has one scheme",
                cure="name all of them in one entry of roles",
            )


def _check_groups(recipe: Recipe, selection: Selection, weights: Mapping[str, ExpectedTensor]) -> None:
    for name, role in selection.roles.items():
        group, inputs = recipe.of(role).weights.group, weights[name].shape[1]
        if group is not None and inputs % group:
            raise Refused(
                f"{name} has {inputs} inputs, which is no multiple of the group of {group}",
                why=f"recipe {recipe.name} gives every {group} inputs a scale, and no format has a shorter last group",
                cure="take a recipe per channel, or exclude the tensor",
            )
