"""The report of a parity run: records.jsonl, report.json, report.md, junit.xml and report.html.

`model` is what a report says; `tables` turns it into the rows that every page shows.
"""

from draftconv.report.model import (
    About,
    Arm,
    Attribution,
    Comparison,
    Control,
    Diagnostics,
    Divergence,
    EveryPosition,
    Losses,
    Missed,
    Place,
    Report,
    Texts,
)
from draftconv.report.words import Decode
from draftconv.report.write import read_report, refuse_place, write_report

__all__ = [
    "About",
    "Arm",
    "Attribution",
    "Comparison",
    "Control",
    "Decode",
    "Diagnostics",
    "Divergence",
    "EveryPosition",
    "Losses",
    "Missed",
    "Place",
    "Report",
    "Texts",
    "read_report",
    "refuse_place",
    "write_report",
]
