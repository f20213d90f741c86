"""What may be done to each role of a drafter's weights, and the recipe that a combination of it is.

The choices are those of the shipped recipes: what they do to the layers, and what any of them does to the head and to
fc. Nothing here knows an engine; what one cannot run is refused where a combination is planned (`planning`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from draftconv.drafter.facts import Facts
from draftconv.drafter.tensors import expected
from draftconv.quantization.exclusions import ROLES as WEIGHTS
from draftconv.quantization.recipes import FormatName, Recipe
from draftconv.quantization.scheme import Scheme

LAYERS, HEAD, FC = "layers", "lm_head", "fc"
ROLES = (LAYERS, HEAD, FC)
"""What is chosen for on its own. Embeddings and norms are never multiplied as a matrix and stay."""

ALWAYS_KEPT = ("embed", "norms")
WHOLE_LAYERS = "layers.*"
"""As `exclude` of a recipe names every weight of the layers."""
AS_IT_IS = "as it is"


@dataclass(frozen=True, slots=True)
class RoleChoice:
    """One thing that may be done to a role.

    Attributes:
        scheme: its numbers; None leaves it as it is.
        keeps: what of the layers stays as it is nevertheless, as `exclude` names it.
        format: the one format that the recipe it comes from is meant for.
    """

    role: str
    scheme: Scheme | None = None
    keeps: tuple[str, ...] = ()
    format: FormatName | None = None

    @property
    def name(self) -> str:
        """In words; no two choices for a role have the same."""
        if self.scheme is None:
            return AS_IT_IS
        by = {"nearest": "", "gptq": " by GPTQ"}[self.scheme.rounding] + " in sequence" * self.scheme.sequential
        inputs = f" x {self.scheme.inputs}" if self.scheme.inputs else ""
        form = f" as {self.format}" if self.format else ""
        form += " with F32 scales" if self._wide else ""
        kept = f" without {', '.join(self.keeps)}" if self.keeps else ""
        return f"{self.scheme.weights}{by}{inputs}{form}{kept}"

    @property
    def _wide(self) -> bool:
        """Whether integers have scales of more bits than the weights had."""
        weights = self.scheme.weights if self.scheme else None
        return weights is not None and weights.dtype.startswith("int") and weights.scale_dtype == "F32"

    @property
    def static(self) -> bool:
        """Whether its activations have scales that are measured beforehand."""
        return self.scheme is not None and self.scheme.inputs is not None and not self.scheme.inputs.dynamic


Combination = Mapping[str, RoleChoice]
"""Role → what is done to it."""


def role_choices(recipes: Iterable[Recipe], facts: Facts) -> dict[str, tuple[RoleChoice, ...]]:
    """Role → what recipes do to it in a drafter, each once; the first leaves it as it is."""
    choices: dict[str, dict[RoleChoice, None]] = {role: {RoleChoice(role): None} for role in ROLES}
    for recipe in recipes:
        for choice in _of(recipe, facts):
            choices[choice.role][choice] = None
    return {role: tuple(found) for role, found in choices.items()}


def _of(recipe: Recipe, facts: Facts) -> Iterator[RoleChoice]:
    weights = [(name, tensor.role) for name, tensor in expected(facts).items()]
    others = (entry for entry in recipe.exclude if entry not in (*ALWAYS_KEPT, HEAD, FC))
    keeps = tuple(entry for entry in others if entry not in WEIGHTS or any(WEIGHTS[entry](*one) for one in weights))
    yield RoleChoice(LAYERS, recipe.scheme, keeps, recipe.format)
    for role in (HEAD, FC):
        if role not in recipe.exclude:
            yield RoleChoice(role, recipe.of(role))


def recipe_of(name: str, combination: Combination) -> Recipe | None:
    """The recipe that does this; None where every role stays as it is."""
    chosen = {role: choice.scheme for role, choice in combination.items() if choice.scheme is not None}
    if not chosen:
        return None
    main, *others = chosen
    layers = combination[LAYERS]
    return Recipe(
        name,
        about=combination_name(combination),
        scheme=chosen[main],
        exclude=(*ALWAYS_KEPT, *_kept(combination, chosen)),
        format=layers.format,
        roles={role: chosen[role] for role in others},
    )


def _kept(combination: Combination, chosen: Mapping[str, Scheme]) -> Iterator[str]:
    yield from (role for role in (HEAD, FC) if role not in chosen)
    yield from combination[LAYERS].keeps if LAYERS in chosen else (WHOLE_LAYERS,)


def combination_name(combination: Combination) -> str:
    """In one line: what is done, and nothing of what stays as it is."""
    changed = [f"{role} {choice.name}" for role, choice in combination.items() if choice.scheme is not None]
    return "; ".join(changed) or AS_IT_IS


def only(role: str, choice: RoleChoice, roles: Sequence[str] = ROLES) -> Combination:
    """The combination that does this to one role and nothing to the others."""
    return {other: choice if other == role else RoleChoice(other) for other in roles}
