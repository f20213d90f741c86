"""Load generators and lm_eval: their commands, their JSON as they document it, and what is broken about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.live import Load, Tool
from draftconv.engines.serving import located
from draftconv.errors import EngineError
from draftconv.live import accuracy
from draftconv.live.benchmarks import Benchmarks
from draftconv.live.capabilities import generator_of
from draftconv.live.external_tools import refuse_missing, run_tool
from draftconv.live.speed import CONCURRENCY, read_speed, result_name, round_of
from draftconv.report.model import Accuracy, Speed
from tests.programs import shebang

MEASURED = [name for name, engine in ENGINES.items() if engine.live and engine.live.generator]
SPEED = {
    "backend": "vllm", "completed": 40, "duration": 12.5, "request_throughput": 3.2, "output_throughput": 512.25,
    "mean_ttft_ms": 80.5, "median_ttft_ms": 75.25, "p99_ttft_ms": 210.0, "mean_tpot_ms": 8.5, "median_tpot_ms": 8.25,
    "mean_itl_ms": 20.0, "max_concurrency": 4, "accept_length": 3.1,
}  # fmt: skip
"""Names that vllm/benchmarks/serve.py, sglang's serving benchmark and TensorRT-LLM's copy all write."""
SCORES = {
    "results": {
        "gsm8k": {
            "alias": "gsm8k",
            "exact_match,strict-match": 0.91,
            "exact_match_stderr,strict-match": 0.0079,
            "exact_match,flexible-extract": 0.92,
            "exact_match_stderr,flexible-extract": 0.0075,
        }
    },
    "n-shot": {"gsm8k": 10},
    "n-samples": {"gsm8k": {"original": 1319, "effective": 1319}},
}


def option(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


# ── commands ───────────────────────────────────────────────────────────────────────


def bench(
    engine: str, load: Load, url: str, concurrency: int, directory: Path, *, cpu: bool = False
) -> tuple[str, ...]:
    asked = round_of(load, url, concurrency, directory, "cpu" if cpu else None)
    return generator_of(engine).command(asked)


@pytest.mark.parametrize("engine", MEASURED)
def test_every_engine_is_asked_the_same(engine: str) -> None:
    argv = bench(engine, Load("owner/model", 512, 128), "http://127.0.0.1:8000", 16, Path("/run"))
    assert (option(argv, "--num-prompts"), option(argv, "--max-concurrency")) == ("160", "16")
    assert (option(argv, "--random-input-len"), option(argv, "--random-output-len")) == ("512", "128")
    assert option(argv, "--model") == "owner/model"
    assert "--trust-remote-code" not in argv
    assert any(word.endswith(result_name(16)) for word in argv)


def test_programs() -> None:
    load = Load("m", remote_code=True)
    assert bench("vllm", load, "u", 1, Path())[:5] == ("python", "-m", "vllm.entrypoints.cli.main", "bench", "serve")
    assert bench("sglang", load, "u", 1, Path())[2] == "sglang.bench_serving"
    assert bench("trtllm", load, "u", 1, Path())[2] == "tensorrt_llm.serve.scripts.benchmark_serving"
    assert Path(bench("vllm", load, "u", 1, Path(), cpu=True)[1]).exists()
    for engine in ("vllm", "trtllm"):
        assert "--trust-remote-code" in bench(engine, load, "u", 1, Path())
    argv = accuracy.evaluation("gsm8k", "http://h:1", "a,b=c", Path("/run"), 40, remote_code=True)
    told = json.loads(option(argv, "--model_args"))
    assert (told["model"], told["base_url"]) == ("a,b=c", "http://h:1/v1/completions")  # no comma splits it
    assert (told["num_concurrent"], told["trust_remote_code"]) == (40, True)
    assert option(argv, "--num_fewshot") == "10"


# ── results ────────────────────────────────────────────────────────────────────────


def write(directory: Path, found: object, concurrency: int = 4) -> Path:
    text = found if isinstance(found, str) else json.dumps(found)
    (directory / result_name(concurrency)).write_text(text)
    return directory


@pytest.mark.parametrize("engine", MEASURED)
def test_what_was_measured(engine: str, tmp_path: Path) -> None:
    wanted = Speed("small", 4, 40, 8.25, 8.5, 75.25, 80.5, 512.25)
    assert read_speed(generator_of(engine), write(tmp_path, SPEED), "small", 4) == wanted
    lines = "\n".join(json.dumps(line) for line in ({"completed": 1}, SPEED))  # SGLang appends
    assert read_speed(generator_of(engine), write(tmp_path, lines), "small", 4) == wanted
    assert read_speed(generator_of(engine), write(tmp_path, json.dumps(SPEED, indent=2)), "small", 4) == wanted


def test_the_accept_length_of_a_round_where_the_program_tells_it(tmp_path: Path) -> None:
    told = {**SPEED, "spec_decode_acceptance_length": 2.5, "accept_length": 2.4}
    assert read_speed(generator_of("vllm"), write(tmp_path, told), "small", 4).accept_length == 2.5
    assert read_speed(generator_of("vllm"), write(tmp_path, told), None, 4).accept_length is None
    assert read_speed(generator_of("vllm"), write(tmp_path, SPEED), "small", 4).accept_length is None
    assert read_speed(generator_of("sglang"), write(tmp_path, told), "small", 4).accept_length is None  # not a round's


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({**SPEED, "spec_decode_acceptance_length": "2"}, 'wrote spec_decode_acceptance_length: "2"'),
        ({**SPEED, "completed": 39}, "39 of 40 requests were answered"),
        ({**SPEED, "median_tpot_ms": None}, "wrote median_tpot_ms: null"),
        ({**SPEED, "median_tpot_ms": "8"}, 'wrote median_tpot_ms: "8"'),
        ({**SPEED, "output_throughput": -1}, "wrote output_throughput: -1"),
        ({**SPEED, "mean_ttft_ms": True}, "wrote mean_ttft_ms: true"),
        ({key: value for key, value in SPEED.items() if key != "median_ttft_ms"}, "wrote median_ttft_ms: null"),
        (json.dumps(SPEED)[:-9], "wrote no result"),
        ("", "wrote no result"),
        ("[]", "wrote no result"),
        (json.dumps(SPEED).replace("8.25", "NaN"), "wrote median_tpot_ms: NaN"),
    ],
)
def test_a_result_that_is_none(found: object, told: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=told):
        read_speed(generator_of("vllm"), write(tmp_path, found), "small", 4)


def test_no_result(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="vllm bench serve wrote no result: No such file"):
        read_speed(generator_of("vllm"), tmp_path, "small", 4)
    with pytest.raises(EngineError, match=r"lm_eval wrote no results_\*\.json"):
        accuracy.read_accuracy(tmp_path, "gsm8k", "small")


def scored(tmp_path: Path, found: object) -> Path:
    place = tmp_path / "accuracy" / "owner__model"
    place.mkdir(parents=True)
    (place / "results_2026-11-21T10-00-00.json").write_text(json.dumps(found, indent=2))
    return tmp_path


def test_what_lm_eval_found(tmp_path: Path) -> None:
    assert accuracy.read_accuracy(scored(tmp_path, SCORES), "gsm8k", None) == (
        Accuracy(None, "gsm8k", 10, "strict-match", 0.91, 0.0079, 1319),
        Accuracy(None, "gsm8k", 10, "flexible-extract", 0.92, 0.0075, 1319),
    )


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({}, "wrote no results of gsm8k"),
        ({**SCORES, "results": {"mmlu": {}}}, "wrote no results of gsm8k"),
        ({**SCORES, "n-samples": 3}, "wrote no n-samples of gsm8k"),
        ({**SCORES, "results": {"gsm8k": {"acc": 0.9}}}, "wrote exact_match,strict-match: null"),
    ],
)
def test_another_result_of_lm_eval(found: object, told: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=told):
        accuracy.read_accuracy(scored(tmp_path, found), "gsm8k", None)


# ── programs ───────────────────────────────────────────────────────────────────────

PROGRAM = Tool("a tool", "json", "a-package[extra]", "its source")


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    refuse_missing(PROGRAM, Path(sys.executable))
    for python, environment in ((Path(sys.executable), {}), (None, {"PATH": str(tmp_path)}), (Path("/nowhere"), {})):
        with pytest.raises(EngineError, match="a tool is not installed beside the engine") as caught:
            refuse_missing(replace(PROGRAM, package="no_such_package"), python, environment)
        assert "-m pip install 'a-package[extra]'" in caught.value.cure


def test_a_program_that_fails(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", "import sys; print('No module named pandas', file=sys.stderr); sys.exit(3)")
    with pytest.raises(EngineError, match="a tool ended with status 3") as caught:
        run_tool(PROGRAM, argv, tmp_path, "tool.log")
    assert caught.value.why.startswith("No module named pandas; see ")
    assert "pip install 'a-package[extra]'" in caught.value.cure


STUB = """
import json, pathlib, sys
argv, speed, scores = sys.argv[1:], json.loads({speed!r}), json.loads({scores!r})
with open("asked.txt", "a") as asked:
    asked.write(" ".join(argv) + "\\n")
