"""What was predicted of each trainer and what it did, and the file that keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Part = Literal["written", "folded", "read", "back", "quantized"]
PARTS: Mapping[Part, str] = {
    "written": "What draftconv writes, opened by the trainer",
    "folded": "What draftconv could write for the trainer, and does not",
    "read": "What the trainer saves, read by draftconv",
    "back": "What the trainer saves, converted and opened by it again",
    "quantized": "What the trainer quantizes and exports, dequantized by draftconv",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One case.

    Attributes:
        trainer: whom it was asked. `case`: unique within the trainer and part.
        predicted, observed: `equal`, `refused`, `differs`, `stops`, `not read`, and what is said of it.
        agrees: whether what draftconv does is right by what was observed.
    """

    part: Part
    trainer: str
    case: str
    predicted: str
    observed: str
    agrees: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Truth:
    """A whole run: against which versions, by which draftconv, when."""

    versions: Mapping[str, str]
    draftconv: str
    date: str
    rows: tuple[Row, ...]

    def of(self, trainer: str, part: Part | None = None) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.trainer == trainer and part in (None, row.part))


def save(truth: Truth, path: Path) -> None:
    path.write_text(json.dumps(asdict(truth), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load(path: Path) -> Truth:
    data = json.loads(path.read_text(encoding="utf-8"))
    return Truth(**{**data, "rows": tuple(Row(**row) for row in data["rows"])})


def disagreements(rows: Iterable[Row]) -> list[str]:
    """One line for each case in which draftconv and the trainer differ."""
    return [
        f"{row.trainer}: {row.part}: {row.case}: predicted {row.predicted}, observed {row.observed} ({row.detail})"
        for row in rows
        if not row.agrees
    ]


def changes(rows: Sequence[Row], committed: Truth) -> list[str]:
    """One line for each case that is not as it was committed: new, gone, or another verdict."""
    known = {_key(row): row for row in committed.rows}
    asked = {row.trainer for row in rows}
    lines = []
    for row in rows:
        before = known.pop(_key(row), None)
        if before is None:
            lines.append(f"{row.trainer}: {row.part}: {row.case}: not in the committed table")
        elif (row.predicted, row.observed) != (before.predicted, before.observed):
            lines.append(
                f"{row.trainer}: {row.part}: {row.case}: {row.predicted}, {row.observed}; "
                f"committed {before.predicted}, {before.observed}"
            )
    gone = (row for row in known.values() if row.trainer in asked)
    return [*lines, *(f"{row.trainer}: {row.part}: {row.case}: in the committed table alone" for row in gone)]


def _key(row: Row) -> tuple[str, str, str]:
    return row.trainer, row.part, row.case
