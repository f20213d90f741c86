"""A search from a source to a certified drafter: read, plan, measure, fix, certify, write, replay what was written."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import draftconv
from draftconv.checkpoint import open_checkpoint
from draftconv.checkpoint.kept_work import kept_work
from draftconv.conversion.options import ConvertOptions, QuantizeOptions
from draftconv.conversion.pruning.plan import PruningPlan
from draftconv.errors import UsageError, Void
from draftconv.layouts.drafter_reader import DrafterReader
from draftconv.live.step_times import ServerSpeed, asked_speed
from draftconv.options import Place, several
from draftconv.quantization.recipes import find_recipe, recipe_names
from draftconv.replay.drafters import embedding_doubts
from draftconv.replay.replay import Arm
from draftconv.replay.settings import refuse_depth
from draftconv.replay.static_scales import StaticScales
from draftconv.report.arms import content
from draftconv.report.certification import share_of
from draftconv.report.statistics import FEWEST_CLUSTERS
from draftconv.search.again import RECIPE, Again
from draftconv.search.choices import LAYERS, RoleChoice, role_choices
from draftconv.search.heads import PrunedHeads, all_planners
from draftconv.search.measuring import Half, multiplied
from draftconv.search.opening import load, open_planner, parse_machine, static_scales
from draftconv.search.options import SlimOptions
from draftconv.search.outline import Outline, gptq_seconds, seconds_per_token, tokens
from draftconv.search.planning import LeftOutChoice, PlannedDrafter, Planner, Planners
from draftconv.search.result import SlimResult
from draftconv.search.searching import (
    Candidate,
    PlannedChoices,
    certified,
    fixed,
    foreseen_loss,
    measured_path,
    plan_alone,
    smallest_loss,
    smallest_passed,
)
from draftconv.search.speed import SpeedModel
from draftconv.traces.halves import Halves, split_halves
from draftconv.traces.trace import Trace, TraceEntry, open_trace


@dataclass(frozen=True, slots=True)
class Search:
    """A search that is planned: everything is read but weights.

    Attributes:
        source: as it was named.
        heads: of fewer rows; None where nobody gave text to choose them by.
        speed: what drafters would bring; None where nobody tells how long steps take.
    """

    source: Place
    trace: Trace
    halves: Halves
    planner: Planner
    planned: PlannedChoices
    options: SlimOptions
    heads: PrunedHeads | None = None
    speed: SpeedModel | None = None

    @property
    def planners(self) -> Planners:
        """The drafter as it is, and with every number of rows that its head may have."""
        return all_planners(self.planner, self.heads)

    @property
    def left_out(self) -> tuple[LeftOutChoice, ...]:
        """What is not tried, and why."""
        return (*self.planned.left_out, *(self.heads.left_out if self.heads else ()))

    @property
    def name(self) -> str:
        return self.planner.drafter.checkpoint.name

    @property
    def unseen(self) -> int:
        """Prompts that certify."""
        return _prompts(self.halves.judging)

    @property
    def foreseen_loss(self) -> float:
        """The smallest loss that they can certify, as the trained fixtures let expect."""
        return foreseen_loss(self.halves.judging, self.unseen, self.options)

    def outline(self) -> Outline:
        """What it would do and how long it would take: the drafter is loaded, and a few requests are replayed."""
        options, halves = self.options, self.halves
        depth = options.num_speculative_tokens
        pace = seconds_per_token(_load(self), self.trace, halves.choosing, depth)
        alone = {drafter.name: drafter for drafter in self.planned.measured.values()}
        steps = sum(len(planned) - 1 for planned in self.planned.alone.values())
        replays = len(alone) + steps + (1 if self.heads and self.heads.planners else 0)
        text = [sum(map(tokens, half)) for half in (halves.choosing, halves.judging)]
        return Outline(
            engine=str(self.planner.spec),
            depth=depth,
            alone=tuple(alone.values()),
            left_out=self.left_out,
            replays=replays + 1 + options.candidates,
            seconds=pace * (replays * text[0] + (1 + options.candidates) * text[1]) + gptq_seconds(alone.values()),
            searched=_prompts(halves.choosing),
            unseen=self.unseen,
            certifiable=self.foreseen_loss,
            max_loss=options.max_loss,
        )


def plan_search(source: Place, options: SlimOptions) -> Search:
    """Read everything but weights, and plan every choice.

    Raises:
        Refused: the engine does not run the drafter, or it is quantized already.
        UsageError: an option is impossible, the trace is of another target or too short, or the text of another
            tokenizer.
        BadCheckpoint, BadPrompts, Undecided: the drafter, the trace or the text cannot be read.
    """
    spec = parse_machine(options.engine)
    server = asked_speed(options.speed, options.target_step)
    share_of(options.alpha, options.candidates)
    if several(options.keep) and not several(options.counts):
        raise UsageError(
            "--keep has no meaning without --counts",
            why="it names rows of heads that have fewer, which only text chooses",
            cure="add --counts, or leave --keep out",
        )
    trace = open_trace(options.trace)
    refuse_depth(options.num_speculative_tokens, trace)
    halves = split_halves(trace.entries)
    if (unseen := _prompts(halves.judging)) < FEWEST_CLUSTERS:
        raise UsageError(
            f"half of the trace has {unseen} prompts",
            why=f"fewer than {FEWEST_CLUSTERS} that a search has not seen certify nothing",
            cure=f"make a trace of {2 * FEWEST_CLUSTERS} prompts or more, better of hundreds",
        )
    planner = open_planner(source, spec, options.quantize, trace)
    choices = role_choices(map(find_recipe, recipe_names()), planner.drafter.facts)
    heads = PrunedHeads.open(planner, trace, options) if several(options.counts) else None
    planned = plan_alone(choices, all_planners(planner, heads))
    speed = None if server is None else _speed_model(server, planner, planned, options)
    return Search(source, trace, halves, planner, planned, options, heads, speed)


def _speed_model(server: ServerSpeed, planner: Planner, planned: PlannedChoices, options: SlimOptions) -> SpeedModel:
    """What drafters would bring on a server.

    Raises:
        UsageError: nothing tells what draft steps cost there.
    """
    whole, drafter = planned.alone[LAYERS][RoleChoice(LAYERS)], planner.drafter
    name, depth = drafter.checkpoint.name, options.num_speculative_tokens
    model = SpeedModel(server, name, content(drafter), whole.reads, depth)
    server.costs(name, model.content, whole.reads)
    return model


def run_search(search: Search, out: Path, announce: Callable[[str], None] | None = None) -> SlimResult:
    """Measure, certify, and write what was certified.

    Args:
        announce: told where it goes on with what a stopped search has measured.

    Raises:
        Void: what was written does not accept what was certified.
        DraftconvError: as `replay`, and WriteError where the output cannot be written.
    """
    options, depth = search.options, search.options.num_speculative_tokens
    told = options.progress or (lambda *_: None)
    kept = search.heads.decide(search.trace, search.halves.choosing) if search.heads else {}
    rows = {rows: plan.kept.ids for rows, plan in kept.items()}
    arm = _load(search)
    with kept_work(out, _key(search, rows), "search", announce) as work:
        choosing = search.halves.choosing
        scales = static_scales(search.planner, search.trace, choosing, arm, options.dtype, options.device, rows)
        half = _half(search, choosing, arm, work / "searched.jsonl", scales)
        path = measured_path(search.planned, search.planners, half, depth, told)
        unseen = _half(search, search.halves.judging, arm, work / "unseen.jsonl", scales)
        judged = certified(fixed(path, options.max_loss, options.candidates, depth), unseen, options, told)
        chosen = smallest_passed(judged, depth)
        if chosen is not None:
            made = _made(search, chosen, kept, work)
            unseen.calibrate(made)
            made.conversion.write(out, overwrite=options.overwrite)
            _hold(search, chosen, unseen, out)
    doubts = embedding_doubts(search.name, search.planner.drafter, search.trace)
    by_name = {candidate.planned.name: candidate for candidate in judged}
    return SlimResult(
        drafter=search.name,
        engine=str(search.planner.spec),
        depth=depth,
        max_loss=options.max_loss,
        alpha=options.alpha,
        searched=_prompts(search.halves.choosing),
        unseen=search.unseen,
        path=tuple(by_name.get(candidate.planned.name, candidate) for candidate in path),
        chosen=chosen,
        smallest_loss=smallest_loss(path, search.unseen, options),
        left_out=search.left_out,
        notes=(*doubts, *(kept[min(kept)].notes if kept else ())),
        again=None if chosen is None else _again(search, chosen.planned),
        speed=search.speed,
        command=options.command,
    )


def _made(search: Search, found: Candidate, kept: Mapping[int, PruningPlan], work: Path) -> PlannedDrafter:
    """What is written: a drafter whose head is pruned is written before, and planned once more.

    Raises:
        WriteError: the pruned drafter cannot be written.
    """
    chosen, certificate = found.planned, _certificate(search, found)
    if search.heads is None or chosen.rows is None:
        return search.planner.certified(chosen, certificate)
    pruned = work / _pruned_name(search, chosen.rows)
    search.heads.conversion(kept[chosen.rows].kept).write(pruned, overwrite=True)
    planner = open_planner(pruned, search.planner.spec, search.options.quantize_pruned, search.trace)
    match planner.plan(chosen.name, chosen.recipe):
        case PlannedDrafter() as made:
            return planner.certified(made, certificate)
        case left_out:
            raise Void(
                f"{chosen.name} cannot be written any more: {left_out.why}",
                why="it was planned with the same rows and measured",
                cure="this is a fault of draftconv: please tell us of it; nothing was left behind",
            )


def _certificate(search: Search, chosen: Candidate) -> dict[str, object]:
    """What draftconv.json tells of the certificate."""
    certificate, options = chosen.certificate, search.options
    if certificate is None:
        raise ValueError(f"{chosen.planned.name} was not judged")
    return {
        "ratio": float(f"{certificate.ratio:.6g}"),
        "low": float(f"{certificate.low:.6g}"),
        "max_loss": options.max_loss,
        "alpha": options.alpha,
        "level": certificate.level,
        "prompts": certificate.clusters,
        "num_speculative_tokens": options.num_speculative_tokens,
        "engine": str(search.planner.spec),
        "trace": f"sha256:{search.trace.digest}",
    }


def _pruned_name(search: Search, rows: int) -> str:
    return f"{Path(search.name).name}-{rows}-rows"


def _again(search: Search, chosen: PlannedDrafter) -> Again:
    """The commands that make the same bytes."""
    options = search.options
    pruning = None if chosen.rows is None else options.prune(chosen.rows)
    how = replace(options.quantize if pruning is None else options.quantize_pruned, overwrite=False)
    if chosen.recipe is None:
        last: QuantizeOptions | ConvertOptions = replace(how.convert, to=chosen.conversion.layout.id)
    else:
        calibrated = chosen.decided is not None and chosen.decided.rounding.calibrated
        trace = how.calibrate if calibrated else None
        last = replace(how, recipe=RECIPE, calibrate=trace, calibrate_on="half" if calibrated else "all")
    pruned = _pruned_name(search, chosen.rows or 0)
    return Again(str(search.source), pruned, pruning, last, search.trace.about.target)


def _prompts(entries: tuple[TraceEntry, ...]) -> int:
    return len({entry.cluster for entry in entries})


def _load(search: Search) -> Arm:
    planner, options = search.planner, search.options
    return load(planner, planner.drafter, search.trace, options.dtype, options.device)


def _half(search: Search, entries: tuple[TraceEntry, ...], arm: Arm, kept: Path, scales: StaticScales) -> Half:
    return Half.of(search.trace, entries, arm, search.options.num_speculative_tokens, kept, scales)


def _key(search: Search, rows: Mapping[int, tuple[int, ...]]) -> str:
    """What decides every count of a search."""
    options = search.options
    told = {
        "drafter": content(search.planner.drafter),
        "trace": search.trace.digest,
        "engine": str(search.planner.spec),
        "depth": options.num_speculative_tokens,
        "replay": [options.dtype, options.device],
        "rows": {str(number): ids for number, ids in rows.items()},
        "version": draftconv.__version__,
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _hold(search: Search, chosen: Candidate, unseen: Half, out: Path) -> None:
    """Replay what was written on the unseen half: its counts must be those that were certified.

    Raises:
        Void: one differs; the output is removed.
    """
    reader = DrafterReader(None, None, accept_detected=True)
    written = reader.read(open_checkpoint(out), search.planner.target)
    rounds, options = multiplied(chosen.planned), search.options
    arm = load(search.planner, written, search.trace, options.dtype, options.device, rounds)
    differing = unseen.differing(chosen.planned, arm)
    if differing:
        shutil.rmtree(out)
        raise Void(
            f"what was written accepts something else than was certified, in {differing} requests",
            why="the certificate would be about another drafter",
            cure="this is a fault of draftconv: please tell us of it; nothing was left behind",
        )
