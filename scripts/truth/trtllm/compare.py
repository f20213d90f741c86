"""draftconv's prediction for TensorRT-LLM, the first reading, beside the second: one row per case.

The only module here that imports draftconv, and the rest of `truth`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from draftconv.drafter.boundaries import default_triple
from draftconv.drafter.facts import AuxLayers, Facts, Gqa, Mla
from draftconv.drafter.names import canonical_name
from draftconv.drafter.targets import Target as DraftconvTarget
from draftconv.drafter.tensors import EMBEDDING, OPTIONAL, expected
from draftconv.engines import ENGINES, LoadVerdict, parse_engine
from draftconv.engines.load_results import plain_name
from draftconv.engines.rules import DirectoryView, TensorHeader
from draftconv.errors import BadCheckpoint
from draftconv.reference.rope import inverse_frequencies, softmax_multiplier, table_multiplier
from truth.table import Row
from truth.trtllm.outcome import Header, Outcome, Rope, Target
from truth.trtllm.reading import read
from truth.trtllm.source import CAPTURE
from truth.trtllm.verdict import Trained, Verdict, judge

SPEC = "trtllm@1.3"

ASPECTS: Mapping[str, str] = MappingProxyType({
    "trtllm-scales-missing": "weights",
    "trtllm-missing-tensor": "weights",
    "trtllm-dropped": "weights",
    "trtllm-later-norm": "weights",
    "trtllm-attention-bias": "weights",
    "trtllm-mlp-bias": "weights",
    "trtllm-fc-bias": "weights",
    "trtllm-qk-norm": "weights",
    "trtllm-embedding-lost": "embedding",
    "trtllm-norm-output": "feedback",
    "trtllm-fusion": "fusion",
    "trtllm-residual": "residual",
    "trtllm-rope": "rope",
    "trtllm-eps": "eps",
    "trtllm-window": "window",
    "trtllm-activation": "activation",
    "trtllm-vocab": "vocabulary",
    "trtllm-joined-smoothing": "weights",
    "trtllm-excluded-fp8": "weights",
    "trtllm-not-excluded-fp8": "weights",
    "trtllm-bytes": "weights",
    "trtllm-broadcast": "weights",
})  # fmt: skip
"""Rule that speaks of a mis-read drafter → the aspect in which what is built differs from what was trained."""


ABSTAINED = ("undecided", "not read")
"""What the first reading answers where it has no opinion: a rule says so, or draftconv cannot read the config."""


@dataclass(frozen=True, slots=True)
class View:
    """A directory that is only planned, as both readings take it."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Header]
    sidecars: Mapping[str, Mapping[str, Any]]

    @property
    def files(self) -> Sequence[File]:
        return (File("model.safetensors"),)

    @classmethod
    def of(cls, view: DirectoryView) -> View:
        """The headers of a directory on disk."""
        return cls(view.config, headers(view.tensors), view.sidecars)


@dataclass(frozen=True, slots=True)
class File:
    """The one file that a planned directory has its tensors in."""

    name: str
    unused: bool = False


