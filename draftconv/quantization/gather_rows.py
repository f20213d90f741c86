"""Some rows of a stored weight: the same integers and scales, in the same format, nothing rounded again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from draftconv.checkpoint import TensorRef
from draftconv.quantization.computations import Bytes, to_bytes
from draftconv.quantization.format_detection import FormatMatch
from draftconv.quantization.formats.base import StoredTensor, Weight
from draftconv.quantization.quantized_weights import QuantizedWeights
from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scheme import Scheme


@dataclass(frozen=True, eq=False)
class GatherRows:
    """Rows of one module; formats pack along rows too, so it is taken apart and put together.

    Attributes:
        module: canonical. `rows`: of the stored weight, one for each row of the result.
    """

    module: str
    stored: QuantizedWeights
    rows: tuple[int, ...] = field(repr=False)

    @property
    def sources(self) -> tuple[TensorRef, ...]:
        return tuple(self.stored.modules[self.module].values())

    @property
    def _match(self) -> FormatMatch:
        return self.stored.matches[self.module]

    @property
    def memory(self) -> int:
        outputs, inputs = self.stored.shapes[self.module]
        return 2 * outputs * inputs + 3 * len(self.rows) * inputs  # words and values, then those of the result

    def parts(self, scheme: Scheme) -> tuple[StoredTensor, ...]:
        """The tensors that it becomes.

        Raises:
            Refused: the format cannot hold so many rows.
        """
        weight = self.stored.outline(self.module)
        shape = (len(self.rows), self.stored.shapes[self.module][1])
        return self._match.format.parts(shape, scheme, weight.dtype)

    def run(self) -> Bytes:
        return to_bytes(self._match.format.store(self.weight(), self._match.declared.style))

    def weight(self) -> Weight:
        """The weight with these rows."""
        weight = self.stored.load(self.module)
        return replace(weight, quantized=_gathered(weight.quantized, torch.tensor(self.rows)))


def _gathered(quantized: RoundedWeight, rows: torch.Tensor) -> RoundedWeight:
    per_row = len(quantized.scale) == len(quantized.qvalues)
    scale = quantized.scale[rows] if per_row else quantized.scale
    bits = quantized.qvalues.view(torch.uint8)[rows]  # not every dtype of values can be indexed
    return replace(quantized, qvalues=bits.view(quantized.qvalues.dtype), scale=scale)
