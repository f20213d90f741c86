"""What a live run says of the machine that it starts engines on, once that is the one that was asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping

from draftconv.engines import EngineSpec
from draftconv.live.capabilities import live_of
from draftconv.live.machine import engine_build, look, refuse_other
from draftconv.live.options import LiveOptions


def machine_summary(options: LiveOptions, spec: EngineSpec) -> Mapping[str, str]:
    """Profile, GPUs, driver, engine build and variables, by name, for the report.

    Raises:
        EngineError: hardware is named, and this machine has none of it or other devices.
    """
    environment = {**options.environment, **os.environ}
    summary = {"engine build": engine_build(live_of(spec.name).packages, environment, options.python)}
    if spec.hardware not in (None, "cpu"):
        machine = look(environment, options.python)
        refuse_other(machine, spec.machine or spec.hardware, options.tensor_parallel_size)
        summary |= {"GPU": str(machine), "GPU driver": machine.driver or "not told"}
    if options.profile:
        summary["profile"] = options.profile
    if options.environment:
        summary["environment"] = " ".join(f"{name}={environment[name]}" for name in options.environment)
    return summary
