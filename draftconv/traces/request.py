"""One request of a trace: what replay reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftconv.traces.states import StateRows


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A prompt and what the target made of it.

    Attributes:
        cluster: what is resampled as one: a prompt with all its turns.
        tokens_N: int64 [n + 1]; the first `prompt` are the prompt, the next `counted` are
            generated and count, the rest is kept so that the last counted step is not clipped.
        states_TAW: [n, A, W]: row t is the residual stream at position t, one column per
            boundary in ascending order. Slices of rows are tensors; of a long text the whole is none.
        logprobs_N: float32 [n + 1 - prompt], log p of every token after the prompt under the distribution that it was
            drawn from; None for greedy text.
    """

    id: str
    cluster: str
    category: str
    prompt: int
    counted: int
    tokens_N: Tensor
    states_TAW: StateRows
    language: str = ""
    logprobs_N: Tensor | None = None
