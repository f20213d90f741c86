"""What the doctor found: its verdict, what it costs, which rule it is, and what mends it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from draftconv.display import Block, Column, Displayed, card, named, table
from draftconv.engines import EngineSpec
from draftconv.engines.rules import BrokenRule, Rule
from draftconv.live.doctor.asking import AskedTexts
from draftconv.live.doctor.judging import MEANINGS, Explanation, Health, Judged
from draftconv.live.doctor.readings import AS_TRAINED, ServerReading
from draftconv.reference.accept_length import Counts

EXIT_CODES: Mapping[Health, int] = {"sound": 0, "fault": 1, "unknown": 3}
SHOWN = 6
"""Explanations on the first screen."""

ToldKind = Literal["method", "drafts", "depth", "context", "drafter"]


@dataclass(frozen=True, slots=True)
class ToldFault:
    """Something that the server says of itself and that is otherwise than it should be.

    Attributes:
        kind: how it drafts, that it does not, K, how long a prompt and its text may be, or its drafter.
    """

    kind: ToldKind
    says: str
    cure: str


@dataclass(frozen=True, slots=True)
class Heard:
    """What was asked and answered.

    Attributes:
        requests: of the trace. `should`: the accept length of the right reading at the K that was asked for.
        left_out: mis-readings that were not replayed, and why.
    """

    asked: AskedTexts
    requests: int
    judged: Judged
    should: float
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(Displayed):
    """Why a server accepts what it does.

    Attributes:
        spec: its engine, in the version that it told. `server`: what it says of itself, by name.
        told: faults that it tells itself. `heard`: what its answers say; None where none was asked for or counted.
        totals: verify steps since it was started, where it tells and none was asked for.
        broken: rules that the directory of the drafter breaks itself. `next`: a command.
        why: why nothing more is known.
    """

    spec: EngineSpec
    drafter: str
    server: Mapping[str, str]
    next: tuple[str, ...]
    told: tuple[ToldFault, ...] = ()
    heard: Heard | None = None
    totals: Counts | None = None
    broken: tuple[BrokenRule, ...] = ()
    why: str = field(default="")

    @property
    def outcome(self) -> Health:
        """Sound, one fault by name, or neither."""
        if self.told:
            return "fault"
        return self.heard.judged.outcome if self.heard else "unknown"

    @property
    def exit_code(self) -> int:
        """0 sound, 1 a fault by name, 3 unknown."""
        return EXIT_CODES[self.outcome]

    @property
    def named(self) -> tuple[ServerReading, ...]:
        """The readings that explain the counts, where some do and it is not the right one."""
        return self.heard.judged.named if self.heard and self.heard.judged.outcome == "fault" else ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Those that lead to what is named."""
        return tuple(dict.fromkeys(rule for reading in self.named for rule in reading.rules))

    def brief(self) -> Iterator[str]:
        """Its outcome, the engine and the drafter, what is named."""
        yield self.outcome
        yield str(self.spec)
        yield named(self.drafter)
        yield from (reading.name for reading in self.named)
        yield from (fault.kind for fault in self.told)

    # ── what is printed ────────────────────────────────────────────────────────────

    def blocks(self) -> Iterator[Block]:
        """The verdict, what is lost, why, and the likeliest readings."""
        yield f"Doctor: {self.outcome}. {self._headline()}"
        for fault in self.told:
            yield f"  The server says itself: {fault.says}. Cure: {fault.cure}."
        if self.heard:
            yield self._lengths(self.heard)
        for rule in self.rules:
            yield f"  {rule.code}: {rule.says} ({rule.source})"
        if self.named:
            yield f"  Cure: {self._cure()}."
        for line in self.broken:
            yield f"  {self.drafter} itself breaks {line.rule.code}: {line.detail}"
        if self.heard:
            yield from self._heard(self.heard)
        elif self.totals and self.totals.steps:
            yield from _totals(self.totals)
        if self.why:
            yield self.why

    def details(self) -> Iterator[Block]:
        """What the server says of itself, and which readings were not replayed."""
        yield card("Server", self.server.items())
        if self.heard and self.heard.left_out:
            yield table("Not replayed", "", ("mis-reading", "why"), self.heard.left_out.items())

    def _headline(self) -> str:
        if self.heard is None:
            return "" if self.told else "Nothing is named without the texts of a trace."
        judged, total = self.heard.judged, len(self.heard.asked.counted)
        match judged.outcome:
            case "sound":
                equal = judged.sound.equal
                alike = ", ".join(reading.name for reading in judged.named if reading.name != AS_TRAINED)
                return (
                    f"This server reads {self.drafter} as it was trained: {equal} of {total} requests match exactly."
                    + f" On these texts {alike} would count the same or nearly so." * bool(alike)
                )
            case "unknown":
                return f"{judged.why[:1].upper()}{judged.why[1:]}."
        first, *others = judged.named
        if judged.near_one:
            return (
                "Next to nothing is accepted, so causes cannot be told apart. Of what was replayed this comes to that: "
                f"{_list(judged.named)}."
            )
        if others:
            return f"It is one of these, which count the same or nearly so on these texts: {_list(judged.named)}."
        best = judged.explanations[0]
        start = "reads " if first.says.startswith("boundaries") else "does not read the drafter as it was trained: "
        return f"This server {start}{first.says}. {best.equal} of {total} requests match exactly."

    def _cure(self) -> str:
        if self.broken:
            return "write the drafter for this engine, and start the server with that directory"
        return (
            f"{self.drafter} itself is read rightly, so the server has another directory, other flags or another "
            "version: start it with this one, by the next command"
        )

    def _lengths(self, heard: Heard) -> str:
        seen = heard.judged.server.accept_length if heard.judged.server.steps else 1.0
        lost = heard.should - seen
        share = f" ({100 * lost / heard.should:.1f} %)" if lost > 0 else ""
        return (
            f"Accept length {seen:.3f}; as it was trained {heard.should:.3f}, so {max(0.0, lost):.3f} is lost{share}."
        )

    def _heard(self, heard: Heard) -> Iterator[Block]:
        judged = heard.judged
        if judged.outcome == "unknown" and (found := judged.first_departure):
            yield f"Draft {found.j} departs first. {MEANINGS[found.j == 1][:1].upper()}{MEANINGS[found.j == 1][1:]}."
        yield table(
            "Draft positions",
            "c_j: how often draft j is accepted where those before it were.",
            ("j", Column("server", figures=True), Column("as trained", figures=True), Column("apart", figures=True)),
            ((f"c_{one.j}", _share(one.server), _share(one.sound), _errors(one.departs)) for one in judged.positions),
        )
        yield table(
            "Readings",
            "Nats: by how much a reading is less likely than the first. Elsewhere: steps that accept another number, "
            "by those that accept any.",
            ("reading", *(Column(n, figures=True) for n in ("accept length", "requests equal", "elsewhere", "nats"))),
            (self._row(one) for one in judged.explanations[:SHOWN]),
        )
        yield from self._notes(heard)

    def _row(self, one: Explanation) -> tuple[str, ...]:
        return (
            ", ".join(reading.name for reading in one.readings),
            f"{one.length:.3f}",
            f"{one.equal} of {len(one.replayed)}",
            f"{100 * one.elsewhere:.1f} %",
            f"-{one.behind:.1f}" if one.behind else "0",
        )

    def _notes(self, heard: Heard) -> Iterator[str]:
        asked = heard.asked
        if asked.departed:
            first = min(asked.departed.values())
            yield (
                f"{len(asked.departed)} of {heard.requests} texts depart from the trace, the first after {first} "
                f"tokens: {asked.shortened} are counted up to there, the others are left out. Another target, or "
                "another arithmetic."
            )
        if asked.cut:
            yield f"{len(asked.cut)} of {heard.requests} requests do not fit the server and were cut or left out."
        if asked.failed:
            yield f"{len(asked.failed)} of {heard.requests} requests failed."
        cures = [f"{name}: {why}" for name, why in heard.left_out.items() if ": " in why]
        if cures and heard.judged.outcome == "unknown":
            yield f"Not replayed for want of something: {'; '.join(cures)}."

    # ── what a program reads ───────────────────────────────────────────────────────

    def document(self) -> dict[str, object]:
        """The stable JSON document."""
        return {
            "exit_code": self.exit_code,
            "outcome": self.outcome,
            "engine": str(self.spec),
            "drafter": self.drafter,
            "server": dict(self.server),
            "told": [{"kind": fault.kind, "says": fault.says, "cure": fault.cure} for fault in self.told],
            "named": [reading.name for reading in self.named],
            "cure": self._cure() if self.named else None,
            "rules": [{"code": rule.code, "says": rule.says, "source": rule.source} for rule in self.rules],
            "broken": [{"code": line.rule.code, "detail": line.detail} for line in self.broken],
            "why": (self.heard.judged.why if self.heard else "") or self.why,
            "totals": list(self.totals.histogram) if self.totals else None,
            "heard": _heard_document(self.heard) if self.heard else None,
            "next": list(self.next),
        }


