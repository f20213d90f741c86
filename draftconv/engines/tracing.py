"""What a trace needs of an engine that runs its target: texts, the states on the way, and how likely tokens were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.reference.sampling import Sampling

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Extraction:
    """A target run so that its states can be read.

    Attributes:
        model: directory or Hub id that the engine opens.
        boundaries: ascending, as the columns of the states are. `hidden`: their width.
        storage: directory that the engine may write to and draftconv reads from.
        dtype: what the target computes in, one of `Tracing.dtypes`.
        room: tokens of the longest prompt and its text.
        tensor_parallel: devices that hold the target.
        remote_code: let the target's repository run its own Python code.
        sampling: how texts are drawn; None for greedy ones.
    """

    model: str
    boundaries: tuple[int, ...]
    hidden: int
    storage: Path
    dtype: str
    room: int
    tensor_parallel: int = 1
    remote_code: bool = False
    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class Extracted:
    """What an engine made of one prompt.

    Attributes:
        states_TAW: [prompt + generated - 1, A, W] in the target's dtype; row t belongs to token t.
        logprobs_N: of drawn text, log p of every generated token under what it was drawn from: float32 [generated].
    """

    prompt: tuple[int, ...]
    generated: tuple[int, ...]
    states_TAW: Tensor
    logprobs_N: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Extractor:
    """An engine that has the target.

    Attributes:
        version: of the engine. `room`: tokens that prompt and text may have together, None when unknown.
        extract: a text of exactly so many tokens after each prompt, EOS ignored, in order; raises EngineError
            when the engine fails, Void when a check of an answer or its states does.
    """

    version: str
    room: int | None
    extract: Callable[[Sequence[tuple[int, ...]], int], Iterable[Extracted]]


@dataclass(frozen=True, slots=True)
class Tracing:
    """An engine that hands out states.

    Attributes:
        dtypes: what it computes in, names of torch.
        here: the target in this process until this is left. `served`: in a running server, by its address.
        refuse_sampling: raises UsageError for texts that it would draw otherwise than asked.
    """

    dtypes: tuple[str, ...]
    here: Callable[[Extraction], AbstractContextManager[Extractor]]
    served: Callable[[Extraction, str], Extractor]
    refuse_sampling: Callable[[Sampling], None]
