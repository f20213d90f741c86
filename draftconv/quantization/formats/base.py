"""What every format is: a way in which quantized weights, and the word of them in config.json, lie on disk.

A format stores the same integers and scales as any other that can hold them; packing is a
permutation of bits, never arithmetic. `store` and `load` are exact inverses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from draftconv.checkpoint import show
from draftconv.errors import Refused, UsageError
from draftconv.quantization.recipes import FormatName
from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scheme import Granularity, InputScheme, Scheme, WeightDtype


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a stored weight.

    Attributes:
        suffix: what follows the module's name: `weight_packed` of `layers.0.mlp.down_proj.weight_packed`.
        dtype: as safetensors spells it. `shape`: element counts.
    """

    suffix: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """A quantized weight with all that a format may keep beside it.

    Attributes:
        quantized: quantized values [O, I] and scales [O, G] ([1, 1] per tensor).
        dtype: of the float weight that it stands for, as safetensors spells it: engines compute in it.
        input_scale: float32 [], of static activations.
        pre_quant_scale: [I], what activations are multiplied by first (AWQ smoothing); None is all ones.
        fp8_scale: float32 [], what an int4 weight is multiples of once it is widened to FP8 to meet
            FP8 activations (ModelOpt W4A8 keeps it); None is this weight's largest magnitude over 448.
        per: what shares a scale, where the scales' shape leaves it open: one group may be a whole row.
    """

    quantized: RoundedWeight
    dtype: str
    input_scale: Tensor | None = None
    pre_quant_scale: Tensor | None = None
    fp8_scale: Tensor | None = None
    granularity: Granularity | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """What a checkpoint says of its quantized weights, or what is to be said.

    Attributes:
        dtype, granularity, group: as in `WeightScheme`; what a config does not tell is None and the tensors decide.
        inputs: how activations are rounded.
        ignore: modules or patterns that stay unquantized, in the spelling of the reader.
        style: variant within the format, one of `Format.styles` (Quark: `reorder`, `order`, …).
        head: whether the head is among the weights; methods that leave it out by themselves have to be told.
        targets: the weights that this is said of, where others are stored otherwise: modules or patterns in the
            spelling of the reader, or classes.
    """

    dtype: WeightDtype
    granularity: Granularity | None
    group: int | None = None
    inputs: InputScheme | None = None
    ignore: tuple[str, ...] = ()
    style: str | None = None
    head: bool = False
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeclaredPart:
    """The weights of one scheme in a file that may hold others beside them.

    Attributes:
        modules: as the reader spells them, for formats that list them.
    """

    format: Format
    declared: Declared
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Declaration:
    """The word of the quantization: `quantization_config` of config.json, and files beside it by name."""

    config: Mapping[str, object]
    sidecars: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


class Format(ABC):
    """One format; a module of this package holds an instance of each, and `formats` finds them.

    Attributes:
        id: as options and reports spell it. `title`: for people.
        holds: dtype and granularity of the weights it can store.
        inputs: activations it can declare; None among them is 16-bit activations.
        source: of the layout: program, version, file, and whether it was run or read.
        styles: variants that are written and read, the default first.
        only_read: variants that are recognised by their tensors and never written, and what to tell of them.
        reads_style: whether the same bytes stand for other quantized values in another style, which no tensor tells.
        may_lack: tensors that are written always and not needed to read, and what to tell where they are missing.
    """

    id: ClassVar[FormatName]
    title: ClassVar[str]
    source: ClassVar[str]
    holds: ClassVar[frozenset[tuple[WeightDtype, Granularity]]]
    inputs: ClassVar[frozenset[InputScheme | None]]
    styles: ClassVar[tuple[str, ...]] = ()
    only_read: ClassVar[Mapping[str, str]] = {}
    reads_style: ClassVar[bool] = False
    may_lack: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def parts(self, shape: tuple[int, int], scheme: Scheme, dtype: str) -> tuple[StoredTensor, ...]:
        """The tensors that a weight [O, I] of this dtype becomes, before anything is computed.

        Raises:
            Refused: the format cannot hold this scheme or shape.
        """

    @abstractmethod
    def store(self, weight: Weight, style: str | None = None) -> dict[str, Tensor]:
        """The tensors of one weight by suffix, in the dtypes and shapes that `parts` foretold."""

    def written(self, style: str | None) -> str:
        """The style to write, the default one for None.

        Raises:
            UsageError: the format has no such style, or only reads it.
        """
        if style is None:
            return self.styles[0]
        if style in self.styles:
            return style
        raise UsageError(
            f"{self.title} is not written in style {show(style)}",
            why=self.only_read.get(style, ""),
            cure=f"its styles: {', '.join(self.styles) or 'none'}",
        )

    def resolve(self, stored: Mapping[str, Tensor], declared: Declared) -> Declared:
        """What is declared, with what the tensors of one module tell better: `granularity`, `group`, `style`.

        Shapes and dtypes are looked at, not values. `load` goes by this; a caller asks to report it.

        Raises:
            BadCheckpoint: the tensors do not fit each other or what is declared.
        """
        del stored
        return declared

    @abstractmethod
    def load(self, stored: Mapping[str, Tensor], declared: Declared, dtype: str) -> Weight:
        """The inverse of `store`.

        Args:
            stored: the tensors of one module, by suffix.
            dtype: of the drafter's other weights, where the tensors do not tell.

        Raises:
            BadCheckpoint: the tensors do not fit each other or what is declared.
        """

    @abstractmethod
    def declare(self, declared: Declared, modules: Sequence[str]) -> Declaration:
        """What config.json and its sidecars have to say.

        Args:
            modules: quantized modules in the reader's spelling, for formats that list them.
        """

    def declare_parts(self, parts: Sequence[DeclaredPart]) -> Declaration:
        """As `declare`, of all weights of a file; the first part is of this format.

        Raises:
            Refused: no file of this format holds weights of several schemes, or not of these.
        """
        if len(parts) == 1:
            return self.declare(parts[0].declared, parts[0].modules)
        raise Refused(
            f"{self.title} has one scheme for all weights of a file, and this recipe has {len(parts)}",
            why="config.json could tell engines of one of them only",
            cure="give every weight the same scheme, or exclude the others",
        )

    @abstractmethod
    def read(self, config: Mapping[str, object], sidecars: Mapping[str, Mapping[str, object]]) -> Declared | None:
        """What a checkpoint declares, if it is of this format.

        Args:
            config: `quantization_config` of config.json, empty where it has none.

        Raises:
            BadCheckpoint: it is of this format and contradicts itself.
            Refused: it is of this format and a variant that draftconv does not know (asymmetric …), or it has
                weights of several schemes.
        """

    def read_parts(
        self, config: Mapping[str, object], sidecars: Mapping[str, Mapping[str, object]]
    ) -> tuple[Declared, ...]:
        """As `read`, of a file that may hold weights of several schemes: what is said of those in this format."""
        declared = self.read(config, sidecars)
        return () if declared is None else (declared,)