def _heard_document(heard: Heard) -> dict[str, object]:
    judged, asked = heard.judged, heard.asked
    return {
        "requests": heard.requests,
        "counted": len(asked.counted),
        "departed": dict(asked.departed),
        "failed": dict(asked.failed),
        "cut": list(asked.cut),
        "accept_length": judged.server.accept_length if judged.server.steps else None,
        "as_trained": heard.should,
        "histogram": list(judged.server.histogram),
        "positions": [
            {
                "j": one.j,
                "server": _number(one.server),
                "as_trained": _number(one.sound),
                "departs": _number(one.departs),
            }
            for one in judged.positions
        ],
        "first_departure": judged.first_departure.j if judged.first_departure else None,
        "readings": [
            {
                "names": [reading.name for reading in one.readings],
                "says": [reading.says for reading in one.readings],
                "accept_length": one.length,
                "equal": one.equal,
                "elsewhere": one.elsewhere,
                "nats_behind": one.behind,
            }
            for one in judged.explanations
        ],
        "not_replayed": dict(heard.left_out),
    }


def _totals(totals: Counts) -> Iterator[Block]:
    yield table(
        "Since the server was started",
        f"{totals.steps:g} steps of everybody, accept length {totals.accept_length:.3f}.",
        ("j", Column("p_j", figures=True), Column("c_j", figures=True)),
        ((j, _share(totals.reached(j)), _share(totals.conditional(j))) for j in range(1, totals.depth + 1)),
    )


def _list(readings: tuple[ServerReading, ...]) -> str:
    return "; ".join(f"{reading.name} ({reading.says})" for reading in readings)


def _share(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _errors(value: float) -> str:
    return f"{value:+.1f} s.e." if math.isfinite(value) else ""


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
