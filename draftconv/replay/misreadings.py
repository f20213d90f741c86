"""What a drafter computes when it is read wrongly: one row for each way that engines have.

Negative controls break drafters by it on purpose (`controls`), and `doctor` looks for the row whose replay is what a
server counts. Engines name rows in their rules (`engines.replays.Misreading`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from draftconv.drafter.boundaries import default_triple
from draftconv.drafter.facts import Facts, Fusion, Gqa, Rope
from draftconv.drafter.targets import EMBED_NAMES, Target
from draftconv.drafter.tensors import EMBEDDING, HEAD
from draftconv.engines.replays import Misreading
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.load import to_torch
from draftconv.replay.replay import Arm
from draftconv.traces.trace import Trace

SEED = 20
BASE = 10000.0
"""rope_theta where a config names none: of transformers 5.19 LlamaConfig, Qwen3Config and DeepseekV3Config."""
EPS = (1e-6, 1e-5)
"""What trainers write for rms_norm_eps."""

NORM_NAMES = tuple(name.replace("embed_tokens", "norm") for name in EMBED_NAMES)
"""What targets call the weight of their final norm."""

TargetTensor = Literal["embed_tokens", "lm_head", "norm"]


@dataclass(frozen=True, slots=True)
class MisreadSubject:
    """A drafter that is to be read wrongly.

    Attributes:
        layers: decoder layers of the target. `trace_boundaries`: those that the trace could feed it.
        lend: a tensor of the target: its tables [V, H] and the weight of its final norm [H]; None where it is not at
            hand.
    """

    arm: Arm
    layers: int
    trace_boundaries: tuple[int, ...]
    lend: Callable[[TargetTensor], Tensor | None] = field(default=lambda _: None, kw_only=True)

    @property
    def model(self) -> DrafterModel:
        return self.arm.model

    @property
    def facts(self) -> Facts:
        return self.arm.model.facts

    def under(self, facts: Facts) -> Arm:
        """The drafter, read under other facts."""
        return replace(self.arm, model=self.model.changed(facts))

    def holding(self, tensors: Mapping[str, Tensor]) -> Arm:
        """The drafter with other tensors."""
        return replace(self.arm, model=self.model.changed(tensors=tensors))


Apply = Callable[[MisreadSubject], Arm | str]
"""The drafter as it is then run, or why that means nothing for this one."""


@dataclass(frozen=True, slots=True)
class MisreadingRow:
    """One way to read a drafter wrongly.

    Attributes:
        says: what is done, as a sentence without its end.
        named: whether an engine is asked for it even where none of its rules leads there.
    """

    name: Misreading
    says: str
    apply: Apply
    named: bool = False


# ── what feeds it ──────────────────────────────────────────────────────────────────


def _at(of: MisreadSubject, boundaries: tuple[int, ...]) -> Arm | str:
    if boundaries == of.arm.boundaries:
        return "these are the boundaries that it was trained on"
    if len(boundaries) != len(of.arm.boundaries):
        return f"its fc reads {len(of.arm.boundaries)} states, these are {len(boundaries)}"
    return _absent(of, boundaries) or replace(of.arm, boundaries=boundaries)


def _absent(of: MisreadSubject, boundaries: tuple[int, ...]) -> str:
    """Why these cannot be fed; empty where they can."""
    if beyond := [boundary for boundary in boundaries if not 0 <= boundary <= of.layers]:
        return f"the target has no boundary {beyond[0]}"
    if missing := [boundary for boundary in boundaries if boundary not in of.trace_boundaries]:
        every = ",".join(map(str, sorted({*of.trace_boundaries, *boundaries})))
        return f"the trace lacks boundary {missing[0]}: make one with --boundaries {every}"
    return ""


def _shift_boundaries(by: int) -> Apply:
    return lambda of: _at(of, tuple(boundary + by for boundary in of.arm.boundaries))


def _default_boundaries(of: MisreadSubject) -> Arm | str:
    return _at(of, tuple(sorted(set(default_triple(of.layers)))))


def _last_state(of: MisreadSubject) -> Arm | str:
    """The target's last state behind its final norm in place of the fused one.

    Written as a fusion of one state by a norm and an fc that changes nothing; its eps is the drafter's.
    """
    if of.facts.hidden != of.facts.target_hidden:
        return "it is not as wide as the target's states"
    if why := _absent(of, (of.layers,)):
        return why
    norm_H = of.lend("norm")
    if norm_H is None:
        return "the target's final norm is not at hand: give --target a directory with its weights"
    facts = replace(of.facts, aux=1, fusion="norm_before_fc", fc_bias=False, boundaries=(of.layers,))
    unit_HH = torch.eye(of.facts.hidden, device=of.model.fc.weight.device)
    model = of.model.changed(facts, {"fc.weight": unit_HH, "input_norm.weight": norm_H.to(unit_HH.device)})
    return replace(of.arm, model=model, boundaries=(of.layers,))


def _no_fc(of: MisreadSubject) -> Arm | str:
    if of.facts.aux != 1 or of.facts.hidden != of.facts.target_hidden:
        return "it reads more than one state, or states of another width than its own"
    facts = replace(of.facts, fusion="plain", fc_bias=False)
    unit_HH = torch.eye(of.facts.hidden, device=of.model.fc.weight.device)
    return replace(of.arm, model=of.model.changed(facts, {"fc.weight": unit_HH}))


# ── tables ─────────────────────────────────────────────────────────────────────────


def _map(change: Callable[[Tensor], Tensor]) -> Apply:
    """Another vocabulary map [Vd]."""

    def apply(of: MisreadSubject) -> Arm | str:
        if not of.facts.reduced_vocab:
            return "it drafts the whole vocabulary, without a map"
        return of.holding({"d2t": change(of.model.d2t)})

    return apply


def _taken(table: TargetTensor, place: str) -> Apply:
    """One of the target's tables in place of the drafter's own."""

    def apply(of: MisreadSubject) -> Arm | str:
        own, theirs = of.model.state_dict()[place], of.lend(table)
        if theirs is None:
            return f"the target's {table} is not at hand: make the trace with it"
        return _table(of, place, own, theirs.to(own))

    return apply


def _table(of: MisreadSubject, place: str, own: Tensor, other: Tensor) -> Arm | str:
    if len(other) < len(own) or other.shape[1] != own.shape[1] or (place == HEAD and of.facts.reduced_vocab):
        return f"the table is {list(other.shape)}, its own {list(own.shape)}"
    if torch.equal(other[: len(own)], own):
        return "the two tables are equal"
    return of.holding({place: other[: len(own)]})


def _tied(of: MisreadSubject) -> Arm | str:
    tensors = of.model.state_dict()
    return _table(of, HEAD, tensors[HEAD], tensors[EMBEDDING])


def _random_head(of: MisreadSubject) -> Arm | str:
    head = of.model.lm_head.weight
    generator = torch.Generator().manual_seed(SEED)
    return of.holding({HEAD: torch.randn(head.shape, generator=generator).to(head) * head.std()})


# ── what is computed ───────────────────────────────────────────────────────────────


def _other_feedback(of: MisreadSubject) -> Arm | str:
    other: Literal["pre-norm", "post-norm"] = "pre-norm" if of.facts.feedback == "post-norm" else "post-norm"
    return of.under(replace(of.facts, feedback=other))


def _other_residual(of: MisreadSubject) -> Arm | str:
    return of.under(replace(of.facts, norm_before_residual=not of.facts.norm_before_residual))


def _lost_fusion(of: MisreadSubject) -> Arm | str:
    plain: Fusion = "plain"
    if of.facts.fusion == plain:
        return "nothing norms its states before fc"
    return of.under(replace(of.facts, fusion=plain))


def _ones(*parts: str, later: bool = False) -> Apply:
    """Norms whose weights stay at one, by parts of their names; those of layers after the first if `later`."""

    def apply(of: MisreadSubject) -> Arm | str:
        found = {
            name: torch.ones_like(weight)
            for name, weight in of.model.state_dict().items()
            if any(name.startswith(part) if "." in part else f".{part}." in name for part in parts)
            and (not later or not name.startswith("layers.0."))
        }
        if not found:
            return "it has no such norm"
        tensors = of.model.state_dict()
        if all(torch.equal(ones, tensors[name]) for name, ones in found.items()):
            return "these weights are one as they are"
        return of.holding(found)

    return apply


def _no_qk_norm(of: MisreadSubject) -> Arm | str:
    attention = of.facts.attention
    if not isinstance(attention, Gqa) or not attention.qk_norm:
        return "it has no q_norm and k_norm"
    return of.under(replace(of.facts, attention=replace(attention, qk_norm=False)))


def _no_biases(of: MisreadSubject) -> Arm | str:
    found = {n: torch.zeros_like(t) for n, t in of.model.state_dict().items() if n.endswith(".bias")}
    return of.holding(found) if found else "it has no biases"


def _other_eps(of: MisreadSubject) -> Arm | str:
    return of.under(replace(of.facts, eps=EPS[1] if of.facts.eps == EPS[0] else EPS[0]))


def _rope(change: Callable[[Rope], Rope | str]) -> Apply:
    """Another rotary embedding."""

    def apply(of: MisreadSubject) -> Arm | str:
        changed = change(of.facts.rope)
        return changed if isinstance(changed, str) else of.under(replace(of.facts, rope=changed))

    return apply


def _default_base(rope: Rope) -> Rope | str:
    return "its base is the default" if rope.theta == BASE else replace(rope, theta=BASE)


def _other_pairs(rope: Rope) -> Rope:
    return replace(rope, pairs="halves" if rope.pairs == "interleaved" else "interleaved")


def _unscaled(rope: Rope) -> Rope | str:
    return "its rope is not scaled" if rope.kind == "default" else replace(rope, kind="default", scaling={})


def _no_window(of: MisreadSubject) -> Arm | str:
    return "it attends to everything" if of.facts.window is None else of.under(replace(of.facts, window=None))


def _silu(of: MisreadSubject) -> Arm | str:
    return (
        "it was trained with silu" if of.facts.activation == "silu" else of.under(replace(of.facts, activation="silu"))
    )


MISREADINGS: Mapping[Misreading, MisreadingRow] = {
    row.name: row
    for row in (
        MisreadingRow(
            "boundaries - 1", "every state is captured one layer too early", _shift_boundaries(-1), named=True
        ),
        MisreadingRow("boundaries + 1", "every state is captured one layer too late", _shift_boundaries(1), named=True),
        MisreadingRow("default boundaries", "the default layers are captured", _default_boundaries, named=True),
        MisreadingRow(
            "last state", "fc is left out, and the target's last state behind its norm is read", _last_state, named=True
        ),
        MisreadingRow("fc left out", "fc is left out, and the captured state is read as it is", _no_fc),
        MisreadingRow("d2t zeroed", "row v of the head is taken for token v of the target", _map(torch.zeros_like)),
        MisreadingRow(
            "d2t absolute",
            "d2t is read as offsets and holds ids",
            _map(lambda d2t_V: d2t_V + torch.arange(len(d2t_V)).to(d2t_V)),
        ),
        MisreadingRow("feedback norm", "norm_output is read as the opposite", _other_feedback),
        MisreadingRow("norm before residual", "norm_before_residual is read as the opposite", _other_residual),
        MisreadingRow("fusion norm", "the norms before fc are left out", _lost_fusion),
        MisreadingRow(
            "fusion norm of ones", "weights of the norms before fc are one", _ones("fc_norm.", "input_norm.")
        ),
        MisreadingRow(
            "input_layernorm of ones", "weights of input_layernorm are one", _ones("layers.0.input_layernorm.")
        ),
        MisreadingRow("hidden_norm of ones", "weights of hidden_norm are one", _ones("hidden_norm")),
        MisreadingRow(
            "post_attention_layernorm of ones",
            "weights of post_attention_layernorm are one",
            _ones("post_attention_layernorm"),
        ),
        MisreadingRow("final norm of ones", "weights of the final norm are one", _ones("norm.")),
        MisreadingRow(
            "later norms of ones",
            "weights of the norm before attention are one in later layers",
            _ones("input_layernorm", later=True),
        ),
        MisreadingRow("q and k norms", "q_norm and k_norm are left out", _no_qk_norm),
        MisreadingRow("biases dropped", "biases are dropped", _no_biases),
        MisreadingRow(
            "target's embedding", "the target's embedding replaces the drafter's", _taken("embed_tokens", EMBEDDING)
        ),
        MisreadingRow("target's head", "the target's head replaces the drafter's", _taken("lm_head", HEAD)),
        MisreadingRow("tied head", "the embedding is taken for the head", _tied),
        MisreadingRow("random lm_head", "the head holds noise of the same size", _random_head, named=True),
        MisreadingRow("rms_norm_eps", "rms_norm_eps is 1e-5 for 1e-6, or 1e-6 for another", _other_eps),
        MisreadingRow(
            "rope base",
            "rope_theta is a hundred times as large",
            _rope(lambda rope: replace(rope, theta=rope.theta * 100)),
        ),
        MisreadingRow("default rope base", "rope_theta is the default, 10000", _rope(_default_base)),
        MisreadingRow(
            "rope pairs", "interleaved pairs are rotated as halves, or halves as interleaved pairs", _rope(_other_pairs)
        ),
        MisreadingRow("rope scaling", "the scaling of the rotary embedding is left out", _rope(_unscaled)),
        MisreadingRow("window", "the sliding window is left out", _no_window),
        MisreadingRow("activation", "the MLP computes silu in place of its activation", _silu),
    )
}


def applied(of: MisreadSubject, name: Misreading) -> Arm | str:
    """The drafter read so, under the name of the mis-reading; or why that means nothing for it."""
    outcome = MISREADINGS[name].apply(of)
    return outcome if isinstance(outcome, str) else replace(outcome, name=name)


def boundaries_read(of: MisreadSubject, arm: Arm) -> str:
    """Which boundaries a mis-reading takes for which, in words; empty where they are the same."""
    if arm.boundaries == of.arm.boundaries:
        return ""
    theirs, trained = (", ".join(map(str, boundaries)) for boundaries in (arm.boundaries, of.arm.boundaries))
    return f"boundaries {theirs} instead of {trained}"


def lender(trace: Trace, target: Target | None) -> Callable[[TargetTensor], Tensor | None]:
    """Lends the tables that a trace holds, and the final norm where the target's weights are at hand."""

    @cache
    def lend(name: TargetTensor) -> Tensor | None:
        if name != "norm":
            table = trace.table(name)
            return None if table is None else to_torch(table)
        if target is None or not target.has_weights:
            return None
        tensors = target.open().tensors
        return next((to_torch(tensors[key]) for key in NORM_NAMES if key in tensors), None)

    return lend
