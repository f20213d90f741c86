"""What a kernel takes, and why there is none: rows of the tables in `kernels` of every engine's package.

A table has one row per kind of chip and stored form, the preferred form of a scheme first. What has no row has no
form; `GAPS` says why. A recipe is looked up by its scheme (and by its format, where it names one), never by its own
name: `draftconv.engines.deployment`. Nothing was run on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftconv.engines.hardware import Chip
from draftconv.engines.rules import Evidence
from draftconv.quantization.recipes import FormatName
from draftconv.quantization.scheme import Granularity, InputScheme, ScaleDtype, Scheme, WeightDtype

INT8_TOKEN = InputScheme("int8", "token", True)
FP8_TOKEN = InputScheme("fp8", "token", True)
FP8_TENSOR = InputScheme("fp8", "tensor", False)
NVFP4_BLOCK = InputScheme("nvfp4", "tensor", False)

Held = tuple[WeightDtype, Granularity]
CHANNEL: Held = ("int4", "channel")
GROUP: Held = ("int4", "group")

A16 = "4-bit storage, 16-bit arithmetic"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One stored form that an engine has a kernel for.

    Attributes:
        holds: dtypes and granularities of the weights. `groups`: sizes with a kernel; none means any.
        inputs: the activation scheme that the file declares; None is 16 bit.
        executed: the arithmetic in words, which need not be what the file declares.
        weight_only: what the file declares of activations is ignored: they are multiplied in 16 bits.
        scales: dtypes a scale may be stored in without being rounded when it is loaded.
        notes: conditions: switches, environment variables, what differs on some machines.
        mla, gqa: whether it serves drafters with latent attention, and Llama-style ones.
        on_request: only for a recipe that names the format, because it gains nothing over 16 bits.
        arguments: without which a server does not start with it.
    """

    chips: tuple[Chip, ...]
    format: FormatName
    holds: tuple[Held, ...]
    inputs: InputScheme | None
    executed: str
    source: str
    evidence: Evidence = "read"
    style: str | None = None
    groups: tuple[int, ...] = ()
    scales: tuple[ScaleDtype, ...] = ("weight", "F32", "F8_E4M3", "E8M0")
    notes: tuple[str, ...] = ()
    mla: bool = True
    gqa: bool = True
    on_request: bool = False
    arguments: tuple[str, ...] = ()
    weight_only: bool = False

    @property
    def multiplied(self) -> InputScheme | None:
        """What activations are rounded to before they meet the weights; None is 16 bit."""
        return None if self.weight_only else self.inputs

    def serves(self, scheme: Scheme, format_name: FormatName | None, *, mla: bool) -> bool:
        """True when it stores and runs this scheme, in this format if one is named."""
        weights = scheme.weights
        return (
            (format_name == self.format if format_name else not self.on_request)
            and (weights.dtype, weights.granularity) in self.holds
            and scheme.inputs == self.inputs
            and weights.scale_dtype in self.scales
            and (not self.groups or weights.group is None or weights.group in self.groups)
            and (self.mla if mla else self.gqa)
        )


@dataclass(frozen=True, slots=True)
class Gap:
    """Why there is no kernel for a scheme; empty fields hold for all. Of several that hold, the first is told."""

    why: str
    source: str
    chips: tuple[Chip, ...] = ()
    formats: tuple[FormatName, ...] = ()
    dtypes: tuple[WeightDtype, ...] = ()
    pers: tuple[Granularity, ...] = ()
    inputs: tuple[InputScheme | None, ...] = ()
    scales: tuple[ScaleDtype, ...] = ()
    mla: bool = False

    def holds(self, scheme: Scheme, format_name: FormatName | None, chip: Chip, *, mla: bool) -> bool:
        """True when it speaks of this scheme on this chip."""
        weights = scheme.weights
        return (
            (not self.chips or chip in self.chips)
            and (not self.formats or format_name in self.formats)
            and (not self.dtypes or weights.dtype in self.dtypes)
            and (not self.pers or weights.granularity in self.pers)
            and (not self.inputs or scheme.inputs in self.inputs)
            and (not self.scales or weights.scale_dtype in self.scales)
            and (mla or not self.mla)
        )
