"""Hardware by the names that a person gives it: the one table that kernels, rules and machines refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Chip = Literal["cpu", "sm90", "sm100", "gfx942", "gfx950"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of machine.

    Attributes:
        chip: kernels are chosen by it.
        devices: words of its device name, as drivers print it (`NVIDIA B200`, `AMD Instinct MI325X`). A GB200, GH200
            or B300 is another machine, and so is a slice of one (`NVIDIA H200 MIG 1g.18gb`).
    """

    chip: Chip
    devices: tuple[str, ...] = ()


HARDWARE: Mapping[str, Hardware] = {
    "cpu": Hardware("cpu"),
    "h100": Hardware("sm90", ("H100",)),
    "h200": Hardware("sm90", ("H200",)),
    "b200": Hardware("sm100", ("B200",)),
    "mi300x": Hardware("gfx942", ("MI300X",)),
    "mi325x": Hardware("gfx942", ("MI325X",)),
    "mi350": Hardware("gfx950", ("MI350X", "MI355X")),
}

CHIPS: Mapping[str, Chip] = {name: row.chip for name, row in HARDWARE.items()}
NVIDIA: tuple[Chip, ...] = ("sm90", "sm100")
AMD: tuple[Chip, ...] = ("gfx942", "gfx950")
GPUS: tuple[Chip, ...] = (*NVIDIA, *AMD)


def named(*chips: Chip) -> tuple[str, ...]:
    """Hardware with one of these chips, by name."""
    return tuple(name for name, chip in CHIPS.items() if chip in chips)
