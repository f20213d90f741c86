"""SGLang's own server with the trained drafters, on a CPU: its compiled kernels are stood in for, and nothing else.

Runs where its environment is: `scripts/sglang-env` makes `.sglang-venv`, DRAFTCONV_SGLANG_PYTHON names the Python of
another. `scripts/engine-truth sglang` asks the same engine, without a server, about every drafter and depth.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from truth.sglang.serving import complete_target, copied, launcher

from draftconv.api.convert import convert
from draftconv.api.live import LiveOptions, live_parity
from draftconv.api.serve import serve
from draftconv.engines.client import Client, RequestSettings
from draftconv.engines.http import Http
from draftconv.errors import EngineError, Unfinished
from draftconv.live.capabilities import live_of
from draftconv.live.launch import address, free_port, launched
from draftconv.live.measuring_command import measuring
from draftconv.report import Report
from tests.keywords import keywords
from tests.reference.test_fixtures import DATA

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("DRAFTCONV_SGLANG_PYTHON", ROOT / ".sglang-venv" / "bin" / "python"))
LENGTH = 64
"""Tokens of the texts in measured.json."""
PROMPTS = json.loads((DATA / "prompts.json").read_text())
FEW = 12
"""Prompts that are asked; equal counts need no interval."""
CONTEXT = 160
END = 303
"""The 20th token after the first prompt."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no SGLang environment; scripts/sglang-env makes one"),
]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """What starts SGLang's server on a CPU."""
    return starter(tmp_path / "python")


def starter(path: Path, **arguments: object) -> Path:
    path.write_text(launcher(PYTHON, **arguments))
    path.chmod(0o755)
    return path


def converted(tmp_path: Path, drafter: str, to: str) -> Path:
    out = tmp_path / f"{drafter}-{to}"
    convert(DATA / "drafters" / drafter, out, to=to, target=str(DATA / "targets" / drafter.partition("-")[0]))
    return out


def options(tmp_path: Path, target: Path) -> LiveOptions:
    return LiveOptions(
        engine="sglang",
        target=str(target),
        run=tmp_path / "run",
        prompts=str(DATA / "prompts.json"),
        limit=FEW,
        margin=0,
        max_tokens=LENGTH,
        timeout=120,
        start_timeout=400,
    )


def equal_requests(report: Report, arm: str, drafter: str) -> int:
    """How many requests the server and the reference's own decoding count alike."""
    measured = json.loads((DATA / "measured.json").read_text())["drafters"][drafter]
    found = {line.id: (line.counts.steps, line.counts.accepted) for line in report.records if line.arm == arm}
    own = dict(enumerate(zip(measured["steps"], measured["accepted"], strict=True)))
    return sum(found[str(i)] == counts for i, counts in own.items() if str(i) in found)


@contextmanager
def running(drafter: Path, target: Path, python: Path, directory: Path) -> Iterator[str]:
    """The address of a server, started with the command that `serve` prints."""
    command = serve(drafter, engine="sglang", target=str(target))
    port = free_port()
    with launched(measuring(command.argv, {}, live_of("sglang"), (), patience=400, python=python), port, directory):
        yield address(port)


def client(url: str, length: int = LENGTH, *, depth: int = 3, ignore_eos: bool = True) -> Client:
    return live_of("sglang").connect(url, "--url", RequestSettings(depth, length, ignore_eos=ignore_eos))


def test_servers_that_are_started(tmp_path: Path, python: Path) -> None:
    """MLA, EAGLE-3.1: one spelling for SGLang, one for all engines."""
    own, portable = (converted(tmp_path, "mla-eagle3.1", to) for to in ("sglang", "portable"))
    target = complete_target(DATA / "targets/mla", tmp_path / "mla")
    asked = replace(options(tmp_path, target), launch=True, engine_python=python)
    report = live_parity(own, [portable], **keywords(asked))
    comparison = report.comparisons[0]
    assert (comparison.verdict.outcome, report.about.settings["engine"]) == ("pass", "SGLang 0.5.23")
    assert report.identical(comparison) == FEW
    assert equal_requests(report, own.name, "mla-eagle3.1") >= 0.9 * FEW


