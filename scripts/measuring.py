"""What the parts of scripts/bench share: whole processes measured, rows of a table, the machine.

The parts import nothing but the standard library: a child process reports at least the peak memory of the
process that started it, so the one that measures has to be small.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

SCRIPTS = Path(__file__).parent
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss


class BenchError(Exception):
    """The measurement could not be made."""


@dataclass(frozen=True)
class Run:
    """One whole process: wall-clock seconds, peak resident bytes, and what it wrote to stdout."""

    seconds: float
    peak_bytes: int
    stdout: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the report; `met` is None where there is no target."""

    what: str
    measured: str
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Section:
    """A part of the report: its heading, what was measured and how, and the figures."""

    title: str
    about: str
    rows: tuple[Row, ...]

    @property
    def met(self) -> bool:
        """Whether every target was."""
        return all(row.met is not False for row in self.rows)

    def markdown(self) -> str:
        """Everything below the heading."""
        verdicts = {None: "", True: "yes", False: "**no**"}
        table = [f"| {row.what} | {row.measured} | {row.target} | {verdicts[row.met]} |" for row in self.rows]
        return "\n".join([self.about, "", "| what | measured | target | met |", "|---|---|---|---|", *table]) + "\n"


def run(argv: Sequence[str | Path], environment: Mapping[str, str] = os.environ) -> Run:
    """Run a program to its end; what it says is shown only if it fails."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        started = time.perf_counter()
        redirections = [(os.POSIX_SPAWN_DUP2, stdout.fileno(), 1), (os.POSIX_SPAWN_DUP2, stderr.fileno(), 2)]
        pid = os.posix_spawnp(str(argv[0]), [str(arg) for arg in argv], environment, file_actions=redirections)
        _, status, usage = os.wait4(pid, 0)
        seconds = time.perf_counter() - started
        texts = []
        for output in (stdout, stderr):
            output.seek(0)
            texts.append(output.read().decode(errors="replace"))
        if code := os.waitstatus_to_exitcode(status):
            raise BenchError(f"{' '.join(map(str, argv))}\nended with code {code}:\n{''.join(texts)}")
    return Run(seconds, usage.ru_maxrss * MAXRSS_BYTES, texts[0])


def durable(argv: Sequence[str | Path], out: Path, environment: Mapping[str, str] = os.environ) -> Run:
    """Run a program and bring the file or directory that it wrote onto the disk; that is timed too."""
    started = time.perf_counter()
    done = run(argv, environment)
    for path in [out] if out.is_file() else out.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    return replace(done, seconds=time.perf_counter() - started)


def remove(path: Path) -> None:
    """A file or a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def engine_python() -> Path:
    """The Python of the environment that has vLLM: `scripts/engine-env` makes one, the variable names another."""
    return Path(os.environ.get("DRAFTCONV_ENGINE_PYTHON", SCRIPTS.parent / ".engine-venv" / "bin" / "python"))


def spread(seconds: Sequence[float]) -> str:
    """Median, fastest and slowest."""
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def machine() -> str:
    """What the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{cpu_model()}, {os.cpu_count()} cores, {memory:.0f} GiB memory, "
        f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}"
    )


def cpu_model() -> str:
    """The processor's name, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def least_memory() -> float:
    """Peak memory that a process would report which does nothing, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES / 1e6


def progress(text: str) -> None:
    """Say on stderr what goes on."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
