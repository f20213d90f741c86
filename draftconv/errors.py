"""Every exception draftconv raises on purpose.

An error says *what* is wrong, *where* (file, tensor or key), *why* it matters and
*what to type next*. The classes carry those parts; the CLI lays them out. No part ends in
a period, and `why` and `cure` start in lower case unless they start with a name: whoever
shows them puts them together as it likes, and a command that ends a cure can be pasted.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable


class DraftconvError(Exception):
    """Base class: something a person can act on.

    Args:
        what: one sentence naming the fault and the file, tensor or key it is in.
        why: what would happen if it were ignored.
        cure: what to type or change next.
    """

    exit_code = 2

    def __init__(self, what: str, *, why: str = "", cure: str = "") -> None:
        self.what = what
        self.why = why
        self.cure = cure
        super().__init__("\n".join(part for part in (what, why, cure) if part))


class BadCheckpoint(DraftconvError):
    """The files are not a readable checkpoint: truncated, lying headers, hostile paths."""


class NotADrafter(DraftconvError):
    """Readable, but not an EAGLE-3 / 3.1 drafter: a whole model, EAGLE-1/2, MTP, P-EAGLE, DFlash …"""


class NeedsExport(DraftconvError):
    """A trainer's runtime state: its own exporter has to run first."""


class BadReport(DraftconvError):
    """A parity report that cannot be read: cut short, edited, of another version."""


class Undecided(DraftconvError):
    """The file cannot tell and draftconv will not guess; an option must decide."""


class Refused(DraftconvError):
    """The target layout or engine cannot express this drafter."""


class UsageError(DraftconvError):
    """Options that contradict each other or name something unknown."""


class WriteError(DraftconvError):
    """The output could not be written; nothing was left behind."""


class OutOfMemory(DraftconvError):
    """There is too little memory; nothing half written was left behind, and what goes on where it was is kept."""


class BadPrompts(DraftconvError):
    """A file of prompts that cannot be read, or a suite whose data set cannot be fetched."""


class CheckFailed(DraftconvError):
    """A verification found a difference."""

    exit_code = 1


class Void(DraftconvError):
    """A measurement that is not to be trusted: states that are short, shifted or not numbers."""

    exit_code = 4


class Unfinished(DraftconvError):
    """A measurement that a person must do something for before it goes on; what was measured is kept."""

    exit_code = 3


class EngineError(DraftconvError):
    """An engine that is not installed, does not answer, or refuses what it is asked."""


class OtherDrafting(EngineError):
    """An engine that drafts otherwise than it was asked to: by another method, or another number of tokens.

    Args:
        drafted: tokens per step, where that is the difference.
    """

    def __init__(self, what: str, *, why: str = "", cure: str = "", drafted: int | None = None) -> None:
        super().__init__(what, why=why, cure=cure)
        self.drafted = drafted


class StepsWithoutDraft(Void):
    """An engine whose steps did not all carry a draft, or that counted those of another text.

    Args:
        tokens: the text. `histogram`: steps that were counted, by accepted tokens.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        cure: str = "",
        tokens: tuple[int, ...] = (),
        histogram: tuple[float, ...] = (),
    ) -> None:
        super().__init__(what, why=why, cure=cure)
        self.tokens, self.histogram = tokens, histogram


class NoDrafts(StepsWithoutDraft):
    """An engine that wrote a text and reports no draft."""


class BadPlugin(DraftconvError):
    """An installed package brings a layout or a format that cannot be used."""


class NotReached(EngineError):
    """An engine that did not answer this time: nobody listens, the connection broke, it is late or overloaded."""


class FormerName(DeprecationWarning):
    """A name of an earlier release was used; it works for one more."""


def warn_former(former: str, today: str, depth: int = 1) -> None:
    """Tell the name that something has now.

    Args:
        depth: calls between this one and the line that used the former name.
    """
    message = f"{former} is now {today}; the old name goes with the next release"
    warnings.warn(message, FormerName, stacklevel=depth + 1)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The cure for a name that nobody knows: the closest of `known`, or `otherwise` when none is close."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else otherwise
