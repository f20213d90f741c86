"""accept.json, accept.md, accept.html and junit.xml: written whole or not at all, and read back as a baseline."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from draftconv.checkpoint import show
from draftconv.checkpoint.staging import FileDigest, OwnershipMark, refuse_occupied, staging
from draftconv.errors import BadReport, UsageError
from draftconv.report.acceptance.model import AcceptanceReport, DrafterSummary
from draftconv.report.acceptance.pages import markdown, page
from draftconv.report.acceptance.records import AcceptanceRecord
from draftconv.report.acceptance.speed import StepCost
from draftconv.report.files import read_file, write_file
from draftconv.report.formatting import Decode, arithmetic
from draftconv.report.junit import RESULTS, Case, junit_xml
from draftconv.report.model import ArmInfo, RunInfo
from draftconv.report.schema import parse

FORMAT: Final = "draftconv-acceptance"
FILE = "accept.json"
PAGES = ("accept.md", "accept.html", "junit.xml")


class AcceptanceDocument(BaseModel):
    """accept.json.

    Attributes:
        format, version: of the file.
        about, longest, min_al, arms, mapped, costs: as in `AcceptanceReport`.
        records: one per drafter and request, from which every figure follows.
        drafters: the figures.
        records_sha256: of the records, as JSON without white space.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    format: Literal["draftconv-acceptance"] = FORMAT
    version: Literal[1] = 1
    about: RunInfo
    longest: Annotated[int, Field(ge=1)]
    min_al: float | None
    arms: tuple[ArmInfo, ...]
    mapped: Mapping[str, int]
    costs: Mapping[str, tuple[StepCost, ...]]
    drafters: tuple[DrafterSummary, ...]
    records: tuple[AcceptanceRecord, ...]
    records_sha256: str


def records_hash(records: Sequence[AcceptanceRecord]) -> str:
    """SHA-256 of records: most of what was accepted is in no figure, and a comparison counts it all."""
    return hashlib.sha256(TypeAdapter(tuple[AcceptanceRecord, ...]).dump_json(tuple(records))).hexdigest()


def document_json(report: AcceptanceReport) -> str:
    """The report as accept.json has it, with an end of line."""
    document = AcceptanceDocument(
        about=report.about,
        longest=report.longest,
        min_al=report.min_al,
        arms=report.arms,
        mapped=report.mapped,
        costs=report.costs,
        drafters=report.drafters,
        records=report.records,
        records_sha256=records_hash(report.records),
    )
    return document.model_dump_json(indent=1, ensure_ascii=True) + "\n"


def refuse_acceptance_place(out: Path, *, overwrite: bool = False) -> None:
    """Refuse a directory that `write_acceptance` would refuse, before anything is replayed.

    Raises:
        UsageError, WriteError: as `staging`.
    """
    refuse_occupied(out, overwrite=overwrite, mark=OURS)


def write_acceptance(
    report: AcceptanceReport, out: Path, *, decode: Decode | None = None, overwrite: bool = False
) -> None:
    """Write the four files; the same report gives the same bytes.

    Args:
        decode: token ids to text, for the pages. `overwrite`: replace a directory that holds such a report only.

    Raises:
        UsageError, WriteError: as `staging`.
        BadReport: the report does not come back as it was.
    """
    with staging(out, overwrite=overwrite, mark=OURS) as directory:
        write_file(directory / FILE, document_json(report).encode())
        write_file(directory / "accept.md", markdown(report, decode).encode())
        write_file(directory / "accept.html", page(report, decode).encode())
        write_file(directory / "junit.xml", junit(report).encode())
        if read_acceptance(directory / FILE) != report:
            raise BadReport("the report does not come back as it was written", cure="report this as a bug")


def read_acceptance(path: Path) -> AcceptanceReport:
    """A report that `write_acceptance` wrote.

    Args:
        path: accept.json, or the directory that holds it.

    Raises:
        BadReport: it is missing, is no such report, or its figures do not follow from its records.
    """
    file = path / FILE if path.is_dir() else path
    document = parse(AcceptanceDocument, read_file(file), file.name)
    for what in _contradictions(document):
        raise edited(file, what)
    try:
        report = AcceptanceReport.of(
            document.about,
            document.longest,
            document.min_al,
            document.arms,
            document.mapped,
            document.records,
            document.costs,
        )
    except UsageError as error:
        raise edited(file, error.what) from error
    if report.drafters != document.drafters:
        raise edited(file, "its figures are not those of its records")
    return report


