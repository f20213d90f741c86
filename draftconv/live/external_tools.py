"""Programs of other people that measure a server: in the engine's environment, run as they are, their JSON read."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.checkpoint.text import parse_object
from draftconv.engines.live import Tool
from draftconv.errors import BadCheckpoint, EngineError
from draftconv.live.process import engine_process, tail

_FIND = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


def refuse_missing(tool: Tool, python: Path | None, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse before any server is started.

    Raises:
        EngineError: the program is not in the engine's environment.
    """
    program = str(python) if python else shutil.which("python", path=environment.get("PATH", "")) or ""
    try:
        done = subprocess.run(
            [program, "-c", _FIND, tool.package],
            env=dict(environment),
            capture_output=True,
            check=False,
            timeout=limits.MACHINE.value,
        )
        missing = done.returncode != 0
    except (OSError, subprocess.SubprocessError):
        missing = True
    if missing:
        raise EngineError(
            f"{tool.title} is not installed beside the engine",
            why="draftconv has no load generator and no benchmark of its own",
            cure=f"{show(program or 'python')} -m pip install {tool.install!r}",
        )


def run_tool(
    tool: Tool, argv: Sequence[str], directory: Path, log: str, environment: Mapping[str, str] = os.environ
) -> None:
    """Run a program to its end, its output in a file.

    Raises:
        EngineError: it cannot be started or failed.
    """
    path = directory / log
    with engine_process(argv, log=path, directory=directory, environment=environment) as process:
        status = process.wait()
    if status:
        raise EngineError(
            f"{tool.title} ended with status {status}",
            why=tail(path),
            cure=f"if a module is missing: {show(argv[0])} -m pip install {tool.install!r}; the same command goes on",
        )


def read_result(tool: Tool, path: Path) -> Mapping[str, object]:
    """The JSON object that it wrote; the last line of a file of several.

    Raises:
        EngineError: it wrote none.
    """
    try:
        data = path.read_bytes().strip()
        *_, last = data.splitlines() or [b""]
        return parse_object(last if last.startswith(b"{") else data, path.name)
    except (OSError, BadCheckpoint) as error:
        reason = error.what if isinstance(error, BadCheckpoint) else error.strerror
        raise EngineError(f"{tool.title} wrote no result: {reason}", why=f"{tool.source} says it does") from error


def figure(tool: Tool, result: Mapping[str, object], key: str) -> float:
    """A number that is one.

    Raises:
        EngineError: it is missing, no number, not finite or negative.
    """
    value = result.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise EngineError(
            f"{tool.title} wrote {show(key)}: {show(json.dumps(value, default=str))}",
            why=f"a figure was expected ({tool.source})",
        )
    return float(value)
