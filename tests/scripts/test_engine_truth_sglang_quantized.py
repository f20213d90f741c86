"""How scripts/engine-truth reads a quantized draft model that SGLang filled: every wrong parameter is noticed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from truth.drafts import Directory
from truth.sglang import matcher, quantized, quantized_cases, quantized_forms
from truth.sglang.engine import Draft
from truth.sglang.quantized_filled import differences

from draftconv.engines import parse_engine
from draftconv.engines.rules import BrokenRule, LoadVerdict
from draftconv.engines.sglang import RULES
from draftconv.engines.sglang.sources import QUANT

FP8 = torch.float8_e4m3fn
LAYER = "midlayer.self_attn"


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stored() -> Directory:
    tensors = {
        "norm.weight": numbers(8, seed=1).bfloat16(),
        "d2t": torch.arange(4),
        "embed_tokens.weight": torch.ones(2),
    }
    for seed, part in enumerate("qkv"):
        tensors[f"{LAYER}.{part}_proj.weight"] = numbers(8, 8, seed=seed).to(FP8)
        tensors[f"{LAYER}.{part}_proj.weight_scale"] = numbers(8, 1, seed=seed + 9)
        tensors[f"{LAYER}.{part}_proj.input_scale"] = torch.tensor(0.5 + seed)
    return Directory({"quantization_config": {"quant_method": "compressed-tensors"}}, tensors)


def joined(directory: Directory, kind: str) -> Tensor:
    parts = [directory.tensors[f"{LAYER}.{part}_proj.{kind}"] for part in "qkv"]
    return torch.cat([part.reshape(1) if not part.dim() else part for part in parts])


def filled(directory: Directory) -> Draft:
    """What SGLang makes of it; the scale of the cache is in no file."""
    name = "model.layers.0.self_attn.qkv_proj"
    tensors = {f"{name}.{kind}": joined(directory, kind) for kind in ("weight", "weight_scale", "input_scale")}
    tensors |= {
        "model.norm.weight": directory.tensors["norm.weight"],
        "model.layers.0.self_attn.attn.k_scale": torch.ones(1),
    }
    tensors["model.embed_tokens.weight"] = torch.zeros(2)
    return Draft("L", "bfloat16", "compressed-tensors", tensors, {}, None, None, None, (), (), "", frozenset())


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Draft:
    draft = filled(stored())
    full = f"model.layers.0.self_attn.qkv_proj.{name}"
    return replace(draft, tensors={**draft.tensors, full: change(draft.tensors[full])})


def test_a_filled_drafter_does_not_differ() -> None:
    assert differences(filled(stored()), stored()) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("weight", lambda t: t.float()),  # another dtype, the same numbers
        ("weight", lambda t: t.flip(0)),  # another order
        ("weight_scale", lambda t: torch.full_like(t, torch.nan)),  # never filled
        ("weight_scale", lambda t: t * 1.01),
        ("weight_scale", lambda t: t.bfloat16()),  # rounded
        ("input_scale", lambda t: t[:1]),
    ],
)
def test_another_parameter_is_noticed(name: str, change: Callable[[Tensor], Tensor]) -> None:
    assert differences(changed(name, change), stored()) == [f"layers.0.self_attn.qkv_proj.{name} holds something else"]


def test_what_is_dropped_and_what_is_missing_is_noticed() -> None:
    assert differences(filled(stored()), stored().put("fc.weight_scale", torch.ones(1))) == [
        "fc.weight_scale is dropped"
    ]
    without = stored().drop("v_proj.weight_scale")
    assert differences(filled(stored()), without) == ["layers.0.self_attn.qkv_proj.weight_scale is filled in part"]
    assert differences(filled(stored()), stored().drop("norm")) == ["norm.weight is filled by nothing"]


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ({"desc_act": False, "sym": True}, []),
        ({"desc_act": True, "sym": True}, ["fc.g_idx is filled by nothing", "fc.qzeros is filled by nothing"]),
    ],
)
def test_what_marlin_leaves_out_may_be_missing(declared: Mapping[str, object], found: list[str]) -> None:
    draft, directory = filled(stored()), stored().set(quantization_config={"quant_method": "gptq", **declared})
    empty = {"model.fc.g_idx": torch.zeros(4), "model.fc.qzeros": torch.zeros(4)}
    assert differences(replace(draft, tensors={**draft.tensors, **empty}), directory) == found


def test_a_refusal_is_held_against_its_reasons() -> None:
    rules = {rule.code: rule for rule in RULES}
    lines = (BrokenRule(rules["sglang-gptq"], "no sym"), BrokenRule(rules["sglang-ignored"], "t2d"))
    says = quantized.says(LoadVerdict(parse_engine("sglang"), lines))
    assert re.search(says, "ValueError: Unknown quantization method: gptq. Must be one of")
    assert not re.search(says, "KeyError: gptq")


class TestCases:
    def test_there_are_enough_and_no_two_have_one_name(self) -> None:
        for cases, least in ((quantized_cases.CASES, 900), (matcher.CASES, 500)):
            names = [case.name for case in cases]
            assert len(names) == len(set(names)) >= least

    def test_every_form_is_asked(self) -> None:
        assert {case.form for case in quantized_cases.CASES} == quantized_forms.FORMS.keys()

    def test_every_refusal_of_a_declaration_has_words(self) -> None:
        of_methods = {rule.code for rule in RULES if rule.effect == "refused" and rule.source.startswith(QUANT)}
        assert of_methods <= quantized.SAYS.keys()
        assert quantized.SAYS.keys() <= {rule.code for rule in RULES if rule.effect == "refused"}
