"""What was predicted and what was observed, case by case, and the two files that keep it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Part = Literal[
    "loader", "mutations", "quantized-loader", "matcher", "replay", "controls", "conversions", "quantized", "depths",
    "tables",
]  # fmt: skip

TITLES: Mapping[Part, str] = {
    "loader": "What `inspect` says of a checkpoint",
    "mutations": "Checkpoints changed by rule",
    "quantized-loader": "What `inspect` says of a quantized checkpoint",
    "matcher": "What is built quantized",
    "replay": "Replay and the engine",
    "controls": "Drafters broken on purpose",
    "conversions": "Every spelling of a drafter",
    "quantized": "Quantized drafters and their BF16 twins",
    "depths": "Accept length as more is drafted",
    "tables": "Whose embedding and head are used",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One case.

    Attributes:
        case: its name, unique within the part.
        predicted, observed: what draftconv says and what the engine did, in the same words where they must be equal.
        agrees: whether they agree by the part's own measure. `detail`: figures, or what the engine said.
        rules: codes of the rules that the case is about.
    """

    part: Part
    case: str
    predicted: str
    observed: str
    agrees: bool
    detail: str = ""
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Truth:
    """A whole run: against which engine, by which draftconv, when."""

    engine: str
    draftconv: str
    date: str
    rows: tuple[Row, ...]

    def of(self, part: Part) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.part == part)


def plain(text: str) -> str:
    """What an engine said, without paths of this machine and not at length."""
    return re.sub(r"(?<![\w.:/])(/[\w.@+-]+){2,}", "…", text)[:SAID].rstrip()


SAID = 240
"""Characters that are kept of an engine's message."""


def save(truth: Truth, path: Path) -> None:
    path.write_text(json.dumps(asdict(truth), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load(path: Path) -> Truth:
    data = json.loads(path.read_text(encoding="utf-8"))
    rows = tuple(Row(**{**row, "rules": tuple(row["rules"])}) for row in data.pop("rows"))
    return Truth(**data, rows=rows)


def disagreements(rows: Iterable[Row]) -> list[str]:
    """One line for each case in which draftconv and the engine differ."""
    return [
        f"{row.part}: {row.case}: predicted {row.predicted}, observed {row.observed}"
        + (f" ({row.detail})" if row.detail else "")
        for row in rows
        if not row.agrees
    ]


def changes(rows: Sequence[Row], committed: Truth) -> list[str]:
    """One line for each case that is not as it was committed: new, or observed otherwise."""
    known = {(row.part, row.case): row for row in committed.rows}
    lines = []
    for row in rows:
        before = known.get((row.part, row.case))
        if before is None:
            lines.append(f"{row.part}: {row.case}: not in the committed table")
        elif row.part in EXACT and row.observed != before.observed:
            lines.append(f"{row.part}: {row.case}: observed {row.observed}, committed {before.observed}")
    return lines


def incoherent(committed: Truth) -> list[str]:
    """One line for each row of the committed table that is no agreement, whatever is observed now."""
    return [
        f"{row.part}: {row.case}: the committed row says {row.predicted} and {row.observed}"
        for row in committed.rows
        if not row.agrees or (row.part in SAME and row.predicted != row.observed)
    ]


PARTS: tuple[Part, ...] = tuple(TITLES)

EXACT: frozenset[Part] = frozenset({"loader", "mutations", "quantized-loader", "matcher", "controls"})
"""Parts whose observation is a verdict; counts of the others may differ from one CPU to another."""

SAME: frozenset[Part] = EXACT | {"conversions"}
"""Parts whose rows agree when both sides say the same words."""
