"""Answers of vLLM with the states that belong to them, from this process or from a server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, float32, tensor

from draftconv.checkpoint import show
from draftconv.engines.tracing import Extracted, Extraction, Extractor
from draftconv.engines.vllm.tracing.offline import OfflineTarget
from draftconv.engines.vllm.tracing.server import Server
from draftconv.engines.vllm.tracing.start import LOGPROBS, shell
from draftconv.engines.vllm.tracing.states import ExpectedStates, StatesFile, take_states
from draftconv.errors import EngineError
from draftconv.reference.sampling import Sampling

PROBE, LENGTH = (0, 1, 2, 3), 8
"""A prompt that every vocabulary has, and how many tokens show what log-probabilities are of."""
ALONE = Sampling(1.0, top_k=1)
"""Leaves a token without a rival: 0 is its log p, or that of one among a few which rounding made equally likely."""
TIED, EXACT = 4, 1e-3
"""How many those may be, and how near 1/p is to their number."""


@contextmanager
def here(extraction: Extraction) -> Iterator[Extractor]:
    """See `Tracing`.

    Raises:
        EngineError: vLLM is not installed here, or cannot load the target so.
    """
    engine = OfflineTarget(extraction)
    try:
        if extraction.sampling is not None:
            _refuse_other(extraction, lambda sampling: engine.complete([PROBE], LENGTH, sampling), "vLLM")
        yield Extractor(
            engine.version,
            extraction.room,
            _extract(extraction, lambda prompts, length: engine.complete(prompts, length, extraction.sampling)),
        )
    finally:
        engine.close()


def served(extraction: Extraction, url: str) -> Extractor:
    """See `Tracing`.

    Raises:
        UsageError: it is no address.
        EngineError: no server answers there, or not as vLLM does, or it tells other log-probabilities than of what
            the text is drawn from.
        Void: see `take_states`.
    """
    server = Server(url, shell(extraction))
    info = server.served()
    if extraction.sampling is not None:
        title = f"the server at {show(server.url)}"
        _refuse_other(extraction, lambda sampling: server.complete_all(info, [PROBE], LENGTH, sampling), title)
    extract = _extract(
        extraction, lambda prompts, length: server.complete_all(info, prompts, length, extraction.sampling)
    )
    return Extractor(info.version, info.room, extract)


def _expected(extraction: Extraction) -> ExpectedStates:
    return ExpectedStates(extraction.boundaries, extraction.hidden, extraction.dtype, shell(extraction))


def _extract(
    extraction: Extraction, complete: Callable[[Sequence[tuple[int, ...]], int], Iterable[StatesFile]]
) -> Callable[[Sequence[tuple[int, ...]], int], Iterator[Extracted]]:
    expected = _expected(extraction)

    def extract(prompts: Sequence[tuple[int, ...]], length: int) -> Iterator[Extracted]:
        for answer in complete(prompts, length):
            states_TAW = take_states(answer, expected, extraction.storage)
            yield Extracted(answer.prompt, answer.generated, states_TAW, _logprobs(answer))

    return extract


def _logprobs(answer: StatesFile) -> Tensor | None:
    """float32 [generated]; what rounding puts above 0 is 0."""
    if answer.logprobs is None:
        return None
    return tensor(answer.logprobs, dtype=float32).clamp(max=0)


def _refuse_other(extraction: Extraction, complete: Callable[[Sampling], Iterable[StatesFile]], title: str) -> None:
    """Refuse log-probabilities that are not of what a token was drawn from, by a text without a choice.

    Raises:
        EngineError: they are of raw logits, or of anything else. Void: see `take_states`.
    """
    for answer in complete(ALONE):
        take_states(answer, _expected(extraction), extraction.storage)
        if wrong := [logprob for logprob in answer.logprobs or () if not _without_rival(logprob)]:
            raise EngineError(
                f"{title} tells log p {wrong[0]:.3g} of a token that top_k 1 left without a rival",
                why="odds of acceptance are of what the token was drawn from; without "
                f"--logprobs-mode {LOGPROBS} vLLM tells those of raw logits",
                cure=f"start it with: {shell(extraction)}",
            )


def _without_rival(logprob: float) -> bool:
    return any(abs(math.exp(min(-logprob, TIED)) - equal) <= EXACT for equal in range(1, TIED + 1))
