"""`draftconv parity --for`: which options go together, what is printed, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import Result

from tests.cli.conftest import Run
from tests.engines.stub import Stub, all_serving
from tests.reference.test_fixtures import DATA

TARGET, REF, PROMPTS = (str(DATA / name) for name in ("targets/llama", "drafters/llama-eagle3.1", "prompts.json"))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def cand(tmp_path: Path) -> str:
    return str(shutil.copytree(REF, tmp_path / "cand"))


def done(run: Run, args: list[str], code: int = 0) -> Result:
    found = run("parity", *args)
    assert found.exit_code == code, found.stderr
    return found


def live(run_dir: Path, *more: str) -> list[str]:
    shared = ["--for", "vllm", "--target", TARGET, "--prompts", PROMPTS, "--max-tokens", "32"]
    return [*shared, "--run", str(run_dir), *more]


@pytest.mark.parametrize(("quality", "code", "verdict"), [(0.7, 0, "equivalent"), (0.4, 1, "fail")])
def test_two_running_servers(run: Run, cand: str, tmp_path: Path, quality: float, code: int, verdict: str) -> None:
    with all_serving(Stub("vllm"), Stub("vllm", quality=quality, born="2.0")) as (ref, other):
        urls = ("--url-ref", ref.url, "--url-cand", other.url)
        args = [REF, cand, *live(tmp_path / "run", *urls, "--report", str(tmp_path / "report"))]
        found = done(run, args, code)
    assert verdict in found.stdout
    assert {path.name for path in (tmp_path / "report").iterdir()} >= {"report.html", "junit.xml", "records.jsonl"}
    told = json.loads(done(run, [*args, "--overwrite", "--format", "json"], code).stdout)  # nobody is asked again
    assert (told["exit_code"], told["about"]["how"]) == (code, "live")
    assert str(tmp_path) not in (tmp_path / "report" / "report.json").read_text()


def test_the_command_of_a_report_is_whole(run: Run, cand: str, tmp_path: Path) -> None:
    with all_serving(Stub("vllm"), Stub("vllm", born="2.0")) as (ref, other):
        urls = ("--url-ref", ref.url, "--url-cand", other.url, "--raw", "--format", "json")
        told = json.loads(done(run, [REF, cand, *live(tmp_path / "run", *urls)]).stdout)
    assert {"--raw", "--url-cand"} <= {*told["about"]["command"]}


def test_a_server_to_be_swapped(run: Run, cand: str, tmp_path: Path) -> None:
    with all_serving(Stub("vllm")) as (stub,):
        args = [REF, cand, *live(tmp_path / "run", "--url", stub.url)]
        assert "cand is next" in done(run, args, 3).stderr
        stub.born = "2.0"
        assert "equivalent" in done(run, args).stdout


def test_an_interrupted_run_says_that_it_goes_on(
    run: Run, cand: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("draftconv.live.serve_arms.send_requests", interrupted)
    with all_serving(Stub("vllm")) as (stub,):
        found = done(run, [REF, cand, *live(tmp_path / "run", "--url", stub.url)], 130)
    assert "the same command goes on" in found.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "needs a trace to replay, or an engine to run"),
        (["--trace", "trace", "--for", "vllm"], "exclude one another"),
        (["--trace", "trace", "--launch"], "--launch has no meaning with --trace"),
        (["--trace", "trace", "--temperature", "0.7"], "--temperature has no meaning with --trace"),
        (["--trace", "trace", "--seed", "1"], "--seed has no meaning with --trace"),
        (["--for", "vllm", "--target", TARGET, "--run", "r", "--launch", "--top-p", "0.9"], "without --temperature"),
        (
            ["--for", "vllm", "--target", TARGET, "--run", "r", "--launch", "--temperature", "0.001"],
            "vLLM draws at 0.01 to 2",
        ),
        (["--for", "vllm", "--target", "t", "--run", "r", "--attribute"], "--attribute has no meaning with --for"),
        (["--for", "vllm", "--launch"], "--for needs --target and --run"),
        (["--for", "vllm", "--target", TARGET, "--run", "r"], "needs one way to reach it"),
        (["--for", "onnx", "--target", TARGET, "--run", "r", "--launch"], "unknown engine onnx"),
    ],
)
def test_options_that_do_not_go_together(run: Run, cand: str, words: list[str], told: str) -> None:
    assert told in " ".join(done(run, [REF, cand, *words], 2).stderr.split())
