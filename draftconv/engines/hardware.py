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
        bandwidth: of its memory in TB/s, as the maker's data sheet has it (NVIDIA's are of SXM modules); None where
            there is no such figure.
    """

    chip: Chip
    devices: tuple[str, ...] = ()
    bandwidth: float | None = None


HARDWARE: Mapping[str, Hardware] = {
    "cpu": Hardware("cpu"),
    "h100": Hardware("sm90", ("H100",), 3.35),
    "h200": Hardware("sm90", ("H200",), 4.8),
    "b200": Hardware("sm100", ("B200",), 8.0),
    "mi300x": Hardware("gfx942", ("MI300X",), 5.3),
    "mi325x": Hardware("gfx942", ("MI325X",), 6.0),
    "mi350": Hardware("gfx950", ("MI350X", "MI355X"), 8.0),
}


@dataclass(frozen=True, slots=True)
class Alias:
    """Another machine with the chip of a known one, so with its kernels; no rule is better proven for it.

    Attributes:
        hardware: the known one, which every output names. `devices`: words of the device name of this one.
        source, evidence: where it says that the chip is the same.
        bandwidth: as in `Hardware`; None where machines of this name differ, or the figure was not read.
    """

    hardware: str
    devices: tuple[str, ...]
    source: str
    evidence: Literal["read", "inferred"] = "read"
    bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class Unread:
    """A machine that people have and of which no kernel table was read.

    Attributes:
        title: its name. `chip`: what it has. `why`: it is none of the known ones.
        nearest: the known one that comes closest; empty where none does.
    """

    title: str
    chip: str
    why: str
    nearest: str = ""


_CUDA = "NVIDIA, CUDA GPU Compute Capability"
_MIG = "NVIDIA, MIG User Guide, Supported GPUs"
_ROCM = "AMD, ROCm documentation, GPU specifications"
_SOLD_AS = "sold as this chip with slower links"

ALIASES: Mapping[str, Alias] = {
    "h100pcie": Alias("h100", ("H100",), _MIG, bandwidth=2.0),
    "h100sxm": Alias("h100", ("H100",), _MIG, bandwidth=3.35),
    "h100sxm5": Alias("h100", ("H100",), _MIG, bandwidth=3.35),
    "h100nvl": Alias("h100", ("H100",), _MIG, bandwidth=3.9),
    "h800": Alias("h100", ("H800",), _SOLD_AS, "inferred"),
    "h20": Alias("h100", ("H20",), _MIG, bandwidth=4.0),
    "gh200": Alias("h100", ("GH200",), _MIG),
    "h200sxm": Alias("h200", ("H200",), _MIG, bandwidth=4.8),
    "h200nvl": Alias("h200", ("H200",), _MIG, bandwidth=4.8),
    "gb200": Alias("b200", ("GB200",), _CUDA, bandwidth=8.0),
    "mi350x": Alias("mi350", ("MI350X",), _ROCM, bandwidth=8.0),
    "mi355x": Alias("mi350", ("MI355X",), _ROCM, bandwidth=8.0),
}
"""What people type, in lower case without `-`, `_` and spaces → what it is."""

_BY_CHIP = "kernels are chosen by chip, and those of another one need not be built for it"
_NO_FP8 = "it has no FP8 tensor cores, and what engines multiply on it was not read"
_FAMILY = "MI300X and MI300A both have gfx942, one is a card and the other shares its memory with a CPU"

UNREAD: Mapping[str, Unread] = {
    "b100": Unread("a B100", "Blackwell", _BY_CHIP, "b200"),
    "b300": Unread("a B300", "sm103", _BY_CHIP, "b200"),
    "gb300": Unread("a GB300", "sm103", _BY_CHIP, "b200"),
    "gb10": Unread("a GB10", "sm121", _BY_CHIP),
    "rtxpro6000": Unread("an RTX PRO 6000", "sm120", _BY_CHIP),
    "rtx5090": Unread("an RTX 5090", "sm120", _BY_CHIP),
    "l4": Unread("an L4", "sm89", _BY_CHIP, "h100"),
    "l40": Unread("an L40", "sm89", _BY_CHIP, "h100"),
    "l40s": Unread("an L40S", "sm89", _BY_CHIP, "h100"),
    "rtx4090": Unread("an RTX 4090", "sm89", _BY_CHIP, "h100"),
    "rtx6000ada": Unread("an RTX 6000 Ada", "sm89", _BY_CHIP, "h100"),
    "a10": Unread("an A10", "sm86", _NO_FP8),
    "a30": Unread("an A30", "sm80", _NO_FP8),
    "a40": Unread("an A40", "sm86", _NO_FP8),
    "a100": Unread("an A100", "sm80", _NO_FP8),
    "a800": Unread("an A800", "sm80", _NO_FP8),
    "mi300": Unread("an MI300", "gfx942", _FAMILY, "mi300x"),
    "mi300a": Unread("an MI300A", "gfx942", _FAMILY, "mi300x"),
}
"""Machines that are refused by name, spelled as in `ALIASES`; chips from the same sources."""

CHIPS: Mapping[str, Chip] = {name: row.chip for name, row in HARDWARE.items()}
NVIDIA: tuple[Chip, ...] = ("sm90", "sm100")
AMD: tuple[Chip, ...] = ("gfx942", "gfx950")
GPUS: tuple[Chip, ...] = (*NVIDIA, *AMD)


def spelled(text: str) -> str:
    """A name as these tables have it: `MI-355X` is `mi355x`."""
    return text.lower().translate({ord(mark): None for mark in "-_ "})


def devices_of(hardware: str) -> tuple[str, ...]:
    """Words of the device name of hardware, known by its own name or by another."""
    return (ALIASES.get(hardware) or HARDWARE[hardware]).devices


def bandwidth_of(hardware: str, machine: str | None = None) -> float | None:
    """TB/s of one device's memory.

    Args:
        machine: by which other name of the hardware it was asked for, whose memory may be another.
    """
    return (ALIASES[machine] if machine else HARDWARE[hardware]).bandwidth


def named(*chips: Chip) -> tuple[str, ...]:
    """Hardware with one of these chips, by name."""
    return tuple(name for name, chip in CHIPS.items() if chip in chips)
