"""Recipes planned for one drafter and one engine, and replayed where a trace can judge them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from draftconv.conversion.options import QuantizeOptions
from draftconv.engines import EngineSpec
from draftconv.engines.offers import offers
from draftconv.errors import Refused
from draftconv.options import Place
from draftconv.quantization.fixture_losses import fixture_losses
from draftconv.quantization.recipes import Recipe
from draftconv.replay.drafters import embedding_doubts
from draftconv.replay.settings import refuse_depth
from draftconv.search.choices import AS_IT_IS
from draftconv.search.costs import RecipeCost, RecipeCosts
from draftconv.search.measuring import Half, unsimulated
from draftconv.search.opening import load, open_planner, static_scales
from draftconv.search.planning import LeftOutChoice, PlannedDrafter, Planner
from draftconv.traces.halves import split_halves
from draftconv.traces.trace import open_trace

DTYPE = "float32"
"""That replays compute in."""


def recipe_costs(
    source: Place,
    spec: EngineSpec,
    recipes: Sequence[Recipe],
    options: QuantizeOptions,
    trace: Path | None,
    depth: int,
    told: Callable[[int, int], None] = lambda *_: None,
) -> RecipeCosts:
    """Plan every recipe for a drafter and an engine, and replay those that a trace can judge.

    With a trace GPTQ is calibrated on the half that a search would see, and every recipe is judged on the other half.

    Args:
        told: how many recipes are done, and how many there are.

    Raises:
        Refused: the drafter is quantized already, or the engine does not run it.
        UsageError: the trace is of another target, or too short.
        BadCheckpoint, Undecided: the drafter or the trace cannot be read.
    """
    opened = None if trace is None else open_trace(trace)
    if opened is not None:
        refuse_depth(depth, opened)
    sized = open_planner(source, spec, options, opened, calibrated=False)
    whole = sized.plan(AS_IT_IS, None)
    if not isinstance(whole, PlannedDrafter):
        raise Refused(f"{spec} does not run {sized.drafter.checkpoint.name}", why=whole.why)
    runs = {offer.recipe: offer for offer in offers(spec, recipes)[0]}
    losses = fixture_losses()
    costs: list[RecipeCost] = []
    left_out: list[LeftOutChoice] = []
    for recipe in recipes:
        match sized.plan(recipe.name, recipe):
            case PlannedDrafter() as planned:
                costs.append(RecipeCost(runs[recipe.name], planned, losses.get(recipe.name)))
            case choice:
                left_out.append(choice)
    prompts, name = 0, sized.drafter.checkpoint.name
    doubts = () if opened is None else embedding_doubts(name, sized.drafter, opened)
    if opened is not None:
        measured = replace(sized, calibrated=True, options=replace(options, calibrate=trace, calibrate_on="half"))
        halves = split_halves(opened.entries)
        prompts = len({entry.cluster for entry in halves.judging})
        arm = load(sized, sized.drafter, opened, DTYPE, options.device)
        with tempfile.TemporaryDirectory(prefix="draftconv-recipes-") as kept:
            scales = static_scales(sized, opened, halves.choosing, arm, DTYPE, options.device)
            half = Half.of(opened, halves.judging, arm, depth, Path(kept) / "unseen.jsonl", scales)
            costs = [_replayed(cost, measured, half, told, place, len(costs)) for place, cost in enumerate(costs, 1)]
    by_bytes = sorted(costs, key=lambda cost: -cost.planned.reads.per_step(depth))
    return RecipeCosts(name, str(spec), depth, whole, tuple(by_bytes), tuple(left_out), prompts, doubts)


def _replayed(
    cost: RecipeCost, planner: Planner, half: Half, told: Callable[[int, int], None], place: int, every: int
) -> RecipeCost:
    """The cost with what a replay says, where one can simulate the recipe."""
    recipe = cost.planned.recipe
    found, warnings = None, tuple[str, ...]()
    if recipe is not None:
        planned = planner.plan(f"{recipe.name}, measured", recipe)
        if isinstance(planned, PlannedDrafter) and not unsimulated(planned):
            found = half.estimate(planned)
            gptq = planned.decided.calibration.gptq if planned.decided else None
            warnings = () if gptq is None else tuple(gptq.warnings())
    told(place, every)
    return replace(cost, replayed=found, warnings=warnings)
