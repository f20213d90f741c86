"""Engine by known target by kind of drafter: a command that nothing is known against, or a refusal that leads on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from draftconv.drafter.facts import Facts
from draftconv.drafter.targets import Target, find_target, known_targets
from draftconv.engines import ENGINES, ServeCommand, ServeRequest, parse_engine
from draftconv.engines.engine import Engine
from draftconv.engines.target_stops import TargetStop, instead_of, refuse_target, target_stop
from draftconv.errors import Refused
from tests import tiny
from tests.engines.cases import vary_target
from tests.engines.views import FACTS

DRAFTERS = ("llama", "llama 3.1", "llama, reduced vocabulary", "mla", "mla 3.1")
SPECS = [name for engine in ENGINES for name in (engine, *(f"{engine}:{hw}" for hw in ENGINES[engine].hardware))]
CANNOT = re.compile(r"does not (start|read|load)|cannot (start|be started)|fails? there|no kernel|is refused")
"""Words of a note under a command that says of itself that it will not do."""


def served(spec: str, target: Target, facts: Facts) -> ServeCommand:
    where = parse_engine(spec)
    refuse_target(where, target)
    return ENGINES[where.name].command(ServeRequest("out", facts, target), where)


def contradictions(command: ServeCommand) -> list[str]:
    """Notes of a command that say it does not start: `SGLang does not start with the target's 262144` explains an
    argument that is in the command."""
    return [note for note in command.notes if CANNOT.search(note) and "--context-length" not in note]


@pytest.mark.parametrize("spec", SPECS)
def test_no_command_is_known_not_to_start(spec: str) -> None:
    for target in known_targets().values():
        for drafter in DRAFTERS:
            try:
                command = served(spec, target, FACTS[drafter])
            except Refused as refusal:
                assert refusal.why, (target.name, drafter)
                assert refusal.cure, (target.name, drafter)
                continue
            assert contradictions(command) == [], (target.name, drafter)
            assert target_stop(parse_engine(spec), target) is None


def test_a_command_that_says_it_does_not_start_would_be_noticed() -> None:
    """As one did: the command for INT4 of Kimi, over a note that it is not read."""
    note = "TensorRT-LLM does not read the INT4 weights of moonshotai/Kimi-K2.5"
    assert contradictions(ServeCommand(("x",), notes=(note,))) == [note]


@pytest.mark.parametrize(
    ("spec", "name", "cure"),
    [
        ("trtllm", "kimi-k2.5", "--target kimi-k2.5-nvfp4 is the same model in modelopt NVFP4"),
        ("trtllm:b200", "kimi-k2.6", "--target kimi-k2.6-nvfp4 is the same model in modelopt NVFP4"),
        ("trtllm:h200", "kimi-k2.6", "--for vllm:h200 is not known to stop on it"),
        ("trtllm:h200", "kimi-k2.5-nvfp4", "--for vllm:h200 is not known to stop on it"),
        ("vllm:cpu", "kimi-k2.6-nvfp4", "--target kimi-k2.6 is the same model in compressed-tensors INT4"),
        ("sglang:mi325x", "kimi-k2.5-nvfp4", "--target kimi-k2.5 is the same model in compressed-tensors INT4"),
    ],
)
def test_what_is_refused_and_what_instead(spec: str, name: str, cure: str) -> None:
    with pytest.raises(Refused, match="does not start with") as caught:
        refuse_target(parse_engine(spec), known_targets()[name])
    assert cure in caught.value.cure
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("spec", "name"),
    [("trtllm", "kimi-k2.6-nvfp4"), ("trtllm:b200", "kimi-k2.5-nvfp4"), ("vllm:mi325x", "kimi-k2.5"),
     ("sglang", "kimi-k2.5-nvfp4"), ("trtllm", "deepseek-v3"), ("trtllm", "kimi-k2")],
)  # fmt: skip
def test_what_nothing_is_known_against(spec: str, name: str) -> None:
    assert target_stop(parse_engine(spec), known_targets()[name]) is None


def test_a_cure_is_a_target_that_is_served() -> None:
    for spec in map(parse_engine, SPECS):
        for target in known_targets().values():
            assert all(target_stop(spec, other) is None for other in instead_of(spec, target))


def test_stops_are_of_targets_that_there_are() -> None:
    stored = {target.stored for target in known_targets().values()}
    for engine in ENGINES.values():
        assert {stop.stored for stop in engine.targets} <= stored
        chips = {chip for kernel in engine.kernels for chip in kernel.chips}
        assert {chip for stop in engine.targets for chip in stop.chips} <= chips


def test_the_same_model_is_the_same_but_for_how_it_is_stored() -> None:
    known = known_targets()
    for target in known.values():
        model = known[target.model]
        changes = {"name": model.name, "repo": model.repo, "stored": model.stored}
        assert vary_target(target, **changes) == model


@pytest.mark.parametrize("inside", [True, False])
def test_a_directory_tells_how_it_is_stored(inside: bool, tmp_path: Path) -> None:
    """In its quantization_config, at the top or in the text model's, as Kimi-K2.5 has it."""
    weights = {"num_bits": 4, "type": "int", "group_size": 32}
    section = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    said = {"quantization_config": section}
    inner = {**tiny.target_config(), **(said if inside else {})}
    outer = {"model_type": "kimi_k25", "text_config": inner, **({} if inside else said)}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    found = find_target(str(tmp_path), None)
    assert found is not None
    assert (found.stored, found.model) == ("compressed-tensors INT4", "")
    with pytest.raises(Refused, match="does not start with") as caught:
        refuse_target(parse_engine("trtllm"), found)
    assert "--for vllm is not known to stop on it" in caught.value.cure


@pytest.mark.parametrize(
    ("section", "stored"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt NVFP4"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        (None, ""),
    ],
)
def test_how_targets_are_stored(section: object, stored: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny.target_config(quantization_config=section)))
    found = find_target(str(tmp_path), None)
    assert found is not None
    assert found.stored == stored


def test_an_engine_says_it_in_rows() -> None:
    good = ENGINES["trtllm"]
    fields = {name: getattr(good, name) for name in Engine.__dataclass_fields__}
    with pytest.raises(ValueError, match="targets is a tuple of TargetStop"):
        Engine(**{**fields, "targets": ("INT4",)})
    assert TargetStop("x", "y", "z", "read").chips == ()
