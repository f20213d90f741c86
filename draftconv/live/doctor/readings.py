"""The ways in which a server may read a drafter, each replayed on the texts that it wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES, EngineSpec
from draftconv.engines.replays import Misreading
from draftconv.engines.rules import Rule
from draftconv.live.doctor.asking import CountedText
from draftconv.live.doctor.options import DoctorOptions
from draftconv.options import Place, each_of
from draftconv.reference.accept_length import Counts
from draftconv.replay.arithmetic import AskedEngines, WrittenFor
from draftconv.replay.drafters import load_drafters, read_drafters, target_of
from draftconv.replay.settings import tokens_done
from draftconv.report.acceptance.records import AcceptanceRecord
from draftconv.report.arms import ArmNames
from draftconv.traces.trace import Trace, TraceEntry

if TYPE_CHECKING:
    from draftconv.replay.replay import Arm

AS_TRAINED = "as trained"


@dataclass(frozen=True, slots=True)
class ServerReading:
    """One way to read a drafter, and what it would have been accepted.

    Attributes:
        name: `AS_TRAINED`, the mis-reading, or the suspect's. `says`: what is done, in words.
        rules: of the engine that lead there. `records`: by request.
    """

    name: str
    says: str
    records: Mapping[str, AcceptanceRecord]
    rules: tuple[Rule, ...] = ()

    def counted(self, text: CountedText, depth: int, *, clipped: bool, reach: int | None = None) -> CountedText:
        """What a server that reads so counts of a text.

        Args:
            clipped: the last step counts up to the end of the text.
            reach: tokens that the drafter may have, as in `_steps`.
        """
        record = self.records[text.id]
        accepted = [min(count, depth) for count in record.accepted[: text.length - 1]]
        steps = _steps(accepted, record.prompt, depth, reach)
        if clipped and steps:
            steps[-1] -= max(0, len(steps) + sum(steps) - len(accepted))
        return CountedText(text.id, text.length, Counts.of(steps, depth))


def _steps(accepted: Sequence[int], prompt: int, depth: int, reach: int | None) -> list[int]:
    """Accepted tokens of every step, where the drafter may have `reach` tokens.

    After a pass over n tokens K more are drafted if n + K fit; else K zeros take their place, which are counted as
    drafts and fail. (vLLM 0.32.0, run; `_input_fits_in_drafter` of v1/worker/gpu_model_runner.py.)
    """
    steps, root, passed = list[int](), 0, prompt
    while root < len(accepted):
        steps.append(accepted[root] if reach is None or passed + depth <= reach else 0)
        passed = prompt + 1 + root + depth
        root += steps[-1] + 1
    return steps


@dataclass(frozen=True, slots=True)
class ReplayedReadings:
    """Every reading that was replayed, the right one first, and why others were not."""

    replayed: tuple[ServerReading, ...]
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReadDrafters:
    """The drafter and the suspects, read and held to the trace."""

    drafters: Mapping[str, Drafter]
    asked: AskedEngines

    @classmethod
    def of(
        cls, drafter: Place, trace: Trace, spec: EngineSpec, options: DoctorOptions, written_for: WrittenFor
    ) -> ReadDrafters:
        """Read them.

        Raises:
            UsageError, BadCheckpoint, Refused, Undecided: as `read_drafters`.
        """
        places = (drafter, *each_of(options.suspect))
        asked = AskedEngines.of(places, str(spec), target_of(trace), written_for)
        return cls(read_drafters(trace, places, options, ArmNames()), asked)

    @property
    def first(self) -> Drafter:
        """The drafter that should be served."""
        return next(iter(self.drafters.values()))


def replay_readings(
    read: ReadDrafters,
    trace: Trace,
    entries: Sequence[TraceEntry],
    spec: EngineSpec,
    target: Target | None,
    depth: int,
    options: DoctorOptions,
) -> ReplayedReadings:
    """Replay the drafter as it should be and under every mis-reading that this engine may have, and the suspects.

    Raises:
        UsageError, BadCheckpoint, Refused, Undecided: a drafter cannot be loaded or computed.
    """
    from draftconv.replay.accept import accept_records
    from draftconv.replay.misreadings import MISREADINGS, MisreadSubject, applied, boundaries_read, lender

    reading = None if options.progress is None else partial(options.progress, "reading")
    arithmetics = read.asked.of_each(read.drafters)
    first, *suspects = load_drafters(trace, read.drafters, arithmetics, options, reading)
    plain, about = first.arm, trace.about
    if (chosen := arithmetics[0]) is not None and chosen.rounds != frozenset():
        # What is misread has its weights alone: linears that round their inputs are not built under other facts.
        one = {first.arm.name: first.drafter}
        plain = load_drafters(trace, one, [replace(chosen, rounds=frozenset())], options)[0].arm
    of = MisreadSubject(plain, about.layers, about.boundaries, lend=lender(trace, target))
    rules = leading_rules(spec)
    outcomes = {name: applied(of, name) for name, row in MISREADINGS.items() if row.named or name in rules}
    arms = {name: arm for name, arm in outcomes.items() if not isinstance(arm, str)}
    says = {name: _says(MISREADINGS[name].says, boundaries_read(of, arm)) for name, arm in arms.items()}
    every = (first.arm, *arms.values(), *(suspect.arm for suspect in suspects))
    done = tokens_done(trace, entries, options.progress)
    records = _by_arm(every, accept_records(trace, entries, every, depth=depth, progress=done))
    return ReplayedReadings(
        (
            ServerReading(AS_TRAINED, "it is read as it was trained", records[first.arm.name]),
            *(ServerReading(name, says[name], records[name], rules.get(name, ())) for name in arms),
            *(
                ServerReading(name, f"the server has {name} loaded in its place", records[name])
                for name in (suspect.arm.name for suspect in suspects)
            ),
        ),
        {name: why for name, why in outcomes.items() if isinstance(why, str)},
    )


def leading_rules(spec: EngineSpec) -> dict[Misreading, tuple[Rule, ...]]:
    """Which rules of an engine, in this version, lead to a mis-reading that can be replayed."""
    found: dict[Misreading, tuple[Rule, ...]] = {}
    for rule in ENGINES[spec.name].rules:
        if rule.effect == "mis-read" and rule.applies(spec) and isinstance(rule.replay, tuple):
            for name in rule.replay:
                found[name] = (*found.get(name, ()), rule)
    return found


def _says(what: str, boundaries: str) -> str:
    return f"{boundaries}: {what}" if boundaries else what


def _by_arm(arms: Sequence[Arm], records: Iterable[AcceptanceRecord]) -> dict[str, dict[str, AcceptanceRecord]]:
    found: dict[str, dict[str, AcceptanceRecord]] = {arm.name: {} for arm in arms}
    for record in records:
        found[record.arm][record.id] = record
    return found
