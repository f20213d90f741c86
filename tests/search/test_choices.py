"""What may be done to each role, and the recipe that a combination of it is."""

from __future__ import annotations

from itertools import product

import pytest

from draftconv.quantization.exclusions import select
from draftconv.quantization.recipe_schema import parse
from draftconv.quantization.recipe_text import recipe_text
from draftconv.quantization.recipes import find_recipe, recipe_names
from draftconv.quantization.scheme import Scheme, WeightScheme
from draftconv.search.choices import (
    AS_IT_IS,
    FC,
    HEAD,
    LAYERS,
    ROLES,
    RoleChoice,
    combination_name,
    recipe_of,
    role_choices,
)
from tests.tiny import VARIANTS

INT8 = Scheme(WeightScheme("int8", "channel", "max/127", "weight"))
INT4 = find_recipe("w4a16").scheme
FACTS = VARIANTS["llama"].facts
MLA = VARIANTS["mla"].facts


def combination(layers: Scheme | None, head: Scheme | None, fc: Scheme | None) -> dict[str, RoleChoice]:
    schemes = dict(zip(ROLES, (layers, head, fc), strict=True))
    return {role: RoleChoice(role, scheme) for role, scheme in schemes.items()}


@pytest.mark.parametrize("chosen", [c for c in product((None, INT8, INT4), repeat=3) if any(c)])
def test_a_recipe_gives_every_role_what_was_chosen_for_it(chosen: tuple[Scheme | None, ...]) -> None:
    layers, head, fc = chosen
    recipe = recipe_of("found", combination(layers, head, fc))
    assert recipe is not None
    roles = select(recipe, FACTS).roles
    found = {name: recipe.of(role) for name, role in roles.items()}
    wanted = {HEAD: head, FC: fc}
    for name, scheme in found.items():
        assert scheme == wanted.get(name.removesuffix(".weight"), layers)
    assert ("lm_head.weight" in found, "fc.weight" in found) == (head is not None, fc is not None)
    assert any(name.startswith("layers.") for name in found) == (layers is not None)


@pytest.mark.parametrize("chosen", [c for c in product((None, INT8, INT4), repeat=3) if any(c)])
def test_the_recipe_comes_back_from_its_file(chosen: tuple[Scheme | None, ...]) -> None:
    recipe = recipe_of("found", combination(*chosen))
    assert recipe is not None
    assert parse(recipe_text(recipe), "found", "found.yaml") == recipe


def test_nothing_chosen_is_no_recipe() -> None:
    kept = combination(None, None, None)
    assert recipe_of("found", kept) is None
    assert combination_name(kept) == AS_IT_IS


@pytest.mark.parametrize("facts", [FACTS, MLA])
def test_shipped_recipes_give_choices_that_all_have_names_of_their_own(facts: object) -> None:
    choices = role_choices(map(find_recipe, recipe_names()), FACTS if facts is FACTS else MLA)
    for role, of_role in choices.items():
        assert of_role[0] == RoleChoice(role)
        assert len({choice.name for choice in of_role}) == len(of_role)


def test_what_a_drafter_does_not_have_is_not_kept() -> None:
    for facts, kept in ((FACTS, {()}), (MLA, {("kv_b",), ("kv_b", "a_projections")})):
        layers = role_choices(map(find_recipe, recipe_names()), facts)[LAYERS]
        assert {choice.keeps for choice in layers if choice.scheme is not None} == kept
