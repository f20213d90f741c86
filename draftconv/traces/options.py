"""Everything that a person may say of a trace, and what is told before it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from draftconv.engines import ENGINES
from draftconv.options import (
    ACCEPT_DETECTED,
    NUM_SPECULATIVE_TOKENS,
    SEED,
    TEMPERATURE,
    TENSOR_PARALLEL_SIZE,
    TOP_K,
    TOP_P,
    Place,
    Several,
    aux_convention_of_each,
    dtype_option,
    layout_of_each,
    option,
    python_only,
)
from draftconv.reference.sampling import Sampling, sampling_of
from draftconv.traces.trace import DTYPES

TRANSFORMERS = "transformers"


def runners() -> tuple[str, ...]:
    """What can run a target, by the name of `--engine`."""
    return (TRANSFORMERS, *(name for name, engine in ENGINES.items() if engine.tracing))


def read_boundaries(text: str) -> tuple[int, ...]:
    """Numbers with commas between: `2,4,5`.

    Raises:
        ValueError: something else.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of numbers like 2,4,5") from None


@dataclass(frozen=True, slots=True)
class TraceSize:
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


Progress = Callable[[int, float], None]
"""Told the tokens that were captured so far, and the share of all that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How a trace is made."""

    drafters: Place | Sequence[Place] = option(
        (), "Keep the boundaries that this drafter reads; may be repeated.", flag="--drafter", metavar="CKPT"
    )
    layout: Several = option((), layout_of_each("the first drafter"))
    aux_convention: Several = option((), aux_convention_of_each("the first drafter"))
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    boundaries: tuple[int, ...] = option(
        (),
        "Keep these boundaries: b is the residual stream entering layer b, the layer count is what leaves the last "
        "one.  [default: 2, L//2, L-3]",
        metavar="B,B,…",
        parse=read_boundaries,
    )
    max_tokens: int | None = option(
        None, "Counted tokens per request at most.  [default: the suite's, else 256]", metavar="N", least=1
    )
    num_speculative_tokens: int = option(
        8, replace(NUM_SPECULATIVE_TOKENS, help="The most drafted tokens per step that can be replayed.")
    )
    ignore_eos: bool = option(False, "Count all of --max-tokens, also what follows an end-of-text token.")
    temperature: float | None = option(None, TEMPERATURE)
    top_p: float | None = option(None, TOP_P)
    top_k: int | None = option(None, TOP_K)
    min_p: float | None = option(
        None, "Draw only from tokens at least this share as likely as the most likely.", metavar="P", least=0
    )
    seed: int | None = option(None, SEED)
    limit: int | None = option(None, "Only the first N prompts.", metavar="N", least=1)
    chat: bool | None = option(
        None,
        "Apply the chat template, or take text as it is.  [default: --chat if the tokenizer has a template]",
        flag="--chat/--raw",
    )
    device: str | None = option(
        None, "Where torch runs the target.  [default: a GPU if there is one]", metavar="DEVICE"
    )
    dtype: str | None = option(
        None, dtype_option("What it computes in.  [default: the checkpoint's own]", tuple(DTYPES))
    )
    batch: int = option(8, "Prompts that run together.", metavar="N", least=1)
    lm_head: bool = option(False, "Keep the target's lm_head beside its embed_tokens.")
    link_tables: bool = option(False, "Record path and hash of the target's tables instead of copying them.")
    revision: str | None = option(None, "Branch, tag or commit of a target on the Hub.", metavar="REV")
    trust_remote_code: bool = option(False, "Run the Python code that comes with the target.")
    engine: str = option(
        TRANSFORMERS,
        "What runs the target: transformers, or an engine for one that only an engine can hold.",
        choices=runners,
    )
    url: str | None = option(
        None,
        "A running server of --engine that extracts hidden states; a wrong one is told how to start.  "
        "[default: the engine in this process]",
        metavar="URL",
    )
    hidden_states_dir: Place | None = option(
        None,
        "Where that server writes hidden states (its shared_storage_path); they are removed once read.",
        metavar="DIR",
    )
    tensor_parallel_size: int = option(
        1, replace(TENSOR_PARALLEL_SIZE, help="Devices that --engine in this process puts the target on.")
    )
    announce: Callable[[TraceSize], None] | None = python_only(None, "called once, before anything is generated")
    progress: Progress | None = python_only(None, "called with the tokens captured so far and the share that is done")

    @property
    def sampling(self) -> Sampling | None:
        """How the text is drawn; None for greedy text.

        Raises:
            UsageError: a number out of range, or one of the others without a temperature.
        """
        return sampling_of(self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p, seed=self.seed)
