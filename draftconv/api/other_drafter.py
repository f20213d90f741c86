"""Look at a drafter that is not EAGLE-3: what it is, what its config.json says, and who serves it how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from draftconv.checkpoint import open_checkpoint
from draftconv.display import Block, Displayed, card, named, table
from draftconv.drafter.fingerprint import Fingerprint
from draftconv.drafter.kinds.unsupported import UnsupportedKind, card_lines, unsupported_kind
from draftconv.drafter.names import sort_names
from draftconv.engines import ENGINES
from draftconv.engines.other_kinds import OtherKind
from draftconv.options import Place


@dataclass(frozen=True, slots=True, repr=False)
class OtherDrafter(Displayed):
    """A drafter that draftconv names and does not convert.

    Attributes:
        lines: what config.json says of it, as it stands there.
        served: how engines serve it, by name; an engine that is not there does not say that it does.
    """

    name: str
    kind: UnsupportedKind
    lines: tuple[tuple[str, str], ...]
    served: Mapping[str, OtherKind]

    def brief(self) -> Iterator[str]:
        """Name and kind."""
        yield named(self.name)
        yield self.kind.what

    def blocks(self) -> Iterator[Block]:
        """What it is, and who serves it how."""
        yield card(self.name, (("drafter", self.kind.what), ("not EAGLE-3", self.kind.why), *self.lines))
        rows = (
            (engine.title, other.setting, (f"{other.source}; {other.evidence}",))
            for name, engine in ENGINES.items()
            if (other := self.served.get(name))
        )
        if self.served:
            yield table("Served by", "", ("engine", "as", "source"), rows)
        else:
            yield "No engine is known to serve it."


def other_drafter(source: Place) -> OtherDrafter | None:
    """What a checkpoint is that `inspect` refused with NotADrafter; None where that drafts nothing or has no name.

    Raises:
        BadCheckpoint: it cannot be read.
    """
    checkpoint = open_checkpoint(source)
    fingerprint = Fingerprint(checkpoint, sort_names(checkpoint.tensors))
    kind = unsupported_kind(fingerprint)
    if kind is None or not kind.name:
        return None
    served = {
        name: engine.other_kinds[kind.name] for name, engine in ENGINES.items() if kind.name in engine.other_kinds
    }
    return OtherDrafter(checkpoint.name, kind, tuple(card_lines(fingerprint)), served)
