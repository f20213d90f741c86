"""Sizes that kernels take, on both sides of each edge."""

from __future__ import annotations

import pytest

from draftconv.drafter.facts import Facts, Gqa, Mla
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.deployed import Deployment
from draftconv.engines.deployment import resolve
from draftconv.engines.shapes import ShapeFault, shape_faults
from draftconv.quantization.exclusions import select
from draftconv.quantization.recipes import FormatName, Recipe, find_recipe
from tests.engines.test_kernels import own
from tests.engines.views import LLAMA, MLA, vary

BIG = vary(LLAMA, attention=Gqa(32, 8, 128), hidden=4096, intermediate=14336)
KIMI = vary(MLA, attention=Mla(64, 1536, 512, 128, 64, 128), hidden=7168, intermediate=18432)


def faults(recipe: str | Recipe, spec: str, facts: Facts = BIG, tp: int = 1) -> tuple[ShapeFault, ...]:
    found = find_recipe(recipe) if isinstance(recipe, str) else recipe
    where = parse_engine(spec)
    deployment = resolve(found, where, facts=facts)
    return shape_faults(where, deployment, facts, select(find_recipe("w4a16"), facts).quantized, tp)


def sized(**sizes: object) -> Facts:
    return vary(BIG, **sizes)


def pinned(form: FormatName, group: int | None = 128) -> Recipe:
    return own("int4", "group" if group else "channel", group=group, form=form)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("facts", [BIG, KIMI])
@pytest.mark.parametrize(
    ("recipe", "spec"),
    [
        ("w4a16", "vllm:b200"), ("w4a16", "vllm:mi325x"), ("w4a16", "sglang:h200"), ("w4a16", "vllm:cpu"),
        ("w4a16-g128", "vllm:h200"), ("w4a8-awq", "trtllm:h200"), ("nvfp4", "vllm:b200"), ("mxfp4", "vllm:mi350"),
        ("fp8", "sglang:mi325x"), ("w4a8-fp8", "vllm:h200"),
    ],
)  # fmt: skip
def test_real_drafters_fit(recipe: str, spec: str, facts: Facts, tp: int) -> None:
    assert not [fault for fault in faults(recipe, spec, facts, tp) if fault.refused]


