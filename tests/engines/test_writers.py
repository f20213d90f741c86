"""What `convert` writes for an engine is what that engine reads rightly."""

from __future__ import annotations

import pytest

from draftconv.drafter.boundaries import family_captures
from draftconv.drafter.facts import AuxLayers
from draftconv.drafter.targets import Target
from draftconv.errors import Refused, UsageError
from draftconv.layouts.base import Writing
from draftconv.layouts.config_json import nested_ids
from tests.engines.cases import IDS, home, judged
from tests.engines.views import (
    FACTS,
    GPT_OSS_TARGET,
    KIMI_TARGET,
    LLAMA,
    LLAMA_TARGET,
    MINIMAX_TARGET,
    MLA,
    refused,
    vary,
    writer_of,
    written,
)
from tests.layouts.spelled import ENGINE_LAYOUTS

UNSPELLED = {
    ("llama, two states", "none"): UsageError,  # SGLang numbers (3, 6) differently per family
    ("llama, last boundary", "own"): Refused,  # SGLang captures boundary L for gpt-oss only
}


@pytest.mark.parametrize("target", ["own", "none"])
@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("layout", ENGINE_LAYOUTS)
def test_a_written_drafter_loads_as_trained(layout: str, name: str, target: str) -> None:
    facts = FACTS[name]
    if refused(facts, layout):
        return
    goal = home(facts) if target == "own" else None
    serves = writer_of(layout).serves
    if "sglang" in serves and (error := UNSPELLED.get((name, target))):
        with pytest.raises(error):
            written(facts, layout, goal)
        return
    view = written(facts, layout, goal)
    for engine in serves:
        verdict = judged(engine, view, facts, goal)
        assert verdict.status == "loads", [(line.rule.code, line.detail) for line in verdict.lines]


def test_each_layout_writes_most_of_them() -> None:
    """A table of refusals that grew too long would make the test above pass by doing nothing."""
    count = {layout: sum(not refused(facts, layout) for facts in FACTS.values()) for layout in ENGINE_LAYOUTS}
    least = {"vllm": 28, "sglang": 25, "trtllm": 26, "portable": 18}
    assert all(count[layout] >= least[layout] for layout in ENGINE_LAYOUTS), count


ELSEWHERE = {
    "gqa with q/k/v biases": "sglang",
    "gqa with an o bias": "vllm",
    "llama, mlp bias": "sglang",
    "llama, normed residual": "trtllm",
    "gqa with q/k norms": "trtllm",
    "mla, half-split rope": "vllm",
    "mla, reduced vocabulary": "trtllm",
    "mla, two layers": "sglang",
    "llama, fc bias": "vllm",
    "mla, norm_before_fc": "sglang",
    "mla, plain query": "vllm",
}


@pytest.mark.parametrize(("name", "layout"), ELSEWHERE.items())
def test_refusals_of_layouts_are_what_the_engine_would_do(name: str, layout: str) -> None:
    """Written in spite of its limits, the drafter is refused or mis-read by the engine."""
    facts = FACTS[name]
    assert refused(facts, layout)
    assert judged(layout, written(facts, layout, home(facts)), facts, home(facts)).status in ("refused", "mis-read")


@pytest.mark.parametrize("target", [LLAMA_TARGET, KIMI_TARGET, GPT_OSS_TARGET, MINIMAX_TARGET])
@pytest.mark.parametrize("boundaries", [(2, 4, 5), (3, 5, 6), (1, 4, 7), (4, 5, 8), (2, 4, 8)])
def test_layer_ids_come_back_from_every_family(target: Target, boundaries: tuple[int, ...]) -> None:
    """Whatever SGLang's spelling is for these boundaries, its own rule captures them."""
    assert target.family is not None
    writing = Writing(vary(LLAMA, boundaries=boundaries), boundaries, target, {}, "bfloat16")
    try:
        ids = nested_ids(writing, "SGLang")[IDS]
    except Refused:
        last = target.layers in boundaries and target.family != "gpt-oss"
        assert last or (target.family == "deepseek" and boundaries[0] == 1)
        return
    assert isinstance(ids, list)
    assert family_captures(ids, target.family, target.layers) == boundaries


def test_portable_ids_serve_their_engines_on_a_kimi_target() -> None:
    facts = FACTS["mla, layers given"]
    view = written(facts, "portable", KIMI_TARGET)
    for engine in writer_of("portable").serves:
        assert judged(engine, view, facts, KIMI_TARGET).status == "loads"


def test_default_layers_are_left_to_the_reader() -> None:
    for layout in ENGINE_LAYOUTS:
        config = written(MLA, layout, KIMI_TARGET).config
        assert MLA.boundaries is AuxLayers.DEFAULT
        assert IDS not in config
        assert IDS not in config["eagle_config"]  # type: ignore[operator]
