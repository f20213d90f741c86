"""Traces of the trained fixtures, made with the reference targets: quick, and without transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from target_model import TargetModel, continue_greedily, load_target
from torch import Tensor

from draftconv.drafter.targets import EMBED_NAMES, Target, find_target
from draftconv.traces.request import TraceRequest
from draftconv.traces.trace import Trace, TraceInfo
from draftconv.traces.writer import CapturedText, Slot, TraceWriter
from tests.reference.test_fixtures import DATA, train_tiny

DEPTH = 4
LENGTH = 64
HELD = tuple(range(9))
"""Every boundary of the fixtures' targets."""


@cache
def prompts() -> list[Tensor]:
    found: list[Tensor] = train_tiny().read_prompts()
    return found


@cache
def target_model(name: str, dtype: torch.dtype) -> TargetModel:
    return load_target(DATA / "targets" / name, dtype)


def described(name: str) -> Target:
    found = find_target(str(DATA / "targets" / name), None)
    assert found is not None
    return found


@cache
def requests(
    name: str, *, dtype: torch.dtype = torch.float32, count: int = 8, length: int = LENGTH
) -> tuple[TraceRequest, ...]:
    """The first held-out prompts, continued greedily by a fixture target; states of every boundary in `HELD`."""
    target = target_model(name, dtype)
    chosen = torch.stack(prompts()[:count])
    texts = torch.cat((chosen, continue_greedily(target, chosen, length + DEPTH)), dim=1)
    with torch.no_grad():
        states = target(texts[:, :-1], None, HELD).states
    return tuple(
        TraceRequest(f"{i:02}/1", f"{i:02}", f"kind {i % 2}", chosen.shape[1], length, text, state)
        for i, (text, state) in enumerate(zip(texts, states, strict=True))
    )


def make_trace(
    out: Path,
    name: str,
    boundaries: Sequence[int] = HELD,
    *,
    first: int = 0,
    count: int = 8,
    length: int = LENGTH,
    embedding: bool = True,
) -> Trace:
    """Requests `first` to `first + count` as a trace on disk, in float32, with the target's embedding."""
    target = described(name)
    made = requests(name, count=first + count, length=length)[first:]
    about = TraceInfo(
        target=name,
        revision=None,
        layers=target.layers,
        hidden=target.hidden or 0,
        vocab=target.vocab or 0,
        boundaries=tuple(boundaries),
        depth=DEPTH,
        max_tokens=length,
        dtype="float32",
        made_by="reference target",
        prompts="held-out",
        prompts_sha256="0" * 64,
        chat=False,
        family=target.family,
    )
    slots = [Slot(request.id, request.cluster, request.category) for request in made]
    tables = {"embed_tokens": target.open().tensors[EMBED_NAMES[0]]} if embedding else {}
    with TraceWriter(out, about, slots, tables=tables) as writer:
        for i, request in enumerate(made):
            states = request.states_TAW[:][:, list(boundaries)]
            writer.write(i, CapturedText(request.prompt, request.counted, request.tokens_N, states))
        return writer.finish()


Recorded = Callable[..., Path]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """`recorded("mla", count=4)`: a trace of short texts, as `make_trace` makes it, made once and never changed."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("traces")

    @cache
    def write(name: str = "llama", **how: object) -> Path:
        path = root / f"{name}-{len(list(root.iterdir()))}"
        make_trace(path, name, **({"length": 32} | how))  # type: ignore[arg-type]
        return path

    return write
