"""A drafter in words and in JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from draftconv.api.inspect import Inspection
from draftconv.cli.output import size
from draftconv.drafter.describe import facts_json
from draftconv.drafter.facts import Facts, Fusion, Gqa, Mla, describe_boundaries
from draftconv.drafter.kinds import kind_of
from draftconv.engines import LoadVerdict
from draftconv.engines.problems import why
from draftconv.layouts.reading_options import readings_json

FUSIONS: Mapping[Fusion, str] = {
    "plain": "none",
    "fc_norm": "one per captured state (fc_norm)",
    "norm_before_fc": "one over all captured states (norm_before_fc)",
    "both": "fc_norm and norm_before_fc",
}


def identity(found: Inspection) -> Iterator[tuple[str, object]]:
    """The identity card, line by line."""
    drafter, facts = found.drafter, found.drafter.facts
    reasons = drafter.reasons
    detection = drafter.detection
    count = sum(ref.nbytes for ref in drafter.checkpoint.tensors.values())
    yield "layout", f"{detection.layout} ({detection.confidence}: {'; '.join(detection.reasons)})"
    yield "drafter", f"{kind_of(facts).title}, {_attention(facts)}, {facts.layers} layer{'s' * (facts.layers > 1)}"
    yield "sizes", f"hidden {facts.hidden}, MLP {facts.intermediate}, {size(count)} in {_dtypes(found)}"
    yield "captured", f"{facts.aux} states of {facts.target_hidden}"
    yield "boundaries", f"{describe_boundaries(facts.boundaries)} ({reasons.get('boundaries', 'given')})"
    yield "vocabulary", _vocabulary(facts)
    yield "rope", f"{_rope(facts)} ({reasons.get('rope', '')})"
    yield "positions", facts.max_positions or "not written"
    yield "norms", f"before fc: {FUSIONS[facts.fusion]}; eps {facts.eps:g}"
    yield "feedback", f"{facts.feedback} ({reasons.get('feedback', '')})"
    residual = "normed state" if facts.norm_before_residual else "raw state"
    yield "residual", f"{residual} ({reasons.get('norm_before_residual', '')})"
    yield "tables", f"embed_tokens {_own(facts.own_embedding)}, lm_head {_own(facts.own_head)}"
    yield "quantization", facts.quantization or "none"
    if found.weights:
        yield "weights", "; ".join((found.weights.says, *found.weights.findings))
    if found.target:
        yield (
            "target",
            f"{found.target.name}: {found.target.layers} layers, {found.target.family or 'family not given'}",
        )


def inspection_json(found: Inspection) -> dict[str, object]:
    """Everything `inspect` knows, as one stable document."""
    drafter = found.drafter
    checkpoint = drafter.checkpoint
    return {
        "name": checkpoint.name,
        "revision": checkpoint.revision,
        "files": [{"name": f.name, "size": f.size, "unused": f.unused} for f in checkpoint.files],
        "layout": {
            "id": drafter.detection.layout,
            "confidence": drafter.detection.confidence,
            "reasons": list(drafter.detection.reasons),
        },
        "facts": facts_json(drafter.facts),
        "reasons": dict(drafter.reasons),
        **readings_json(drafter),
        "tensors": {
            name: {"file_name": drafter.names[name], "dtype": ref.dtype, "shape": list(ref.shape)}
            for name, ref in drafter.tensors.items()
        },
        "companions": sorted(drafter.qparams),
        "dropped": dict(drafter.dropped),
        "target": {"name": found.target.name, "layers": found.target.layers, "family": found.target.family}
        if found.target
        else None,
        "problems": [
            {
                "code": p.code,
                "severity": p.severity,
                "level": p.kind.level,
                "title": p.kind.title,
                "detail": p.detail,
                "why": why(p.code),
                "cure": p.kind.cure,
                "repair": p.kind.repair,
            }
            for p in found.problems
        ],
        "weights": {"format": found.weights.format, "findings": list(found.weights.findings)}
        if found.weights
        else None,
        "not_checked": list(found.not_made),
        "engines": [verdict_json(verdict) for verdict in found.verdicts],
    }


def verdict_json(verdict: LoadVerdict) -> dict[str, object]:
    broken = {line.rule.code for line in verdict.lines}
    return {
        "engine": verdict.spec.name,
        "version": verdict.spec.version,
        "hardware": verdict.spec.hardware,
        "status": verdict.status,
        "lines": [
            {
                "rule": line.rule.code,
                "effect": line.rule.effect,
                "says": line.rule.says,
                "detail": line.detail,
                "source": line.rule.source,
                "evidence": line.rule.evidence,
            }
            for line in verdict.lines
        ],
        "rules_kept": [rule.code for rule in verdict.rules if rule.code not in broken],
    }


def _attention(facts: Facts) -> str:
    match facts.attention:
        case Gqa(heads, kv_heads, head_dim, qkv_bias, o_bias, qk_norm):
            kind = "MHA" if heads == kv_heads else "GQA"
            extras = [w for w, on in (("q/k/v biases", qkv_bias), ("o bias", o_bias), ("q/k norms", qk_norm)) if on]
            return ", ".join([f"Llama-style {kind} {heads}/{kv_heads} x {head_dim}", *extras])
        case Mla(heads, q_lora, kv_lora, nope, rope, v):
            query = f"query {q_lora}" if q_lora else "plain query"
            return f"MLA {heads} heads, {query}, latent {kv_lora}, nope {nope} + rope {rope}, value {v}"


def _vocabulary(facts: Facts) -> str:
    if not facts.reduced_vocab:
        return f"full, {facts.vocab}"
    order = "ascending target ids" if facts.vocab_order == "ascending" else "target ids not ascending"
    return f"{facts.draft_vocab} of {facts.vocab}, {order}"


def _rope(facts: Facts) -> str:
    rope = facts.rope
    scaling = ", ".join(f"{key} {value}" for key, value in rope.scaling.items())
    return f"{rope.kind}, base {rope.theta:g}, {rope.pairs} pairs" + (f", {scaling}" if scaling else "")


def _dtypes(found: Inspection) -> str:
    return "/".join(sorted({ref.dtype for ref in found.drafter.tensors.values() if ref.dtype != "BOOL"}))


def _own(own: bool) -> str:
    return "stored" if own else "the target's"
