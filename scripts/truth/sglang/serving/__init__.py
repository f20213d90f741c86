"""SGLang 0.5.23 itself on a CPU, its compiled kernels stood in for. TEST ONLY: no part of draftconv.

Scheduler, EAGLE worker, KV cache, models and server are SGLang's own; what is not is in `stand_in`, which every
process of it finds on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

STAND_IN = Path(__file__).parent / "stand_in"

ENVIRONMENT: Mapping[str, str] = MappingProxyType({
    "PYTHONPATH": str(STAND_IN),
    "SGLANG_USE_CPU_ENGINE": "1",  # else its modules look for the kernels of a GPU
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes 20 s, and models of this size gain nothing by it
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
})  # fmt: skip
"""Variables of every process."""

ARGUMENTS: Mapping[str, object] = MappingProxyType({
    "device": "cpu",
    "attention_backend": "intel_amx",  # no other drafts on a CPU
    "mem_fraction_static": 0.2,
    "skip_server_warmup": True,
})  # fmt: skip
"""Arguments beside those that `draftconv serve` prints, as Python names them."""


def environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of a process of SGLang, which may find other modules behind the stand-in."""
    paths = [ENVIRONMENT["PYTHONPATH"], *filter(None, [base.get("PYTHONPATH")])]
    return {**base, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}


def arguments(**more: object) -> tuple[str, ...]:
    """The same as a command line has them, with others."""
    words: list[str] = []
    for name, value in {**ARGUMENTS, "dtype": "float32", "max_total_tokens": 4096, **more}.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return tuple(words)


def launcher(python: Path, **more: object) -> str:
    """A program for `--engine-python`: a Python that starts SGLang's server as a CPU can run it, and nothing else.

    Args:
        python: of the environment that has SGLang. `more`: other arguments, as Python names them.
    """
    variables = shlex.join(f"{name}={value}" for name, value in ENVIRONMENT.items())
    return f'#!/bin/sh\nexec env {variables} {shlex.quote(str(python))} "$@" {shlex.join(arguments(**more))}\n'


def complete_target(target: Path, directory: Path) -> Path:
    """A target with the key that SGLang's DeepSeek classes ask of its config and every published one has.

    Source: srt/models/deepseek_v2.py, `config.moe_layer_freq`; the MLA target of the fixtures is dense throughout.

    Args:
        directory: is made where the key is missing.
    """
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    if not config["model_type"].startswith("deepseek"):
        return target
    return copied(target, directory, moe_layer_freq=1)


def copied(target: Path, directory: Path, **keys: object) -> Path:
    """A target with other values in its config; draftconv opens no checkpoint whose weights are linked to."""
    shutil.copytree(target, directory)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").write_text(json.dumps({**config, **keys}), encoding="utf-8")
    return directory
