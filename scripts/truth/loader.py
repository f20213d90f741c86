"""`inspect`'s verdict on a checkpoint against what vLLM does with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from draftconv.api.inspect import inspect
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.facts import Facts
from draftconv.engines import ENGINES, LoadVerdict, parse_engine
from truth import dtypes, engine, targets
from truth.drafts import Directory, Makers, read, target_of, target_path
from truth.loader_cases import CASES, Case
from truth.observing import Truth, differences
from truth.producers import as_trained, spelled, spellings
from truth.replaying import prompts
from truth.store import HERE, Ask
from truth.table import Row

SPEC = "vllm@0.32.0:cpu"

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


def predicted(verdict: LoadVerdict) -> str:
    """The verdict and, of a mis-read drafter, in which aspects."""
    if verdict.status != "mis-read":
        return verdict.status
    aspects = {ASPECTS[line.rule.code] for line in verdict.lines if line.rule.effect == "mis-read"}
    return f"mis-read: {', '.join(sorted(aspects))}"


def rows(work: Path, ask: Ask) -> Iterator[Row]:
    """One row per case, and per file that a producer would have written."""
    makers = Makers(work)
    for case in CASES:
        with makers.made(case.change(Directory.open(makers.base(case.base)))) as path:
            yield _row(case, path, makers.base(case.base), ask)
    for name, layout in spellings():
        yield _producer(name, layout, work, ask)
    yield from targets.rows(SPEC, ask)
    yield from dtypes.rows(SPEC, makers, ask)


def _row(case: Case, path: Path, base: Path, ask: Ask) -> Row:
    drafter, target = read(base, case.base), target_of(case.base)
    facts = replace(drafter.facts, **case.facts)  # type: ignore[arg-type]
    verdict = ENGINES["vllm"].check(open_checkpoint(path), facts, target, parse_engine(SPEC), case.known)
    codes = {line.rule.code for line in verdict.lines}

    def observe() -> dict[str, Any]:
        return observed(path, case.base, Truth.of(drafter, facts, target), run=case.run)

    answer = ask("loader", case.name, (path, base, facts, HERE / "observing.py", case.run), observe)
    return _judged(case.name, verdict, answer, case.says, set(case.rules) - codes, case.rules)


def _judged(
    name: str, verdict: LoadVerdict, answer: Mapping[str, Any], says: str, missed: Iterable[str], rules: tuple[str, ...]
) -> Row:
    mine, theirs = predicted(verdict), str(answer["observed"])
    detail, agrees = str(answer["detail"]), mine == theirs
    if theirs == "refused" and says and not re.search(says, detail):
        agrees, detail = False, f"refused for another reason: {detail}"
    if missed:
        agrees, detail = False, f"{', '.join(sorted(missed))} did not speak; {detail}"
    named = tuple(dict.fromkeys((*rules, *(line.rule.code for line in verdict.lines if line.rule.effect != "note"))))
    return Row("loader", name, mine, theirs, agrees, detail, named)


def _producer(name: str, layout: str, work: Path, ask: Ask) -> Row:
    """A producer's own files straight into vLLM; what they say of themselves is what `inspect` reads."""
    path, target = spelled(work, name, layout), target_of(name)
    inspection = inspect(path, engines=[SPEC], target=str(target_path(name)))
    (verdict,) = inspection.verdicts
    facts = inspection.drafter.facts

    def observe() -> dict[str, Any]:
        return observed(path, name, Truth.of(inspection.drafter, facts, target))

    case = f"{name} as {layout} writes it"
    answer = ask("loader", case, (path, facts, HERE / "observing.py"), observe)
    row = _judged(case, verdict, answer, "", (), ())
    trained = unlike(facts, as_trained(name))
    return row if not trained else replace(row, agrees=False, detail=f"read as something else: {trained}; {row.detail}")


def unlike(facts: Facts, trained: Facts) -> str:
    """Facts that decide the computation and were read otherwise than they were trained."""
    computed = (
        "attention",
        "layers",
        "boundaries",
        "rope",
        "eps",
        "fusion",
        "feedback",
        "norm_before_residual",
        "vocab_order",
    )
    return ", ".join(name for name in computed if getattr(facts, name) != getattr(trained, name))


def observed(path: Path, name: str, truth: Truth, *, run: bool = False) -> dict[str, Any]:
    """What vLLM did with a directory: `observed` as `predicted` words it, and details."""
    draft = engine.look(path, target_path(name))
    if isinstance(draft, engine.Refusal):
        return {"observed": "refused", "detail": draft.error}
    if run:
        dtype = "bfloat16" if "@" in name else "float32"  # not every quantized weight has a kernel for float32
        try:
            ran = engine.run(path, target_path(name), prompts()[:2], 8, dtype)
        except engine.EngineDied as death:
            return {"observed": "refused", "detail": f"at run time: {str(death).partition(':')[0]}"}
        if isinstance(ran, engine.Refusal):
            return {"observed": "refused", "detail": f"at run time: {ran.error}"}
    apart = differences(draft, truth)
    if not apart:
        served = draft.built["served"]
        return {"observed": "loads", "detail": f"serves {served} tokens" if served != engine.ROOM else ""}
    detail = "; ".join(f"{aspect}: {', '.join(details[:3])}" for aspect, details in apart.items())
    return {"observed": f"mis-read: {', '.join(apart)}", "detail": detail[:400]}
