"""One input in a process that is watched from inside: what it writes, runs and connects to, and how it ends.

The commands run in this process, so that thousands a minute can. An audit hook sees every file that is opened for
writing and every program that is started, whoever asks for it; the kernel's limits hold memory and processor time.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from fuzzing.breaking import MARKER
from fuzzing.case import Case, Command
from fuzzing.seeds import LENGTH, PROMPT, Seeds
from fuzzing.served import serving

MEMORY = 1 << 30
"""Bytes that an input may make the process grow by."""
CPU_SECONDS = 10
"""Of the processor, for one input."""
DOCUMENTED = {0, 1, 2, 3, 4}
"""Exit codes of docs/cli.md; 130 is an interrupt, and nobody interrupts."""
LONGEST_ERROR = 10_000
"""Characters of a message."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_STARTS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn", "pickle.find_class")
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")


@dataclass(slots=True)
class Watch:
    """What the hook sees: faults, and where files may be written; None while nothing is watched."""

    room: Path | None = None
    faults: list[str] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.room is None:
            return
        if event in _STARTS:
            self.report(f"{event} {arguments[0]!r}")
        elif event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING:
                self.written(path)
        elif event in _CHANGES:
            relative = event in ("os.remove", "os.rmdir") and arguments[-1] != -1  # below an opened directory
            for path in arguments[
                : 1 if event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod") else 2
            ]:
                if not relative:
                    self.written(path)
        elif event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] != "127.0.0.1":
            self.report(f"connects to {arguments[1][0]}")

    def written(self, path: object) -> None:
        if not isinstance(path, (str, bytes)) or self.room is None:
            return
        room, at = self.room, os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        real = os.path.realpath(os.path.dirname(at))  # noqa: PTH120
        if at != os.devnull and not f"{real}/".startswith(f"{room}/"):
            self.report(f"writes {at}")

    def report(self, fault: str) -> None:
        self.faults.append(f"{fault}\n{''.join(traceback.format_stack(limit=12)[:-2])}")
        raise PermissionError(f"not in this process: {fault}")


