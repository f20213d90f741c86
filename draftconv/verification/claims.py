"""What the record of an output says and nobody has made again: said, and no evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftconv.checkpoint import TensorRef, show
from draftconv.checkpoint.hashing import tensor_hash
from draftconv.conversion.provenance import Lineage, Provenance
from draftconv.drafter.facts import Facts
from draftconv.errors import DraftconvError
from draftconv.verification.compared import ComparedItem
from draftconv.verification.declarations import CHANGEABLE_FACTS
from draftconv.verification.recorded_steps import Evidence


@dataclass(frozen=True, slots=True)
class Claims:
    """What a record says of the way from the source.

    Attributes:
        fault: why its steps cannot be made again; None where they were.
        of_target: the source's facts, read for a target that only the record names.
    """

    provenance: Provenance | None
    lineage: Lineage | None
    evidence: Evidence
    fault: DraftconvError | None
    of_target: Facts | None = None

    def tensor(self, name: str, ref: TensorRef | None, *names: str) -> ComparedItem | None:
        """A tensor that the record declares changed, while its steps cannot be made again.

        Args:
            ref: in the output; None where it is missing. `names`: what else the record may call it.
        """
        said = self._said(False, name, *names)
        if said is None or self.fault is None or (said[0] == "dropped") != (ref is None):
            return None
        if ref is not None and self.has_changed(name, ref):
            how = f"{said[0]} ({said[1]}), but not the bytes that draftconv.json was written for"
            return ComparedItem(name, "different", how)
        return claimed(name, f"{said[0]}: {said[1]}")

    def fact(self, name: str) -> ComparedItem | None:
        """A fact that the record declares changed, and that nothing given explains."""
        said = self._said(True, name)
        open_value = name == "max_positions" and self.evidence.max_positions is None
        if said is None or name not in CHANGEABLE_FACTS or (self.fault is None and not open_value):
            return None
        return claimed(name, said[1])

    def said(self, name: str, *kinds: str) -> str | None:
        """What the record says of a change of one of these kinds."""
        changes = self.lineage.changes if self.lineage else ()
        return next((c.why for c in changes if c.what == name and c.kind in kinds), None)

    def has_changed(self, name: str, ref: TensorRef) -> bool:
        """Whether a tensor has other bytes than those that the record holds a hash of."""
        expected = self.provenance.made.get(name) if self.provenance and self.lineage else None
        return expected is not None and tensor_hash(ref) != expected

    def cures(self, rows: Sequence[ComparedItem]) -> Iterator[str]:
        """What to give so that these rows are made again."""
        names = {row.what for row in rows if row.outcome == "claimed"}
        target = self._target
        if names and self.lacks_target:
            yield f"add --target, which draftconv.json calls {show(target)}"
        elif "max_positions" in names:
            yield "add --max-positions with the number that was asked for"
        if any(name.endswith("verifier.name_or_path") for name in names):
            yield "add --verifier with the name that was asked for"
        if names and self.fault is not None:
            yield self.fault.what + (f"; {self.fault.cure}" if self.fault.cure else "")

    @property
    def lacks_target(self) -> bool:
        """Whether a step was told of a target, and whoever verifies gives none."""
        return self._target is not None and self.evidence.target is None

    @property
    def _target(self) -> str | None:
        """The target that the record names."""
        steps = self.lineage.steps if self.lineage else ()
        return next((step.target.name for step in steps if step.target), None)

    def _said(self, of_facts: bool, *names: str) -> tuple[str, str] | None:
        """Kind and words of the first change that the record declares of one of these names."""
        changes = self.lineage.changes if self.lineage else ()
        return next(((c.kind, c.why) for c in changes if (c.kind == "fact") is of_facts and c.what in names), None)


def claimed(what: str, says: str) -> ComparedItem:
    """Something that only the record says."""
    return ComparedItem(what, "claimed", f"only draftconv.json says so: {says}")
