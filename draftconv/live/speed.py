"""Speed of a server with and without its drafter, by the load generator that comes with the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from draftconv.errors import EngineError
from draftconv.live.tools import Tool, figure, read_result
from draftconv.report.model import Speed

CPU_PROGRAM = Path(__file__).with_name("vllm_bench.py")
CONCURRENCY = (1, 2, 4, 16, 40)
"""Requests at a time, as published cards have them."""
ROUNDS = 10
"""Requests for each that is asked at a time, as InferenceX asks; as many once before, which do not count."""

TOOLS: Mapping[str, Tool] = {
    "vllm": Tool("vllm bench serve", "vllm", "vllm[bench]", "vllm/benchmarks/serve.py, 0.32.0"),
    "sglang": Tool("sglang.bench_serving", "sglang", "sglang", "python/sglang/bench_serving.py and its guide, 0.5"),
    "trtllm": Tool(
        "tensorrt_llm.serve.scripts.benchmark_serving", "tensorrt_llm", "tensorrt-llm",
        "tensorrt_llm/serve/scripts/benchmark_serving.py, main 2026",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """What a server is asked.

    Attributes:
        model: as the server was given it, which is also where the tokenizer is.
        tokens_in, tokens_out: of every request. `remote_code`: of the tokenizer.
    """

    model: str
    tokens_in: int = 1024
    tokens_out: int = 1024
    remote_code: bool = False


def result_name(concurrency: int) -> str:
    """The file with a result."""
    return f"speed-{concurrency}.json"


def bench(
    engine: str, load: Load, url: str, concurrency: int, directory: Path, *, cpu: bool = False
) -> tuple[str, ...]:
    """The command that measures one concurrency and writes `result_name` into a directory.

    Prompts are random token ids of one length and ends are ignored, as for published tables; text is greedy.

    Args:
        cpu: vLLM only: its CPU build.
    """
    requests = str(ROUNDS * concurrency)
    shared = ["--base-url", url, "--model", load.model, "--num-prompts", requests]
    shared += ["--max-concurrency", str(concurrency), "--seed", "0", "--disable-tqdm"]
    lengths = ["--random-input-len", str(load.tokens_in), "--random-output-len", str(load.tokens_out)]
    file = result_name(concurrency)
    saved = ["--save-result", "--result-dir", str(directory), "--result-filename", file, "--ignore-eos"]
    code = ["--trust-remote-code"] * load.remote_code
    match engine:
        case "vllm":
            module = ["-m", "vllm.entrypoints.cli.main", "bench", "serve"]
            program = ["python", *([str(CPU_PROGRAM)] if cpu else module), "--backend", "vllm"]
            random = ["--dataset-name", "random", *lengths, "--num-warmups", str(concurrency), "--temperature", "0"]
            return (*program, *shared, *random, *saved, *code)
        case "sglang":
            # random-ids: its `random` fetches ShareGPT. A range ratio of 1 makes all lengths equal. Greedy by default.
            program = ["python", "-m", "sglang.bench_serving", "--backend", "sglang"]
            random = ["--dataset-name", "random-ids", *lengths, "--random-range-ratio", "1.0"]
            warm = ["--warmup-requests", str(concurrency)]
            return (*program, *shared, *random, *warm, "--output-file", str(directory / file))
        case _:
            # Greedy by default; one request beforehand.
            program = ["python", "-m", "tensorrt_llm.serve.scripts.benchmark_serving", "--backend", "openai"]
            random = ["--dataset-name", "random", "--random-ids", *lengths, "--random-range-ratio", "0.0"]
            return (*program, *shared, *random, *saved, *code)


def read_speed(engine: str, directory: Path, drafter: str | None, concurrency: int) -> Speed:
    """What the engine's tool measured; all three write the same names.

    Raises:
        EngineError: it wrote no result, a figure is none, or requests failed.
    """
    tool = TOOLS[engine]
    found = read_result(tool, directory / result_name(concurrency))
    asked, done = ROUNDS * concurrency, int(figure(tool, found, "completed"))
    if done != asked:
        raise EngineError(
            f"{done} of {asked} requests were answered to {tool.title}",
            why="the figures are of another load than was asked for",
            cure="see speed.log of this arm; the same command measures again",
        )
    return Speed(
        drafter=drafter,
        concurrency=concurrency,
        requests=done,
        tpot_ms=figure(tool, found, "median_tpot_ms"),
        mean_tpot_ms=figure(tool, found, "mean_tpot_ms"),
        ttft_ms=figure(tool, found, "median_ttft_ms"),
        mean_ttft_ms=figure(tool, found, "mean_ttft_ms"),
        tokens_per_second=figure(tool, found, "output_throughput"),
    )
