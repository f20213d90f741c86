"""`inspect`'s verdict on a checkpoint against what SGLang's own classes do with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from draftconv.engines import LoadVerdict
from truth.asking import Refusal
from truth.cases import Case
from truth.drafts import Directory, Makers, target_path
from truth.judging import Loader, judge_case, judge_producer
from truth.producers import spellings
from truth.sglang import engine, mutations, targets
from truth.sglang.loader_cases import SHARED
from truth.sglang.observing import differences, sample_of
from truth.store import Ask
from truth.table import Part, Row
from truth.trained import Truth

SPEC = "sglang@0.5.23"
OBSERVING = (Path(__file__).with_name("observing.py"), Path(__file__).with_name("sample.py"))
"""What decides an observation beside the engine."""

ASPECTS: Mapping[str, str] = MappingProxyType(
    {
        "sglang-missing-tensor": "weights",
        "sglang-class-unfilled": "weights",
        "sglang-cut": "weights",
        "sglang-padded": "weights",
        "sglang-prefix": "weights",
        "sglang-dropped": "weights",
        "sglang-qkv-bias": "weights",
        "sglang-qk-norm": "weights",
        "sglang-mlp-bias": "weights",
        "sglang-bias": "weights",
        "sglang-bias-half": "weights",
        "sglang-later-norm": "weights",
        "sglang-head": "weights",
        "sglang-tied": "weights",
        "sglang-embedding-lost": "weights",
        "sglang-fusion": "weights",
        "sglang-d2t-missing": "d2t",
        "sglang-d2t-dtype": "d2t",
        "sglang-d2t-values": "d2t",
        "sglang-lone-state": "computation",
        "sglang-taps": "layers",
        "sglang-last-state": "layers",
        "sglang-norm-output": "computation",
        "sglang-residual": "computation",
        "sglang-rope": "computation",
        "sglang-eps": "computation",
        "sglang-window": "computation",
        "sglang-vocab": "vocabulary",
    }
)
"""Rule that speaks of a mis-read drafter → the aspect in which the built model differs."""


REASONS: Mapping[str, str] = MappingProxyType(
    {
        "sglang-model-type": "Unrecognized model|does not recognize this architecture",
        "sglang-null": "StrictDataclassFieldValidationError",
        "sglang-null-theta": "TypeError: unsupported operand",
        "sglang-context": "context_length",
        "sglang-quant-method": "Unknown quantization method",
        "sglang-architecture": "Cannot find model module|no EAGLE-3 draft class|not subscriptable|out of range",
        "sglang-mtp": "NextN|kv_lora_rank",
        "sglang-class": "has no attribute 'kv_lora_rank'",
        "sglang-null-width": "TypeError: unsupported operand",
        "sglang-draft-vocab": "has no attribute 'draft_vocab_size'",
        "sglang-activation": "Unsupported activation",
        "sglang-one-mla-layer": "only supports 1 layer",
        "sglang-plain-query": "requires q_lora_rank",
        "sglang-shape": "AssertionError|exceeds dimension size|must match",
        "sglang-d2t-short": "at run time: IndexError",
        "sglang-target-width": "at run time: .*cannot be multiplied",
        "sglang-aux-count": "at run time: .*(cannot be multiplied|Expected hidden_size)",
        "sglang-rope-kind": "Unknown RoPE scaling type|at run time: .*einsum",
    }
)
"""Rule that is the reason of a refusal → what SGLang says then, as a regular expression."""


def rows(makers: Makers, ask: Ask) -> Iterator[Row]:
    """One row per case of vLLM's table, per file that a producer would have written, and per kind of target."""
    yield from _cases("loader", SHARED, makers, ask)
    for name, layout in spellings():
        yield judge_producer(LOADER, name, layout, makers.work, ask)
    yield from targets.rows(SPEC, ask)


def mutated(makers: Makers, ask: Ask) -> Iterator[Row]:
    """One row per checkpoint that was changed by rule."""
    return _cases("mutations", mutations.CASES, makers, ask)


def _cases(part: Part, cases: Sequence[Case], makers: Makers, ask: Ask) -> Iterator[Row]:
    for case in cases:
        base = makers.base(case.base)
        with makers.made(case.change(Directory.open(base))) as path:
            yield judge_case(LOADER, case, path, base, ask, part)


def _says(verdict: LoadVerdict) -> str:
    reason = verdict.reason
    return REASONS[reason.rule.code] if reason is not None and verdict.status == "refused" else ""


def visible(prediction: str) -> str:
    """A prediction without what hides behind others: see `observing.differences`."""
    word, _, aspects = prediction.partition(": ")
    named = set(filter(None, aspects.split(", ")))
    if named & {"weights", "vocabulary"}:
        named.discard("computation")
    if "vocabulary" in named:
        named.discard("weights")
    return f"{word}: {', '.join(sorted(named))}" if named else prediction


def observed(path: Path, name: str, truth: Truth) -> dict[str, Any]:
    """What SGLang did with a directory: `observed` as `predicted` words it, and details."""
    sample = sample_of(truth, truth.target.max_positions)
    draft = engine.look(path, target_path(name), sample)
    if isinstance(draft, Refusal):
        return {"observed": "refused", "detail": draft.error}
    if draft.refused:
        return {"observed": "refused", "detail": f"at run time: {draft.refused}"}
    apart = differences(draft, truth, sample)
    if not apart:
        return {"observed": "loads", "detail": ""}
    detail = "; ".join(f"{aspect}: {', '.join(details[:3])}" for aspect, details in apart.items())
    return {"observed": f"mis-read: {', '.join(apart)}", "detail": detail[:400]}


LOADER = Loader(SPEC, observed, ASPECTS, OBSERVING, _says, visible)
