"""What a machine is told to be by stub tools on the PATH, and the machines that are refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from draftconv.engines.hardware import CHIPS
from draftconv.errors import EngineError
from draftconv.live.capabilities import live_of
from draftconv.live.logged_kernels import kernels_in_log, logged_kernels
from draftconv.live.machine import DEVICES, Machine, engine_build, look, refuse_other
from tests.programs import shebang

AMD = {"asic": {"market_name": "AMD Instinct MI325X"}, "driver": {"name": "amdgpu", "version": "6.14.14"}}
UNNAMED = {"asic": {"market_name": "N/A", "device_id": "0x74a5"}, "driver": {"version": "6.8"}}
ROCM = {"Card Series": "AMD Instinct MI325X", "Card Model": "0x74a5"}

Install = Callable[..., dict[str, str]]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Stub programs on a PATH that holds nothing else: name → what it prints, or its exit status."""

    def made(**programs: str | int) -> dict[str, str]:
        for name, told in programs.items():
            code = f"print({told!r})" if isinstance(told, str) else f"import sys; sys.exit({told})"
            file = tmp_path / name.replace("_", "-")
            file.write_text(f"{shebang('-S')}{code}\n")
            file.chmod(0o755)
        return {"PATH": str(tmp_path)}

    return made


@pytest.mark.parametrize(
    ("programs", "devices", "driver", "told_by"),
    [
        ({"nvidia_smi": "NVIDIA B200, 580.65.06, Disabled\n" * 8}, ("NVIDIA B200",) * 8, "580.65.06", "nvidia-smi"),
        ({"nvidia_smi": "NVIDIA B200, 580.65.06, [N/A]\n"}, ("NVIDIA B200",), "580.65.06", "nvidia-smi"),
        ({"nvidia_smi": "NVIDIA H200, 570.1, Enabled\n"}, ("NVIDIA H200 MIG",), "570.1", "nvidia-smi"),
        ({"amd_smi": json.dumps([AMD] * 4)}, ("AMD Instinct MI325X",) * 4, "6.14.14", "amd-smi"),
        ({"amd_smi": json.dumps({"gpu_data": [AMD]})}, ("AMD Instinct MI325X",), "6.14.14", "amd-smi"),
        (
            {"rocm_smi": json.dumps({"card0": ROCM, "card1": ROCM, "system": {"Driver version": "6.12"}})},
            ("AMD Instinct MI325X",) * 2, "6.12", "rocm-smi",
        ),
        (
            {"amd_smi": "WARNING: User is missing the following required groups: render\n" + json.dumps([UNNAMED])},
            ("AMD Instinct MI325X",), "6.8", "amd-smi",
        ),
        (
            {"rocm_smi": "\nWARNING: AMD GPU device(s) is/are in a low-power state\n" + json.dumps(
                {"card0": {**ROCM, "Card Series": "AMD Radeon Graphics"}, "system": {"Driver version": "6.12"}})},
            ("AMD Instinct MI325X",), "6.12", "rocm-smi",
        ),
        (
            {"python": "a warning\n" + json.dumps({"names": ["NVIDIA H200"], "build": "CUDA 13.0"})},
            ("NVIDIA H200",), "CUDA 13.0", "torch",
        ),
        (
            {"amd_smi": 1, "rocm_smi": json.dumps({"card0": ROCM, "system": {"Driver version": "6"}})},
            ("AMD Instinct MI325X",), "6", "rocm-smi",
        ),
    ],
)  # fmt: skip
def test_every_tool_is_understood(
    install: Install, programs: dict[str, str | int], devices: tuple[str, ...], driver: str, told_by: str
) -> None:
    assert look(install(**programs)) == Machine(devices, driver, told_by)


@pytest.mark.parametrize(
    ("programs", "why"),
    [
        ({}, "there is no nvidia-smi, amd-smi, rocm-smi or python"),
        ({"nvidia_smi": 9}, "nvidia-smi failed: status 9"),
        ({"nvidia_smi": "no devices were found"}, "nvidia-smi failed: a line has no two columns"),
        ({"amd_smi": "{"}, "amd-smi failed"),
        ({"amd_smi": json.dumps([{"asic": {}}])}, "there is no market_name"),
        ({"rocm_smi": json.dumps([1])}, "rocm-smi failed: it is no object"),
        ({"python": json.dumps({"names": []})}, "torch lists none"),
        ({"python": json.dumps({"names": 3})}, "python failed: it names no devices"),
    ],
)
def test_no_device(install: Install, programs: dict[str, str | int], why: str) -> None:
    with pytest.raises(EngineError, match="no GPU was found") as caught:
        look(install(**programs))
    assert why in caught.value.why
    assert "--dry-run" in caught.value.cure


