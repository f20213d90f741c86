"""What the documentation shows of the comparison, made of the committed table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from truth.table import Truth
from truth.trtllm.compare import ABSTAINED, matrix
from truth.trtllm.source import READ_ON, SOURCES

TABLE = Path(__file__).parents[3] / "docs" / "engine-truth" / "trtllm.json"
ENGINE = "TensorRT-LLM 1.3.0rc, read"
STATUSES = ("loads", "mis-read", "refused")
SOURCE_COLUMNS = ("file below tensorrt_llm/", "version", "lines cited")


def opening(truth: Truth) -> str:
    """What was compared, and that nothing ran."""
    return (
        f"Nothing of TensorRT-LLM was run: two readings of its source, {READ_ON}, the 1.3.0 release candidates file by "
        f"file at the commits below, are compared with each other. draftconv at {truth.draftconv}; {truth.date}.\n"
    )


def counts(truth: Truth) -> list[tuple[str, int, int, int]]:
    """(answer of the first reading, cases that the second says load, are mis-read, are refused)."""
    pairs = matrix(truth.rows)
    return [
        (first, *(pairs[first, second] for second in STATUSES))  # type: ignore[misc]
        for first in (*STATUSES, *ABSTAINED)
    ]


def summary(truth: Truth) -> str:
    abstained = sum(row.predicted in ABSTAINED for row in truth.rows)
    wrong = sum(not row.agrees for row in truth.rows)
    return (
        f"{len(truth.rows)} cases, {wrong} disagreements, {abstained} without an answer of the first reading. A "
        "mis-read drafter must be mis-read in the same aspects.\n"
    )


def aspects(truth: Truth) -> list[tuple[str, int]]:
    """Aspect in which both say that a drafter is mis-read → cases."""
    found: Counter[str] = Counter()
    for row in truth.rows:
        if row.agrees and row.predicted.startswith("mis-read: "):
            found.update(row.predicted.removeprefix("mis-read: ").split(", "))
    return sorted(found.items())


def sources() -> list[tuple[str, str, str]]:
    """(file, version, lines of it that are cited)."""
    return [
        (f"`{source.path}`", source.version, ", ".join(map(str, sorted(set(source.lines.values())))) or "none")
        for source in SOURCES
    ]
