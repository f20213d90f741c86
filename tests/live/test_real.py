"""A real vLLM with the trained drafters: its counts are those of the reference's own greedy decoding.

Runs where an engine environment is: `scripts/engine-env` makes `.engine-venv`, DRAFTCONV_ENGINE_PYTHON
names the Python of another. A CPU is enough.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.convert import convert
from draftconv.api.live import LiveOptions, live_parity
from draftconv.api.serve import serve
from draftconv.engines.client import RequestSettings
from draftconv.engines.vllm.client import VllmServer
from draftconv.errors import EngineError
from draftconv.live.capabilities import live_of
from draftconv.live.launch import address, free_port, launched
from draftconv.live.measuring_command import measuring
from draftconv.report import Report
from tests.keywords import keywords
from tests.reference.test_fixtures import DATA

ROOT = Path(__file__).parents[2]
ENGINE = Path(os.environ.get("DRAFTCONV_ENGINE_PYTHON", ROOT / ".engine-venv" / "bin" / "python"))
LENGTH = 64
"""Tokens of the texts in measured.json."""
PROMPTS = json.loads((DATA / "prompts.json").read_text())
FEW = 12
"""Prompts that are asked; equal counts need no interval."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ENGINE.exists(), reason="no engine environment; scripts/engine-env makes one"),
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    for name, value in (("VLLM_CPU_KVCACHE_SPACE", "1"), ("OMP_NUM_THREADS", "1"), ("HF_HUB_OFFLINE", "1")):
        monkeypatch.setenv(name, value)


def judged(tmp_path: Path, reference: str, target: str, candidate: Path, *, offline: bool) -> Report:
    options = LiveOptions(
        engine="vllm:cpu",
        target=str(DATA / "targets" / target),
        run=tmp_path / "run",
        launch=not offline,
        offline=offline,
        engine_python=ENGINE,
        server_args=("--dtype", "float32"),
        prompts=str(DATA / "prompts.json"),
        limit=FEW,
        margin=0,
        max_tokens=LENGTH,
        timeout=120,
        start_timeout=400,
    )
    return live_parity(DATA / "drafters" / reference, [candidate], **keywords(options))


def converted(tmp_path: Path, drafter: str, target: str) -> Path:
    out = tmp_path / "converted"
    convert(DATA / "drafters" / drafter, out, to="vllm", target=str(DATA / "targets" / target))
    return out


def equal_requests(report: Report, drafter: str) -> float:
    """The share of requests that the engine and the reference's own decoding count alike."""
    measured = json.loads((DATA / "measured.json").read_text())["drafters"][drafter]
    found = {line.id: (line.counts.steps, line.counts.accepted) for line in report.records if line.arm == drafter}
    own = dict(enumerate(zip(measured["steps"][:FEW], measured["accepted"][:FEW], strict=True)))
    return sum(found[str(i)] == counts for i, counts in own.items()) / len(own)


def test_offline_counts_are_those_of_plain_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One conversion, MLA: the rotary setting of the CPU build is part of the command."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    out = converted(tmp_path, "mla-eagle3.1", "mla")
    report = judged(tmp_path, "mla-eagle3.1", "mla", out, offline=True)
    comparison = report.comparisons[0]
    assert (comparison.verdict.outcome, report.about.settings["engine"]) == ("pass", "vLLM 0.32.0")
    assert report.identical(comparison) == FEW
    assert equal_requests(report, "mla-eagle3.1") >= 0.9


def test_servers_that_are_started(tmp_path: Path) -> None:
    """A drafter with a scale doubled, as no loader notices: the engine's own counts tell."""
    broken = converted(tmp_path, "llama-eagle3.1", "llama")
    tensors = load_file(broken / "model.safetensors")
    doubled = [name for name in tensors if name.endswith("mlp.down_proj.weight")]
    for name in doubled:
        tensors[name] *= 2
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    report = judged(tmp_path, "llama-eagle3.1", "llama", broken, offline=False)
    comparison = report.comparisons[0]
    assert len(doubled) == 1
    assert comparison.verdict.outcome == "fail"
    assert report.identical(comparison) == FEW  # greedy float32 text does not depend on the drafter
    assert equal_requests(report, "llama-eagle3.1") >= 0.9


def test_both_ways_of_counting_agree(tmp_path: Path) -> None:
    """Counts per request, and those of the server's counters around one request."""
    command = serve(DATA / "drafters/llama-eagle3", engine="vllm:cpu", target=str(DATA / "targets/llama"))
    server = measuring(command.argv, {}, live_of("vllm"), ("--dtype", "float32"), patience=400, python=ENGINE)
    port = free_port()
    with launched(server, port, tmp_path / "server"):
        single, totals = (live_of("vllm").connect(address(port), "--url", RequestSettings(3, LENGTH)) for _ in range(2))
        with pytest.raises(EngineError, match="drafts 3 tokens per step, --num-speculative-tokens asks for 2"):
            live_of("vllm").connect(address(port), "--url", RequestSettings(2, LENGTH)).served(PROMPTS[0])
        told = single.served(PROMPTS[0])
        assert (told.version, told.alone, bool(told.born)) == ("0.32.0", False, True)
        assert isinstance(totals, VllmServer)
        totals.model, totals.totals = told.target, True
        for prompt in PROMPTS[:6]:
            answer = single.ask(prompt)
            assert totals.ask(prompt) == answer
            totals.seen = None  # the other client asks too
