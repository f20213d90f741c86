"""`draftconv trace`: what is said where, and what is left when it is cut off."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from draftconv.cli import trace as module
from draftconv.errors import BadCheckpoint
from draftconv.traces.trace import open_trace
from tests.cli.conftest import Run, environment

DATA = Path(__file__).parents[1] / "data"
TARGET = DATA / "targets/llama"
FAST = ("--device", "cpu", "--max-tokens", "4", "--num-speculative-tokens", "2", "--ignore-eos", "--dtype", "float32")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    found = json.loads((DATA / "prompts.json").read_text())
    (tmp_path / "ids.json").write_text(json.dumps([prompt[:12] for prompt in found[:4]]))
    return tmp_path / "ids.json"


def test_a_person_reads_what_was_made_and_what_comes_next(run: Run, prompts: Path) -> None:
    done = run("trace", "--target", TARGET, "--prompts", prompts, "--out", "out", "--limit", 3, *FAST)
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "Note: boundaries 2, 4, 5: the triple that every engine takes by default",
        "Note: 3 requests, at most 54 tokens in float32 on cpu",
        "Note: at most 165.89 kB of states and 1.05 MB of tables",
    ]
    for said in (
        "llama, float32",
        "ids.json, as they are",
        "3 from 3 prompts",
        "36 of prompts, 12 counted, 2 more per request",
        "0 of 3 texts",
    ):
        assert said in done.stdout
    assert done.stdout.splitlines()[-1] == "Next: draftconv parity REFERENCE CANDIDATE --trace out"


def test_json_is_what_trace_json_says(run: Run, prompts: Path, tmp_path: Path) -> None:
    words = ("--boundaries", "0,8", "--lm-head", "--link-tables", "--format", "json")
    done = run("trace", "--target", TARGET, "--prompts", prompts, "--out", "out", *FAST, *words)
    told = json.loads(done.stdout)
    written = json.loads((tmp_path / "out/trace.json").read_text())
    assert told == {key: value for key, value in written.items() if key not in ("format", "version")}
    assert told["boundaries"] == [0, 8]
    assert told["tables"]["lm_head"]["linked"] is True


def test_text_is_drawn_from_all_tokens_where_top_p_is_one(run: Run, prompts: Path) -> None:
    words = ("--temperature", "0.7", "--limit", "1", "--format", "json")
    done = run("trace", "--target", TARGET, "--prompts", prompts, "--out", "out", *FAST, *words, "--top-p", "1")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["sampling"]["top_p"] == 1
    beyond = run("trace", "--target", TARGET, "--prompts", prompts, "--out", "two", *FAST, *words, "--top-p", "1.01")
    assert beyond.exit_code == 2


def test_quiet_says_nothing_on_stdout(run: Run, prompts: Path) -> None:
    done = run("trace", "--target", TARGET, "--prompts", prompts, "--out", "out", *FAST, "--quiet")
    assert (done.exit_code, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--boundaries", "2;4"), "is not a list of numbers like 2,4,5"),
        (("--boundaries", "2,9"), "boundaries 2, 9: llama has 0 to 8"),
        (("--chat",), "has no chat template"),
        (("--batch", "0"), "is not in the range"),
        (("--prompts", "nothing.jsonl"), "no such file"),
    ],
)
def test_what_does_not_fit_exits_with_2(run: Run, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "some.txt").write_text("One prompt.\n")
    done = run("trace", "--target", TARGET, "--prompts", "some.txt", "--out", "out", *FAST, *words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupt_says_what_is_kept(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    def interrupted(*_: object, **__: object) -> None:
        if begun:
            (tmp_path / "out").mkdir()
            (tmp_path / "out/trace.partial.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "trace", interrupted)
    done = run("trace", "--target", TARGET, "--prompts", "x.txt", "--out", "out")
    assert done.exit_code == 130
    kept = "Interrupted: out keeps what was captured; the same command goes on.\n"
    assert done.stderr.lstrip() == (kept if begun else "Interrupted: nothing was left behind.\n")


def test_help_imports_neither_torch_nor_transformers() -> None:
    listing = "import sys; import draftconv.cli.trace; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "numpy", "huggingface_hub", "rich"} & set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_cut_off_in_the_middle(run: Run, prompts: Path, tmp_path: Path, signal_number: signal.Signals) -> None:
    words = ("trace", "--target", str(TARGET), "--prompts", str(prompts), "--batch", "1", "-k", "2",
             "--max-tokens", "200", "--ignore-eos", "--device", "cpu", "--quiet")  # fmt: skip
    argv = [sys.executable, "-m", "draftconv", *words, "--out", "cut"]
    once = environment() | {"OMP_NUM_THREADS": "1"}  # as in this process: another number adds up in another order
    cut = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=once)
    first = tmp_path / "cut/requests/000000.safetensors"
    deadline = time.monotonic() + 120
    while not first.exists() and cut.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    cut.send_signal(signal_number)
    _, stderr = cut.communicate(timeout=120)
    assert cut.returncode == (130 if signal_number == signal.SIGINT else -signal.SIGKILL), stderr
    assert signal_number == signal.SIGKILL or "cut keeps what was captured" in stderr
    with pytest.raises(BadCheckpoint, match="is incomplete"):
        open_trace(tmp_path / "cut")
    stamp = first.stat().st_mtime_ns
    torch.set_num_threads(1)
    for out in ("cut", "whole"):
        assert run(*words, "--out", out).exit_code == 0
    assert first.stat().st_mtime_ns == stamp
    whole = {path.relative_to(tmp_path / "whole"): path for path in (tmp_path / "whole").rglob("*") if path.is_file()}
    left = {path.relative_to(tmp_path / "cut"): path for path in (tmp_path / "cut").rglob("*") if path.is_file()}
    assert left.keys() == whole.keys()
    for name, path in whole.items():
        assert left[name].read_bytes() == path.read_bytes()