EDGES = [
    # recipe, spec, facts that fit, facts that do not, tp, what is said
    ("w4a16", "vllm:mi325x", sized(intermediate=1000), sized(intermediate=1002), 1, "TritonW4A16 takes outputs by 8"),
    ("w4a16", "vllm:b200", sized(intermediate=1000), sized(intermediate=1004), 1, "8 inputs share a word"),
    ("w4a16", "vllm:b200", sized(intermediate=1024), sized(intermediate=1000), 128, "cannot be shared by 128"),
    ("w4a16", "vllm:cpu", sized(intermediate=1024), sized(intermediate=1040), 1, "CPUWNA16 takes inputs by 32"),
    ("w4a16", "vllm:cpu", sized(hidden=1024), sized(hidden=1008), 1, "CPUWNA16 takes outputs by 32"),
    ("w4a16-g128", "vllm:b200", sized(intermediate=2048), sized(intermediate=1920), 2, "cannot lie on two ranks"),
    ("w4a16", "vllm:b200", sized(intermediate=1920), sized(intermediate=1928), 2, "8 inputs share a word"),
    ("w4a8-fp8", "vllm:h200", sized(intermediate=2048), sized(intermediate=2048 + 64), 1,
     "CUTLASS W4A8 takes inputs by 128"),
    ("w4a8-fp8", "vllm:h200", sized(hidden=1024), sized(hidden=1024 + 64), 1, "CUTLASS W4A8 takes outputs by 128"),
    ("w4a16", "sglang:b200", sized(intermediate=2048), sized(intermediate=2048 + 64), 1, "Marlin takes inputs by 128"),
    ("w4a16", "sglang:b200", sized(intermediate=2048), sized(intermediate=2048 + 64), 2, "Marlin takes inputs by 128"),
    ("w4a16-g128", "sglang:b200", sized(intermediate=2048), sized(intermediate=1920), 2, "cannot lie on two ranks"),
    ("w4a16", "sglang:b200", sized(hidden=1024), sized(hidden=1024 + 32), 1, "Marlin takes outputs by 64"),
    (pinned("autoawq", 32), "vllm:b200", sized(attention=Gqa(4, 2, 96)), sized(attention=Gqa(8, 2, 36)), 2,
     "8 outputs share a word"),
    (pinned("quark-int4", 32), "vllm:b200", sized(attention=Gqa(4, 2, 64)), sized(attention=Gqa(6, 2, 36)), 1,
     "cannot lie on two ranks"),
    (pinned("autoawq"), "sglang:mi325x", sized(attention=Gqa(4, 1, 128)), sized(attention=Gqa(4, 1, 132)), 1,
     "8 outputs share a word"),
    (pinned("gptq", None), "vllm:b200", sized(intermediate=1000), sized(intermediate=1004), 1, "8 inputs share a word"),
    ("w4a8-awq", "trtllm:h200", sized(intermediate=2048), sized(intermediate=2048 + 64), 1, "cannot lie on two ranks"),
    ("w4a16-awq", "trtllm:h200", sized(hidden=1024), sized(hidden=1025), 1, "2 outputs share a byte"),
    ("w4a8-awq", "trtllm:h200", BIG, sized(attention=Gqa(32, 4, 128)), 8, "not the scales"),
    ("nvfp4", "vllm:b200", sized(intermediate=1024), sized(intermediate=1032), 1, "16 inputs share a scale"),
    ("nvfp4", "sglang:b200", sized(intermediate=1024), sized(intermediate=1032), 1, "16 inputs share a scale"),
    ("nvfp4", "trtllm:b200", sized(intermediate=1024), sized(intermediate=1008), 2, "16 inputs share a scale"),
    ("mxfp4", "vllm:mi350", sized(intermediate=1024), sized(intermediate=1040), 1, "32 inputs share a scale"),
    ("fp8", "vllm:h200", BIG, sized(attention=Gqa(30, 10, 128)), 4, "30 attention heads cannot be shared by 4"),
    ("fp8", "vllm:h200", BIG, sized(attention=Gqa(32, 6, 128)), 4, "6 key heads cannot be shared by 4"),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "spec", "fits", "misfits", "tp", "says"), EDGES)
def test_edges(recipe: str | Recipe, spec: str, fits: Facts, misfits: Facts, tp: int, says: str) -> None:
    if "shared by 128" not in says:
        assert not [fault for fault in faults(recipe, spec, fits, tp) if says in fault.says]
    assert [fault for fault in faults(recipe, spec, misfits, tp) if says in fault.says and fault.refused]


def test_every_row_has_an_edge() -> None:
    """A row that no size could break would be no check."""
    rows = [(engine.name, shape) for engine in ENGINES.values() for shape in engine.shapes.rows if shape.refused]
    assert rows
    for engine, shape in rows:
        assert any(spec.startswith(engine) and says in shape.says for _, spec, *_, says in EDGES), (engine, shape)


def test_another_kernel_is_no_refusal() -> None:
    odd = sized(intermediate=14336 + 32)
    found = [fault for fault in faults("w4a16", "vllm:h200", odd) if "Machete" in fault.says]
    assert found
    assert not any(fault.refused for fault in found)
    assert faults("w4a16", "vllm:b200", odd) == ()


def test_key_heads_are_copied_where_there_are_too_few() -> None:
    for recipe, spec in (("w4a16", "vllm:b200"), ("w4a8-fp8", "vllm:h200")):
        assert faults(recipe, spec, sized(attention=Gqa(32, 2, 128)), 8) == ()


def test_without_hardware_all_of_it_counts() -> None:
    odd = sized(intermediate=14336 + 8)
    said = {fault.says.split(": ")[1] for fault in faults("w4a16", "vllm", odd) if fault.refused}
    assert said == {"CPUWNA16 takes inputs by 32", "CPUWNA16 takes outputs by 32"}


def test_only_what_is_quantized_counts() -> None:
    recipe = find_recipe("w4a16")
    where = parse_engine("sglang:b200")
    deployment: Deployment = resolve(recipe, where)
    odd = sized(intermediate=14336 + 32)
    kept = [name for name in select(recipe, odd).quantized if "self_attn" in name]
    assert shape_faults(where, deployment, odd, kept) == ()
