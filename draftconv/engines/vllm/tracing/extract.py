"""Answers of vLLM with the states that belong to them, from this process or from a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, float32, tensor

from draftconv.checkpoint import show
from draftconv.engines.tracing import Extracted, Extraction, Extractor
from draftconv.engines.vllm.tracing.offline import OfflineTarget
from draftconv.engines.vllm.tracing.server import Server, TracingServerInfo
from draftconv.engines.vllm.tracing.start import LOGPROBS, shell
from draftconv.engines.vllm.tracing.states import ExpectedStates, StatesFile, take_states
from draftconv.errors import EngineError
from draftconv.reference.sampling import Sampling

PROBE, LENGTH = (0, 1, 2, 3), 8
"""A prompt that every vocabulary has, and how many tokens show what log-probabilities are of."""
EXACT = 1e-4
"""How far from 0 rounding may leave the log-probability of a token that was the only choice."""


@contextmanager
def here(extraction: Extraction) -> Iterator[Extractor]:
    """See `Tracing`.

    Raises:
        EngineError: vLLM is not installed here, or cannot load the target so.
    """
    engine = OfflineTarget(extraction)
    try:
        yield Extractor(engine.version, extraction.room, _extract(extraction, engine.complete))
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
        _refuse_raw(extraction, server, info)
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


def _refuse_raw(extraction: Extraction, server: Server, info: TracingServerInfo) -> None:
    """Refuse a server that tells log-probabilities before temperature and top_k: a token without a rival has log p 0.

    Raises:
        EngineError: it does. Void: see `take_states`.
    """
    (answer,) = server.complete_all(info, [PROBE], LENGTH, Sampling(1.0, top_k=1))
    take_states(answer, _expected(extraction), extraction.storage)
    told = max(answer.logprobs or (0.0,), key=abs)
    if abs(told) > EXACT:
        raise EngineError(
            f"the server at {show(server.url)} tells raw log-probabilities: {told:.3g} of a token without a rival",
            why="how likely a drawn draft is accepted depends on what the token was drawn from, temperature included",
            cure=f"start it with --logprobs-mode {LOGPROBS}: {shell(extraction)}",
        )
