"""Upload what draftconv wrote to the Hub: the files that its record names, as they were written, and no others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from draftconv.checkpoint import QUANT_FILE, open_checkpoint, show, show_some
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.hashing import blob_id, sha256
from draftconv.checkpoint.staging import FileDigest
from draftconv.checkpoint.text import is_plain_name, size
from draftconv.checkpoint.texts import CARD
from draftconv.checkpoint.upload import BranchHead, Upload, find_head
from draftconv.checkpoint.weights import is_weights
from draftconv.conversion.card_sections import with_accept_length
from draftconv.conversion.front_matter import write_front_matter
from draftconv.conversion.provenance import FILE, read_provenance, recorded_files
from draftconv.display import Block, Displayed, named, table
from draftconv.drafter.facts import AuxLayers
from draftconv.drafter.targets import find_target
from draftconv.errors import BadCheckpoint, CheckFailed, UsageError
from draftconv.layouts.drafter_reader import DrafterReader
from draftconv.options import Place, option, python_only, takes
from draftconv.report.arms import content
from draftconv.report.model_card import FOLDER, REPORTED, card_section, model_index
from draftconv.report.write import read_report, report_files

SHORT = 12
"""Characters of a fingerprint that a message repeats."""

State = Literal["as written", "edited", "with accept length", "edited, with accept length", "of the report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """How an output is uploaded."""

    public: bool = option(False, "Make the repository public; a repository that is public already needs it too.")
    overwrite: bool = option(False, "Replace what stands in the repository although this directory did not write it.")
    revision: str | None = option(None, "The branch to commit to, made if there is none.", metavar="BRANCH")
    report: Place | None = option(
        None,
        "A parity report about this very drafter: its figures go into the card, its files into parity/.",
        metavar="DIR",
        file=True,
    )
    target: Place | None = option(
        None,
        "With --report: the target, where neither the record nor the files tell its layers.",
        metavar="TARGET",
        parse=str,
    )
    create_pr: bool = option(False, "Open a pull request instead of committing to the branch.")
    token: str | None = python_only(None, "of the Hub; huggingface_hub's own when None")


@dataclass(frozen=True, slots=True)
class PushedFile:
    """A file that goes, by its name in the repository; only the card may have been edited since it was written."""

    name: str
    digest: FileDigest
    state: State


@dataclass(frozen=True, repr=False)
class Push(Displayed):
    """An upload that is decided and checked, or done.

    Attributes:
        files: what goes. `left`: names of what lies beside it and stays here.
        deleted: what readers would load beside these weights, and goes from the repository in the same commit.
        url: of the commit or the pull request; None until it is made.
    """

    directory: Path
    upload: Upload
    files: tuple[PushedFile, ...]
    left: tuple[str, ...]
    deleted: tuple[str, ...]
    public: bool
    url: str | None = None

    def run(self) -> Push:
        """Make the commit.

        Raises:
            CheckFailed: a file was changed since it was checked. BadCheckpoint: the Hub refuses.
        """
        return replace(self, url=self.upload.run(private=not self.public))

    def brief(self) -> Iterator[str]:
        yield f"{named(self.directory.name)} to {named(self.upload.repo)}"
        yield f"{len(self.files)} files, {self._size()}"
        yield self.url or "not made"

    def blocks(self) -> Iterator[Block]:
        rows: list[tuple[str, str, str]] = [(file.name, size(file.digest.size or 0), file.state) for file in self.files]
        rows += [(name, "", "deleted there") for name in self.deleted]
        rows += [(name, "", "stays here") for name in self.left]
        yield table(f"{self.directory.name} to {self._where()}", "", ("file", "size", ""), rows)
        yield self.url or f"Nothing uploaded: {self._size()} would go."

    def _size(self) -> str:
        return size(sum(file.digest.size or 0 for file in self.files))

    def _where(self) -> str:
        head, branch = self.upload.head, self.upload.revision
        visible = "public" if (self.public if head is None else not head.private) else "private"
        kind = visible if head else f"new, {visible}"
        place = f"{self.upload.repo} ({kind})" + (f", branch {branch}" if branch else "")
        return f"{place}, as a pull request" if self.upload.pull_request else place


@takes(PushOptions)
def push(directory: Place, repo: str, options: PushOptions) -> Push:
    """Upload a directory that draftconv wrote, in one commit: what its record names, and nothing else.

    Args:
        directory: an output of draftconv. `repo`: `owner/name`; made, private, if it does not exist.

    Raises:
        DraftconvError: see `prepare`; BadCheckpoint when the Hub refuses.
    """
    return prepare(directory, repo, options).run()


def prepare(directory: Place, repo: str, options: PushOptions | None = None) -> Push:
    """Look at the directory and the repository, and decide what goes; nothing is uploaded yet.

    Raises:
        CheckFailed: the directory holds no draftconv.json of its own, or a file is missing or not as it was written.
        UsageError: the repository is public, or holds what this directory did not write, and nobody said so.
        CheckFailed, BadReport: the report is about another drafter, was edited, or the card has no place for it.
        BadCheckpoint: the directory cannot be read, the Hub refuses or cannot be reached.
    """
    options = options or PushOptions()
    path = Path(directory)
    recorded = _as_recorded(path)
    contents: dict[str, Path | bytes] = {file.name: path / file.name for file in recorded}
    files = recorded
    if options.report is not None:
        folder = Path(options.report)
        card = _card_with(folder, path, repo, options.target)
        reported = tuple(
            PushedFile(f"{FOLDER}/{name}", _digest(folder, name), "of the report") for name in report_files(folder)
        )
        contents |= {CARD: card} | {file.name: folder / Path(file.name).name for file in reported}
        files = (*(_filled(file, card) for file in recorded), *reported)
    head = find_head(repo, options.revision, options.token)
    names = contents.keys()
    deleted: tuple[str, ...] = ()
    if head is not None:
        _refuse_public(head, repo, options)
        if not options.create_pr:
            _refuse_strange(head, repo, path, options)
        stale = REPORTED if head.files.get(FILE) != _blob_id(path) else frozenset[str]()
        gone = (name for name in head.files if name not in names and (_misleads(name) or name in stale))
        deleted = tuple(sorted(gone))
    upload = Upload(
        repo,
        {file.name: (contents[file.name], file.digest) for file in files},
        deleted,
        head,
        options.revision,
        options.create_pr,
        options.token,
    )
    reports = {Path(options.report).resolve()} if options.report is not None else set()
    return Push(path, upload, files, _left(path, {*names}, reports), deleted, options.public)


def _left(path: Path, names: set[str], reports: set[Path]) -> tuple[str, ...]:
    """What lies beside the files that go."""
    try:
        return tuple(sorted(x.name for x in path.iterdir() if x.name not in names and x.resolve() not in reports))
    except OSError as error:
        raise BadCheckpoint(f"{show(path.name)} cannot be listed: {error.strerror}") from error


def _as_recorded(path: Path) -> tuple[PushedFile, ...]:
    """The files that the record names, as they are now, and the record."""
    provenance = read_provenance(open_checkpoint(path))
    if provenance is None:
        raise CheckFailed(
            f"{show(path.name)} holds no draftconv.json of its own",
            why="what is published should tell what it was made from, and this was edited or not made by draftconv",
            cure="push the output of `draftconv convert`",
        )
    recorded = recorded_files(provenance.data)
    unhashed = sorted(name for name, digest in recorded.items() if digest.sha256 is None)
    if unhashed or not recorded:
        raise CheckFailed(
            f"the draftconv.json of {show(path.name)} holds no hash of "
            + (show_some(unhashed) if unhashed else "any file"),
            why="an early version wrote it, and nobody can tell whether the files are as they were written",
            cure="convert or quantize the drafter again",
        )
    files = []
    for name, digest in sorted(recorded.items()):
        if name == CARD and not os.path.lexists(path / name):
            continue  # somebody does not want it
        now = _digest(path, name)
        if now != digest and name != CARD:
            raise CheckFailed(
                f"{show(name)} was changed since it was written",
                why="draftconv.json tells what was made, and this is something else",
                cure="convert or quantize the drafter again, or take the change back",
            )
        files.append(PushedFile(name, now, "as written" if now == digest else "edited"))
    return (*files, PushedFile(FILE, _digest(path, FILE), "as written"))


def _digest(directory: Path, name: str) -> FileDigest:
    """A file of the directory as it is now."""
    if not is_plain_name(name) or (directory / name).is_symlink():
        raise CheckFailed(
            f"{show(name)} is not a file of {show(directory.name)} itself",
            why="what it leads to would be uploaded",
            cure="push the output of `draftconv convert` as it was written",
        )
    with LocalFile(directory / name) as file:
        return FileDigest(file.size, sha256(file))


def _refuse_public(head: BranchHead, repo: str, options: PushOptions) -> None:
    if not head.private and not options.public:
        raise UsageError(
            f"{show(repo)} is public",
            why="everybody would have what is uploaded",
            cure="add --public if that is meant",
        )


def _refuse_strange(head: BranchHead, repo: str, path: Path, options: PushOptions) -> None:
    """Refuse a head that another directory wrote: its record has another blob id, or there is none."""
    if options.overwrite or not head.strange or head.files.get(FILE) == _blob_id(path):
        return
    raise UsageError(
        f"{show(repo)} holds {show_some(sorted(head.strange))}, which this directory did not write",
        why="files of the same name would be replaced, and weights of other names deleted",
        cure="push to a new repository, add --create-pr, or --overwrite if it may all go",
    )


def _blob_id(path: Path) -> str:
    """Git's id of the record."""
    with LocalFile(path / FILE) as record:
        return blob_id(record)


