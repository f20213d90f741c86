"""`draftconv serve`: a command that starts as it is printed, for every engine, and --exec."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from draftconv.api.quantize import QuantizeOptions, quantize
from draftconv.api.serve import start
from draftconv.engines.serving import ServeCommand
from draftconv.errors import WriteError
from draftconv.live.launch import address, free_port
from draftconv.live.profiles import find_profile, profile_names
from tests.cli.conftest import Run, environment
from tests.keywords import keywords
from tests.live.test_real import ENGINE
from tests.programs import shebang
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded

TARGET, DRAFTER = str(DATA / "targets/llama"), str(DATA / "drafters/llama-eagle3.1")
PROGRAM = """{shebang}
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ.get("VLLM_CPU_KVCACHE_SPACE"), open("serve.yaml").read() if os.path.exists("serve.yaml") else None]))
"""  # noqa: E501


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """An environment whose python, vllm and trtllm-serve print how they were started."""
    place = tmp_path / "engine"
    place.mkdir()
    for name in ("python", "vllm", "trtllm-serve"):
        (place / name).write_text(PROGRAM.format(shebang=shebang("-S")))
        (place / name).chmod(0o755)
    return place / "python"


def started(tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "draftconv", "serve", DRAFTER, "--target", TARGET, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("spec", "program"), [("vllm", "vllm"), ("vllm:cpu", "python"), ("sglang", "python"), ("trtllm", "trtllm-serve")]
)
def test_what_is_printed_starts(spec: str, program: str, run: Run, engine: Path, tmp_path: Path) -> None:
    """The text of a terminal, given to a shell, is the server's command line."""
    words = ("serve", DRAFTER, "--for", spec, "--target", TARGET, "--port", "8123")
    printed = run(*words)
    assert printed.exit_code == 0
    path = {"PATH": f"{engine.parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-ec", printed.stdout], cwd=tmp_path, env=path, stdout=subprocess.PIPE, text=True, check=True
    )
    argv, space, file = json.loads(done.stdout)
    told = json.loads(run(*words, "--format", "json").stdout)
    assert told["argv"] == [program, *argv]
    assert argv[-2:] == ["--port", "8123"]
    assert space == ("4" if spec == "vllm:cpu" else None)
    assert file == told["files"].get("serve.yaml")


def test_it_says_how_drafts_are_chosen(run: Run) -> None:
    words = ("serve", DRAFTER, "--for", "vllm", "--target", TARGET)
    assert "drafts, where text is drawn: greedy (vLLM, config/speculative.py" in run(*words).stderr
    drawn = (*words, "--server-arg", "--speculative-config", "--server-arg", '{"draft_sample_method": "probabilistic"}')
    assert (
        "drafts, where text is drawn: probabilistic" in json.loads(run(*drawn, "--format", "json").stdout)["notes"][-1]
    )


def test_drafts_that_cannot_be_drawn_from_a_reduced_vocabulary(run: Run) -> None:
    drafter = str(DATA / "drafters/llama-eagle3-reduced")
    words = ("--for", "sglang", "--target", TARGET, "--server-arg=--speculative-use-rejection-sampling")
    refused = run("serve", drafter, *words)
    assert refused.exit_code == 2
    assert "beside a drafter with a reduced vocabulary" in refused.stderr
    assert run("serve", DRAFTER, *words).exit_code == 0


def test_exec_becomes_the_server(engine: Path, tmp_path: Path) -> None:
    done = started(tmp_path, "--for", "trtllm", "--engine-python", str(engine), "--exec")
    argv, _, file = json.loads(done.stdout)
    assert argv[:2] == [TARGET, "--host"]
    assert "speculative_model_dir" in file
    assert "eagle3_layers_to_capture" in done.stderr or "EAGLE-3.1" in done.stderr  # the notes


