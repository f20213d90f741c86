"""Small traces of invented tokens and states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from draftconv.checkpoint import MemoryFile, TensorRef
from draftconv.traces.trace import Trace, TraceInfo
from draftconv.traces.writer import CapturedText, Slot, TraceWriter

ABOUT = TraceInfo(
    target="tiny",
    revision=None,
    layers=8,
    hidden=6,
    vocab=50,
    boundaries=(2, 4, 5),
    depth=3,
    max_tokens=4,
    dtype="bfloat16",
    made_by="a test",
    prompts="two",
    prompts_sha256="0" * 64,
    chat=False,
    eos=(7,),
)
SLOTS = (Slot("a/1", "a", "prose"), Slot("a/2", "a", "prose"), Slot("b", "b", "code"))


def table(rows: int = 50, width: int = 6) -> TensorRef:
    """An embedding of the trace's sizes, in memory."""
    data = torch.arange(rows * width, dtype=torch.float32).numpy().tobytes()
    return TensorRef("model.embed_tokens.weight", "F32", (rows, width), MemoryFile("made", data), 0, len(data))


def captured(index: int, about: TraceInfo = ABOUT) -> CapturedText:
    """What a target could have given for request `index`."""
    generator = torch.Generator().manual_seed(index)
    prompt, counted = 2 + index, 1 + index
    length = prompt + counted + about.depth
    tokens_N = torch.randint(0, about.vocab, (length,), generator=generator)
    states_TAW = torch.randn(length - 1, len(about.boundaries), about.hidden, generator=generator)
    return CapturedText(prompt, counted, tokens_N, states_TAW.to(getattr(torch, about.dtype)))


def writer(
    out: Path,
    about: TraceInfo = ABOUT,
    slots: Sequence[Slot] = SLOTS,
    tables: Mapping[str, TensorRef] | None = None,
    *,
    link: bool = False,
    tokenizer: bytes | None = b"{}",
) -> TraceWriter:
    tables = {"embed_tokens": table()} if tables is None else tables
    return TraceWriter(out, about, slots, tables=tables, link=link, tokenizer=tokenizer)


def trace(out: Path) -> Trace:
    """A whole one."""
    with writer(out) as made:
        for index in range(len(SLOTS)):
            made.write(index, captured(index))
        return made.finish()