def _card_with(folder: Path, path: Path, repo: str, named: Place | None = None) -> bytes:
    """The card with what a report says of this very drafter.

    Raises:
        CheckFailed: the report is about others, there is no card, or it has no place for it.
        BadReport: see `read_report`.
    """
    report = read_report(folder)
    provenance = read_provenance(open_checkpoint(path))
    reader = DrafterReader(accept_detected=True)  # another reading than the report's has another fingerprint
    target = find_target(named, None) or (provenance.history[0].target if provenance else None)
    drafter = reader.read(open_checkpoint(path), target)
    ours = content(drafter)
    comparisons = [found for found in report.comparisons if report.arm(found.candidate).content == ours]
    if not comparisons:
        others = (report.arm(found.candidate) for found in report.comparisons)
        raise CheckFailed(
            f"the report in {show(folder.name)} is not about {show(path.name)}: that is {ours[:SHORT]}, and the report "
            f"judges {show_some(f'{arm.source} ({arm.content[:SHORT]})' for arm in others) or 'no candidate'}",
            why="figures of another drafter would stand on its card",
            cure="add --target, which decides what the default triple of captured layers is"
            if drafter.facts.boundaries is AuxLayers.DEFAULT
            else f"measure this one: draftconv parity REFERENCE {show(path)} --trace TRACE --report DIR",
        )
    if not os.path.lexists(path / CARD):
        raise CheckFailed(
            f"{show(path.name)} has no {CARD}",
            why="there is nothing to put the figures into",
            cure="convert or quantize the drafter again, or push without --report",
        )
    _digest(path, CARD)
    index = model_index(report, comparisons, repo.rpartition("/")[2])
    section = card_section(report, comparisons)
    text = (path / CARD).read_bytes().decode("utf-8", errors="surrogateescape")
    filled = with_accept_length(text, section, write_front_matter({"model-index": index}) if index else "")
    return filled.encode("utf-8", errors="surrogateescape")


def _filled(file: PushedFile, card: bytes) -> PushedFile:
    """A recorded file as it goes with a report: the card with its figures, all else as it is."""
    if file.name != CARD:
        return file
    state: State = "edited, with accept length" if file.state == "edited" else "with accept length"
    return PushedFile(CARD, FileDigest.of(card), state)


def _misleads(name: str) -> bool:
    """Whether a reader of the repository would load a file beside these weights."""
    return is_weights(name) or name.endswith(".index.json") or name == QUANT_FILE
