"""How long the steps of a server take, as `accept --speed` is told: by a file, a profile, or a live report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from draftconv.checkpoint import show
from draftconv.drafter.shipped_files import SUFFIXES, find_written
from draftconv.drafter.step_bytes import StepBytes
from draftconv.engines import EngineSpec, parse_engine
from draftconv.engines.hardware import bandwidth_of
from draftconv.errors import BadReport, DraftconvError, UsageError
from draftconv.live.profiles import find_profile
from draftconv.report.acceptance.speed import StepCost

FLAG = "--speed"
REPORT = "report.json"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What is known of the steps under one load.

    Attributes:
        concurrency: requests at a time. `target`: ms of a step without a drafter.
        measured: K → ms of a step with K drafted tokens. `each`: ms of one draft step; None where nobody says.
    """

    concurrency: int
    target: float
    measured: Mapping[int, float]
    each: float | None = None


@dataclass(frozen=True, slots=True)
class ServerSpeed:
    """What is known of a server.

    Attributes:
        where: the file, for messages and the report. `spec`: the engine with its hardware; None where nobody says.
        devices: that share the drafter. `loads`: by content of the drafter (`ArmInfo.content`) that drafted; None are
            those of any.
    """

    where: str
    spec: EngineSpec | None
    devices: int
    loads: Mapping[str | None, tuple[StepTimes, ...]]

    def costs(self, name: str, content: str, reads: StepBytes) -> tuple[StepCost, ...]:
        """What each step of a drafter costs, under every load.

        Args:
            content: hash of the drafter. `reads`: what it reads, for an estimate.

        Raises:
            UsageError: nothing tells what its draft steps cost.
        """
        loads = self.loads.get(content, self.loads[None])
        return tuple(self._cost(name, load, reads) for load in loads)

    def costs_of_smaller(
        self, name: str, content: str, whole: StepBytes, reads: StepBytes, depth: int
    ) -> tuple[StepCost, ...]:
        """What each step would cost of a drafter that is made of this one and reads fewer bytes.

        An estimate is made of its own bytes. Where the whole drafter's steps are known, what drafting adds to them is
        taken to shrink with the bytes that a draft step reads.

        Args:
            whole, reads: of the drafter that is known, and of the smaller one. `depth`: K, for the mean over a round.

        Raises:
            UsageError: as `costs`.
        """
        share = reads.per_step(depth) / whole.per_step(depth)
        known = self.costs(name, content, whole)
        estimated = self.costs(name, content, reads)
        return tuple(
            own if cost.evidence == "estimate" else cost.shrunk(share)
            for cost, own in zip(known, estimated, strict=True)
        )

    def _cost(self, name: str, load: StepTimes, reads: StepBytes) -> StepCost:
        if load.measured:
            known = tuple(sorted(load.measured.items()))
            told = " and ".join(str(k) for k, _ in known)
            return StepCost(load.concurrency, load.target, "measured", f"steps with {told} drafted tokens", known)
        if load.each is not None:
            return StepCost(load.concurrency, load.target, "given", f"{load.each:g} ms per draft step", each=load.each)
        return self._estimate(name, load, reads)

    def _estimate(self, name: str, load: StepTimes, reads: StepBytes) -> StepCost:
        """The time in which memory can be read that often: no draft step is faster."""
        rate = None if self.spec is None or self.spec.hardware is None else _bandwidth(self.spec)
        if self.spec is None or rate is None:
            what = f"{self.spec} has no published bandwidth" if self.spec else "it names no hardware"
            raise UsageError(
                f"{FLAG} {show(self.where)} does not tell what a draft step of {show(name)} costs, and {what}",
                why="the time of a target step alone does not say which K pays",
                cure="add `draft_ms:` or a measured step with drafted tokens (`step_ms: {0: …, 3: …}`) to a load",
            )
        per_ms = rate * 1e9  # bytes
        machine = self.spec.machine or self.spec.hardware
        return StepCost(
            load.concurrency,
            load.target,
            "estimate",
            f"{reads.each / 1e9:.3f} GB per draft step and {reads.once / 1e9:.3f} GB per round, "
            f"read by {self.devices} x {machine} at {rate:g} TB/s each",
            once=reads.once / per_ms,
            each=reads.each / self.devices / per_ms,
        )


def _bandwidth(spec: EngineSpec) -> float | None:
    return bandwidth_of(str(spec.hardware), spec.machine)


def asked_speed(place: Path | str | None, target_step: float | None) -> ServerSpeed | None:
    """What `--speed` and `--target-step` say; None where nobody asks for speed.

    Raises:
        UsageError, BadReport: as `read_server_speed`, or there is a time and no profile.
    """
    if place is not None:
        return read_server_speed(place, target_step)
    if target_step is not None:
        raise UsageError("--target-step has no meaning without --speed", cure="add --speed PROFILE, or leave it out")
    return None


