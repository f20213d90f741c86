"""Everything that a person may say of a trace, and what is told before it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a trace is made.

    Attributes:
        boundaries: which residual-stream boundaries to keep; empty means those of `drafters`, and
            without drafters the target's default triple.
        drafters: checkpoints whose boundaries are kept, all of them together.
        layout, aux_convention, accept_detected: how the drafters are to be read; VALUE is about the first one,
            DRAFTER=VALUE about any.
        revision: branch, tag or commit of a target on the Hub.
        device: where torch runs the target; None takes a GPU when there is one.
        dtype: what it computes in; None means the checkpoint's own.
        batch: prompts that run together.
        chat: apply the chat template; None does so when the tokenizer has one.
        max_tokens: counted tokens per request; None means the suite's, else 256.
        depth: tokens kept beyond the counted end: the longest draft that can be replayed.
        limit: only the first so many prompts.
        ignore_eos: count all `max_tokens`, whatever the target says.
        lm_head: keep the target's head beside its embedding.
        link_tables: record where the target's tables lie instead of copying them.
        trust_remote_code: run Python code that comes with the target.
        engine: `transformers`, or an engine for targets that only one can hold.
        url: of a running server of that engine that extracts hidden states; None loads the target in this process.
        hidden_states_dir: where that server writes them (its shared_storage_path).
        tensor_parallel: devices that an engine in this process puts the target on.
    """

    boundaries: tuple[int, ...] = ()
    drafters: tuple[str | Path, ...] = ()
    layout: str | Sequence[str] = ()
    aux_convention: str | Sequence[str] = ()
    accept_detected: bool = False
    revision: str | None = None
    device: str | None = None
    dtype: str | None = None
    batch: int = 8
    chat: bool | None = None
    max_tokens: int | None = None
    depth: int = 8
    limit: int | None = None
    ignore_eos: bool = False
    lm_head: bool = False
    link_tables: bool = False
    trust_remote_code: bool = False
    engine: str = "transformers"
    url: str | None = None
    hidden_states_dir: Path | None = None
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class Sizing:
    """What is about to be made; no text has been generated yet.

    Attributes:
        boundaries, reason: which, and why these. `drafters`: how those that they are of were read, and what is
            doubtful about it.
        dtype, device: what the target computes in, and where: a device, or an engine.
        tokens: prompt and generated tokens of all requests, at most.
        states, tables: bytes on disk, at most.
    """

    boundaries: tuple[int, ...]
    reason: str
    drafters: tuple[str, ...]
    dtype: str
    device: str
    requests: int
    tokens: int
    states: int
    tables: int
