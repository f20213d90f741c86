"""Where a drafter can go that a layout refuses, and layouts that come with an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from draftconv import layouts as room
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES
from draftconv.errors import BadPlugin
from draftconv.layouts import layout, layouts, writable
from draftconv.layouts.alternatives import elsewhere
from draftconv.layouts.base import Layout, Refusal, Writer, Writing
from tests.engines.views import FACTS, KIMI_TARGET, LLAMA, vary
from tests.layouts.spelled import writer_of


@pytest.mark.parametrize(
    ("name", "to", "target", "cure"),
    [
        ("gqa with q/k/v biases", "sglang", None, "convert to vllm or trtllm"),
        ("gqa with q/k norms", "portable", None, "convert to vllm"),
        ("mla, norm_before_fc", "vllm", None, "no engine serves it as it was trained"),
        ("gqa with q/k norms", "torchspec", None, "convert to vllm or speculators"),
        ("llama, two layers", "specforge", None, "convert to vllm, sglang, trtllm, speculators or modelopt"),
        ("mla, layers given", "speculators", KIMI_TARGET, "convert to vllm, sglang, trtllm, portable or torchspec"),
    ],
)
def test_every_other_layout_is_asked(name: str, to: str, target: Target | None, cure: str) -> None:
    facts = vary(FACTS[name], double_norm="two layers" in name)
    assert elsewhere(writer_of(to), facts, target) == cure


def test_layers_that_somebody_cannot_name_are_counted() -> None:
    """SGLang never delivers the last boundary, and TensorRT-LLM not the first."""
    assert elsewhere(writer_of("sglang"), vary(LLAMA, boundaries=(2, 4, 8)), KIMI_TARGET) == "convert to vllm or trtllm"
    assert elsewhere(writer_of("sglang"), vary(LLAMA, boundaries=(0, 4, 5)), KIMI_TARGET).startswith("no engine")


# ── an engine that brings a layout ─────────────────────────────────────────────────


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    layouts.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    layouts.cache_clear()


def brought(name: str, writer: Writer) -> Layout:
    return replace(layout("vllm"), id=name, title=name, writer=writer)


def config(writing: Writing) -> dict[str, object]:
    found = writer_of("vllm").config(writing)
    section = found["eagle_config"]
    assert isinstance(section, Mapping)
    return found | {"mlp_bias": None, "toy": 1, "eagle_config": {**section, "use_aux_hidden_state": 2, "toy": 3}}


def test_portable_is_what_its_readers_agree_on(engines: pytest.MonkeyPatch) -> None:
    no_yarn = Refusal(lambda f: f.rope.kind == "yarn", "Toy has no yarn", "it has none")
    spelling = replace(writer_of("vllm").spelling, first="layers.{i}.")
    toy = brought("toy", Writer(spelling, config, (no_yarn,), serves=("toy",)))
    before = writer_of("portable").config(Writing(LLAMA, None, None, {}, "bfloat16"))
    layouts.cache_clear()
    engine = replace(ENGINES["vllm"], name="toy", rules=(), covers=(), layouts=(toy,), portable=True)
    engines.setitem(ENGINES.by_name, "toy", engine)
    portable = writer_of("portable")
    assert portable.serves == ("vllm", "sglang", "trtllm", "toy")
    assert no_yarn in portable.refuses
    assert next(limit for limit in portable.refuses if limit.holds(LLAMA)).what.startswith("no one spelling")
    after = portable.config(Writing(LLAMA, None, None, {}, "bfloat16"))
    section, other = before.pop("eagle_config"), after.pop("eagle_config")
    assert isinstance(section, dict)
    assert {key: value for key, value in before.items() if key != "mlp_bias"} | {"toy": 1} == after
    assert {key: value for key, value in section.items() if key != "use_aux_hidden_state"} | {"toy": 3} == other

    layouts.cache_clear()
    engines.setitem(ENGINES.by_name, "toy", replace(engine, portable=False))
    assert writer_of("portable").serves == ("vllm", "sglang", "trtllm")
    assert "toy" in writable()


def test_an_engine_cannot_take_a_layouts_name(engines: pytest.MonkeyPatch) -> None:
    toy = brought("torchspec", writer_of("vllm"))
    layouts.cache_clear()
    engine = replace(ENGINES["vllm"], name="toy", rules=(), covers=(), title="Toy", layouts=(toy,))
    engines.setitem(ENGINES.by_name, "toy", engine)
    with pytest.raises(BadPlugin, match="Toy brings the layout torchspec, and there is one of that name"):
        room.layouts()
