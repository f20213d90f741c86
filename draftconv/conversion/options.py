"""Everything that a person may say of a conversion, and of a quantization."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Literal

from draftconv.errors import UsageError
from draftconv.layouts.drafter_reader import DrafterReader
from draftconv.options import (
    ACCEPT_DETECTED,
    ATTEST,
    AUX_CONVENTION,
    FROM_FORMAT,
    LAYOUT,
    OVERWRITE,
    TARGET,
    TARGET_LAYERS,
    TENSOR_PARALLEL_SIZE,
    Place,
    Several,
    dtype_option,
    option,
    python_only,
)
from draftconv.quantization.backends import BackendName

Progress = Callable[[int], None]
"""Told the bytes that are written so far."""

Calibrating = Callable[[int, int], None]
"""Told how much of a calibration is done and how much there is, in billions of operations."""

Embed = Literal["keep", "drop", "from-target"]
CalibratedOn = Literal["all", "half"]
"""Which requests of a trace: all, or the half that a search sees (`draftconv.traces.halves`)."""
DTYPES: Mapping[str, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""`--dtype` → as safetensors spells it; in lower case that is what it was called, and what records call it."""

SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([KMG]I?)?B?")
UNITS = {None: 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def read_size(text: str) -> int:
    """A number of bytes such as 5GB or 512MiB.

    Raises:
        ValueError: it is none.
    """
    match = SIZE.fullmatch(text.strip().upper())
    size = int(Decimal(match[1]) * UNITS[match[2]]) if match else 0
    if size <= 0:
        raise ValueError(f"{text!r} is not a size; write 5GB or 512MiB")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """Everything that decides an output; the same options and input give the same bytes."""

    to: str | None = option(
        None,
        "How it is written: a layout of an engine, of every engine (portable) or of a trainer.  "
        "[default: the portable one, or one for most engines where not every engine reads it]",
        metavar="LAYOUT",
    )
    target: Place | None = option(None, TARGET)
    target_layers: int | None = option(None, TARGET_LAYERS)
    embed: Embed = option(
        "keep",
        "embed_tokens: keep the drafter's, drop it (if proven equal to the target's), or attach the target's.",
    )
    dtype: str | None = option(
        None,
        dtype_option(
            "Cast every float tensor.", tuple(DTYPES), former_values=tuple(name.lower() for name in DTYPES.values())
        ),
    )
    verifier: str | None = option(
        None,
        "With --to speculators: what it opens the target by.  [default: the Hub id of --target]",
        metavar="NAME",
    )
    max_positions: int | None = option(None, "max_position_embeddings to write.", metavar="N", least=1)
    shard_size: int | None = option(None, "Most bytes of tensors per file, e.g. 5GB.", metavar="SIZE", parse=read_size)
    dequantize: bool = option(False, "Write a quantized drafter as the floats that its weights stand for.")
    pack: str | None = option(
        None, "Write a quantized drafter's integers in this format, e.g. compressed-pack.", metavar="FORMAT[:STYLE]"
    )
    unpack: Several = option((), "With --pack: write this weight as floats, e.g. fc (repeatable).", metavar="MODULE")
    from_format: str | None = option(None, FROM_FORMAT)
    allow_lossy: bool = option(
        False,
        "With --pack: leave out activations that the format cannot declare, and round scales that it cannot hold.",
    )
    deep: bool = option(False, "Read every byte first; refuse NaN, infinities and all-zero tensors.")
    hash: bool = option(False, "Record the SHA-256 of each source file that is read (a download's is always recorded).")
    card: bool = option(True, "Write no README.md.", flag="--no-card")
    layout: str | None = option(None, LAYOUT)
    aux_convention: str | None = option(None, AUX_CONVENTION)
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    repairs: Several = option((), "Mend this problem (repeatable).", flag="--repair", metavar="CODE[=PATH]")
    overwrite: bool = option(False, OVERWRITE)
    attest: Place | None = option(None, ATTEST)
    force: bool = option(False, "With --embed drop: drop it unproven. Accept length may suffer.")
    progress: Progress | None = python_only(None, "called with the number of bytes written so far")

    @property
    def reading(self) -> DrafterReader:
        """How the source is to be read."""
        return DrafterReader(self.layout, self.aux_convention, self.accept_detected)

    @property
    def float_dtype(self) -> str | None:
        """`dtype`, as safetensors spells it.

        Raises:
            UsageError: unknown dtype.
        """
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UsageError(f"--dtype {self.dtype}: unknown", why=f"known: {', '.join(DTYPES)}")
        return None if self.dtype is None else DTYPES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions:
    """Everything that decides a quantized output."""

    recipe: str = option(..., "A shipped recipe (see `draftconv recipes`), or a YAML file.", metavar="NAME|FILE")
    engines: Several = option(
        (), "Who will serve it, as ENGINE[@VERSION][:HARDWARE]; may be repeated.  "
        "[default: the form that most engines read]", flag="--for", metavar="ENGINE")  # fmt: skip
    allow_a16: bool = option(False, "Leave activations in 16 bits where the engine has no other form of the recipe.")
    tensor_parallel_size: int = option(
        1, replace(TENSOR_PARALLEL_SIZE, help="Devices for the target, for the sizes that the engine's kernels take.")
    )
    calibrate: Place | None = option(
        None,
        "A trace to calibrate on: for rounding by GPTQ, static activation scales, or AWQ smoothing (modelopt).",
        metavar="TRACE",
    )
    calibrate_on: CalibratedOn = option(
        "all", "Calibrate on all of the trace, or on the half of it that `draftconv slim` searches on."
    )
    backend: BackendName = option("native", "Who rounds the weights: draftconv, amd-quark or nvidia-modelopt (extras).")
    device: str = option("cpu", "Where torch rounds the weights (native).", metavar="DEVICE")
    requantize: bool = option(False, "Take a SOURCE that is quantized already; the errors of both add up.")
    from_format: str | None = option(None, FROM_FORMAT)
    target: Place | None = option(None, TARGET)
    target_layers: int | None = option(None, TARGET_LAYERS)
    hash: bool = option(False, "Record the SHA-256 of each source file that is read (a download's is always recorded).")
    card: bool = option(True, "Write no README.md.", flag="--no-card")
    layout: str | None = option(None, LAYOUT)
    aux_convention: str | None = option(None, AUX_CONVENTION)
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    overwrite: bool = option(False, OVERWRITE)
    attest: Place | None = option(None, ATTEST)
    force: bool = option(False, "Round a head to the nearest of 4 bits. Accept length may suffer.")
    progress: Progress | None = python_only(None, "called with the number of bytes written so far")
    calibrating: Calibrating | None = python_only(None, "called with how much GPTQ has done, and how much there is")

    @property
    def trace(self) -> Path | None:
        """Where what it is calibrated on lies."""
        return None if self.calibrate is None else Path(self.calibrate)

    @property
    def convert(self) -> ConvertOptions:
        """How everything else is converted; `to` follows from the engines."""
        shared = {field.name for field in fields(ConvertOptions)} & {field.name for field in fields(self)}
        return ConvertOptions(**{name: getattr(self, name) for name in sorted(shared)})