def option(name):
    return argv[argv.index(name) + 1]
if "--tasks" in argv:
    place = pathlib.Path(option("--output_path"), "model")
    place.mkdir(parents=True)
    (place / "results_1.json").write_text(json.dumps(scores))
else:
    speed["completed"] = int(option("--num-prompts"))
    speed["median_tpot_ms"] = float(option("--max-concurrency"))
    pathlib.Path(option("--result-dir"), option("--result-filename")).write_text(json.dumps(speed))
"""


@pytest.fixture
def stubbed(tmp_path: Path) -> Callable[..., Benchmarks]:
    """A vLLM whose Python is a stub that answers as both programs do."""
    program = tmp_path / "python"
    code = STUB.format(speed=json.dumps(SPEED), scores=json.dumps(SCORES))
    program.write_text(shebang("-S") + code)
    program.chmod(0o755)

    def made(**changes: Any) -> Benchmarks:
        found = Benchmarks(parse_engine("vllm"), "model", Load("model"), "gsm8k", False, program, {"PATH": ""})
        return replace(found, **changes)

    return made


def test_everything_is_measured_once(stubbed: Callable[..., Benchmarks], tmp_path: Path) -> None:
    beside, directory = stubbed(), tmp_path / "arm"
    directory.mkdir()
    assert beside.lacks(directory)
    told: list[tuple[str, int, int]] = []
    beside.measure("http://h:1", directory, "small", lambda *line: told.append(line))
    assert not beside.lacks(directory)
    assert told[-1] == ("small, speed and accuracy", 6, 6)
    asked = (directory / "asked.txt").read_text().splitlines()
    assert len(asked) == len(CONCURRENCY) + 1
    (directory / result_name(2)).unlink()
    beside.measure("http://h:1", directory, "small")  # a stopped run goes on
    assert (directory / "asked.txt").read_text().splitlines()[len(asked) :] == [asked[1]]
    speeds, shares = beside.results([(None, directory), ("small", directory)])
    assert [(row.drafter, row.concurrency, row.tpot_ms) for row in speeds] == [
        (name, count, count) for count in CONCURRENCY for name in (None, "small")
    ]
    assert [row.filter for row in shares] == ["strict-match", "flexible-extract"] * 2


def test_a_result_that_is_none_is_set_aside(stubbed: Callable[..., Benchmarks], tmp_path: Path) -> None:
    beside = stubbed(task=None)
    assert beside.python
    whole = beside.python.read_text()
    beside.python.write_text(whole.replace('speed["completed"] =', 'speed["failed"] ='))
    with pytest.raises(EngineError, match="40 of 10 requests were answered"):
        beside.measure("http://h:1", tmp_path, "small")
    assert (tmp_path / "speed-1.json.refused").exists()
    assert beside.lacks(tmp_path)
    beside.python.write_text(whole)
    beside.measure("http://h:1", tmp_path, "small")
    assert not beside.lacks(tmp_path)


def test_only_what_was_asked_for(stubbed: Callable[..., Benchmarks], tmp_path: Path) -> None:
    only = stubbed(load=None)
    only.measure("http://h:1", tmp_path, "small")
    assert only.results([("small", tmp_path)])[0] == ()
    assert [tool.title for tool in only.tools()] == ["lm_eval"]
    assert [tool.title for tool in stubbed(task=None).tools()] == ["vllm bench serve"]


def test_located() -> None:
    assert located(("python", "-m", "x"), Path("/e/bin/python")) == ("/e/bin/python", "-m", "x")
    assert located(("vllm", "serve"), Path("/e/bin/python")) == ("/e/bin/vllm", "serve")
    assert located(("python", "-m", "x"), None) == ("python", "-m", "x")
    assert MEASURED == ["vllm", "sglang", "trtllm"]
