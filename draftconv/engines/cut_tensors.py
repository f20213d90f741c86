"""Tensors of another size than is built: loaders of parallel layers take their rank's part and look no further."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftconv.engines.checks import listed
from draftconv.engines.rules import SimulatedLoad
from draftconv.engines.shapes import BY_INPUT


@dataclass(frozen=True, slots=True)
class CutTensors:
    """Which projections an engine cuts along their outputs; all cut `BY_INPUT` along their inputs.

    Attributes:
        mla_by_output: more of them in the MLA class.
        unchecked: tensors whose shape is compared with nothing.
        padded: projections that are filled up with zeros where they are too short, along the same side.
    """

    by_output: tuple[str, ...]
    mla_by_output: tuple[str, ...] = ()
    padded: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    def is_cut(self, name: str, load: SimulatedLoad) -> bool:
        """True when the first rows (o and down: columns) of a misshapen tensor are taken and the others left."""
        sizes = self._apart(name, load)
        return sizes is not None and sizes[0] > sizes[1]

    def is_padded(self, name: str, load: SimulatedLoad) -> bool:
        """True when a misshapen tensor is too short and filled up with zeros."""
        sizes = self._apart(name, load)
        return sizes is not None and sizes[0] < sizes[1] and _leaf(name) in self.padded

    def _apart(self, name: str, load: SimulatedLoad) -> tuple[int, int] | None:
        """The sizes, stored and built, along the side that is cut, where all other sides fit."""
        leaf = _leaf(name)
        by_output = (*self.by_output, *(self.mla_by_output if load.mla else ()))
        along = 0 if leaf in by_output else 1 if leaf in BY_INPUT and name.endswith(".weight") else None
        stored, built = load.misshapen[name].shape, load.expected_tensors[name].shape
        if along is None or len(stored) != len(built):
            return None
        others = all(f == b for i, (f, b) in enumerate(zip(stored, built, strict=True)) if i != along)
        return (stored[along], built[along]) if others else None

    def too_long(self, load: SimulatedLoad) -> str | None:
        """A check for tensors of which a part is left."""
        return listed([load.misfit(name) for name in load.misshapen if self.is_cut(name, load)])

    def misfit(self, load: SimulatedLoad) -> str | None:
        """A check for tensors of another shape that stop the load."""
        return listed([
            load.misfit(name)
            for name in load.misshapen
            if name not in self.unchecked and not self.is_cut(name, load) and not self.is_padded(name, load)
        ])  # fmt: skip

    def too_short(self, load: SimulatedLoad) -> str | None:
        """A check for tensors that are filled up, unless they are the whole MLP: zeros in all of it change nothing."""
        short = [name for name in load.misshapen if self.is_padded(name, load)]
        return None if _whole_mlps(short, load) else listed([load.misfit(name) for name in short])


_MLP = ("gate_proj", "up_proj", "down_proj")


def _leaf(name: str) -> str:
    return name.rpartition(".")[0].rpartition(".")[2]


def _whole_mlps(short: Sequence[str], load: SimulatedLoad) -> bool:
    """True when what is short is whole MLPs, each of one width: silu(0) times 0 adds nothing."""
    widths: dict[str, set[int]] = {}
    for name in short:
        sizes, leaf = load.misshapen[name].shape, _leaf(name)
        if leaf not in _MLP:
            return False
        widths.setdefault(name.partition(".mlp.")[0], set()).add(sizes[1 if leaf == "down_proj" else 0])
    return all(len(width) == 1 for width in widths.values()) and len(short) == len(_MLP) * len(widths)
