"""What differs between two drafters: facts, tensors, config keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from draftconv.checkpoint import FLOATS, TensorRef, first_difference, open_checkpoint
from draftconv.display import Block, Displayed, named, table
from draftconv.drafter.describe import describe_value
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts
from draftconv.drafter.targets import find_target
from draftconv.layouts.drafter_reader import DrafterReader
from draftconv.layouts.reader import read_drafter
from draftconv.options import TARGET, TARGET_LAYERS, Place, option, takes


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference; an empty side means that it has no such fact, tensor or key."""

    what: str
    left: str
    right: str


KINDS: Mapping[str, str] = {"facts": "fact", "tensors": "tensor", "config keys": "config key"}
"""What may differ: of several, and of one."""


@dataclass(frozen=True, slots=True, repr=False)
class Differences(Displayed):
    """Everything that differs, by kind; facts are those of the detected readings."""

    facts: tuple[Difference, ...]
    tensors: tuple[Difference, ...]
    config: tuple[Difference, ...]
    left: Drafter
    right: Drafter

    @property
    def none(self) -> bool:
        return not (self.facts or self.tensors or self.config)

    @property
    def kinds(self) -> Mapping[str, tuple[Difference, ...]]:
        """The same by what differs."""
        return dict(zip(KINDS, (self.facts, self.tensors, self.config), strict=True))

    def brief(self) -> Iterator[str]:
        """Both names, and how much differs."""
        yield f"{named(self.left.checkpoint.name)} and {named(self.right.checkpoint.name)}: {self._counted()}"

    def blocks(self) -> Iterator[Block]:
        """How many there are, and a table of each kind."""
        yield "No difference." if self.none else f"Different: {self._counted()}."
        for kind, differences in self.kinds.items():
            if differences:
                rows = (
                    (difference.what, difference.left or ABSENT, difference.right or ABSENT)
                    for difference in differences
                )
                yield table(kind.capitalize(), "", ("", "left", "right"), rows)

    def _counted(self) -> str:
        counts = (f"{len(rows)} {kind if len(rows) > 1 else KINDS[kind]}" for kind, rows in self.kinds.items() if rows)
        return ", ".join(counts) or "no difference"


ABSENT = "absent"
"""A side that has no such fact, tensor or key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """How the two are read."""

    target: Place | None = option(None, TARGET)
    target_layers: int | None = option(None, TARGET_LAYERS)


@takes(DiffOptions)
def diff(left: Place, right: Place, options: DiffOptions) -> Differences:
    """Compare two drafters in canonical terms, so that spelling alone is no difference of tensors or facts.

    Args:
        left, right: directory, weights file or Hub id.

    Raises:
        BadCheckpoint, NotADrafter: one of the two cannot be read.
    """
    goal = find_target(options.target, options.target_layers)
    a, b = (read_drafter(open_checkpoint(path), DrafterReader().options(goal)) for path in (left, right))
    return Differences(
        tuple(_compare_facts(a.facts, b.facts)), tuple(_compare_tensors(a, b)), tuple(_compare_configs(a, b)), a, b
    )


def _compare_facts(a: Facts, b: Facts) -> Iterator[Difference]:
    for item in fields(Facts):
        left, right = getattr(a, item.name), getattr(b, item.name)
        if left != right:
            yield Difference(item.name, describe_value(left), describe_value(right))


def _compare_tensors(a: Drafter, b: Drafter) -> Iterator[Difference]:
    mine, theirs = ({**drafter.tensors, **drafter.qparams} for drafter in (a, b))
    for name in dict.fromkeys((*mine, *theirs)):
        left, right = mine.get(name), theirs.get(name)
        if left is None or right is None:
            yield Difference(name, _describe_header(left), _describe_header(right))
        elif (left.dtype, left.shape) != (right.dtype, right.shape):
            equal = left.shape == right.shape and {left.dtype, right.dtype} <= FLOATS and _same_values(left, right)
            yield Difference(
                name, _describe_header(left), _describe_header(right) + (", equal values" if equal else "")
            )
        elif left.dtype in FLOATS:
            row = first_difference(left, right)
            if row is not None:
                yield Difference(
                    name, _describe_header(left), f"{_describe_header(right)}, other values from row {row}"
                )
        elif left.read() != right.read():
            yield Difference(name, _describe_header(left), f"{_describe_header(right)}, other values")


def _same_values(left: TensorRef, right: TensorRef) -> bool:
    return "F64" not in (left.dtype, right.dtype) and first_difference(left, right) is None


def _compare_configs(a: Drafter, b: Drafter) -> Iterator[Difference]:
    left, right = a.checkpoint.config, b.checkpoint.config
    for key in dict.fromkeys((*left, *right)):
        if left.get(key) != right.get(key) or (key in left) != (key in right):
            yield Difference(
                key,
                describe_value(left[key]) if key in left else "",
                describe_value(right[key]) if key in right else "",
            )


def _describe_header(ref: TensorRef | None) -> str:
    return f"{ref.dtype} {list(ref.shape)}" if ref else ""