NVIDIA_TWO = "NVIDIA B200, 580, Disabled\nNVIDIA T400, 580, [N/A]\n"
AMD_TWO = json.dumps([AMD, {**AMD, "asic": {"market_name": "AMD Instinct MI300X"}}])


@pytest.mark.parametrize(
    ("tool", "told", "variables", "wanted"),
    [
        ("nvidia_smi", NVIDIA_TWO, {"CUDA_VISIBLE_DEVICES": "0"}, ("NVIDIA B200",)),
        ("nvidia_smi", NVIDIA_TWO, {"CUDA_VISIBLE_DEVICES": "1, 0"}, ("NVIDIA T400", "NVIDIA B200")),
        ("nvidia_smi", NVIDIA_TWO, {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, ("NVIDIA B200",)),
        ("nvidia_smi", NVIDIA_TWO, {"CUDA_VISIBLE_DEVICES": "GPU-abc"}, ("NVIDIA B200", "NVIDIA T400")),
        ("nvidia_smi", "NVIDIA B200, 580\n" * 8, {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, ("NVIDIA B200",) * 2),
        ("nvidia_smi", NVIDIA_TWO, {"HIP_VISIBLE_DEVICES": "0"}, ("NVIDIA B200", "NVIDIA T400")),
        ("amd_smi", AMD_TWO, {"HIP_VISIBLE_DEVICES": "0"}, ("AMD Instinct MI325X",)),
        ("amd_smi", AMD_TWO, {"CUDA_VISIBLE_DEVICES": "1"}, ("AMD Instinct MI300X",)),
        ("amd_smi", AMD_TWO, {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, ("AMD Instinct MI300X",)),
    ],
)  # fmt: skip
def test_hidden_devices_do_not_count(
    install: Install, tool: str, told: str, variables: dict[str, str], wanted: tuple[str, ...]
) -> None:
    assert look({**install(**{tool: told}), **variables}).devices == wanted


@pytest.mark.parametrize(
    ("variables", "fault"),
    [
        (
            {"CUDA_VISIBLE_DEVICES": "0,7"},
            "CUDA_VISIBLE_DEVICES shows devices 7, this machine has 1 x NVIDIA B200",
        ),
        ({"CUDA_VISIBLE_DEVICES": ""}, "all of them are hidden"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "all of them are hidden"),
    ],
)
def test_variables_that_show_no_device(install: Install, variables: dict[str, str], fault: str) -> None:
    with pytest.raises(EngineError, match=fault):
        look({**install(nvidia_smi=NVIDIA_TWO), **variables})


@pytest.mark.parametrize(
    ("hardware", "name"),
    [
        ("b200", "NVIDIA GB200"),
        ("b200", "NVIDIA B200 MIG"),
        ("h200", "NVIDIA H200 MIG 1g.18gb"),
        ("b200", "NVIDIA B300 SXM6 AC"),
        ("h200", "NVIDIA GH200 480GB"),
        ("h200", "NVIDIA H20"),
        ("mi325x", "AMD Instinct MI300X"),
        ("mi325x", "NVIDIA H200"),
    ],
)
def test_another_machine_is_refused(hardware: str, name: str) -> None:
    with pytest.raises(EngineError, match=f"this machine has 8 x {name}, not {hardware}"):
        refuse_other(Machine((name,) * 8, "", ""), hardware, 8)


@pytest.mark.parametrize(
    ("hardware", "name"),
    [("b200", "NVIDIA B200"), ("h200", "NVIDIA H200"), ("h200", "NVIDIA H200 NVL"),
     ("mi300x", "MI300X-O"), ("h100", "NVIDIA H100 80GB HBM3"),
     ("mi325x", "AMD Instinct MI325X"), ("mi300x", "AMD Instinct MI300X"), ("mi350", "AMD Instinct MI355X")],
)  # fmt: skip
def test_the_machine_that_was_asked_for(hardware: str, name: str) -> None:
    refuse_other(Machine((name,) * 8, "", ""), hardware, 8)
    with pytest.raises(EngineError, match="the target takes 8") as caught:
        refuse_other(Machine((name,) * 4, "", ""), hardware, 8)
    assert "--tensor-parallel-size 4" in caught.value.cure
    with pytest.raises(EngineError, match="not"):
        refuse_other(Machine((name, "NVIDIA T400"), "", ""), hardware, 1)


@pytest.mark.parametrize(
    ("asked", "name", "other"),
    [("gb200", "NVIDIA GB200", "NVIDIA B200"), ("h20", "NVIDIA H20", "NVIDIA H100 80GB HBM3"),
     ("gh200", "NVIDIA GH200 480GB", "NVIDIA H200"), ("h100pcie", "NVIDIA H100 PCIe", "NVIDIA H100 PCIe MIG"),
     ("mi355x", "AMD Instinct MI355X", "AMD Instinct MI350X"), ("gb200", "NVIDIA GB200", "NVIDIA GB200 MIG 1g.23gb")],
)  # fmt: skip
def test_the_machine_that_was_asked_for_by_another_name(asked: str, name: str, other: str) -> None:
    refuse_other(Machine((name,) * 4, "", ""), asked, 4)
    with pytest.raises(EngineError, match=f"this machine has 4 x {other}, not {asked}"):
        refuse_other(Machine((other,) * 4, "", ""), asked, 4)


def test_every_hardware_but_the_cpu_has_a_device_name() -> None:
    assert {*DEVICES, "cpu"} == {*CHIPS}


def test_the_build_of_an_engine(install: Install, tmp_path: Path) -> None:
    packages = live_of("vllm").packages
    told = engine_build(packages, install(python=json.dumps({"vllm": "0.33.0", "torch": "2.14.0+rocm7.0"})))
    assert told == "vllm 0.33.0, torch 2.14.0+rocm7.0"
    assert engine_build(packages, {"PATH": str(tmp_path / "nowhere")}) == "not told"
    assert engine_build(packages, install(python="a traceback")) == "not told"
    assert "torch " in engine_build(
        live_of("trtllm").packages, {}, Path(sys.executable)
    )  # the real thing, of this environment
    assert engine_build((), {}, Path(sys.executable)) == "not told"


# ── logs ───────────────────────────────────────────────────────────────────────────

VLLM_LOG = """
(EngineCore pid=7) INFO 11-21 10:00:01 [cuda.py:506] Using FLASHINFER_MLA attention backend out of potential backends: ['FLASHINFER_MLA', 'CUTLASS_MLA'].
(Worker_TP0 pid=9) INFO 11-21 10:00:02 [compressed_tensors_wNa16.py:138] Using MarlinLinearKernel for CompressedTensorsWNA16
(Worker_TP1 pid=9) INFO 11-21 10:00:02 [compressed_tensors_wNa16.py:138] Using MarlinLinearKernel for CompressedTensorsWNA16
(Worker_TP0 pid=9) INFO 11-21 10:00:03 [__init__.py:923] Using TritonW4A16LinearKernel for mixed-precision linear
(Worker_TP0 pid=9) INFO 11-21 10:00:03 [__init__.py:923] Using MarlinLinearKernel for mixed-precision linear
(Worker_TP0 pid=9) INFO 11-21 10:00:03 [__init__.py:758] Selected FlashInferFP8 for ModelOptFp8LinearMethod
(Worker_TP0 pid=9) INFO 11-21 10:00:04 [selector.py:131] Using TRTLLM_RAGGED MLA prefill backend.
(Worker_TP0 pid=9) INFO 11-21 10:00:04 [cuda.py:547] Using backend FLASH_ATTN for vit attention
"""  # noqa: E501


def test_what_vllm_chose() -> None:
    assert logged_kernels(live_of("vllm").lines, VLLM_LOG.splitlines()) == (
        "attention: FLASHINFER_MLA",
        "linear: MarlinLinearKernel (CompressedTensorsWNA16)",
        "linear: TritonW4A16LinearKernel",
        "linear: FlashInferFP8 (ModelOptFp8LinearMethod)",
        "prefill: TRTLLM_RAGGED",
    )


def test_what_the_others_say(tmp_path: Path) -> None:
    sglang = "server_args=ServerArgs(attention_backend='triton', speculative_draft_attention_backend='aiter')"
    assert logged_kernels(live_of("sglang").lines, [sglang]) == ("attention: triton", "draft attention: aiter")
    default = "WARNING server_args.py: Attention backend not explicitly specified. Use aiter backend by default."
    assert logged_kernels(live_of("sglang").lines, [default]) == ("attention: aiter",)
    assert logged_kernels(live_of("trtllm").lines, ["[TRT-LLM] [I] Using LLM with PyTorch backend"]) == (
        "runtime: PyTorch",
    )
    (tmp_path / "log").write_bytes(b"\xff nothing\n")
    lines = live_of("vllm").lines
    assert kernels_in_log(lines, tmp_path / "log") == kernels_in_log(lines, tmp_path / "none") == "not said"
    assert logged_kernels((), VLLM_LOG.splitlines()) == ()
