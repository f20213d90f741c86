"""NaN in a replay: the request is named, and the trace is blamed where its own states are not finite."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import draftconv
from draftconv.errors import BadCheckpoint
from draftconv.traces.states import raw
from draftconv.traces.trace import open_trace
from tests.reference.test_fixtures import DATA
from tests.searched import halves as halves

LLAMA, TARGET = DATA / "drafters/llama-eagle3", DATA / "targets/llama"
VALUE = {"nan": torch.nan, "inf": torch.inf}


def spoiled(trace: Path, out: Path, value: float, last: bool) -> str:
    """A copy of a trace in which one state of a request is no number, under the hash that it then has; its id."""
    shutil.copytree(trace, out)
    document = json.loads((out / "trace.json").read_text())
    row = document["requests"][-1 if last else 0]
    file = out / "requests" / row["file"]
    tensors = load_file(file)
    tensors["hidden_states"][:, :, 5] = value
    save_file(tensors, file)
    row["states"] = hashlib.sha256(raw(tensors["hidden_states"])).hexdigest()
    (out / "trace.json").write_text(json.dumps(document))
    open_trace(out)
    return str(row["id"])


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def accepts(trace: Path, _: Path) -> object:
    return draftconv.accept(LLAMA, trace=trace)


def slims(trace: Path, out: Path) -> object:
    return draftconv.slim(LLAMA, out, engine="vllm:b200", trace=trace, target=str(TARGET), max_loss=0.1)


def rounds(trace: Path, out: Path) -> object:
    return draftconv.quantize(LLAMA, out, recipe="w4a16-gptq", calibrate=trace)


def scales(trace: Path, out: Path) -> object:
    return draftconv.quantize(LLAMA, out, recipe="fp8-tensor", calibrate=trace)


@pytest.mark.parametrize("value", VALUE)
@pytest.mark.parametrize("command", [accepts, slims, rounds, scales])
def test_a_trace_with_a_state_that_is_no_number_is_blamed(
    command: Callable[[Path, Path], object], value: str, halves: Path, tmp_path: Path
) -> None:
    id = spoiled(halves, tmp_path / "trace", VALUE[value], last=False)
    with pytest.raises(BadCheckpoint) as error:
        command(tmp_path / "trace", tmp_path / "out")
    assert error.value.what.startswith(f"the trace's request {id} holds states that are not finite, the first of them")
    assert "draftconv trace" in error.value.cure
    assert "inspect" not in error.value.cure
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]


def test_the_request_is_the_one_among_those_of_a_batch(halves: Path, tmp_path: Path) -> None:
    id = spoiled(halves, tmp_path / "trace", torch.nan, last=True)
    with pytest.raises(
        BadCheckpoint, match=f"request {id} holds states that are not finite, the first of them at token 0"
    ):
        accepts(tmp_path / "trace", tmp_path / "out")


def test_a_drafter_with_nan_is_blamed_and_the_request_named(halves: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(LLAMA, tmp_path / "broken"))
    tensors = load_file(broken / "model.safetensors")
    tensors["fc.weight"][0, 0] = torch.nan
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        BadCheckpoint, match="broken: its logits are not finite on request 00/1, whose states are"
    ) as error:
        draftconv.accept(broken, trace=halves)
    assert "inspect --deep" in error.value.cure
