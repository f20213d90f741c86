"""Reports as files: a directory that appears whole, and reading one back."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from draftconv.checkpoint import show
from draftconv.checkpoint.staging import FileDigest, OwnershipMark, refuse_occupied, staging
from draftconv.errors import BadReport
from draftconv.report import records
from draftconv.report.files import read_file, write_file
from draftconv.report.formatting import Decode
from draftconv.report.junit import junit
from draftconv.report.markdown import markdown
from draftconv.report.model import Comparison, Report
from draftconv.report.page import page

FILE = "report.json"
PAGES = ("report.md", "junit.xml", "report.html")
FILES = (FILE, records.FILE, *PAGES)


def refuse_place(out: Path, *, overwrite: bool = False) -> None:
    """Refuse a directory that `write_report` would refuse, before anything is replayed.

    Raises:
        UsageError, WriteError: as `staging`.
    """
    refuse_occupied(out, overwrite=overwrite, mark=OURS)


def write_report(report: Report, out: Path, *, decode: Decode | None = None, overwrite: bool = False) -> None:
    """Write records.jsonl, report.json, report.md, junit.xml and report.html; the same report gives the same bytes.

    Args:
        decode: token ids to text, for the pages; they show ids without it.
        overwrite: replace a directory that holds a report and nothing else.

    Raises:
        UsageError, WriteError: as `staging`.
        BadReport: the report does not come back as it was: it contradicts itself.
    """
    from draftconv.report.schema import Document

    lines = "".join(f"{line}\n" for line in records.lines(report.records)).encode()
    document = Document(
        about=report.about,
        arms=report.arms,
        comparisons=report.comparisons,
        controls=report.controls,
        speed=report.speed,
        accuracy=report.accuracy,
        records_sha256=hashlib.sha256(lines).hexdigest(),
    )
    with staging(out, overwrite=overwrite, mark=OURS) as directory:
        write_file(directory / records.FILE, lines)
        write_file(directory / FILE, document.model_dump_json(indent=2, ensure_ascii=True).encode() + b"\n")
        write_file(directory / "report.md", markdown(report, decode).encode())
        write_file(directory / "junit.xml", junit(report).encode())
        write_file(directory / "report.html", page(report, decode).encode())
        if read_report(directory) != report:
            raise BadReport(
                "the report does not come back as it was written",
                why="a figure in it is no number",
                cure="leave out what was not measured",
            )


def read_report(directory: Path) -> Report:
    """A report that `write_report` wrote.

    Raises:
        BadReport: a file is missing or was changed, or the verdict does not follow from the records.
    """
    from draftconv.report.schema import Document, parse

    document = parse(Document, read_file(directory / FILE), FILE)
    lines = read_file(directory / records.FILE)
    if hashlib.sha256(lines).hexdigest() != document.records_sha256:
        raise BadReport(
            f"{records.FILE} is not the one that {FILE} was written with",
            why="the figures would not be those of the records",
            cure="write the report again",
        )
    report = Report(
        document.about,
        document.arms,
        tuple(records.read_lines(lines)),
        document.comparisons,
        document.controls,
        document.speed,
        document.accuracy,
    )
    names = {arm.name for arm in report.arms}
    for comparison in report.comparisons:
        used = {comparison.reference, comparison.candidate, *filter(None, [comparison.again])}
        if unknown := sorted(used - names):
            raise BadReport(
                f"{FILE} compares {show(unknown[0])}, which is none of its arms", cure="write the report again"
            )
        _check(report, comparison)
    return report


def report_files(directory: Path) -> tuple[str, ...]:
    """Which of a report's files there are."""
    return tuple(name for name in FILES if os.path.lexists(directory / name))


def _check(report: Report, comparison: Comparison) -> None:
    """Refuse a verdict that its own records do not give."""
    stated = comparison.verdict
    recomputed = Comparison.of(
        report.records,
        comparison.reference,
        comparison.candidate,
        stated.gate,
        how=stated.how,
        again=comparison.again,
        errors=comparison.errors,
        extended=comparison.extended,
    ).verdict
    if (recomputed.outcome, recomputed.reasons) != (stated.outcome, stated.reasons):
        raise BadReport(
            f"{FILE} says {stated.outcome} of {show(comparison.candidate)}: {'; '.join(stated.reasons)}, "
            f"its records say {recomputed.outcome}: {'; '.join(recomputed.reasons)}",
            why="it was edited, or another version of draftconv judged it",
            cure="write the report again",
        )


def _report_files(directory: Path) -> Mapping[str, FileDigest] | None:
    """The files of a report; whether its pages were edited cannot be told. None where report.json is another's."""
    from draftconv.report.schema import Document, parse

    try:
        document = parse(Document, read_file(directory / FILE), FILE)
    except BadReport:
        return None
    return {**dict.fromkeys((FILE, *PAGES), FileDigest()), records.FILE: FileDigest(None, document.records_sha256)}


OURS = OwnershipMark(FILE, _report_files)
"""The mark of a directory that `write_report` wrote."""