def headers(tensors: Mapping[str, TensorHeader]) -> dict[str, Header]:
    return {name: Header(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def first(view: View, facts: Facts, target: DraftconvTarget, known: frozenset[str] = frozenset()) -> LoadVerdict:
    """draftconv's own verdict."""
    return ENGINES["trtllm"].check(view, facts, target, parse_engine(SPEC), known)


def words(verdict: LoadVerdict) -> str:
    """A verdict, and of a mis-read drafter in which aspects."""
    if verdict.status != "mis-read":
        return verdict.status
    aspects = {ASPECTS[line.rule.code] for line in verdict.lines if line.rule.effect == "mis-read"}
    return f"mis-read: {', '.join(sorted(aspects))}"


def second(
    view: View, facts: Facts, target: DraftconvTarget, known: frozenset[str] = frozenset()
) -> tuple[Outcome, Verdict]:
    """What the second reading makes of the same directory, started as draftconv says it should be."""
    beside = target_facts(target, facts)
    outcome = read(view.config, view.tensors, beside, sidecars=view.sidecars, capture=captured(facts, target))
    if 0 in boundaries(facts, target):
        return outcome, Verdict("refused", (), "boundary 0 is the output of no layer", CAPTURE.at("is_layer_capture"))
    beside_read = replace(trained(facts, target, known), parts=parts(view, outcome, facts, known))
    return outcome, judge(outcome, beside_read, beside.vocab)


def parts(view: View, outcome: Outcome, facts: Facts, known: frozenset[str]) -> frozenset[str]:
    """Stored tensors that the drafter cannot do without, unless the same one was read under another name."""
    needed = set(expected(facts)) - {EMBEDDING, "d2t"}
    placed = {name for parameter in outcome.parameters for name in parameter.sources}
    there = {canonical_name(plain_name(name)) for name in placed}
    smoothing = {n for n in view.tensors if n.endswith(".pre_quant_scale") and "joined-smoothing" in known}
    return frozenset(smoothing) | {
        name
        for name in view.tensors
        if (part := canonical_name(plain_name(name))) in needed and part not in there and name not in OPTIONAL
    }


def target_facts(target: DraftconvTarget, facts: Facts) -> Target:
    """A target whose sizes are not known has those that the drafter was trained beside."""
    return Target(target.layers, target.hidden or facts.target_hidden, target.vocab or facts.vocab)


def boundaries(facts: Facts, target: DraftconvTarget) -> tuple[int, ...]:
    default = default_triple(target.layers)
    return default if isinstance(facts.boundaries, AuxLayers) else facts.boundaries


def captured(facts: Facts, target: DraftconvTarget) -> tuple[int, ...] | None:
    """`eagle3_layers_to_capture` of the serve file; None where the default triple is what was trained."""
    named = boundaries(facts, target)
    return None if named == default_triple(target.layers) else tuple(b - 1 for b in named)


def trained(facts: Facts, target: DraftconvTarget, known: frozenset[str] = frozenset()) -> Trained:
    """draftconv's facts in the words of the second reading."""
    match facts.attention:
        case Mla(rope=dim):
            latent = True
        case Gqa(head_dim=dim):
            latent = False
    rope = Rope(
        tuple(inverse_frequencies(facts.rope, dim).tolist()),
        table_multiplier(facts.rope, latent=latent),
        softmax_multiplier(facts.rope) if latent else 1.0,
        facts.rope.pairs == "interleaved",
    )
    return Trained(
        attention="mla" if latent else "llama",
        layers=facts.layers,
        boundaries=boundaries(facts, target),
        rope=rope,
        eps=facts.eps,
        vocab=facts.vocab,
        normed=facts.fusion,
        post_norm=facts.feedback == "post-norm",
        norm_before_residual=facts.norm_before_residual,
        activation=facts.activation,
        window=facts.window,
        parts=frozenset(),
        map=facts.reduced_vocab,
        differs=bool(known & {"embedding-differs", "embedding-random"}),
    )


@dataclass(frozen=True, slots=True)
class Question:
    """One directory that both readings are asked about."""

    case: str
    view: View
    facts: Facts
    target: DraftconvTarget
    known: frozenset[str] = frozenset()


def row(question: Question) -> Row:
    """Both answers in the same words."""
    try:
        verdict = first(question.view, question.facts, question.target, question.known)
    except BadCheckpoint:
        verdict = LoadVerdict(parse_engine(SPEC), ())
        unread = True
    else:
        unread = False
    _, other = second(question.view, question.facts, question.target, question.known)
    named = tuple(dict.fromkeys(line.rule.code for line in verdict.lines if line.rule.effect != "note"))
    mine = "not read" if unread else words(verdict)
    detail = f"{other.reason} ({other.source})" if other.source else other.reason
    agrees = mine == other.words or mine in ABSTAINED
    return Row("loader", question.case, mine, other.words, agrees, detail, named)


def matrix(rows: Iterable[Row]) -> Mapping[tuple[str, str], int]:
    """(status of the first reading, of the second) → cases."""
    return Counter((row.predicted.partition(":")[0], row.observed.partition(":")[0]) for row in rows)


def answers(questions: Iterable[Question]) -> Iterator[Row]:
    for question in questions:
        yield row(question)
