"""The terms of what an output is made from: what each source's card names, and its license files, taken along."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from draftconv import limits
from draftconv.checkpoint import Checkpoint, show
from draftconv.checkpoint.local import LocalDirectory
from draftconv.checkpoint.texts import CARD, Texts, is_license, texts_of
from draftconv.conversion.front_matter import FrontMatter, read_front_matter
from draftconv.errors import DraftconvError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceTerms:
    """What one source says of its license.

    Attributes:
        source: its name; never a path. `card`: what is taken over from its README.md.
        files: name in the output → contents of a license or a notice. `faults`: what is not taken along, and why.
    """

    source: str
    card: FrontMatter = field(default_factory=FrontMatter)
    files: Mapping[str, bytes] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @property
    def licenses(self) -> tuple[str, ...]:
        """The identifiers that its card names."""
        return self.card.values.get("license", ())

    @property
    def found(self) -> bool:
        """Whether it says anything of its license."""
        return bool(self.licenses or self.files)

    @property
    def name(self) -> str | None:
        """What its license is called where the Hub has no identifier for it."""
        return self.card.one("license_name")

    @property
    def link(self) -> str | None:
        """Where its license stands: an address, or a file that was taken along."""
        link = self.card.one("license_link")
        return link if link is not None and (urlsplit(link).scheme or link in self.files) else None

    def record(self) -> dict[str, object]:
        """What draftconv.json tells of it."""
        return {
            "source": self.source,
            "license": list(self.licenses),
            "license_name": self.name,
            "license_link": self.link,
            "files": sorted(self.files),
            "left_out": list(self.faults),
        }


def find_terms(checkpoint: Checkpoint, others: Iterable[Path]) -> tuple[SourceTerms, ...]:
    """What every source says of its license.

    Args:
        others: directories that tensors come from as well, such as the target's.
    """
    terms = [_read(checkpoint.name, checkpoint.texts, {})]
    known = {checkpoint.path.resolve()} if checkpoint.path else set()
    for path in sorted(directory for directory in others if directory.resolve() not in known):
        directory = LocalDirectory(path)
        taken = {name: data for earlier in terms for name, data in earlier.files.items()}
        terms.append(_read(directory.name, texts_of(directory), taken))
    return tuple(terms)


def license_files(terms: Sequence[SourceTerms]) -> dict[str, bytes]:
    """All files that are taken along, by their names in the output."""
    return {name: data for source in terms for name, data in source.files.items()}


def license_keys(terms: Sequence[SourceTerms]) -> dict[str, object]:
    """What the front matter says: nothing unless every source names a license."""
    if not all(source.licenses for source in terms):
        return {}
    licenses = tuple(dict.fromkeys(license_id for source in terms for license_id in source.licenses))
    named = list(dict.fromkeys((source.name, source.link) for source in terms if source.name or source.link))
    name, link = named[0] if len(named) == 1 else (None, None)
    return {
        "license": licenses[0] if len(licenses) == 1 else licenses,
        "license_name": name,
        "license_link": link,
    }


def _read(source: str, texts: Texts, taken: Mapping[str, bytes]) -> SourceTerms:
    """The terms of one source; what cannot be read of them is told and left out."""
    card, faults = FrontMatter(), []
    if CARD in texts:
        try:
            card = read_front_matter(_head(texts))
        except DraftconvError as error:
            faults.append(f"{CARD}: {error.what}")
    faults += [f"{CARD}: {fault}" for fault in card.faults]
    files: dict[str, bytes] = {}
    for number, name in enumerate(sorted(filter(is_license, texts))):
        if number == limits.LICENSES.value:
            faults.append(f"{show(name)} and what follows: {number} license files is the limit")
            break
        try:
            data, fault = _contents(texts, name)
        except DraftconvError as error:
            data, fault = None, error.what
        if data is None:
            faults.append(f"{show(name)}: {fault}")
        else:
            same = (other for other, its in taken.items() if its == data)
            files[next(same, None) or _free_name(name, {*taken, *files})] = data
    link = card.one("license_link")
    if link is not None and not urlsplit(link).scheme and link not in files:
        faults.append(f"{CARD}: license_link: no file {link} was taken along")
    if faults:
        logger.info("terms of %s: %s", show(source), "; ".join(faults))
    return SourceTerms(source, card, files, tuple(faults))


def _head(texts: Texts) -> str:
    """The part of a card that is looked at: a longer one may be of any length."""
    file = texts[CARD]()
    return file.read(0, min(file.size, 4 * limits.FRONT_MATTER.value + 1)).decode("utf-8", errors="replace")


def _contents(texts: Texts, name: str) -> tuple[bytes | None, str]:
    file = texts[name]()
    if file.size > limits.LICENSE.value:
        return None, f"it has {file.size} bytes; {limits.LICENSE.value} is the limit"
    return file.read(0, file.size), ""


def _free_name(name: str, taken: Iterable[str]) -> str:
    """The name, or one like it that another source does not have: LICENSE, LICENSE-2."""
    stem, dot, suffix = name.partition(".")
    numbered = (f"{stem}-{number}{dot}{suffix}" for number in range(2, 1000))
    return name if name not in taken else next(free for free in numbered if free not in taken)
