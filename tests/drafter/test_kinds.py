"""A kind of drafter is one place: what it adds is expected, told and run, and undecided to engines, without an edit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.describe import facts_json
from draftconv.drafter.facts import Facts
from draftconv.drafter.fingerprint import Fingerprint
from draftconv.drafter.kinds import KINDS, DrafterKind, eagle3, eagle31, kind_of
from draftconv.drafter.kinds.kind import KindMark
from draftconv.drafter.kinds.unsupported import UNSUPPORTED, unsupported_kind
from draftconv.drafter.names import sort_names
from draftconv.drafter.tensor_specs import TensorSpec
from draftconv.drafter.tensors import expected
from draftconv.engines import ENGINES, parse_engine
from draftconv.errors import NotADrafter
from draftconv.layouts.reader import read_drafter
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.load import forward_of
from tests import tiny
from tests.engines.views import LLAMA, LLAMA_TARGET, MLA, written
from tests.layouts import test_detect as detected


class Wide(DrafterModel):
    """The forward pass of a kind that is none: a drafter with a gate."""


SIZES = (LLAMA.intermediate, tiny.BASE.intermediate)
GATED = DrafterKind(
    "gated",
    "a drafter with a gate",
    (KindMark(lambda fingerprint: fingerprint.has("gate.weight"), "it has no gate", "the gate weighs what fc adds"),),
    lambda facts: facts.intermediate in SIZES,
    (*eagle3.ROWS, TensorSpec("gate.weight", ("H", "H"), "fc", "none")),
    f"{__name__}:Wide",
)


@contextmanager
def known(kind: DrafterKind) -> Iterator[None]:
    KINDS.insert(0, kind)
    yield
    KINDS.remove(kind)


@pytest.fixture
def gated() -> Iterator[None]:
    with known(GATED):
        yield


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (LLAMA, "3"),
        (MLA, "3"),
        (replace(LLAMA, fusion="fc_norm"), "3.1"),
        (replace(LLAMA, fusion="norm_before_fc"), "3"),
        (replace(LLAMA, feedback="post-norm"), "3.1"),
        (replace(MLA, fusion="fc_norm", feedback="post-norm"), "3.1"),
    ],
)
def test_eagle_3_and_3_1(facts: Facts, name: str) -> None:
    assert kind_of(facts).name == facts_json(facts)["eagle"] == name


def test_every_drafter_has_a_kind_and_every_kind_a_forward_pass() -> None:
    assert KINDS[-1] is eagle3.KIND
    assert eagle3.KIND.holds(LLAMA)
    assert forward_of(LLAMA) is forward_of(replace(LLAMA, fusion="fc_norm")) is DrafterModel
    assert not any(row.name.startswith("fc_norm") for row in eagle3.ROWS)
    assert {row.name for row in eagle31.ROWS} - {row.name for row in eagle3.ROWS} == {"fc_norm.{a}.weight"}


@pytest.mark.usefixtures("gated")
def test_what_another_kind_has() -> None:
    assert expected(LLAMA)["gate.weight"].shape == (LLAMA.hidden, LLAMA.hidden)
    assert "gate.weight" not in expected(replace(LLAMA, intermediate=16))
    assert facts_json(LLAMA)["eagle"] == "gated"
    with torch.device("meta"):
        assert isinstance(forward_of(LLAMA)(LLAMA), Wide)


def test_a_file_is_refused_unless_it_has_the_marks_of_some_kind(tmp_path: Path) -> None:
    source = tiny.spell("llama", "speculators")
    gate = source.tensors.pop("fc.weight")
    source.write(tmp_path / "a")
    with pytest.raises(NotADrafter) as caught:
        read_drafter(open_checkpoint(tmp_path / "a"))
    assert caught.value.what == "this is no EAGLE-3 drafter: it has no fc"
    assert caught.value.cure == "draftconv converts EAGLE-3 and EAGLE-3.1 drafters"
    with known(GATED), pytest.raises(NotADrafter) as caught:
        read_drafter(open_checkpoint(tmp_path / "a"))
    assert caught.value.cure == "draftconv converts EAGLE-3, EAGLE-3.1 and a drafter with a gate drafters"
    source.tensors["gate.weight"] = gate
    source.write(tmp_path / "b")
    with known(GATED):
        assert read_drafter(open_checkpoint(tmp_path / "b")).kind is GATED


def test_an_eagle_1_drafter_is_a_stranger(tmp_path: Path) -> None:
    """fc joins one state with the embedding, nothing norms the state, and attention reads one width."""
    spelled = tiny.spell("llama", "speculators")
    hidden = spelled.tensors["norm.weight"].shape[0]
    del spelled.tensors["layers.0.hidden_norm.weight"]
    spelled.tensors["fc.weight"] = tiny.floats("fc.weight", (hidden, 2 * hidden), "BF16")
    query = "layers.0.self_attn.q_proj.weight"
    for width, known_as in ((hidden, ["an EAGLE-1/2 drafter (fc is [H, 2H], no hidden_norm)"]), (2 * hidden, [])):
        spelled.tensors[query] = tiny.floats(query, (spelled.tensors[query].shape[0], width), "BF16")
        checkpoint = open_checkpoint(spelled.write(tmp_path / str(width)))
        fingerprint = Fingerprint(checkpoint, sort_names(checkpoint.tensors))
        assert [stranger.what for stranger in UNSUPPORTED if stranger.holds(fingerprint)] == known_as


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_that_never_spoke_of_a_kind_does_not_say_that_it_loads(name: str) -> None:
    view, spec = written(LLAMA, name, LLAMA_TARGET), parse_engine(name)
    assert ENGINES[name].check(view, LLAMA, LLAMA_TARGET, spec).status == "loads"
    with known(replace(GATED, rows=eagle3.ROWS)):
        verdict = ENGINES[name].check(view, LLAMA, LLAMA_TARGET, spec)
    assert verdict.status == "undecided"
    assert verdict.reason is not None
    assert (verdict.reason.rule.code, verdict.reason.detail) == (f"{name}-kind", "of the kind a drafter with a gate")


def test_engines_speak_of_kinds_that_are_named() -> None:
    known = {stranger.name for stranger in UNSUPPORTED} - {""}
    spoken = {name for engine in ENGINES.values() for name in engine.other_kinds}
    assert spoken <= known
    assert known - spoken == {"hydra", "xpress"}
    assert all(other.setting and other.source for e in ENGINES.values() for other in e.other_kinds.values())


@pytest.mark.parametrize("spelled", [detected.dflash_without_a_word, detected.dflash_by_its_section])
def test_one_mark_of_dflash_is_enough(
    spelled: Callable[[], tuple[dict[str, object], dict[str, tiny.Tensor]]], tmp_path: Path
) -> None:
    config, tensors = spelled()
    checkpoint = open_checkpoint(tiny.Spelled("", tiny.BASE, tensors, dict(config), {}).write(tmp_path / "x"))
    found = unsupported_kind(Fingerprint(checkpoint, sort_names(checkpoint.tensors)))
    assert found is not None
    assert found.name == "dflash"
