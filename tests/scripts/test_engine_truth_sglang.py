"""How scripts/engine-truth reads a draft model that SGLang built and ran: every way in which it can differ is noticed.

A stand-in is made from a fixture's own tensors and the reference forward, the way SGLang would build and run it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from truth.drafts import DATA, read, target_of
from truth.sglang import judge, loader, loader_cases, mutations, observing, quantized
from truth.sglang.attention import attention
from truth.sglang.engine import Draft
from truth.sglang.sample import Sample
from truth.table import load
from truth.trained import Truth

from draftconv.engines.sglang import RULES
from draftconv.reference.load import forward_of

NAMES = ("llama-eagle3.1", "llama-eagle3-reduced", "mla-eagle3.1")


@cache
def truth_of(name: str) -> Truth:
    drafter = read(DATA / "drafters" / name, name)
    return Truth.of(drafter, drafter.facts, target_of(name))


@cache
def sample_of(name: str) -> Sample:
    return observing.sample_of(truth_of(name), 2048)


@cache
def built(name: str) -> Draft:
    """What SGLang makes of a sound drafter, whose embedding is the target's."""
    truth, sample = truth_of(name), sample_of(name)
    shared = frozenset({"embed_tokens.weight"})
    model = forward_of(truth.facts).from_tensors(truth.facts, truth.filled())
    states = sample.states(truth.facts.aux).reshape(-1, truth.facts.aux, sample.width)
    steps = []
    for state in (model.fuse(states), sample.fed):
        z = model.step(state[None], sample.tokens[None], model.cache())[0]
        steps.append((model.logits(z), model.feedback(z)))
    tensors = {
        name if name.startswith("lm_head.") else f"model.{name.replace('layers.0.', 'midlayer.')}": tensor.float()
        for name, tensor in observing.parameters(truth, shared=shared).items()
    }
    return Draft(
        "LlamaForCausalLMEagle3", "float32", None, tensors, {}, truth.ids, (2, 4, 5), (2, 4, 5), steps[0], steps[1],
        "", shared,
    )  # fmt: skip


def differences(draft: Draft, name: str) -> dict[str, list[str]]:
    return observing.differences(draft, truth_of(name), sample_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_drafter_does_not_differ(name: str) -> None:
    assert differences(built(name), name) == {}


def _spoiled(draft: Draft, part: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Draft:
    (name,) = [name for name in draft.tensors if part in name]
    return replace(draft, tensors={**draft.tensors, name: change(draft.tensors[name])})


def _without(draft: Draft, part: str) -> Draft:
    return replace(draft, tensors={name: tensor for name, tensor in draft.tensors.items() if part not in name})


FIRST = torch.tensor([0])

SPOILED: dict[str, tuple[Callable[[Draft], Draft], str]] = {
    "a weight that nothing filled": (lambda d: _spoiled(d, "hidden_norm", lambda t: t * torch.nan), "weights"),
    "one element of a weight": (lambda d: _spoiled(d, "down_proj", lambda t: t.index_fill(0, FIRST, 1.0)), "weights"),
    "a weight of another shape": (lambda d: _spoiled(d, "model.norm", lambda t: t[:-1]), "weights"),
    "a weight that is not built": (lambda d: _without(d, "fc.weight"), "weights"),
    "a weight too many": (
        lambda d: replace(d, tensors={**d.tensors, "model.midlayer.self_attn.o_proj.bias": torch.ones(4)}), "weights",
    ),
    "other layers": (lambda d: replace(d, captured=(1, 3, 4)), "layers"),
    "the last state": (lambda d: replace(d, captured=None), "layers"),
    "a map where none is needed": (lambda d: replace(d, hot=torch.arange(2048) + 1), "d2t"),
    "logits of the first step": (lambda d: replace(d, first=(d.first[0] * 1.001, d.first[1])), "computation"),
    "the state fed back": (lambda d: replace(d, first=(d.first[0], d.first[1] * 1.001)), "computation"),
    "a later step": (lambda d: replace(d, second=(d.second[0] + 0.1, d.second[1])), "computation"),
    "logits that are not finite": (lambda d: replace(d, second=(d.second[0] * torch.nan, d.second[1])), "computation"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILED)
@pytest.mark.parametrize("name", ["llama-eagle3.1", "mla-eagle3.1"])
def test_each_difference_is_noticed(name: str, what: str) -> None:
    spoil, aspect = SPOILED[what]
    assert list(differences(spoil(built(name)), name)) == [aspect]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda _: None, False),
        (lambda hot: hot.float(), False),
        (lambda hot: hot.roll(1), False),
        (lambda hot: hot[:-1], False),
        (lambda hot: torch.cat((hot, hot[:8])), True),
        (lambda hot: hot.int(), True),
    ],
)
def test_draft_ids_stand_for_their_tokens(change: Callable[[torch.Tensor], torch.Tensor], same: bool) -> None:
    name = "llama-eagle3-reduced"
    draft = built(name)
    assert draft.hot is not None
    assert differences(replace(draft, hot=change(draft.hot)), name).keys() == (set() if same else {"d2t"})


