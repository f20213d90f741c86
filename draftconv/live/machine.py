"""What a machine is: its GPUs and driver, by whatever tool is there, and the engine build in an environment."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftconv import limits
from draftconv.checkpoint import show, show_some
from draftconv.checkpoint.text import parse_object
from draftconv.engines.hardware import HARDWARE, devices_of
from draftconv.errors import BadCheckpoint, EngineError

logger = logging.getLogger(__name__)

DEVICES: Mapping[str, tuple[str, ...]] = {name: row.devices for name, row in HARDWARE.items() if row.devices}
"""Hardware by the name that a person gives it → words of its device name."""

SLICE = "MIG"
"""A word of the name of a device that is cut into instances."""

PCI_IDS: Mapping[str, str] = {
    "0x74a1": "AMD Instinct MI300X",
    "0x74b5": "AMD Instinct MI300X VF",
    "0x74a5": "AMD Instinct MI325X",
    "0x75a0": "AMD Instinct MI350X",
    "0x75a3": "AMD Instinct MI355X",
}
"""Device ids, for which drivers that are older than a chip have no name. Source: libdrm, data/amdgpu.ids."""

VISIBLE: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "nvidia-smi": (("CUDA_VISIBLE_DEVICES",),),
    "amd-smi": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    "rocm-smi": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
}
"""Tool that lists hidden devices too → variables that hide them from an engine: of each group the first that is set,
and each group counts what the one before it has left (ROCm documentation, GPU isolation techniques)."""

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
    rows = [[cell.strip() for cell in line.rsplit(",", 2)] for line in text.splitlines() if line.strip()]
    if any(len(row) < 2 for row in rows):
        raise ValueError("a line has no two columns")
    names = tuple(f"{row[0]} {SLICE}" if row[2:] == ["Enabled"] else row[0] for row in rows)
    return Machine(names, rows[0][1] if rows else "", "nvidia-smi")


def _amd(text: str) -> Machine:
    document = _json(text)
    rows = _objects(document.get("gpu_data") if isinstance(document, dict) else document)
    names = tuple(_name(row.get("asic"), "market_name", "device_id") for row in rows)
    return Machine(names, _text(rows[0].get("driver"), "version") if rows else "", "amd-smi")


def _rocm(text: str) -> Machine:
    document = _json(text)
    if not isinstance(document, dict):
        raise ValueError("it is no object")
    cards = [value for name, value in document.items() if name.startswith("card")]
    names = tuple(_name(card, "card series", "card model") for card in _objects(cards))
    return Machine(names, _text(document.get("system", {}), "driver version"), "rocm-smi")


def _torch(text: str) -> Machine:
    document = parse_object(text.strip().rpartition("\n")[2].encode(), "torch's line")
    names = document.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("it names no devices")
    return Machine(tuple(names), str(document.get("build", "")), "torch")


PROBES: tuple[Probe, ...] = (
    Probe(("nvidia-smi", "--query-gpu=name,driver_version,mig.mode.current", "--format=csv,noheader"), _nvidia,
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
            return _visible_devices(machine, environment)
        faults.append(f"{machine.told_by} lists none")
    raise EngineError(
        "no GPU was found on this machine",
        why="; ".join(faults) or "there is no nvidia-smi, amd-smi, rocm-smi or python with torch on the PATH",
        cure="run it on the machine, or add --dry-run to see what would be run",
    )


def refuse_other(machine: Machine, hardware: str, count: int) -> None:
    """Refuse a machine that is not what was asked for.

    Args:
        hardware: a name of `DEVICES`, or another one for it. `count`: devices that the target takes.

    Raises:
        EngineError: other devices, or fewer.
    """
    if any(not _matches(name, hardware) for name in machine.devices):
        raise EngineError(
            f"this machine has {show(machine)}, not {hardware}",
            why="another chip, or a part of one, runs other kernels: its figures would be filed under the wrong name",
            cure="choose the profile of this machine, or hide its other devices with CUDA_VISIBLE_DEVICES "
            "or HIP_VISIBLE_DEVICES",
        )
    if len(machine.devices) < count:
        raise EngineError(
            f"this machine shows {show(machine)}, the target takes {count}",
            why="the server would not start",
            cure=f"show it more devices, or give --tensor-parallel-size {len(machine.devices)} if the target fits",
        )


def _matches(name: str, hardware: str) -> bool:
    name_words = {*re.findall(r"[A-Z0-9]+", name.upper())}
    return SLICE not in name_words and not name_words.isdisjoint(devices_of(hardware))


def engine_build(
    packages: Sequence[str], environment: Mapping[str, str] = os.environ, python: Path | None = None
) -> str:
    """Versions of an engine and of what its kernels come from; `not told` where its Python cannot be asked."""
    try:
        line = _run(("python", "-c", _BUILD, *packages), environment, python)
        versions = parse_object(line.encode(), "versions")
    except (OSError, BadCheckpoint, subprocess.SubprocessError):
        return "not told"
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "not told"


# ── tools ──────────────────────────────────────────────────────────────────────────


def _run(argv: Sequence[str], environment: Mapping[str, str], python: Path | None) -> str:
    program = str(python) if python and argv[0] == "python" else shutil.which(argv[0], path=environment.get("PATH", ""))
    if program is None:
        raise FileNotFoundError(argv[0])
    logger.info("running %s", show(shlex.join([program, *argv[1:]])))
    done = subprocess.run(
        [program, *argv[1:]],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limits.MACHINE.value,
        check=False,
    )
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()
        raise ValueError(f"status {done.returncode}" + (f", {last[-1]}" if last else ""))
    return done.stdout


def _visible_devices(machine: Machine, environment: Mapping[str, str]) -> Machine:
    """Without the devices that variables hide; torch lists none of these."""
    devices = machine.devices
    for group in VISIBLE.get(machine.told_by, ()):
        name = next((name for name in group if name in environment), None)
        if name is None:
            continue
        listed = [entry.strip() for entry in environment[name].split(",") if entry.strip()]
        shown = [int(entry) for entry in listed if re.fullmatch(r"-?\d+", entry)]
        if len(shown) < len(listed):
            # Named otherwise than by number: how many they are is all that can be told.
            devices = devices[: len(listed)] if len({*devices}) == 1 else devices
            continue
        if -1 in shown:  # it and what follows is ignored
            shown = shown[: shown.index(-1)]
        if beyond := [number for number in shown if not 0 <= number < len(devices)]:
            present = Machine(devices, machine.driver, machine.told_by)
            raise EngineError(f"{name} shows devices {show_some(beyond)}, this machine has {show(present)}")
        devices = tuple(devices[number] for number in shown)
    if not devices:
        raise EngineError(
            f"this machine has {show(machine)}, and all of them are hidden",
            why="CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES shows none",
            cure="unset it, or name the devices that the engine may take",
        )
    return Machine(devices, machine.driver, machine.told_by)


def _json(text: str) -> object:
    """The JSON of a tool that prints warnings before it (of groups that a user is not in, of low power)."""
    start = re.search(r"^[\[{]", text, re.MULTILINE)
    return json.loads(text[start.start() :] if start else text)


def _name(part: object, *keys: str) -> str:
    """A device's name: the first of some keys that tells one, or the name that belongs to a device id."""
    values = [_text(part, key) for key in keys if _has(part, key)]
    named = [text for text in values if text.upper() != "N/A" and not text.lower().startswith("0x")]
    ids = [PCI_IDS[text.lower()] for text in values if text.lower() in PCI_IDS]
    candidates = [*(text for text in named if re.search(r"\d", text)), *ids, *named, *values]
    return candidates[0] if candidates else _text(part, *keys)


def _objects(value: object) -> list[Mapping[str, object]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ValueError("it lists no devices")
    return value


def _text(part: object, *keys: str) -> str:
    """The first of some keys that is a text, however it is capitalised."""
    if isinstance(part, dict):
        lower = {str(key).lower(): value for key, value in part.items()}
        for key in keys:
            if isinstance(lower.get(key), str):
                return str(lower[key])
    raise ValueError(f"there is no {' or '.join(keys)}")


def _has(part: object, key: str) -> bool:
    return isinstance(part, dict) and any(str(name).lower() == key and isinstance(part[name], str) for name in part)
