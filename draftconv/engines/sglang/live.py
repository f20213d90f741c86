"""How SGLang is measured: its servers, its load generator, what its log says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftconv.engines.draft_methods import DraftMethod
from draftconv.engines.hardware import AMD, named
from draftconv.engines.live import Generator, Live, LogLine, Round, ServerTold, Switch, Tool
from draftconv.errors import UsageError
from draftconv.reference.sampling import Sampling

if TYPE_CHECKING:
    from draftconv.engines.client import Client, RequestSettings

LINES = (
    LogLine("attention", r"Attention backend not explicitly specified\. Use (\w+) backend by default",
         "srt/server_args.py, read"),
    LogLine("attention", r"\battention_backend='(\w+)'", "srt/server_args.py, the line server_args=, read"),
    LogLine("draft attention", r"\bspeculative_draft_attention_backend='(\w+)'", "as above"),
)  # fmt: skip

# Of acceptance that it makes up, it writes one and the same token in place of every draft.
VARIABLES = {"SGLANG_SIMULATE_ACC_LEN": "SGLang 0.5.23, srt/speculative/spec_utils.py"}

REJECTION = "--speculative-use-rejection-sampling"

DRAFT_METHODS = (
    DraftMethod(
        (0, 5, 23), "greedy", rf"{REJECTION}\b", "srt/speculative/eagle_utils.py and spec_utils.py, 0.5.23 read",
        whole="its server stops at another vocabulary than the target's (srt/speculative/eagle_worker_v2.py:260)"),
)  # fmt: skip

SWITCHES = (
    Switch(
        r"--speculative-accept-threshold-(single|acc)[ =](?!1(\.0*)?(\s|$))\S+",
        "below 1 it accepts tokens that the target would not have written",
        "SGLang 0.5.23, srt/server_args.py",
    ),
    Switch(
        r"--speculative-use-block-verification\b",
        "it verifies the drafts of a step together",
        "SGLang 0.5.23, srt/speculative/eagle_utils.py",
    ),
)


def refuse_sampling(sampling: Sampling, hardware: str | None, arguments: Sequence[str]) -> None:
    """Refuse texts that would be greedy all the same.

    Raises:
        UsageError: ROCm without rejection sampling.
    """
    if hardware in named(*AMD) and REJECTION not in arguments:
        raise UsageError(
            f"--temperature {sampling.temperature:g}: SGLang on ROCm writes greedy text beside a drafter",
            why="its verification takes the likeliest token there [0.5.23, srt/speculative/eagle_utils.py:500, read]",
            cure=f"add --server-arg={REJECTION}, or leave it out for greedy text",
        )


PACKAGES = ("sglang", "torch", "sgl-kernel", "sglang-kernel", "compressed-tensors", "flashinfer-python", "amd-aiter")


def connect(url: str, option: str, asking: RequestSettings) -> Client:
    from draftconv.engines.http import Http
    from draftconv.engines.sglang.client import SglangServer

    return SglangServer(Http(url, option, "SGLang", timeout=asking.timeout, attempts=1), asking)


def look(url: str, option: str) -> ServerTold:
    from draftconv.engines.http import Http
    from draftconv.engines.sglang.look import look as told

    return told(Http(url, option, "SGLang", attempts=1))


def bench(run: Round) -> tuple[str, ...]:
    # random-ids: its `random` fetches ShareGPT. A range ratio of 1 makes all lengths equal. Greedy by default.
    program = ("python", "-m", "sglang.bench_serving", "--backend", "sglang")
    random = ("--dataset-name", "random-ids", *run.lengths, "--random-range-ratio", "1.0")
    warm = ("--warmup-requests", str(run.concurrency))
    return (*program, *run.server_options, *random, *warm, "--output-file", str(run.result))


LIVE = Live(
    connect,
    look,
    measuring=("--disable-radix-cache",),
    lines=LINES,
    packages=PACKAGES,
    variables=VARIABLES,
    switches=SWITCHES,
    refuse_sampling=refuse_sampling,
    # Its result has `accept_length` too, but of the server since it was started (benchmark/serving.py 1654, 0.5.23).
    generator=Generator(
        Tool("sglang.bench_serving", "sglang", "sglang", "python/sglang/bench_serving.py and its guide, 0.5"), bench
    ),
)