def test_an_mlp_filled_up_with_zeros_is_the_same() -> None:
    name = "llama-eagle3.1"
    draft = built(name)
    gate, up = draft.tensors["model.midlayer.mlp.gate_up_proj.weight"].chunk(2)
    zeros = torch.zeros(64, gate.shape[1])
    down = draft.tensors["model.midlayer.mlp.down_proj.weight"]
    padded = {
        "model.midlayer.mlp.gate_up_proj.weight": torch.cat((gate, zeros, up, zeros)),
        "model.midlayer.mlp.down_proj.weight": torch.cat((down, torch.zeros(down.shape[0], 64)), dim=1),
    }
    assert differences(replace(draft, tensors={**draft.tensors, **padded}), name) == {}
    behind = {**padded, "model.midlayer.mlp.gate_up_proj.weight": torch.cat((gate, up, zeros, zeros))}
    assert differences(replace(draft, tensors={**draft.tensors, **behind}), name).keys() == {"weights"}


def test_computation_is_not_told_beside_a_wrong_weight() -> None:
    name = "llama-eagle3.1"
    draft = _without(built(name), "fc.weight")
    assert differences(replace(draft, first=(draft.first[0] + 1, draft.first[1])), name).keys() == {"weights"}
    assert loader.visible("mis-read: computation, layers, weights") == "mis-read: layers, weights"
    assert loader.visible("mis-read: computation, vocabulary, weights") == "mis-read: vocabulary"
    assert loader.visible("mis-read: computation, layers") == "mis-read: computation, layers"
    assert loader.visible("refused") == "refused"


class Layer:
    """What the attention reads off a layer of SGLang."""

    tp_q_head_num, tp_k_head_num, tp_v_head_num, scaling = 4, 2, 2, 0.5
    sliding_window_size: int | None = None


@pytest.mark.parametrize("window", [None, 3])
def test_the_attention_is_that_of_torch(window: int | None) -> None:
    layer, generator = Layer(), torch.Generator().manual_seed(0)
    layer.sliding_window_size = window
    q, k, v = (torch.randn(9, heads * 8, generator=generator) for heads in (4, 2, 2))
    row, column = torch.arange(9)[:, None], torch.arange(9)[None, :]
    seen = (column <= row) & (True if window is None else row - column <= window)
    heads = [x.reshape(9, -1, 8).transpose(0, 1) for x in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        heads[0], heads[1].repeat_interleave(2, 0), heads[2].repeat_interleave(2, 0), attn_mask=seen, scale=0.5
    )
    torch.testing.assert_close(attention(layer, q, k, v, None), wanted.transpose(0, 1).reshape(9, -1))


class TestCases:
    def test_every_mis_reading_has_an_aspect(self) -> None:
        misreading = {rule.code for rule in RULES if rule.effect == "mis-read"}
        assert misreading - quantized.ASPECTS.keys() == {"sglang-joined-scales"}  # which values show that no load reads

    def test_there_are_enough_and_no_two_have_one_name(self) -> None:
        names = [case.name for case in (*loader_cases.SHARED, *mutations.CASES)]
        assert len(mutations.CASES) >= 200
        assert len(names) >= 600
        assert len(names) == len(set(names))


class TestCommitted:
    """docs/engine-truth/sglang.json."""

    def test_no_disagreement_is_left_and_every_case_is_there(self) -> None:
        rows = load(judge.TABLE).rows
        assert [row.case for row in rows if not row.agrees] == []
        held = {(row.part, row.case) for row in rows}
        assert held >= {("loader", case.name) for case in loader_cases.SHARED}
        assert held >= {("mutations", case.name) for case in mutations.CASES}

    def test_what_is_asked_again_covers_every_rule_that_was_seen(self) -> None:
        rows, fixed = load(judge.TABLE).rows, judge.fixed()
        assert {code for row in rows for code in row.rules} == {
            code for row in rows if (row.part, row.case) in fixed for code in row.rules
        }
        assert {row.case for row in rows if row.part == "mutations"} == {c for part, c in fixed if part == "mutations"}
