"""What is asked of a conversion, whoever asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftconv.conversion.options import ConvertOptions
from draftconv.conversion.pruning.tokens import KeptTokens
from draftconv.engines import EngineSpec

if TYPE_CHECKING:
    from draftconv.conversion.quantization_plan import QuantizationPlan


@dataclass(frozen=True, slots=True)
class ConversionRequest:
    """Options, and what they do not tell.

    Attributes:
        engines: who has to read quantized weights; floats are for those that the layout is for.
        quantizing: a quantization that is decided; None rounds nothing.
        pruning: the tokens that the head keeps; None keeps all.
        certificate: what is known already of its accept length, for the record.
    """

    options: ConvertOptions
    engines: Sequence[EngineSpec] = ()
    quantizing: QuantizationPlan | None = None
    pruning: KeptTokens | None = None
    certificate: Mapping[str, object] | None = None
