"""What counts prove, and the pages that say so: records.jsonl, report.json, report.md, junit.xml and report.html.

Here belongs what is computed of steps and accepted tokens, wherever they were counted: accept length, intervals, the
verdict and its gates, and how they are told. `model` is what a report says; `tables` turns it into the rows that every
page shows. What counts belongs to `replay` and `live`.
"""

from draftconv.report.formatting import Decode
from draftconv.report.model import (
    ArmInfo,
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
    RunInfo,
    Texts,
)
from draftconv.report.write import read_report, refuse_place, write_report

__all__ = [
    "ArmInfo",
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
    "RunInfo",
    "Texts",
    "read_report",
    "refuse_place",
    "write_report",
]