WATCH = Watch()


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one input: an exit code per command, and every fault in words."""

    codes: tuple[int, ...]
    faults: tuple[str, ...]


def prepare() -> None:
    """Set the process up: the hook, the memory, what would leave it. Once, after the fork."""
    sys.addaudithook(WATCH)
    grown = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (grown + MEMORY, grown + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ |= {"HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "*", "COLUMNS": "100"}
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        os.environ.pop(name, None)
    from draftconv import cli
    from draftconv.cli import output

    setattr(output, "print_fault", _told(output.print_fault))  # noqa: B010
    setattr(cli, "out_of_memory", lambda _: None)  # noqa: B010  (an input that takes all memory is a fault)


def _told(print_fault: Callable[[Exception], None]) -> Callable[[Exception], None]:
    """What a fault of draftconv prints, with the lines that it passed through."""

    def told(error: Exception) -> None:
        print_fault(error)
        lines = traceback.format_exception(error)
        WATCH.faults.append("a fault of draftconv: " + "".join(lines)[-4000:])

    return told


def run(case: Case, seeds: Seeds, room: Path) -> Ran:
    """Lay a case out and give it to its commands."""
    shutil.rmtree(room, ignore_errors=True)
    (inputs := room / "in").mkdir(parents=True)
    case.lay(inputs)
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + CPU_SECONDS + 1, hard))
    codes: list[int] = []
    faults: list[str] = []
    os.chdir(room)
    tempfile.tempdir = str(room / "tmp")
    (room / "tmp").mkdir()
    with serving(inputs) if case.served else nullcontext("http://127.0.0.1:9") as url:
        os.environ["HF_ENDPOINT"] = url
        for number, command in enumerate(case.commands):
            argv = _filled(command, inputs, room / f"out{number}", seeds)
            if argv[0] == "@verify":
                if codes[-1]:
                    continue
                argv = ["verify", str(room / f"out{number - 1}"), "--against", *argv[1:]]
            code, found = _run(argv, room.resolve(), url)
            if command[0] == "@verify" and code:
                said = "".join((room / name).read_text(errors="replace")[-1500:] for name in ("stdout", "stderr"))
                found.append(f"what was written does not pass: {said}")
            if code == 0:
                for path in (room / f"out{number}").glob("*.json"):
                    found += _not_strict(path.read_text(encoding="utf-8"), path.name)
            codes.append(code)
            faults += [f"{' '.join(command)}: {fault}" for fault in found]
    if any(room.rglob(MARKER)):
        faults.append("a payload was run")
    return Ran(tuple(codes), tuple(faults))


def _filled(command: Command, inputs: Path, out: Path, seeds: Seeds) -> list[str]:
    argv = []
    for argument in command:
        filled = argument.replace("{in}", str(inputs)).replace("{out}", str(out))
        if filled.startswith("{seed:"):
            name, _, rest = filled.removeprefix("{seed:").partition("}")
            filled = f"{seeds.root / name}{rest}"
        argv.append(filled)
    return argv


def _run(argv: list[str], room: Path, url: str) -> tuple[int, list[str]]:
    """Exit code and faults of one command."""
    from huggingface_hub import close_session, constants

    constants.HF_HUB_CACHE = str(room / "hub")
    close_session()
    WATCH.faults = []
    with _redirected(room) as said:
        WATCH.room = room
        try:
            code = _ask(argv[1], url) if argv[0] == "@engine" else _main(argv)
        except BaseException as error:
            code = -1
            WATCH.faults.append(f"{type(error).__name__} left the command: {traceback.format_exc()[-4000:]}")
        finally:
            WATCH.room = None
    faults = WATCH.faults
    out, errors = (path.read_text(encoding="utf-8", errors="surrogateescape") for path in said)
    if code not in DOCUMENTED:
        faults.append(f"exit code {code}")
    if "Traceback (most recent" in errors:
        faults.append(f"a traceback: {errors[-2000:]}")
    if code == 2 and not errors.strip():
        faults.append("exit code 2 without a word")
    if len(errors) > LONGEST_ERROR:
        faults.append(f"{len(errors)} characters of messages: {errors[:300]}")
    if code in (0, 1) and "json" in argv and out.strip():
        faults += _not_strict(out, "what --format json prints")
    return code, faults


def _main(argv: list[str]) -> int:
    from draftconv.cli import cli

    try:
        cli.main(argv)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _ask(name: str, url: str) -> int:
    """What `parity --url` asks a server, without its pauses; a refusal has its exit code."""
    from draftconv.engines import ENGINES
    from draftconv.engines.client import RequestSettings
    from draftconv.errors import DraftconvError

    live = ENGINES[name].live
    if live is None:
        raise LookupError(name)
    client = live.connect(url, "--url", RequestSettings(3, LENGTH, timeout=5.0))
    for waiting in ("settling", "rest"):
        if hasattr(client, waiting):
            setattr(client, waiting, 0.02)
    try:
        client.served(PROMPT)
        client.ask(PROMPT)
    except DraftconvError as error:
        print(error.what, file=sys.stderr)
        return error.exit_code
    finally:
        sys.stderr.flush()
    return 0


def _not_strict(text: str, where: str) -> Iterator[str]:
    """A fault where a text is no JSON as other languages read it."""

    def refuse(constant: str) -> float:
        raise ValueError(f"it holds {constant}")

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError as error:
        yield f"{where} is no JSON: {error}: {text[:200]}"


@contextmanager
def _redirected(room: Path) -> Iterator[tuple[Path, Path]]:
    """stdout and stderr in files, also for what a library writes to the descriptors."""
    paths = room / "stdout", room / "stderr"
    kept = [os.dup(number) for number in (1, 2)]
    for number, path in enumerate(paths, 1):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    try:
        yield paths
    finally:
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
