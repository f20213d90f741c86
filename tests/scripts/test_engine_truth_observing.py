"""How scripts/engine-truth reads a model that vLLM built: every way in which it can differ is noticed.

A stand-in draft model is made from a fixture's own tensors and facts, the way vLLM would build it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from truth.drafts import DATA, read, target_of
from truth.trained import Truth
from truth.vllm import engine, twins
from truth.vllm.observing import differences, parameters

from draftconv.drafter.facts import Mla
from draftconv.quantization.recipes import find_recipe
from draftconv.quantization.rounding import dequantize, quantize
from draftconv.reference.rope import Rotary, softmax_multiplier

NAMES = ("llama-eagle3.1", "llama-eagle3-reduced", "mla-eagle3.1")


@cache
def truth_of(name: str) -> Truth:
    drafter = read(DATA / "drafters" / name, name)
    return Truth.of(drafter, drafter.facts, target_of(name))


def built(name: str) -> engine.Draft:
    """What vLLM makes of a sound drafter."""
    truth = truth_of(name)
    facts = truth.facts
    latent = isinstance(facts.attention, Mla)
    match facts.attention:
        case Mla(nope=nope, rope=dim):
            scale = (nope + dim) ** -0.5 * softmax_multiplier(facts.rope)
        case attention:
            dim, scale = attention.head_dim, attention.head_dim**-0.5
    query_1T1D = engine.probe(dim)[None, :, None, :]
    rotary = Rotary.of(facts.rope, dim, latent=latent)
    tables = {"embed_tokens.weight"} if facts.own_embedding else set()
    return engine.Draft(
        tensors=parameters(truth),
        weights={},
        outputs={},
        methods={},
        own=frozenset({"lm_head.weight", *tables}),
        built={
            "layers": 1,
            "feedback": facts.feedback,
            "fc_norm": facts.fusion == "fc_norm",
            "norm_before_fc": False,
            "residual": False,
            "eps": [facts.eps],
            "window": None,
            "causal": True,
            "indexer": False,
            "scale": scale,
            "rotated": rotary(query_1T1D, torch.arange(engine.POSITIONS))[0, :, 0],
            "vocab": facts.vocab,
            "captured": facts.boundaries,
        },
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_drafter_has_no_difference(name: str) -> None:
    assert differences(built(name), truth_of(name)) == {}


def flag(**keys: object) -> Callable[[engine.Draft], engine.Draft]:
    return lambda draft: replace(draft, built={**draft.built, **keys})


def weight(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[engine.Draft], engine.Draft]:
    def apply(draft: engine.Draft) -> engine.Draft:
        new = change(draft.tensors[name])
        others = {key: tensor for key, tensor in draft.tensors.items() if key != name}
        return replace(draft, tensors=others if new is None else {**others, name: new})

    return apply


@pytest.mark.parametrize(
    ("change", "aspect"),
    [
        (flag(feedback="pre-norm"), "feedback"),
        (flag(fc_norm=False), "fusion"),
        (flag(norm_before_fc=True), "fusion"),
        (flag(residual=True), "residual"),
        (flag(eps=[1e-6, 1e-5]), "eps"),
        (flag(window=64), "window"),
        (flag(causal=False), "causal"),
        (flag(indexer=True), "indexer"),
        (flag(vocab=1024), "vocabulary"),
        (flag(captured=(1, 3, 4)), "layers"),
        (flag(scale=0.5), "rope"),
        (flag(rotated=engine.probe(64)), "rope"),
        (weight("model.norm.weight", lambda _: None), "weights"),
        (weight("model.norm.weight", torch.ones_like), "weights"),
        (weight("model.layers.0.mlp.gate_up_proj.weight", lambda t: t.roll(1, 0)), "weights"),
        (weight("model.fc.weight", lambda t: t[:, :-1]), "weights"),
        (lambda draft: replace(draft, tensors={**draft.tensors, "model.fc.bias": torch.zeros(1)}), "weights"),
        (lambda draft: replace(draft, own=frozenset()), "weights"),
    ],
)
def test_every_difference_is_noticed(change: Callable[[engine.Draft], engine.Draft], aspect: str) -> None:
    for name in ("llama-eagle3.1", "mla-eagle3.1"):
        assert list(differences(change(built(name)), truth_of(name))) == [aspect]


def test_a_map_of_zeros_is_noticed() -> None:
    changed = weight("draft_id_to_target_id", torch.zeros_like)(built("llama-eagle3-reduced"))
    assert list(differences(changed, truth_of("llama-eagle3-reduced"))) == ["d2t"]


class TestRoundingBound:
    """What vLLM multiplies with, against the weights before quantization."""

    @staticmethod
    def case() -> Mapping[str, Any]:
        source = torch.randn((16, 32), generator=torch.Generator().manual_seed(0)).bfloat16()
        quantized = quantize(source, find_recipe("w4a16").scheme.weights, name="w")
        return {
            "source": source,
            "weight": dequantize(quantized, torch.bfloat16),
            "scale": quantized.scale.double().expand(16, 32),
        }

    def bound(self, weight: torch.Tensor) -> float:
        case = self.case()
        return twins.bound(weight, case["source"], case["scale"], -8, 7)

    def test_rounded_weights_are_within(self) -> None:
        assert self.bound(self.case()["weight"]) <= 1

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda w: w * 2,
            lambda w: -w,
            lambda w: w.roll(1, 1),
            lambda w: w.view(16, 4, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].reshape(16, 32),
        ],
    )
    def test_a_wrong_packing_is_not(self, wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
        assert self.bound(wrong(self.case()["weight"])) > 2


def test_activations_with_a_zero_point_are_within_half_a_step() -> None:
    x_RI = engine.inputs(64).float()
    step = (x_RI.amax(1) - x_RI.amin(1)) / 255
    assert float(((twins.nudged(x_RI) - x_RI).abs().amax(1) / step).max()) <= 0.5 + 1e-3