def _contradictions(document: AcceptanceDocument) -> Iterator[str]:
    """What no run can have written, before any figure is computed: that would take as long as the file asks for."""
    names, longest, depth = [arm.name for arm in document.arms], document.longest, document.about.depth
    if not names:
        yield "it names no drafter"
    if len(set(names)) != len(names):
        yield "it names one drafter twice"
    if records_hash(document.records) != document.records_sha256:
        yield "its records are not those that it was written with"
    if not 1 <= depth <= longest:
        yield f"its figures are of K = {depth}, its records end at {longest}"
    for drafter in document.drafters:
        widths = [len(part.reached) for part in drafter.lengths]
        if widths and (len(widths) != longest or widths != [*range(1, len(widths) + 1)]):
            yield f"its figures of {show(drafter.arm)} are not of every K up to {longest}"
    told = {drafter.arm for drafter in document.drafters if drafter.lengths}
    for name in document.mapped:
        if name not in names:
            yield f"it knows the vocabulary map of {show(name)}, which is none of its drafters"
    for name, costs in document.costs.items():
        if name not in names:
            yield f"it knows the steps of {show(name)}, which is none of its drafters"
        if not all(cost.possible for cost in costs):
            yield f"a step of {show(name)} takes a time that no step can take"
    for record in document.records:
        what = f"request {show(record.id)} of {show(record.arm)}"
        if record.arm not in names:
            yield f"{what} is of none of its drafters"
        if record.roots and record.arm not in told:
            yield f"{what} is in no figure"
        for wrong in _contradictions_of(record, longest, reduced=record.arm in document.mapped):
            yield f"{what} {wrong}"
    requests = {name: [_request(record) for record in document.records if record.arm == name] for name in names}
    for name, rows in requests.items():
        if not rows:
            yield f"it has no record of {show(name)}"
        if len({row[0] for row in rows}) != len(rows):
            yield f"it has a request of {show(name)} twice"
        if rows != requests[names[0]]:
            yield f"its requests of {show(name)} are not those of {show(names[0])}"


def _contradictions_of(record: AcceptanceRecord, longest: int, *, reduced: bool) -> Iterator[str]:
    roots = len(record.odds or record.accepted)
    if record.prompt < 1 or record.counted < 0 or roots != record.roots:
        yield f"has {roots} roots for {record.counted} tokens"
    if any(not 0 <= chance <= 1 for chances in record.odds for chance in chances):
        yield "has odds that are none"
    if any(len(chances) > longest for chances in record.odds) or (record.odds and record.accepted):
        yield "has odds of what nobody drafted"
    if any(not 0 <= accepted <= longest for accepted in record.accepted):
        yield "accepted what nobody drafted"
    places = [i for i, _ in record.unmapped]
    if places != sorted(set(places)) or any(not 0 <= i < record.roots + longest - 1 for i in places):
        yield "has tokens outside its text"
    if any(token < 0 for _, token in record.unmapped):
        yield "has tokens that are none"
    if places and not reduced:
        yield "has tokens that its drafter cannot draft, which can draft all"
    missing = {*places}
    reached = record.accepted or [len(chances) for chances in record.odds]
    if any(i in missing for root, count in enumerate(reached) for i in range(root, root + count)):
        yield "accepted tokens that its drafter cannot draft"


def _request(record: AcceptanceRecord) -> tuple[str, str, str, str, int, int, str]:
    """What all drafters have in common of a request, its id first."""
    return (
        record.id,
        record.cluster,
        record.category,
        record.language,
        record.prompt,
        record.counted,
        record.tokens,
    )


def edited(file: Path, what: str) -> BadReport:
    """The refusal of a file that no run can have written."""
    return BadReport(
        f"{file.name}: {what}",
        why="it was edited, or another version of draftconv wrote it",
        cure="write it again with `draftconv accept DRAFTER --trace TRACE --report DIR`",
    )


def junit(report: AcceptanceReport) -> str:
    """The gate as one test case for each drafter; skipped where nothing was asked for."""

    def cases() -> Iterator[Case]:
        for drafter in report.drafters:
            text = "; ".join(drafter.reasons)
            if report.min_al is None:
                yield Case("accept", drafter.arm, "skipped", message="no --min-al was asked for")
            else:
                name = f"{drafter.arm} accepts more than {report.min_al:g}"
                yield Case("accept", name, RESULTS[drafter.outcome], drafter.outcome, text, text)

    told = {arm.name: arithmetic(arm.name, arm.arithmetic) for arm in report.arms if arm.arithmetic}
    return junit_xml("draftconv accept", [*cases()], told)


def _files(directory: Path) -> Mapping[str, FileDigest] | None:
    """The files of such a report; None where accept.json is another's."""
    try:
        parse(AcceptanceDocument, read_file(directory / FILE), FILE)
    except BadReport:
        return None
    return dict.fromkeys((FILE, *PAGES), FileDigest())


OURS = OwnershipMark(FILE, _files)
"""The mark of a directory that `write_acceptance` wrote."""
