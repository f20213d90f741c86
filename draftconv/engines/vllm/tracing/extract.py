"""Answers of vLLM with the states that belong to them, from this process or from a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from draftconv.engines.tracing import Extracted, Extraction, Extractor
from draftconv.engines.vllm.tracing.offline import OfflineTarget
from draftconv.engines.vllm.tracing.server import Server
from draftconv.engines.vllm.tracing.start import shell
from draftconv.engines.vllm.tracing.states import ExpectedStates, StatesFile, take_states


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
        UsageError: it is no address. EngineError: no server answers there, or not as vLLM does.
    """
    server = Server(url, shell(extraction))
    info = server.served()
    complete = _extract(extraction, lambda prompts, length: server.complete_all(info, prompts, length))
    return Extractor(info.version, info.room, complete)


def _extract(
    extraction: Extraction, complete: Callable[[Sequence[tuple[int, ...]], int], Iterable[StatesFile]]
) -> Callable[[Sequence[tuple[int, ...]], int], Iterator[Extracted]]:
    expected = ExpectedStates(extraction.boundaries, extraction.hidden, extraction.dtype, shell(extraction))

    def extract(prompts: Sequence[tuple[int, ...]], length: int) -> Iterator[Extracted]:
        for answer in complete(prompts, length):
            yield Extracted(answer.prompt, answer.generated, take_states(answer, expected, extraction.storage))

    return extract
