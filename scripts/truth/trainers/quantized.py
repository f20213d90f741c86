"""Drafters that a trainer quantized and exported: what draftconv makes of them, and what `inspect` tells of them.

Bits are held against the export's bytes; what they mean, against the trainer's own run of its quantized weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from draftconv.api.convert import convert
from draftconv.api.inspect import inspect
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.targets import Target
from draftconv.errors import DraftconvError
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.reference.load import load_drafter
from truth.trainers.shared import Change, Directory
from truth.trainers.steps import Inputs, Steps, compared, reference_steps
from truth.trainers.stored import wrong_float
from truth.trainers.table import Row
from truth.trainers.trainer import Quantizer

UNREAD: Mapping[str, str] = MappingProxyType({
    "INT8": "W8A8_SQ_PER_CHANNEL",
    "INT8 SmoothQuant": "W8A8_SQ_PER_CHANNEL",
    "MXFP4": "mxfp4",
})  # fmt: skip
"""Schemes that draftconv reads nothing of → the name by which it says so."""

TOLD = "vllm refused, sglang refused, trtllm refused"
TOLD_OF: Mapping[tuple[str, str], str] = MappingProxyType({
    ("llama", "FP8"): "vllm refused, sglang mis-read, trtllm mis-read",
    ("llama", "FP8 per channel"): "vllm refused, sglang refused, trtllm mis-read",
})  # fmt: skip
"""Attention and scheme of which `inspect` tells something else than `TOLD`."""


def _doubled(d: Directory) -> Directory:
    scale = "layers.0.self_attn.q_proj.weight_scale"
    name = scale if d.tensors[scale].dtype == torch.float32 else f"{scale}_2"
    return d.put(name, d.tensors[name] * 2)


def _turned(d: Directory) -> Directory:
    """The sign of a value, and of its neighbour where two share a byte, in one row of bytes."""
    name = "layers.0.self_attn.v_proj.weight"
    codes = d.tensors[name].clone()
    codes.view(torch.uint8)[0] ^= 0x80
    return d.put(name, codes)


def _unsmoothed(d: Directory) -> Directory:
    return d.drop("layers.0.self_attn.q_proj.pre_quant_scale")


BROKEN: Mapping[str, Change] = MappingProxyType({
    "a scale doubled": _doubled,
    "a row of values turned over": _turned,
    "smoothing left out": _unsmoothed,
})  # fmt: skip
"""Exports that were damaged on the way; nothing about them stops a reader."""

SMOOTHED = ("INT4 AWQ", "W4A8 AWQ")


@dataclass(frozen=True, slots=True)
class Trained:
    """A drafter that a trainer is to quantize.

    Attributes:
        path: in the trainer's own layout. `target`, `target_path`: what it drafts for, with its weights.
    """

    name: str
    path: Path
    target: Target
    target_path: Path


def quantized(trainer: str, quantizer: Quantizer, trained: Trained, work: Path, *, broken: bool) -> Iterator[Row]:
    """Every scheme on one drafter: in float32, where the trainer runs it too, and in bfloat16, as it is published.

    Args:
        broken: damaged exports as well, what draftconv does not read, and bfloat16.
    """
    drafter = read_drafter(open_checkpoint(trained.path), ReadOptions(target=trained.target))
    inputs, table = Inputs.of(drafter.facts), load_drafter(drafter, trained.target).embed_tokens.weight
    for scheme in quantizer.SCHEMES:
        if scheme in UNREAD and not broken:
            continue
        case = f"{trained.name}, {scheme}"
        export = work / "quantized" / case.replace(" ", "-")
        stored = quantizer.quantize(quantizer.load(trained.path, table), scheme, inputs)
        if scheme in UNREAD:
            quantizer.save(stored, export)
            yield _refused(trainer, case, scheme, export, trained)
            continue
        theirs = quantizer.run(quantizer.as_stored(stored), inputs)
        quantizer.save(stored, export)
        computes = partial(_run, trained, theirs, inputs)
        yield _equal(trainer, case, scheme, export, trained, computes)
        if not broken:
            continue
        for what, change in BROKEN.items():
            if change is not _unsmoothed or scheme in SMOOTHED:
                damaged = export.with_name(f"{export.name}-{what.replace(' ', '-')}")
                change(Directory.open(export)).write(damaged)
                observed, detail = _converted(damaged, trained, computes)
                yield Row("quantized", trainer, f"{case}, {what}", "differs", observed, observed == "differs", detail)
        half = export.with_name(f"{export.name}-bf16")
        quantizer.save(quantizer.quantize(quantizer.load(trained.path, table).bfloat16(), scheme, inputs), half)
        yield _equal(trainer, f"{case}, in BF16", scheme, half, trained, lambda _: ("equal", ""))


Judge = Callable[[Path], tuple[str, str]]
"""What a conversion computes: `equal` or `differs`, and figures."""


def _equal(trainer: str, case: str, scheme: str, export: Path, trained: Trained, judge: Judge) -> Row:
    observed, detail = _converted(export, trained, judge)
    told, expected = _told(export, trained), TOLD_OF.get((trained.name.partition("-")[0], scheme), TOLD)
    if told != expected:
        return Row("quantized", trainer, case, "equal", observed, False, f"inspect tells {told}, not {expected}")
    says = f"inspect: {told}" if observed == "equal" else detail
    return Row("quantized", trainer, case, "equal", observed, observed == "equal", says)


def _refused(trainer: str, case: str, scheme: str, export: Path, trained: Trained) -> Row:
    observed, detail = _converted(export, trained, lambda _: ("equal", ""))
    named = observed == "refused" and UNREAD[scheme] in detail
    return Row("quantized", trainer, case, "not read", "not read" if named else observed, named, detail)


def _converted(export: Path, trained: Trained, judge: Judge) -> tuple[str, str]:
    """`convert --dequantize` in the export's own dtype, held against the export's bytes and then judged."""
    out = export.with_name(f"{export.name}-floats")
    stored = Directory.open(export).tensors
    dtype = str(stored["norm.weight"].dtype).removeprefix("torch.")
    try:
        convert(
            export, out, to="vllm", target=str(trained.target_path), dequantize=True, dtype=dtype,
            accept_detected=True,
        )  # fmt: skip
    except DraftconvError as error:
        return "refused", error.what
    floats = Directory.open(out).rename(lambda name: name.replace("midlayer.", "layers.0.")).tensors
    if fault := wrong_float(stored, floats):
        return "differs", fault
    return judge(out)


def _run(trained: Trained, theirs: Steps, inputs: Inputs, out: Path) -> tuple[str, str]:
    drafter = read_drafter(open_checkpoint(out), ReadOptions(target=trained.target))
    model = load_drafter(drafter, trained.target)
    first: Any = model.layers[0]
    first.double_norm = True  # as its trainer computes it; engines normalise once
    return compared(theirs, reference_steps(model, inputs))


def _told(export: Path, trained: Trained) -> str:
    """What `inspect` says that each engine would do with an export."""
    verdicts = inspect(export, target=str(trained.target_path)).verdicts
    return ", ".join(f"{verdict.spec.name} {verdict.status}" for verdict in verdicts)
