"""Roles of a drafter that an engine multiplies in 16 bits, whatever its kernels: rows of `KEPT_ROLES` of its package.

Kernels are for the linears of a layer. Whether the head and `fc` are asked how they are quantized differs from class
to class; what is not asked would be read without its scales, or stop the start.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftconv.engines.hardware import Chip
from draftconv.engines.rules import Evidence
from draftconv.quantization.recipes import FormatName, TableRole


@dataclass(frozen=True, slots=True)
class KeptRole:
    """One role that is not multiplied as it is quantized; empty fields hold for all.

    Attributes:
        formats: in which it is not. `chips`: on which.
        mla, gqa: whether it speaks of drafters with latent attention, and of Llama-style ones.
    """

    role: TableRole
    says: str
    source: str
    evidence: Evidence
    formats: tuple[FormatName, ...] = ()
    chips: tuple[Chip, ...] = ()
    mla: bool = True
    gqa: bool = True

    def holds(self, role: TableRole, format_name: FormatName, chip: Chip, *, mla: bool) -> bool:
        """True when it speaks of this role in this format on this chip."""
        return (
            role == self.role
            and (not self.formats or format_name in self.formats)
            and (not self.chips or chip in self.chips)
            and (self.mla if mla else self.gqa)
        )
