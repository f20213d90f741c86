"""How TensorRT-LLM is measured: its servers, its load generator, what its log says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftconv.engines.draft_methods import DraftMethod
from draftconv.engines.live import Generator, Live, LogLine, Round, ServerTold, Switch, Tool

if TYPE_CHECKING:
    from draftconv.engines.client import Client, RequestSettings

LINES = (LogLine("runtime", r"Using LLM with (\w+) backend", "tensorrt_llm/llmapi/llm.py at 4c05a748, read"),)
"""It tells no kernel at its usual level."""

VARIABLES = {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "TensorRT-LLM 1.3, _torch/speculative/interface.py"}

DRAFT_METHODS = (
    DraftMethod(
        (1, 3), "greedy", r"use_rejection_sampling: true", "llmapi/llm_args.py, 1.3.0rc read"),
)  # fmt: skip

SWITCHES = (
    Switch(
        r"use_relaxed_acceptance\w*: true",
        "it accepts any of the target's most likely tokens",
        "TensorRT-LLM 1.3, llmapi/llm_args.py",
    ),
)

BENCH = Tool(
    "tensorrt_llm.serve.scripts.benchmark_serving",
    "tensorrt_llm",
    "tensorrt-llm",
    "tensorrt_llm/serve/scripts/benchmark_serving.py at f61d71d9, read",
)


def connect(url: str, option: str, asking: RequestSettings) -> Client:
    from draftconv.engines.http import Http
    from draftconv.engines.trtllm.client import TrtllmServer

    return TrtllmServer(Http(url, option, "TensorRT-LLM", timeout=asking.timeout, attempts=1), asking)


def look(url: str, option: str) -> ServerTold:
    from draftconv.engines.http import Http
    from draftconv.engines.trtllm.look import look as told

    return told(Http(url, option, "TensorRT-LLM", attempts=1))


def bench(run: Round) -> tuple[str, ...]:
    # Greedy by default; one request beforehand.
    program = ("python", "-m", "tensorrt_llm.serve.scripts.benchmark_serving", "--backend", "openai")
    random = ("--dataset-name", "random", "--random-ids", *run.lengths, "--random-range-ratio", "0.0")
    return (*program, *run.server_options, *random, *run.saved)


LIVE = Live(
    connect,
    look,
    settings="kv_cache_config:\n  enable_block_reuse: false\n",
    lines=LINES,
    packages=("tensorrt-llm", "torch", "flashinfer-python"),
    variables=VARIABLES,
    switches=SWITCHES,
    generator=Generator(BENCH, bench),
)
