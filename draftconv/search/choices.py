"""What may be done to each role of a drafter's weights, and the recipe that a combination of it is.

The choices are those of the shipped recipes: what they do to the layers, what any of them does to the head and to fc,
and for these two also what is rounded by GPTQ in the layers; a head may have fewer rows besides. Nothing here knows an
engine; what one cannot run is refused where a combination is planned (`planning`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
FOUND = "slim"
"""What a recipe is called that a search made; what it does stands in its `about`."""


@dataclass(frozen=True, slots=True)
class RoleChoice:
    """One thing that may be done to a role.

    Attributes:
        scheme: its numbers; None leaves it as it is.
        keeps: what of the layers stays as it is nevertheless, as `exclude` names it.
        format: the one format that the recipe it comes from is meant for.
        rows: that a head keeps; None keeps all.
    """

    role: str
    scheme: Scheme | None = None
    keeps: tuple[str, ...] = ()
    format: FormatName | None = None
    rows: int | None = None

    @property
    def changes(self) -> bool:
        """Whether it does anything."""
        return self.scheme is not None or self.rows is not None

    @property
    def name(self) -> str:
        """In words; no two choices for a role have the same."""
        said = [] if self.scheme is None else [self._numbers(self.scheme)]
        said += [] if self.rows is None else [f"{self.rows} rows"]
        return ", ".join(said) or AS_IT_IS

    @property
    def parts(self) -> tuple[RoleChoice, ...]:
        """What it is made of, each to be measured on its own: fewer rows, and their numbers."""
        both = self.scheme is not None and self.rows is not None
        return (replace(self, rows=None), replace(self, scheme=None)) if both else (self,)

    def _numbers(self, scheme: Scheme) -> str:
        by = {"nearest": "", "gptq": " by GPTQ"}[scheme.rounding] + " in sequence" * scheme.sequential
        inputs = f" x {scheme.inputs}" if scheme.inputs else ""
        form = f" as {self.format}" if self.format else ""
        form += " with F32 scales" if _is_wide(scheme) else ""
        kept = f" without {', '.join(self.keeps)}" if self.keeps else ""
        return f"{scheme.weights}{by}{inputs}{form}{kept}"


def _is_wide(scheme: Scheme) -> bool:
    """Whether integers have scales of more bits than the weights had."""
    return scheme.weights.dtype.startswith("int") and scheme.weights.scale_dtype == "F32"


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
        elif recipe.scheme.rounding == "gptq":
            yield RoleChoice(role, recipe.scheme)


def recipe_of(name: str, combination: Combination) -> Recipe | None:
    """The recipe that does this; None where every role stays as it is."""
    chosen = {role: choice.scheme for role, choice in combination.items() if choice.scheme is not None}
    if not chosen:
        return None
    main, *others = chosen
    layers = combination[LAYERS]
    return Recipe(
        name,
        about=combination_name({role: replace(choice, rows=None) for role, choice in combination.items()}),
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
    changed = [f"{role} {choice.name}" for role, choice in combination.items() if choice.changes]
    return "; ".join(changed) or AS_IT_IS


def only(role: str, choice: RoleChoice, roles: Sequence[str] = ROLES) -> Combination:
    """The combination that does this to one role and nothing to the others."""
    return {other: choice if other == role else RoleChoice(other) for other in roles}
