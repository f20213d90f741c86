"""What of the shipped recipes runs on an engine and its hardware, and which of them says what is really multiplied.

One answer for `draftconv recipes --for`, for what `quantize` suggests, and for the tables of the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from draftconv.engines.deployed import Deployment, by_role
from draftconv.engines.deployment import NEAREST, has_form, resolve_kind
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import EngineSpec, Evidence
from draftconv.errors import Refused
from draftconv.quantization.recipes import Recipe, find_recipe, recipe_names

KNOWN: Mapping[Evidence, str] = {
    "run": "run",
    "read": "not run on hardware",
    "inferred": "not run on hardware, inferred",
}
"""What a table of kernels says of its evidence."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A recipe that runs on an engine and its hardware.

    Attributes:
        engine: with its hardware. `format`, `style`: what is written.
        multiplied: weights x activations, in words; `weights`, `activations`: each of them alone.
        declared: the activations that the file declares.
        executed: the kernel in words. `source`, `evidence`: where that is from.
        not_for: the kind of attention that it does not run for; empty where it runs for both.
        instead: the shipped recipe that quantizes what is multiplied there and no more; empty where it is this one,
            or there is none.
    """

    engine: str
    recipe: str
    format: str
    style: str | None
    multiplied: str
    weights: str
    activations: str
    declared: str
    executed: str
    source: str
    evidence: Evidence
    notes: tuple[str, ...]
    not_for: str
    instead: str

    @property
    def known(self) -> str:
        """How the kernel is known, in words."""
        return KNOWN[self.evidence]


@dataclass(frozen=True, slots=True)
class NoOffer:
    """A recipe that does not run there: why, and what to type next."""

    engine: str
    recipe: str
    why: str
    cure: str


def offers(spec: EngineSpec, recipes: Sequence[Recipe]) -> tuple[tuple[Offer, ...], tuple[NoOffer, ...]]:
    """What of some recipes runs on an engine, on each of its hardware where `spec` names none; then what does not."""
    machines = (spec.hardware,) if spec.hardware else ENGINES[spec.name].hardware
    specs = [replace(spec, hardware=hardware) for hardware in machines]
    rows = [_offer(recipe, machine) for machine in specs for recipe in recipes]
    return (
        tuple(row for row in rows if isinstance(row, Offer)),
        tuple(row for row in rows if isinstance(row, NoOffer)),
    )


def instead(recipe: Recipe, deployment: Deployment, spec: EngineSpec, *, mla: bool) -> str:
    """The shipped recipe that quantizes what is multiplied there and no more; empty where that is this one, or none.

    Args:
        deployment: what `resolve` said of the recipe. `mla`: for drafters with latent attention, or Llama-style ones.
    """
    if not deployment.weight_only:
        return ""
    weights = recipe.scheme.weights
    bare = replace(recipe.scheme, inputs=None), recipe.roles
    same = [name for name in recipe_names() if ((other := find_recipe(name)).scheme, other.roles) == bare]
    near = () if recipe.roles else NEAREST.get((weights.dtype, weights.granularity, None), ())
    return next((name for name in (*same, *near) if has_form(find_recipe(name), spec, mla=mla)), "")


def _offer(recipe: Recipe, spec: EngineSpec) -> Offer | NoOffer:
    llama, mla = (_resolved(recipe, spec, mla=mla) for mla in (False, True))
    if isinstance(llama, Refused):
        if isinstance(mla, Refused):
            return NoOffer(str(spec), recipe.name, llama.why, llama.cure)
        found, not_for = mla, "Llama-style"
    else:
        found, not_for = llama, "MLA" if isinstance(mla, Refused) else ""
        if isinstance(mla, Deployment) and mla.kept.keys() != llama.kept.keys():
            found = replace(llama, notes=(*llama.notes, f"MLA drafters: {', '.join(mla.kept) or 'nothing'} in 16 bits"))
    weights = {role: part.scheme.weights.title for role, part in found.parts.items()}
    activations = {role: str(part.multiplied or "16 bit") for role, part in found.parts.items()}
    return Offer(
        str(spec),
        recipe.name,
        found.format,
        found.style,
        by_role({role: f"{weights[role]} x {activations[role]}" for role in found.parts}),
        by_role(weights),
        by_role(activations),
        by_role({role: str(part.scheme.inputs or "16 bit") for role, part in found.parts.items()}),
        found.told,
        found.source,
        found.evidence,
        found.notes,
        not_for,
        instead(recipe, found, spec, mla=not_for == "Llama-style"),
    )


def _resolved(recipe: Recipe, spec: EngineSpec, *, mla: bool) -> Deployment | Refused:
    try:
        return resolve_kind(recipe, spec, mla=mla)
    except Refused as refusal:
        return refusal
