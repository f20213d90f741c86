"""A drafter in words: in one line, and its identity card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from draftconv.checkpoint.text import size
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts, Fusion, Gqa, Mla, describe_boundaries

FUSIONS: Mapping[Fusion, str] = {
    "plain": "none",
    "fc_norm": "one per captured state (fc_norm)",
    "norm_before_fc": "one over all captured states (norm_before_fc)",
    "both": "fc_norm and norm_before_fc",
}


def in_a_line(drafter: Drafter) -> str:
    """What it is: kind, attention, layers, size and layout."""
    detection = drafter.detection
    stored = f"{size(nbytes(drafter))} in {_dtypes(drafter)}"
    return f"{_describe_kind(drafter)}, {stored}; layout {detection.layout} ({detection.confidence})"


def identity(drafter: Drafter) -> Iterator[tuple[str, str]]:
    """The identity card, line by line."""
    facts, reasons, detection = drafter.facts, drafter.reasons, drafter.detection
    yield "layout", f"{detection.layout} ({detection.confidence}: {'; '.join(detection.reasons)})"
    yield "drafter", _describe_kind(drafter)
    yield "sizes", f"hidden {facts.hidden}, MLP {facts.intermediate}, {size(nbytes(drafter))} in {_dtypes(drafter)}"
    yield "captured", f"{facts.aux} states of {facts.target_hidden}"
    yield "boundaries", f"{describe_boundaries(facts.boundaries)} ({reasons.get('boundaries', 'given')})"
    yield "vocabulary", _vocabulary(facts)
    yield "rope", f"{_rope(facts)} ({reasons.get('rope', '')})"
    yield "positions", str(facts.max_positions or "not written")
    yield "norms", f"before fc: {FUSIONS[facts.fusion]}; eps {facts.eps:g}"
    yield "feedback", f"{facts.feedback} ({reasons.get('feedback', '')})"
    residual = "normed state" if facts.norm_before_residual else "raw state"
    yield "residual", f"{residual} ({reasons.get('norm_before_residual', '')})"
    yield "tables", f"embed_tokens {_describe_owner(facts.own_embedding)}, lm_head {_describe_owner(facts.own_head)}"
    yield "quantization", facts.quantization or "none"


def _describe_kind(drafter: Drafter) -> str:
    facts = drafter.facts
    return f"{drafter.kind.title}, {_describe_attention(facts)}, {facts.layers} layer{'s' * (facts.layers > 1)}"


def nbytes(drafter: Drafter) -> int:
    """Bytes of all its tensors."""
    return sum(ref.nbytes for ref in drafter.checkpoint.tensors.values())


def attention(facts: Facts) -> str:
    """Its kind, in a word."""
    match facts.attention:
        case Gqa(heads, kv_heads):
            return "MHA" if heads == kv_heads else "GQA"
        case Mla():
            return "MLA"


def _describe_attention(facts: Facts) -> str:
    """Its kind with its sizes."""
    match facts.attention:
        case Gqa(heads, kv_heads, head_dim, qkv_bias, o_bias, qk_norm):
            extras = [w for w, on in (("q/k/v biases", qkv_bias), ("o bias", o_bias), ("q/k norms", qk_norm)) if on]
            return ", ".join([f"Llama-style {attention(facts)} {heads}/{kv_heads} x {head_dim}", *extras])
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


def _dtypes(drafter: Drafter) -> str:
    return "/".join(sorted({ref.dtype for ref in drafter.tensors.values() if ref.dtype != "BOOL"}))


def _describe_owner(stored: bool) -> str:
    return "stored" if stored else "the target's"
