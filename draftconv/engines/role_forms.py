"""The roles of a recipe in one file: which format each takes beside the others, and which stay in 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from draftconv.drafter.facts import Facts
from draftconv.drafter.tensor_specs import Role
from draftconv.drafter.tensors import expected
from draftconv.engines.deployed import Deployment
from draftconv.engines.hardware import CHIPS
from draftconv.engines.kept_roles import KeptRole
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import EngineSpec
from draftconv.errors import Refused
from draftconv.quantization.exclusions import WEIGHT, role_of
from draftconv.quantization.recipes import TABLES, FormatName, Recipe, TableRole, in_one_file


def absent(facts: Facts) -> list[str]:
    """The roles among `TABLES` that a drafter has no weight for."""
    return [role for role in TABLES if f"{role}{WEIGHT}" not in expected(facts)]


def quantized_tables(recipe: Recipe) -> Mapping[TableRole, str]:
    """The roles among `TABLES` that a recipe quantizes, each with the entry of `roles` whose scheme it has."""
    kinds: Mapping[TableRole, Role] = {"lm_head": "head", "fc": "fc"}
    roles = {table: role_of(recipe, f"{table}{WEIGHT}", kind) for table, kind in kinds.items()}
    return {table: role for table, role in roles.items() if role is not None}


def kept_role(spec: EngineSpec, table: TableRole, format_name: FormatName, *, mla: bool) -> KeptRole | None:
    """Why an engine multiplies a role in 16 bits, on the hardware that `spec` names or on any; None if it does not."""
    rows = ENGINES[spec.name].kept_roles
    chips = {CHIPS[name] for name in ((spec.hardware,) if spec.hardware else ENGINES[spec.name].hardware)}
    return next((row for row in rows for chip in sorted(chips) if row.holds(table, format_name, chip, mla=mla)), None)


def role_recipes(recipe: Recipe) -> Mapping[str, Recipe]:
    """Each role of a recipe as a recipe of its own."""
    return {
        role: replace(recipe, name=f"{recipe.name} ({role})", scheme=scheme, roles={})
        for role, scheme in recipe.roles.items()
    }


def beside(format_name: FormatName, part: Recipe, resolved: Callable[[Recipe], Deployment]) -> Deployment:
    """The form of one role in a file that holds another format already.

    Raises:
        Refused: no format that may stand in the same file has one.
    """
    allowed = in_one_file(format_name)
    refusals: list[Refused] = []
    for attempt in (part, *(replace(part, format=name) for name in allowed)):
        try:
            found = resolved(attempt)
        except Refused as refusal:
            refusals.append(refusal)
        else:
            if found.format in allowed:
                return found
    raise Refused(
        f"recipe {part.name} has no form beside {format_name}",
        why=refusals[0].why,
        cure=f"one file holds {', '.join(allowed)}: give the role a scheme that has a form among them, or exclude it",
    )
