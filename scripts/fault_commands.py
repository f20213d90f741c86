"""The commands that faults are injected into, on the smallest fixtures, and what each must leave behind."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from injection import Ran

import draftconv
from draftconv.cli import cli
from tests import tiny
from tests.checkpoint.stub_hub import REPO, Hub, serving

DATA = Path(__file__).resolve().parents[1] / "tests/data"

PARTIAL = "trace.partial.json"
"""What a trace is begun with; nobody reads it beside a trace that is complete."""

ROOM = ".out.draftconv"
"""Where outputs are made; the next run removes what it finds there."""

Tree = Mapping[str, bytes | None]
"""What lies in a directory: path → contents; None for a directory."""


def tree(root: Path) -> Tree:
    """Everything below a directory; nothing where there is none."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


def below(whole: Tree, directory: str) -> Tree:
    """The part of a tree below one of its directories."""
    return {
        name.removeprefix(f"{directory}/"): data for name, data in whole.items() if name.startswith(f"{directory}/")
    }


def program(words: Sequence[str], work: Path) -> Callable[[], int]:
    """`draftconv` with these arguments in this directory; gives its exit code."""

    def run() -> int:
        os.chdir(work)
        if torch := sys.modules.get("torch"):
            # a fork makes torch's pool anew at the first use, and fails where two threads are the first
            torch.set_num_threads(1)
        try:
            cli.main(list(words))
        except SystemExit as error:
            return error.code if isinstance(error.code, int) else 0 if error.code is None else 1

    return run


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an undisturbed run gives.

    Attributes:
        code: its exit code. `tree`: of `work` afterwards. `hub`: what the Hub then holds.
    """

    code: int
    tree: Tree
    hub: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """One command that faults are injected into.

    Attributes:
        name: of its row. `words`: what is typed. `again`: what is typed next, after a fault.
        out: what it writes, by name. `prepare`: puts into `work` what is there beforehand.
        keeps: whether what it did so far is kept by design, for the same command to go on.
        source: what its output has to pass `verify` against; None where that is not what it is for.
    """

    name: str
    words: tuple[str, ...]
    again: tuple[str, ...]
    out: str
    prepare: Callable[[Path], object] = lambda _: None
    keeps: bool = False
    hub: Hub | None = None
    source: str | None = None

    def faults(self, before: Tree, whole: Outcome, ran: Ran, after: Tree) -> Iterator[str]:
        """What is wrong with how a run ended that was disturbed."""
        out, was, full = (below(part, self.out) for part in (after, before, whole.tree))
        complete = out == full or (self.keeps and {k: v for k, v in out.items() if k != PARTIAL} == full)
        killed = ran.code == -9
        if not complete and out != was and not (self.keeps and "trace.json" not in out):
            yield "what stands under the final name is neither the old nor the complete new output"
        if self.held() not in ({}, whole.hub):
            yield f"the Hub holds a part: {sorted(self.held())}"
        if killed:
            return
        finished = complete and self.held() == whole.hub
        if ran.code is None:
            yield "it hangs"
        elif ran.code == whole.code:
            if not finished:
                yield "it says that it succeeded and has not"
            elif (left := sorted(after.keys() - whole.tree.keys())) and "could not be removed" not in ran.said:
                yield f"it succeeded and left {left}, without a word"
            elif any(name.removeprefix(f"{self.out}/") != PARTIAL and not name.startswith(ROOM) for name in left):
                yield f"it succeeded and left {left}, which no next run removes"
        elif ran.code != 2:
            yield f"exit code {ran.code}"
        elif ran.said.count("Error: ") != 1 or "Traceback" in ran.said or "fault of draftconv" in ran.said:
            yield f"not one error in words: {ran.said.strip()[-200:]!r}"
        elif "othing was left behind" in ran.said and after != before:
            changed = sorted(name for name in {*after, *before} if after.get(name, b"?") != before.get(name, b"?"))
            yield f"it says that nothing was left behind, and {changed[:4]} was"

    def faults_of_next(self, whole: Outcome, ran: Ran, after: Tree) -> Iterator[str]:
        """What is wrong with the next run, which nobody disturbed."""
        if ran.code != whole.code:
            yield f"the next run exits with {ran.code}: {ran.said.strip()[-200:]!r}"
        elif after != whole.tree:
            yield f"the next run gives something else: {sorted(after.keys() ^ whole.tree.keys())[:4]}"
        elif self.held() != whole.hub:
            yield "the next run pushes something else"

    def held(self) -> dict[str, bytes]:
        """What was committed to the Hub."""
        return dict(self.hub.pushed) if self.hub is not None else {}

    def reset(self) -> None:
        """Give the Hub back as it was."""
        if self.hub is not None:
            self.hub.pushed.clear()
            self.hub.deleted.clear()
            self.hub.committed.clear()
            self.hub.log.clear()


@contextmanager
def commands(inputs: Path) -> Iterator[tuple[Command, ...]]:
    """Make the inputs and give every command; the Hub is there until the end."""
    source = str(tiny.spell("llama", "torchspec-native").write(inputs / "source"))
    older = inputs / "older"
    draftconv.convert(source, older, to="sglang")
    pushed = inputs / "pushed"
    draftconv.convert(source, pushed, to="vllm")
    target, drafter = str(DATA / "targets/llama"), str(DATA / "drafters/llama-eagle3")
    (inputs / "ids.json").write_text(json.dumps([p[:8] for p in json.loads((DATA / "prompts.json").read_text())[:2]]))
    tracing = ("trace", "--target", target, "--prompts", str(inputs / "ids.json"), "--max-tokens", "4", "-k", "2",
               "--device", "cpu", "--dtype", "float32", "--ignore-eos", "--boundaries", "2,4,5", "--batch", "1",
               "--out")  # fmt: skip
    if (code := program([*tracing, str(inputs / "trace"), "--quiet"], inputs)()) != 0:
        raise SystemExit(f"the trace to replay could not be made: exit code {code}")
    parity = (
        "parity",
        drafter,
        drafter,
        "--trace",
        str(inputs / "trace"),
        "-k",
        "2",
        "--report",
        "out",
        "--overwrite",
    )  # fmt: skip  (the report repeats the command)

    accept = ("accept", drafter, "--trace", str(inputs / "trace"), "-k", "2", "--report", "out", "--overwrite")

    def older_stands(work: Path) -> None:
        shutil.copytree(older, work / "out")

    def output_stands(work: Path) -> None:
        shutil.copytree(pushed, work / "out")

    convert = ("convert", source, "out", "--to", "vllm")
    quantize = ("quantize", source, "out", "--recipe", "fp8")
    (inputs / "counts.json").write_text(json.dumps([[i % tiny.VOCAB] * 40 for i in range(200)]))
    prune = ("prune", source, "out", "--vocab", "64", "--counts", str(inputs / "counts.json"), "--keep", "0", "--force")
    with serving(Hub({".gitattributes": b""}, private=True, patience=1)) as hub, _endpoint(hub):
        yield (
            Command("convert", convert, (*convert, "--overwrite"), "out", source=source),
            Command(
                "convert --overwrite",
                (*convert, "--overwrite"),
                (*convert, "--overwrite"),
                "out",
                older_stands,
                source=source,
            ),
            Command("quantize", quantize, (*quantize, "--overwrite"), "out", source=source),
            Command("prune", prune, (*prune, "--overwrite"), "out", source=source),
            Command("trace", (*tracing, "out"), (*tracing, "out"), "out", keeps=True),
            Command("parity --report", parity, parity, "out"),
            Command("accept --report", accept, accept, "out"),
            Command("push", ("push", "out", REPO), ("push", "out", REPO), "out", output_stands, hub=hub),
        )


@contextmanager
def _endpoint(hub: Hub) -> Iterator[None]:
    """The stub as the Hub of this process and its children, without anybody's token."""
    from huggingface_hub import close_session

    kept = dict(os.environ)
    os.environ |= {"HF_ENDPOINT": hub.url, "NO_PROXY": "*", "HF_TOKEN": "hf_stub"}
    close_session()
    try:
        yield
    finally:
        close_session()
        os.environ.clear()
        os.environ |= kept
