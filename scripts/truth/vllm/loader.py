"""`inspect`'s verdict on a checkpoint against what vLLM does with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from truth.asking import EngineDied, Refusal
from truth.drafts import Directory, Makers, target_path
from truth.judging import Loader, judge_case, judge_producer
from truth.producers import spellings
from truth.replaying import prompts
from truth.store import Ask
from truth.table import Row
from truth.trained import Truth
from truth.vllm import dtypes, engine, joined, runner, targets
from truth.vllm.loader_cases import CASES
from truth.vllm.observing import differences

SPEC = "vllm@0.32.0:cpu"
OBSERVING = Path(__file__).with_name("observing.py")
"""What decides an observation beside the engine."""

ASPECTS: Mapping[str, str] = MappingProxyType(
    {
        "vllm-cast": "weights",
        "vllm-missing-tensor": "weights",
        "vllm-scales-missing": "weights",
        "vllm-later-norm": "weights",
        "vllm-head-missing": "weights",
        "vllm-bias-dropped": "weights",
        "vllm-bias-half": "weights",
        "vllm-last-state": "weights",
        "vllm-d2t-missing": "d2t",
        "vllm-taps-v1": "layers",
        "vllm-norm-output": "feedback",
        "vllm-fusion": "fusion",
        "vllm-residual": "residual",
        "vllm-rope": "rope",
        "vllm-attention-factor": "rope",
        "vllm-cut": "weights",
        "vllm-causal": "causal",
        "vllm-eps": "eps",
        "vllm-window": "window",
        "vllm-vocab": "vocabulary",
    }
)
"""Rule that speaks of a mis-read drafter → the aspect in which the built model differs."""


def rows(makers: Makers, ask: Ask) -> Iterator[Row]:
    """One row per case, and per file that a producer would have written."""
    for case in CASES:
        base = makers.base(case.base)
        with makers.made(case.change(Directory.open(base))) as path:
            yield judge_case(LOADER, case, path, base, ask)
    for name, layout in spellings():
        yield judge_producer(LOADER, name, layout, makers.work, ask)
    yield from targets.rows(SPEC, ask)
    yield from dtypes.rows(SPEC, makers, ask)
    yield from runner.rows(makers, ask)
    yield from joined.rows(SPEC, makers, ask)


def observed(path: Path, name: str, truth: Truth, *, run: bool = False) -> dict[str, Any]:
    """What vLLM did with a directory: `observed` as `predicted` words it, and details."""
    draft = engine.look(path, target_path(name))
    if isinstance(draft, Refusal):
        return {"observed": "refused", "detail": draft.error}
    if run:
        dtype = "bfloat16" if "@" in name else "float32"  # not every quantized weight has a kernel for float32
        try:
            ran = engine.run(path, target_path(name), prompts()[:2], 8, dtype)
        except EngineDied as death:
            return {"observed": "refused", "detail": f"at run time: {str(death).partition(':')[0]}"}
        if isinstance(ran, Refusal):
            return {"observed": "refused", "detail": f"at run time: {ran.error}"}
    apart = differences(draft, truth)
    if not apart:
        served = draft.built["served"]
        return {"observed": "loads", "detail": f"serves {served} tokens" if served != engine.ROOM else ""}
    detail = "; ".join(f"{aspect}: {', '.join(details[:3])}" for aspect, details in apart.items())
    return {"observed": f"mis-read: {', '.join(apart)}", "detail": detail[:400]}


LOADER = Loader(SPEC, observed, ASPECTS, (OBSERVING,))