def test_servers_that_run(tmp_path: Path, python: Path) -> None:
    """Side by side: a scale doubled, as no loader notices. In turn: a server that was not swapped."""
    sound, broken = (converted(tmp_path, "llama-eagle3.1", to) for to in ("sglang", "portable"))
    tensors = load_file(broken / "model.safetensors")
    (doubled,) = [name for name in tensors if name.endswith("mlp.down_proj.weight")]
    save_file({**tensors, doubled: tensors[doubled] * 2}, broken / "model.safetensors", {"format": "pt"})
    target = copied(DATA / "targets/llama", tmp_path / "llama", eos_token_id=END)
    with (
        running(sound, target, starter(tmp_path / "short", context_length=CONTEXT), tmp_path / "one") as one,
        running(broken, target, python, tmp_path / "two") as two,
    ):
        side = replace(options(tmp_path, target), url_ref=one, url_cand=(two,))
        report = live_parity(sound, [broken], **keywords(side))
        comparison = report.comparisons[0]
        assert comparison.verdict.outcome == "fail"
        assert report.identical(comparison) == FEW  # greedy float32 text does not depend on the drafter
        assert equal_requests(report, sound.name, "llama-eagle3.1") >= 0.9 * FEW
        assert equal_requests(report, broken.name, "llama-eagle3.1") < 0.5 * FEW

        turn = replace(options(tmp_path, target), run=tmp_path / "turn", url=one, limit=4)
        with pytest.raises(Unfinished, match=f"{broken.name} is next"):
            live_parity(sound, [broken], **keywords(turn))
        with pytest.raises(EngineError, match="it should with"):
            live_parity(sound, [broken], **keywords(turn))
        check_answers(one)


def check_answers(url: str) -> None:
    """What a client asks beside parity's usual requests, of a server with a context of `CONTEXT`."""
    with pytest.raises(EngineError, match="drafts 3 tokens per step, --num-speculative-tokens asks for 2"):
        client(url, depth=2).served(PROMPTS[0])
    room = client(url).served(PROMPTS[0]).room
    assert room == CONTEXT - 4  # drafts of one step lie there
    longest = room - len(PROMPTS[0])
    assert len(client(url, longest).ask(PROMPTS[0]).tokens) == longest
    with pytest.raises(EngineError, match="exceeds the model's maximum context length of 160 tokens"):
        client(url, longest + 1).ask(PROMPTS[0])
    ended = client(url, ignore_eos=False).ask(PROMPTS[0])
    assert (len(ended.tokens), ended.tokens[-1]) == (20, END)  # what ends a text is part of it
    assert client(url, 1).ask(PROMPTS[0]).counts.steps == 0


def test_serve_starts_it_and_nothing_is_left(tmp_path: Path, python: Path) -> None:
    """`serve --exec`: the process becomes the server; killed, it takes its own processes with it."""
    drafter, port = converted(tmp_path, "mla-eagle3", "sglang"), free_port()
    target = complete_target(DATA / "targets/mla", tmp_path / "mla")
    words = ["serve", str(drafter), "--for", "sglang", "--target", str(target), "--engine-python", str(python)]
    argv = [sys.executable, "-m", "draftconv", *words, "--port", str(port), "--exec"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log)
    http = Http(address(port), "--url", "SGLang", timeout=30, attempts=1)
    try:
        until(lambda: http.answers("/health") or server.poll() is not None, 400)
        assert server.poll() is None, (tmp_path / "log").read_text()[-2000:]
        info = http.get("/server_info")
        assert info.text("speculative_draft_model_path") == str(drafter)
        answer = client(address(port)).ask(PROMPTS[0])
        assert answer.counts.steps > 0
        started = descendants(server.pid)
        assert len(started) >= 2
    finally:
        server.kill()
        server.wait(60)
    until(lambda: not any(alive(pid) for pid in started), 30)


def until(done: Callable[[], bool], patience: float) -> None:
    deadline = time.monotonic() + patience
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they started."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(below for child in children for below in descendants(child))]


def alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits to be asked for its exit code does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