def read_server_speed(place: Path | str, target_step: float | None) -> ServerSpeed:
    """What a file, a profile or the report of a live run says.

    Args:
        place: a .yaml file, the report of a live run, or the name of a shipped profile.
        target_step: ms of a target step with one request at a time, for a profile; None otherwise.

    Raises:
        UsageError: nothing of the kind, a file of another shape, or times that cannot be.
        BadReport: report.json is none.
    """
    if target_step is not None and not 0 < target_step < math.inf:
        raise UsageError(f"--target-step {target_step:g}: no time that a step can take", cure="give milliseconds")
    path, is_file = Path(place), str(place).endswith(SUFFIXES)
    is_report = path.name == REPORT or path.is_dir()
    if target_step is not None and (is_file or is_report):
        raise UsageError(
            f"--target-step beside {FLAG} {show(path.name)}, which says how long steps take",
            cure="leave it out, or name a profile",
        )
    if is_report:
        return _of_report(path.parent if path.name == REPORT else path)
    return _of_file(str(place)) if is_file else _of_profile(str(place), target_step)


# ── files, profiles and reports ────────────────────────────────────────────────────


def _of_file(path: str) -> ServerSpeed:
    from draftconv.drafter.yaml_file import read_yaml
    from draftconv.live.profile_schema import StepTimesSchema

    written = find_written(path, "file of step times", ())
    file = read_yaml(
        StepTimesSchema,
        written.text,
        written.where,
        noun="file of step times",
        why="a time that is misread would name another K",
        example="docs/accept.md",
    )
    try:
        spec = None if file.engine is None else parse_engine(file.engine)
    except DraftconvError as error:
        raise UsageError(f"{written.where}: {error.what}", why=error.why, cure=error.cure) from error
    loads = [
        StepTimes(load.concurrency, load.step_ms[0], {k: ms for k, ms in load.step_ms.items() if k}, load.draft_ms)
        for load in file.loads
    ]
    return ServerSpeed(written.name, spec, file.tensor_parallel_size, {None: _possible(loads, written.where)})


def _of_profile(name: str, target_step: float | None) -> ServerSpeed:
    profile = find_profile(name)
    if target_step is None:
        raise UsageError(
            f"{FLAG} {show(profile.name)} names a machine, and not how long a step of the target takes there",
            why="nothing was measured on it",
            cure="add --target-step MS: the mean time per output token (TPOT) of the target without a drafter",
        )
    loads = (StepTimes(1, target_step, {}),)
    return ServerSpeed(profile.name, parse_engine(profile.engine), profile.tensor_parallel, {None: loads})


def _of_report(directory: Path) -> ServerSpeed:
    from draftconv.report.write import read_report

    report = read_report(directory)
    where, settings = f"{directory.name}/report.json", report.about.settings
    alone = {row.concurrency: row.mean_tpot_ms for row in report.speed if row.drafter is None}
    if not alone:
        raise UsageError(
            f"{where} has no speed of the target alone",
            why="what a drafter gains is told against it",
            cure="measure it: `draftconv parity … --launch --also-speed`",
        )
    drafted = defaultdict[str, dict[int, float]](dict)
    content = {arm.name: arm.content for arm in report.arms}
    for row in report.speed:
        if row.drafter in content and row.accept_length is not None:
            drafted[content[row.drafter]][row.concurrency] = row.mean_tpot_ms * row.accept_length
    loads = {
        arm: [StepTimes(n, ms, {report.about.depth: drafted[arm][n]}) for n, ms in alone.items() if n in drafted[arm]]
        for arm in drafted
    }
    return ServerSpeed(
        where,
        parse_engine(settings["for"]) if "for" in settings else None,
        _devices(settings.get("devices", "1"), where),
        {
            None: _possible([StepTimes(n, ms, {}) for n, ms in alone.items()], where),
            **{arm: _possible(times, where) for arm, times in loads.items()},
        },
    )


def _devices(text: str, where: str) -> int:
    if not (text.isdecimal() and text.isascii() and 1 <= len(text) <= 4 and int(text)):
        raise BadReport(f"{where}: {show(text)} is no number of devices", cure="give a report that was not edited")
    return int(text)


def _possible(loads: Sequence[StepTimes], where: str) -> tuple[StepTimes, ...]:
    """Refuses what no server can have been measured to do."""
    for load in loads:
        known = [(0, load.target), *sorted(load.measured.items())]
        if min(ms for _, ms in known) <= 0:
            raise UsageError(f"{where}: at {load.concurrency} at a time a step takes no time", cure="measure again")
        for (k0, t0), (k1, t1) in pairwise(known):
            if t1 < t0:
                raise UsageError(
                    f"{where}: at {load.concurrency} at a time a step with {k1} drafted tokens takes {t1:g} ms, "
                    f"with {k0} {t0:g} ms",
                    why="more work cannot take less time: the measurement was disturbed",
                    cure="measure again on a quiet machine",
                )
    return tuple(loads)
