"""Everything that a person may say of a conversion, and of a quantization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from draftconv.errors import UsageError
from draftconv.layouts.readings import Said
from draftconv.quantization.oracles import BackendName

Embed = Literal["keep", "drop", "from-target"]
DTYPES: Mapping[str, str] = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
"""`--dtype` → as safetensors spells it."""


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Everything that decides an output; the same options and input give the same bytes.

    Attributes:
        to: layout to write. `source`: layout to read as (`--from`), when detection should not decide.
        target, target_layers, aux_convention: what the file cannot tell; see `find_target`.
        accept_detected: go on as detected where the file can be read in several ways.
        embed: `keep`, `drop` (only when proven equal to the target's) or `from-target`.
        force: drop the embedding without proof.
        dtype: cast float tensors to bf16, f16 or f32.
        max_positions: max_position_embeddings to write.
        repairs: problem codes to mend, as CODE or CODE=PATH.
        shard_size: most bytes of tensors per file.
        hash: record SHA-256 of the source's weight files.
        card: write README.md.
        deep: read every byte before anything is written, and refuse NaN, infinities and all-zero tensors.
        dequantize: write a quantized drafter as the floats that its weights stand for, exactly.
        pack: write a quantized drafter's integers in this format, as FORMAT or FORMAT:STYLE.
        unpack: with `pack`, canonical modules (`fc`) that become floats.
        allow_lossy: with `pack`, leave out what it cannot declare.
        from_format: how the weights of a quantized source are stored, when its tensors and config cannot tell.
    """

    to: str = "portable"
    source: str | None = None
    target: str | None = None
    target_layers: int | None = None
    aux_convention: str | None = None
    accept_detected: bool = False
    embed: Embed = "keep"
    force: bool = False
    dtype: str | None = None
    max_positions: int | None = None
    repairs: tuple[str, ...] = ()
    shard_size: int | None = None
    hash: bool = False
    card: bool = True
    deep: bool = False
    dequantize: bool = False
    pack: str | None = None
    unpack: tuple[str, ...] = ()
    allow_lossy: bool = False
    from_format: str | None = None

    @property
    def said(self) -> Said:
        """How the source is to be read."""
        return Said(self.source, self.aux_convention, self.accept_detected)

    @property
    def float_dtype(self) -> str | None:
        """`dtype`, as safetensors spells it.

        Raises:
            UsageError: unknown dtype.
        """
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UsageError(f"--dtype {self.dtype}: unknown", why=f"known: {', '.join(DTYPES)}")
        return None if self.dtype is None else DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """Everything that decides a quantized output.

    Attributes:
        recipe: a shipped one by name, or the path of a YAML file.
        engines: as `ENGINE[@VERSION][:HARDWARE]`; none writes the form that most engines read.
        allow_a16: leave activations in 16 bits where an engine has no form of the recipe otherwise.
        tp: ranks of tensor parallelism, for the sizes that the engines' kernels take.
        calibrate: a trace, for recipes with static activation scales.
        backend: who rounds the weights. `device`: where torch rounds them.
        requantize: take a source that is quantized already.
        convert: how everything else is converted; its `to` follows from `engines`.
    """

    recipe: str
    engines: tuple[str, ...] = ()
    allow_a16: bool = False
    tp: int = 1
    calibrate: Path | None = None
    backend: BackendName = "native"
    device: str = "cpu"
    requantize: bool = False
    convert: ConvertOptions = field(default_factory=ConvertOptions)
