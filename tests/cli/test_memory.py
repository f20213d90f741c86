"""Too little memory in the middle of a command: one message, with what it takes, and nothing half written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from draftconv.cli.memory import out_of_memory
from draftconv.conversion.plan import Conversion
from draftconv.replay import gptq
from tests.cli.conftest import Run
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded

LLAMA, TARGET = DATA / "drafters/llama-eagle3", DATA / "targets/llama"
ERRORS: Mapping[str, Callable[[], Exception]] = {"Python": MemoryError, "C++": lambda: RuntimeError("std::bad_alloc")}


def fails(error: str) -> object:
    def broken(*_: object, **__: object) -> None:
        raise ERRORS[error]()

    return broken


@pytest.mark.parametrize("error", ERRORS)
def test_quantize_says_what_gptq_takes_and_goes_on(
    error: str, run: Run, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    words = ("quantize", LLAMA, "out", "--recipe", "w4a16-gptq", "--for", "vllm:b200", "--target", TARGET,
             "--calibrate", recorded("llama", count=8, length=64))  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(gptq, "choose", fails(error))
        done = run(*words)
    assert done.exit_code == 2
    assert "Error: out of memory: this process could not get more\n" in done.stderr
    kept = ".out.calibration keeps what was rounded; the same command goes on; GPTQ takes about 392.67 MB"
    assert kept in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".out.calibration"]
    again = run(*words)
    assert again.exit_code == 0
    assert "Note: going on with what an earlier run did" in again.stderr


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("words", [("convert",), ("quantize", "--recipe", "w4a16")], ids=lambda words: words[0])
def test_what_is_written_says_what_it_takes(
    words: tuple[str, ...], error: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Conversion.write

    def late(*given: object, **how: object) -> None:
        monkeypatch.setattr("draftconv.checkpoint.staging.sync_directory", fails(error))
        write(*given, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Conversion, "write", late)
    name, *rest = words
    to = ("--to", "vllm") if name == "convert" else ("--for", "vllm:b200")
    done = run(name, LLAMA, "out", *rest, *to, "--target", TARGET)
    assert done.exit_code == 2
    assert "Error: out of memory: this process could not get more\n       It takes about " in done.stderr
    assert "; nothing half written was left behind\n" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [ValueError("out of memory"), OSError(28, "No space left on device"), ImportError("no such symbol")]
)
def test_other_faults_are_not_taken_for_it(error: Exception) -> None:
    assert out_of_memory(error) is None


def test_a_library_that_cannot_be_loaded_for_lack_of_memory() -> None:
    assert out_of_memory(ImportError("libopenblas.so: failed to map segment from shared object")) is not None
