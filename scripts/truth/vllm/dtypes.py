"""A server in float32 beside quantized weights: our list of what stops against a whole engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from draftconv.engines import parse_engine
from draftconv.engines.dtypes import float32_stop
from draftconv.quantization.weight_detection import find_quantized
from truth.asking import EngineDied, Refusal
from truth.drafts import Makers, read, target_path
from truth.replaying import prompts
from truth.store import Ask
from truth.table import Row
from truth.vllm import engine

DRAFTER = "llama-eagle3"
NO_METHOD = "torch.float32 is not supported for quantization method"
WAYS: Mapping[str, str] = {
    "ct-channel": "\"cpu_gemm_wna16\" not implemented for 'Float'",
    "gptq-channel": NO_METHOD,
    "awq-g128": NO_METHOD,
    "quark-reorder": NO_METHOD,
    "int-w4a8": "",
    "int-w8a8": "",
    "fp8": "",
}
"""How the weights are stored, and what stands in vLLM's refusal if there is one."""

FIXED = frozenset({"ct-channel", "gptq-channel", "int-w4a8"})
"""What every test run asks."""

LENGTH = 8


def case(way: str) -> str:
    return f"{DRAFTER}@{way}: served in float32"


def fixed() -> frozenset[str]:
    """Names of the cases that every test run asks."""
    return frozenset(map(case, FIXED))


def rows(spec: str, makers: Makers, ask: Ask) -> Iterator[Row]:
    """One row per way to store weights; a target in float32 comes of `--dtype float32` alone."""
    for way, says in WAYS.items():
        path = makers.base(f"{DRAFTER}@{way}")
        stop = float32_stop(parse_engine(spec), find_quantized(read(path, DRAFTER)).only.format.id)
        answer = ask("loader", case(way), (path, Path(__file__)), partial(observed, path))
        mine, theirs = "refused" if stop else "loads", str(answer["observed"])
        agrees = mine == theirs and says in answer["detail"]
        yield Row("loader", case(way), mine, theirs, agrees, answer["detail"])


def observed(path: Path) -> dict[str, Any]:
    """What a whole engine did with a short text."""
    try:
        ran = engine.run(path, target_path(DRAFTER), prompts()[:2], LENGTH, "float32")
    except EngineDied as death:
        return {"observed": "refused", "detail": str(death).partition(":")[0]}
    if isinstance(ran, Refusal):
        return {"observed": "refused", "detail": ran.error}
    return {"observed": "loads", "detail": ""}
