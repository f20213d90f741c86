"""Recipes as files: what is written is read back as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftconv.quantization.recipe_schema import parse
from draftconv.quantization.recipe_text import recipe_text
from draftconv.quantization.recipes import find_recipe, recipe_names
from draftconv.quantization.scheme import Scheme, WeightScheme

INT8 = Scheme(WeightScheme("int8", "channel", "max/127", "weight"))


@pytest.mark.parametrize("name", recipe_names())
def test_a_shipped_recipe_comes_back(name: str) -> None:
    recipe = find_recipe(name)
    assert parse(recipe_text(recipe), name, "x.yaml") == recipe


def test_roles_and_roundings_come_back() -> None:
    recipe = find_recipe("w4a16-gptq")
    kept = tuple(entry for entry in recipe.exclude if entry not in ("lm_head", "fc"))
    fc = replace(INT8, rounding="gptq", sequential=True)
    mixed = replace(recipe, exclude=kept, roles={"lm_head": INT8, "fc": fc})
    text = recipe_text(mixed)
    assert parse(text, mixed.name, "x.yaml") == mixed
    assert text.count("rounding: gptq") == 2
