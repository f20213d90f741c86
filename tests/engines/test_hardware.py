"""Engines and hardware by the names that people type."""

from __future__ import annotations

import pytest

from draftconv.engines import ENGINES, EngineSpec, parse_engine
from draftconv.engines.deployment import resolve
from draftconv.engines.hardware import ALIASES, CHIPS, HARDWARE, UNREAD, devices_of, spelled
from draftconv.errors import UsageError
from draftconv.quantization.recipes import find_recipe


@pytest.mark.parametrize(
    ("typed", "name"),
    [("vLLM", "vllm"), ("VLLM", "vllm"), ("SGLang", "sglang"), ("SGLANG", "sglang"), ("TensorRT-LLM", "trtllm"),
     ("tensorrt_llm", "trtllm"), ("tensorrt-llm", "trtllm"), ("TRTLLM", "trtllm"), ("trt-llm", "trtllm"),
     ("TRT_LLM", "trtllm")],
)  # fmt: skip
def test_engines_by_what_people_call_them(typed: str, name: str) -> None:
    assert parse_engine(typed) == EngineSpec(name, ENGINES[name].version)
    assert parse_engine(f"{typed}@1.2:B200") == EngineSpec(name, "1.2", "b200")


@pytest.mark.parametrize(
    ("typed", "hardware"),
    [("MI355X", "mi350"), ("mi350x", "mi350"), ("MI350", "mi350"), ("MI325X", "mi325x"), ("mi-300x", "mi300x"),
     ("GB200", "b200"), ("B200", "b200"), ("GH200", "h100"), ("H20", "h100"), ("H800", "h100"),
     ("H100-PCIe", "h100"), ("H100_NVL", "h100"), ("H200 NVL", "h200"), ("CPU", "cpu")],
)  # fmt: skip
def test_hardware_by_what_people_call_it(typed: str, hardware: str) -> None:
    found = parse_engine(f"vllm:{typed}")
    assert found == EngineSpec("vllm", ENGINES["vllm"].version, hardware)
    assert str(found) == f"vllm@{ENGINES['vllm'].version}:{hardware}"
    assert found.machine == (spelled(typed) if spelled(typed) in ALIASES else None)


def test_tables_agree() -> None:
    assert not {*ALIASES} & {*HARDWARE}
    assert not {*UNREAD} & {*HARDWARE, *ALIASES}
    assert all(name == spelled(name) for name in (*ALIASES, *UNREAD, *HARDWARE))
    assert {alias.hardware for alias in ALIASES.values()} <= {*HARDWARE}
    assert {row.nearest for row in UNREAD.values()} <= {*HARDWARE, ""}
    assert all(alias.devices and alias.source for alias in ALIASES.values())
    assert all(devices_of(name) == row.devices for name, row in HARDWARE.items())


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_runs_what_its_chip_runs_and_is_no_better_proven(alias: str) -> None:
    for engine in (engine for engine in ENGINES.values() if ALIASES[alias].hardware in engine.hardware):
        there, known = (parse_engine(f"{engine.name}:{name}") for name in (alias, ALIASES[alias].hardware))
        assert CHIPS[str(there.hardware)] == CHIPS[str(known.hardware)]
        recipe = find_recipe("fp8-tensor" if engine.name == "trtllm" else "fp8")
        assert resolve(recipe, there) == resolve(recipe, known)


@pytest.mark.parametrize(
    ("text", "what", "why", "cure"),
    [
        (
            "vllm:A100",
            "vllm:A100: what vLLM multiplies on an A100 (sm80) is not known",
            "it has no FP8 tensor cores, and what engines multiply on it was not read",
            "give --for vllm without hardware and 16-bit weights",
        ),
        (
            "TensorRT-LLM:B300",
            "TensorRT-LLM:B300: what TensorRT-LLM multiplies on a B300 (sm103) is not known",
            "kernels are chosen by chip, and those of another one need not be built for it",
            "give --for trtllm without hardware and 16-bit weights; "
            "trtllm:b200 is the nearest that was read: prove on your machine what it says",
        ),
        (
            "sglang:mi300",
            "sglang:mi300: what SGLang multiplies on an MI300 (gfx942) is not known",
            "MI300X and MI300A both have gfx942, one is a card and the other shares its memory with a CPU",
            "give --for sglang without hardware and 16-bit weights; "
            "sglang:mi300x is the nearest that was read: prove on your machine what it says",
        ),
        (
            "trtllm:mi300a",
            "trtllm:mi300a: what TensorRT-LLM multiplies on an MI300A (gfx942) is not known",
            "MI300X and MI300A both have gfx942, one is a card and the other shares its memory with a CPU",
            "give --for trtllm without hardware and 16-bit weights",
        ),
        (
            "trtllm:mi355x",
            "trtllm:mi355x: trtllm is not known to run on mi355x",
            "known hardware: h100, h200, b200",
            "",
        ),
        (
            "vllm:b2000",
            "vllm:b2000: vllm is not known to run on b2000",
            "known hardware: cpu, h100, h200, b200, mi300x, mi325x, mi350",
            "did you mean b200?",
        ),
        (
            "VLMM",
            "unknown engine VLMM",
            "known: vllm, sglang, trtllm, written ENGINE[@VERSION][:HARDWARE]",
            "did you mean vllm?",
        ),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(text: str, what: str, why: str, cure: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_engine(text)
    assert (caught.value.what, caught.value.why, caught.value.cure) == (what, why, cure)


@pytest.mark.parametrize("machine", UNREAD)
def test_every_machine_that_was_not_read_is_refused_on_every_engine(machine: str) -> None:
    for engine in ENGINES:
        with pytest.raises(UsageError, match=rf"on an? .* \({UNREAD[machine].chip}\) is not known"):
            parse_engine(f"{engine}:{machine.upper()}")
