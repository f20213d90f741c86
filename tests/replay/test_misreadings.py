"""Every way to read a drafter wrongly: what it changes, and why it means nothing for some."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from draftconv.drafter.facts import Facts, Gqa, Rope
from draftconv.drafter.tensors import EMBEDDING, HEAD
from draftconv.engines.replays import Misreading
from draftconv.replay.misreadings import MISREADINGS, MisreadSubject, applied, boundaries_read
from draftconv.replay.replay import Arm
from tests.reference.variants import LLAMA
from tests.replay.scripted import random_arm

LAYERS = 8


def subject(facts: Facts = LLAMA, **lent: Tensor) -> MisreadSubject:
    return MisreadSubject(random_arm(facts), LAYERS, tuple(range(LAYERS + 1)), lend=lent.get)


def differing(of: MisreadSubject, name: Misreading) -> set[str]:
    """Tensors that are no longer the drafter's."""
    arm = of_kind(of, name)
    before, after = of.model.state_dict(), arm.model.state_dict()
    return {key for key in before.keys() & after.keys() if not torch.equal(before[key], after[key])}


def of_kind(of: MisreadSubject, name: Misreading) -> Arm:
    arm = applied(of, name)
    assert isinstance(arm, Arm), arm
    return arm


def test_every_name_has_a_row_in_order() -> None:
    assert tuple(MISREADINGS) == get_args(Misreading)
    assert all(row.says and not row.says.endswith(".") for row in MISREADINGS.values())


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("norm before residual", {"norm_before_residual": not LLAMA.norm_before_residual}),
        ("rms_norm_eps", {"eps": 1e-5 if LLAMA.eps == 1e-6 else 1e-6}),
        ("feedback norm", {"feedback": "post-norm" if LLAMA.feedback == "pre-norm" else "pre-norm"}),
    ],
)
def test_facts_that_are_read_otherwise(name: Misreading, changed: dict[str, object]) -> None:
    of = subject()
    arm = of_kind(of, name)
    assert arm.name == name
    assert arm.model.facts == replace(of.facts, **changed)  # type: ignore[arg-type]
    assert not differing(of, name)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("input_layernorm of ones", "layers.0.input_layernorm.weight"),
        ("hidden_norm of ones", "layers.0.hidden_norm.weight"),
        ("post_attention_layernorm of ones", "layers.0.post_attention_layernorm.weight"),
        ("final norm of ones", "norm.weight"),
    ],
)
def test_norms_that_stay_as_they_were_made(name: Misreading, part: str) -> None:
    of = subject()
    assert differing(of, name) == {part}
    assert bool((of_kind(of, name).model.state_dict()[part] == 1).all())
    again = replace(of, arm=of_kind(of, name))
    assert applied(again, name) == "these weights are one as they are"


def test_the_target_lends_its_tables() -> None:
    tables = {"embed_tokens": torch.randn(LLAMA.vocab, LLAMA.hidden), "lm_head": torch.randn(LLAMA.vocab, LLAMA.hidden)}
    full = replace(LLAMA, draft_vocab=LLAMA.vocab, vocab_order="full")
    of = subject(full, **tables)
    assert differing(of, "target's embedding") == {EMBEDDING}
    assert differing(of, "target's head") == {HEAD}
    assert differing(of, "tied head") == {HEAD}
    assert torch.equal(of_kind(of, "tied head").model.lm_head.weight, of.model.embed_tokens.weight)
    assert applied(subject(full), "target's head") == "the target's lm_head is not at hand: make the trace with it"
    same = {"embed_tokens": of.model.embed_tokens.weight.detach()}
    assert applied(subject(full, **same), "target's embedding") == "the two tables are equal"


def test_a_map_is_read_as_nothing_or_as_ids() -> None:
    of = subject(replace(LLAMA, draft_vocab=LLAMA.vocab // 2, vocab_order="ascending"))
    d2t_V = of.model.d2t
    ids_V = torch.arange(len(d2t_V))
    assert torch.equal(of_kind(of, "d2t zeroed").model.to_target_ids(ids_V), ids_V)
    assert torch.equal(of_kind(of, "d2t absolute").model.to_target_ids(ids_V), d2t_V + 2 * ids_V)


def test_the_last_state_is_normed_and_read_without_fc() -> None:
    facts = replace(LLAMA, hidden=LLAMA.target_hidden)
    norm_H = torch.rand(facts.hidden, dtype=torch.float64)
    arm = of_kind(subject(facts, norm=norm_H), "last state")
    assert arm.boundaries == (LAYERS,)
    state_BTAW = torch.randn(1, 5, 1, facts.hidden, dtype=torch.float64)
    state_BTH = state_BTAW[..., 0, :]
    normed_BTH = state_BTH * torch.rsqrt(state_BTH.square().mean(-1, keepdim=True) + facts.eps) * norm_H
    assert torch.allclose(arm.model.fuse(state_BTAW), normed_BTH)
    why = "the target's final norm is not at hand: give --target a directory with its weights"
    assert applied(subject(facts), "last state") == why


@pytest.mark.parametrize("name", ["boundaries - 1", "boundaries + 1"])
def test_boundaries_are_told_in_words(name: Misreading) -> None:
    of = subject()
    arm = of_kind(of, name)
    theirs, trained = (", ".join(map(str, one.boundaries)) for one in (arm, of.arm))
    assert boundaries_read(of, arm) == f"boundaries {theirs} instead of {trained}"
    assert boundaries_read(of, of.arm) == ""


def test_what_the_default_layers_are() -> None:
    moved = subject(replace(LLAMA, boundaries=(1, 3, 7)))
    assert of_kind(moved, "default boundaries").boundaries == (2, 4, 5)
    trained = subject(replace(LLAMA, boundaries=(2, 4, 5)))
    assert applied(trained, "default boundaries") == "these are the boundaries that it was trained on"


ROPE = Rope(50000.0, "halves", "linear", {"factor": 4.0})
SILU = "it was trained with silu"


@pytest.mark.parametrize(
    ("name", "facts", "after"),
    [
        ("default rope base", {"rope": ROPE}, {"rope": replace(ROPE, theta=10000.0)}),
        ("rope base", {"rope": ROPE}, {"rope": replace(ROPE, theta=5e6)}),
        ("rope pairs", {"rope": ROPE}, {"rope": replace(ROPE, pairs="interleaved")}),
        ("rope scaling", {"rope": ROPE}, {"rope": Rope(50000.0, "halves")}),
        ("window", {"window": 64}, {"window": None}),
        ("activation", {"activation": "gelu"}, {"activation": "silu"}),
    ],
)
def test_what_config_json_decides(name: Misreading, facts: dict[str, object], after: dict[str, object]) -> None:
    of = subject(replace(LLAMA, **facts))  # type: ignore[arg-type]
    assert of_kind(of, name).model.facts == replace(of.facts, **after)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("default rope base", "its base is the default"),
        ("rope scaling", "its rope is not scaled"),
        ("window", "it attends to everything"),
        ("activation", SILU),
        ("q and k norms", "it has no q_norm and k_norm"),
        ("biases dropped", "it has no biases"),
        ("later norms of ones", "it has no such norm"),
        ("fusion norm of ones", "it has no such norm"),
        ("fc left out", "it reads more than one state, or states of another width than its own"),
    ],
)
def test_what_means_nothing_for_a_plain_drafter(name: Misreading, why: str) -> None:
    plain = replace(LLAMA, rope=Rope(10000.0, "halves"), fusion="plain", attention=Gqa(4, 2, 8), layers=1)
    assert applied(subject(plain), name) == why
