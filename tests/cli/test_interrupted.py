"""Ctrl-C in commands that keep what they did: they say where it lies, and the next run that it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftconv.replay import gptq
from draftconv.search import measuring
from draftconv.search.measuring import Half
from tests.cli.conftest import Run
from tests.reference.test_fixtures import DATA
from tests.searched import halves as halves
from tests.traces.recorded import Recorded

LLAMA, TARGET = DATA / "drafters/llama-eagle3", DATA / "targets/llama"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def left(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


@pytest.mark.parametrize("begun", [True, False])
def test_quantize_says_where_it_goes_on(
    begun: bool, run: Run, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("quantize", LLAMA, "out", "--recipe", "w4a16-gptq", "--for", "vllm:b200", "--target", TARGET,
             "--calibrate", recorded("llama", count=8, length=64))  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(gptq, "choose" if begun else "collect", interrupted)
        stopped = run(*words)
    assert stopped.exit_code == 130
    if begun:
        assert "Interrupted: .out.calibration keeps what was rounded; the same command goes on.\n" in stopped.stderr
        assert left(tmp_path) == [".out.calibration"]
    else:
        assert "Interrupted: nothing was left behind.\n" in stopped.stderr
        assert left(tmp_path) == []
    again = run(*words)
    assert again.exit_code == 0, again.stderr
    goes_on = "Note: going on with what an earlier run did, which is in .out.calibration beside out\n"
    assert (goes_on in again.stderr) == begun
    assert left(tmp_path) == ["out"]


def test_slim_says_where_it_goes_on(run: Run, halves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("slim", LLAMA, "out", "--for", "vllm:b200", "--trace", halves, "--target", TARGET, "--max-loss", "0.1")
    measure, seen = Half.pairs, list[str]()

    def stops(*args: object) -> object:
        seen.append("asked")
        if len(seen) == 2:
            raise KeyboardInterrupt
        return measure(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(measuring.Half, "pairs", stops)
    stopped = run(*words)
    assert stopped.exit_code == 130
    assert "Interrupted: .out.search keeps what was measured; the same command goes on.\n" in stopped.stderr
    assert left(tmp_path) == [".out.search"]
    seen.clear()
    again = run(*words)
    assert "Note: going on with what an earlier run did, which is in .out.search beside out\n" in again.stderr
    assert again.exit_code == 130  # stopped once more, which is soon enough to know
