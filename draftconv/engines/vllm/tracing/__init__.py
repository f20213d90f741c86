"""Traces through vLLM, for targets that only an engine can hold.

vLLM's `extract_hidden_states` method proposes the sampled token as its own draft, so the text
is that of plain decoding, greedy or drawn, and a connector writes each request's residual stream to a file.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from draftconv.engines.tracing import Extraction, Extractor, Tracing
from draftconv.engines.vllm.sampling import refuse_sampling
from draftconv.engines.vllm.tracing.start import DTYPES


def _offline_extractor(extraction: Extraction) -> AbstractContextManager[Extractor]:
    from draftconv.engines.vllm.tracing.extract import here

    return here(extraction)


def _server_extractor(extraction: Extraction, url: str) -> Extractor:
    from draftconv.engines.vllm.tracing.extract import served

    return served(extraction, url)


TRACING = Tracing(tuple(DTYPES), _offline_extractor, _server_extractor, refuse_sampling)
