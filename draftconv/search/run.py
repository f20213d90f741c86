"""A search from a source to a certified drafter: read, plan, measure, fix, certify, write, replay what was written."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import draftconv
from draftconv.checkpoint import open_checkpoint
from draftconv.checkpoint.kept_work import kept_work
from draftconv.errors import Void
from draftconv.layouts.drafter_reader import DrafterReader
from draftconv.live.step_times import ServerSpeed, asked_speed
from draftconv.options import Place
from draftconv.quantization.recipes import find_recipe, recipe_names
from draftconv.replay.replay import Arm
from draftconv.replay.settings import refuse_depth
from draftconv.report.arms import content
from draftconv.report.certification import share_of
from draftconv.search.choices import LAYERS, RoleChoice, role_choices
from draftconv.search.measuring import Half, multiplied
from draftconv.search.opening import load, open_planner, parse_machine
from draftconv.search.options import SlimOptions
from draftconv.search.outline import Outline, seconds_per_token, tokens
from draftconv.search.planning import Planner
from draftconv.search.result import SlimResult
from draftconv.search.searching import (
    Candidate,
    PlannedChoices,
    certified,
    fixed,
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
        speed: what drafters would bring; None where nobody tells how long steps take.
    """

    trace: Trace
    halves: Halves
    planner: Planner
    planned: PlannedChoices
    options: SlimOptions
    speed: SpeedModel | None = None

    @property
    def name(self) -> str:
        return self.planner.drafter.checkpoint.name

    def outline(self) -> Outline:
        """What it would do and how long it would take: the drafter is loaded, and a few requests are replayed."""
        options, halves = self.options, self.halves
        depth = options.num_speculative_tokens
        pace = seconds_per_token(_load(self), self.trace, halves.choosing, depth)
        changes = sum(len(planned) - 1 for planned in self.planned.alone.values())
        replays = 1 + 2 * changes
        text = [sum(map(tokens, half)) for half in (halves.choosing, halves.judging)]
        alone = [drafter for planned in self.planned.alone.values() for drafter in planned.values()]
        return Outline(
            engine=str(self.planner.spec),
            depth=depth,
            alone=tuple({drafter.name: drafter for drafter in alone}.values()),
            left_out=self.planned.left_out,
            replays=replays + 1 + options.candidates,
            seconds=pace * (replays * text[0] + (1 + options.candidates) * text[1]),
            searched=_prompts(halves.choosing),
            unseen=_prompts(halves.judging),
        )


def plan_search(source: Place, options: SlimOptions) -> Search:
    """Read everything but weights, and plan every choice.

    Raises:
        Refused: the engine does not run the drafter, or it is quantized already.
        UsageError: an option is impossible, or the trace is of another target.
        BadCheckpoint, Undecided: the drafter or the trace cannot be read.
    """
    spec = parse_machine(options.engine)
    server = asked_speed(options.speed, options.target_step)
    share_of(options.alpha, options.candidates)
    trace = open_trace(options.trace)
    refuse_depth(options.num_speculative_tokens, trace)
    planner = open_planner(source, spec, options.quantize, trace)
    choices = role_choices(map(find_recipe, recipe_names()), planner.drafter.facts)
    planned = plan_alone(choices, planner)
    speed = None if server is None else _speed_model(server, planner, planned, options)
    return Search(trace, split_halves(trace.entries), planner, planned, options, speed)


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


def run_search(search: Search, out: Path) -> SlimResult:
    """Measure, certify, and write what was certified.

    Raises:
        Void: what was written does not accept what was certified.
        DraftconvError: as `replay`, and WriteError where the output cannot be written.
    """
    options, depth = search.options, search.options.num_speculative_tokens
    told = options.progress or (lambda *_: None)
    arm = _load(search)
    with kept_work(out, _key(search)) as work:
        half = _half(search, search.halves.choosing, arm, work / "searched.jsonl")
        path = measured_path(search.planned, search.planner, half, depth, told)
        unseen = _half(search, search.halves.judging, arm, work / "unseen.jsonl")
        judged = certified(fixed(path, options.max_loss, options.candidates, depth), unseen, options, told)
        chosen = smallest_passed(judged, depth)
        if chosen is not None:
            unseen.calibrate(chosen.planned)
            chosen.planned.conversion.write(out, overwrite=options.overwrite)
            _hold(search, chosen, unseen, out)
    by_name = {candidate.planned.name: candidate for candidate in judged}
    unseen_prompts = _prompts(search.halves.judging)
    return SlimResult(
        drafter=search.name,
        engine=str(search.planner.spec),
        depth=depth,
        max_loss=options.max_loss,
        alpha=options.alpha,
        searched=_prompts(search.halves.choosing),
        unseen=unseen_prompts,
        path=tuple(by_name.get(candidate.planned.name, candidate) for candidate in path),
        chosen=chosen,
        smallest_loss=smallest_loss(path, unseen_prompts, options),
        left_out=search.planned.left_out,
        speed=search.speed,
        command=options.command,
    )


def _prompts(entries: tuple[TraceEntry, ...]) -> int:
    return len({entry.cluster for entry in entries})


def _load(search: Search) -> Arm:
    planner, options = search.planner, search.options
    return load(planner, planner.drafter, search.trace, options.dtype, options.device)


def _half(search: Search, entries: tuple[TraceEntry, ...], arm: Arm, kept: Path) -> Half:
    return Half.of(search.trace, entries, search.planner.drafter, arm, search.options.num_speculative_tokens, kept)


def _key(search: Search) -> str:
    """What decides every count of a search."""
    options = search.options
    told = {
        "drafter": content(search.planner.drafter),
        "trace": search.trace.digest,
        "engine": str(search.planner.spec),
        "depth": options.num_speculative_tokens,
        "replay": [options.dtype, options.device],
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