def test_exec_leaves_a_variable_that_is_set(engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    words = ("--for", "vllm:cpu", "--engine-python", str(engine), "--exec")
    assert json.loads(started(tmp_path, *words).stdout)[1] == "4"
    assert json.loads(started(tmp_path, *words, VLLM_CPU_KVCACHE_SPACE="9").stdout)[1] == "9"


@pytest.mark.parametrize("redirect", ["", "2>&-", "2>/dev/full"])
def test_exec_with_nobody_who_reads_its_notes(redirect: str, engine: Path, tmp_path: Path) -> None:
    words = ["serve", DRAFTER, "--for", "trtllm", "--target", TARGET, "--engine-python", str(engine), "--exec"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-m", "draftconv", *words], cwd=tmp_path,
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)[0][:2] == [TARGET, "--host"]
    assert bool(done.stderr) == (not redirect)


def test_a_server_does_not_ignore_what_python_ignores(engine: Path, tmp_path: Path) -> None:
    (engine.parent / "vllm").write_text("#!/bin/sh\nkill -PIPE $$\necho alive\n")
    done = started(tmp_path, "--for", "vllm", "--engine-python", str(engine), "--exec")
    assert (done.returncode, done.stdout) == (-signal.SIGPIPE, "")


def test_exec_overwrites_nothing(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text("mine: 1\n")
    done = started(tmp_path, "--for", "trtllm", "--engine-python", str(engine), "--exec")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is another serve.yaml" in done.stderr
    assert (tmp_path / "serve.yaml").read_text() == "mine: 1\n"


def test_exec_overwrites_nothing_that_is_no_text(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_bytes(b"mine: \xe9\n")
    done = started(tmp_path, "--for", "trtllm", "--engine-python", str(engine), "--exec")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is another serve.yaml" in done.stderr


def test_exec_leaves_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there half would be another file to the next run, and would have to be removed by hand."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="no room left"):
        start(ServeCommand(("true",), {"serve.yaml": "mine: 1\n"}))
    assert [*tmp_path.iterdir()] == []


def test_exec_without_the_engine(engine: Path, tmp_path: Path) -> None:
    (engine.parent / "vllm").unlink()
    done = started(tmp_path, "--for", "vllm", "--engine-python", str(engine), "--exec")
    assert done.returncode == 2
    assert "cannot be started: No such file or directory" in done.stderr
    assert "--engine-python" in done.stderr


# ── quantized drafters ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("spec", "recipe", "said"),
    [
        ("vllm:b200", "w4a8", ("Marlin ignores the activation scheme", "VLLM_MARLIN_INPUT_DTYPE=int8", "humming")),
        ("vllm:mi325x", "w4a16", ("16-bit arithmetic (TritonW4A16)",)),
        ("vllm:h200", "w4a8-fp8", ("FP8 arithmetic (CUTLASS W4A8)",)),
        ("vllm:cpu", "w4a16", ("CPUWNA16", "VLLM_CPU_INT4_W4A8=0", "not with --dtype float32: CPUWNA16")),
        ("sglang:mi325x", "fp8", ("FP8 arithmetic",)),
        ("sglang:b200", "w4a16", ("16-bit arithmetic (Marlin)",)),
    ],
)
def test_what_will_be_multiplied(spec: str, recipe: str, said: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    out = tmp_path / "small"
    quantize(DRAFTER, out, recipe=recipe, engines=(spec,), target=TARGET)
    told = json.loads(run("serve", str(out), "--for", spec, "--target", TARGET, "--format", "json").stdout)
    assert all(any(text in note for note in told["notes"]) for text in said), told["notes"]
    assert not any("unquant" in note for note in told["notes"])
    elsewhere = spec.partition(":")[0]  # no hardware, no claim
    told = json.loads(run("serve", str(out), "--for", elsewhere, "--target", TARGET, "--format", "json").stdout)
    assert not any("arithmetic" in note for note in told["notes"])


@pytest.fixture
def quantized(tmp_path: Path, recorded: Recorded) -> Callable[[str, str], str]:
    """The drafter by a recipe for a machine."""

    def made(recipe: str, spec: str) -> str:
        out = tmp_path / "small"
        trace = recorded("llama", count=2, length=8) if recipe == "nvfp4" else None
        options = QuantizeOptions(recipe=recipe, engines=(spec,), calibrate=trace, target=TARGET)
        quantize(DRAFTER, out, **keywords(options))
        return str(out)

    return made


@pytest.mark.parametrize(
    ("recipe", "made", "asked", "why"),
    [
        ("w4a8", "vllm:cpu", "vllm:b200", "INT4 in bytes on a CPU only"),
        ("w4a8-fp8", "vllm:h200", "vllm:b200", "INT4 by FP8 is multiplied on Hopper only"),
        ("nvfp4", "vllm:b200", "vllm:mi325x", "NVFP4 is only emulated on this chip"),
        ("nvfp4", "vllm:b200", "vllm:cpu", "CPU multiplies no NVFP4"),
        ("nvfp4", "trtllm:b200", "trtllm:h200", "NVFP4 needs Blackwell"),
        ("w4a16", "sglang:b200", "sglang:mi325x", "compressed-tensors INT4 on ROCm"),
    ],
)
def test_hardware_without_a_kernel_is_refused(
    recipe: str, made: str, asked: str, why: str, run: Run, quantized: Callable[[str, str], str]
) -> None:
    found = run("serve", quantized(recipe, made), "--for", asked, "--target", TARGET)
    assert (found.exit_code, found.stdout) == (1, "")
    said = " ".join(found.stderr.split())
    assert why in said
    assert f"with --for {asked}" in said
    assert "--dequantize" in said


def test_a_drafter_of_another_target_is_not_sent_to_convert(run: Run) -> None:
    """Which refuses it, too: nothing that is written makes its fc wider."""
    found = run("serve", DRAFTER, "--for", "vllm", "--target", "kimi-k2.6")
    said = " ".join(found.stderr.split())
    assert (found.exit_code, found.stdout) == (1, "")
    assert "This is the wrong target, or target_hidden_size is wrong; draftconv inspect" in said
    assert "draftconv convert" not in said


def test_what_a_kernel_needs_is_in_the_command(run: Run, quantized: Callable[[str, str], str]) -> None:
    small = quantized("nvfp4", "sglang:h200")
    for asked, needed in (("sglang:h200", True), ("sglang:b200", False)):
        argv = json.loads(run("serve", small, "--for", asked, "--target", TARGET, "--format", "json").stdout)["argv"]
        assert (argv[-2:] == ["--fp4-gemm-backend", "marlin"]) is needed


@pytest.mark.parametrize(
    ("recipe", "tp", "why"),
    [(None, "3", "4 attention heads cannot be shared by 3 ranks"), ("w4a16-g128", "4", "are no multiple of 128")],
)
def test_sizes_that_cannot_be_shared_out_are_told(
    recipe: str | None, tp: str, why: str, run: Run, quantized: Callable[[str, str], str]
) -> None:
    drafter = quantized(recipe, "vllm:h200") if recipe else DRAFTER
    words = ("serve", drafter, "--for", "vllm:h200", "--target", TARGET, "--format", "json", "--tensor-parallel-size")
    assert not any("does not start" in note for note in json.loads(run(*words, "1").stdout)["notes"])
    notes = json.loads(run(*words, tp).stdout)["notes"]
    assert any(why in note and "the server does not start so" in note for note in notes)


def test_a_weights_file_cannot_be_served(run: Run) -> None:
    found = run("serve", f"{DRAFTER}/model.safetensors", "--for", "vllm", "--target", TARGET)
    assert found.exit_code == 2
    assert "is no directory" in found.stderr


# ── a profile ──────────────────────────────────────────────────────────────────────


def argv_of(run: Run, *words: str) -> tuple[list[str], dict[str, str], list[str]]:
    done = run("serve", DRAFTER, *words, "--format", "json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    return told["argv"], told["environment"], told["notes"]


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_says_how_a_server_is_started(name: str, run: Run, tmp_path: Path) -> None:
    profile, out = find_profile(name), str(tmp_path / "portable")
    assert run("convert", DRAFTER, out, "--to", "portable", "--target", TARGET, "--quiet").exit_code == 0
    words = ("serve", out, "--target", TARGET, "--format", "json")
    told = json.loads(run(*words, "--profile", name).stdout)
    same = json.loads(
        run(
            *words, "--for", profile.engine, "-tp", profile.tensor_parallel, "-k", profile.depth,
            *(f"--server-arg={argument}" for argument in profile.server_args),
        ).stdout
    )  # fmt: skip
    assert told["argv"] == same["argv"]
    assert told["files"] == same["files"]
    assert told["argv"][len(told["argv"]) - len(profile.server_args) :] == list(profile.server_args)
    assert told["environment"] == {**same["environment"], **profile.environment}
    assert any(note.startswith(f"profile {name}: ") for note in told["notes"])
    assert any("not run on hardware" in note for note in told["notes"]) == (profile.evidence == "read")


def test_what_is_typed_wins_over_a_profile(run: Run) -> None:
    words = ("--profile", "mi325x-vllm", "--target", TARGET, "-tp", "2", "-k", "5", "--port", "8123")
    argv, _, _ = argv_of(run, *words, "--server-arg=--block-size", "--server-arg=32")
    assert argv[2] == TARGET
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"
    assert json.loads(argv[argv.index("--speculative-config") + 1])["num_speculative_tokens"] == 5
    assert argv[-4:] == ["--block-size", "32", "--port", "8123"]  # after the profile's own, so it wins
    assert argv.index("--block-size") < len(argv) - 4
    version, _, _ = argv_of(run, "--profile", "cpu-vllm", "--for", "vllm@0.32", "--target", TARGET)
    assert version[0] == "python"  # on its hardware all the same


def test_a_profile_brings_its_target(run: Run) -> None:
    found = run("serve", DRAFTER, "--profile", "mi325x-vllm")
    assert found.exit_code == 1
    assert "kimi-k2.5" in found.stderr  # for which this drafter is too narrow


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", TARGET], "serve needs an engine"),
        (["--for", "vllm"], "serve needs a target"),
        (["--profile", "cpu-vllm"], "Profile cpu-vllm leaves it open"),
        (["--profile", "cpu-vllm", "--for", "sglang", "--target", TARGET], "profile cpu-vllm is for vllm:cpu"),
        (["--profile", "no-vllm", "--target", TARGET], "no profile is called no-vllm"),
        (["--for", "trtllm", "--target", "kimi-k2.5"], "--target kimi-k2.5-nvfp4 is the same model"),
    ],
)
def test_what_cannot_be_served(words: list[str], said: str, run: Run) -> None:
    found = run("serve", DRAFTER, *words)
    assert (found.exit_code, found.stdout) == (2, "")
    assert said in " ".join(found.stderr.split())


# ── a real server ──────────────────────────────────────────────────────────────────


@contextmanager
def serving(words: list[str], log: Path, port: int) -> Iterator[None]:
    environment = {
        **os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    with log.open("w") as lines:
        process = subprocess.Popen(words, cwd=log.parent, env=environment, stdout=lines, stderr=lines)
        try:
            deadline = time.monotonic() + 400
            while time.monotonic() < deadline:
                assert process.poll() is None, log.read_text()[-2000:]
                try:
                    with urlopen(f"{address(port)}/health", timeout=5):
                        break
                except OSError:
                    time.sleep(1)
            yield
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.slow
@pytest.mark.skipif(not ENGINE.exists(), reason="no engine environment; scripts/engine-env makes one")
@pytest.mark.parametrize(("name", "recipe"), [("llama-eagle3.1", None), ("mla-eagle3.1", "w4a8")])
def test_a_real_vllm_answers_and_counts(name: str, recipe: str | None, tmp_path: Path) -> None:
    port, drafter, target = free_port(), str(DATA / "drafters" / name), str(DATA / "targets" / name.partition("-")[0])
    if recipe:
        options = QuantizeOptions(recipe=recipe, engines=("vllm:cpu",), target=target)
        quantize(drafter, tmp_path / "small", **keywords(options))
        drafter = str(tmp_path / "small")
    words = ["serve", drafter, "--for", "vllm:cpu", "--target", target, "--engine-python", str(ENGINE)]
    argv = [sys.executable, "-m", "draftconv", *words, "--port", str(port), "--exec"]
    with serving(argv, tmp_path / "log", port):
        body = {"model": target, "prompt": list(range(40, 60)), "max_tokens": 32, "temperature": 0, "ignore_eos": True}
        request = Request(
            f"{address(port)}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(request, timeout=120) as reply:
            assert json.load(reply)["usage"]["completion_tokens"] == 32
        with urlopen(f"{address(port)}/metrics", timeout=30) as reply:
            text = reply.read().decode()
    counts = dict(re.findall(r"(vllm:spec_decode_num_\w+_total)\{[^}]*\} (\S+)", text))
    assert float(counts["vllm:spec_decode_num_drafts_total"]) > 0
    assert "vllm:spec_decode_num_accepted_tokens_per_pos_total" in counts
