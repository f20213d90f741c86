"""`draftconv quantize`: what is said where, what is written, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.quantize import OUTLIER
from draftconv.engines import ENGINES
from tests.cli.conftest import Program, Run
from tests.quantization.test_format_detection import seed
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded

LLAMA = DATA / "drafters/llama-eagle3"
TARGET = ("--target", DATA / "targets/llama")
WEIGHTS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def lopsided(tmp_path: Path) -> Path:
    """A fixture in which one value of a row leaves the others no code but zero."""
    out = tmp_path / "lopsided"
    out.mkdir()
    (out / "config.json").write_text((LLAMA / "config.json").read_text())
    tensors = load_file(LLAMA / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("mlp.up_proj.weight"))
    tensors[name][7, 0] = 100 * tensors[name][7].abs().max()
    tensors[name][7, 1:] = tensors[name][7, 1:].sign() * tensors[name][7, 0] / 20
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


def test_a_person_reads_what_will_run_and_how_far_each_weight_went(run: Run) -> None:
    done = run("quantize", LLAMA, "out", "--recipe", "w4a8", "--for", "vllm:mi325x", *TARGET)
    assert (done.exit_code, done.stderr) == (0, "")
    wrote, read, *_ = done.stdout.splitlines()
    assert re.fullmatch(r"Wrote out: [\d.]+ MB, \d+ % of 3\.74 MB", wrote)
    assert read.startswith("llama-eagle3 is read as torchspec-native (certain: ")
    said = flat(done.stdout)
    for word in (
        "Recipe w4a8",
        "weights INT4 per channel, mse; activations INT8 per token, dynamic",
        "compressed-pack",
        "runs as 4-bit storage, 16-bit arithmetic",
        "[read: vllm/model_executor/layers/quantization/compressed_tensors, 0.33.0]",
        "Quantized weights",
    ):
        assert word in said
    for name in WEIGHTS:
        assert f"layers.0.{name}" in said
    assert said.count("INT4 per channel") == len(WEIGHTS) + 1  # the card's, and one for each weight
    assert re.search(r"total [\d.]+ % [\d.]+ % [\d.]+ 1\.25 MB [\d.]+ kB", said)
    assert "Warning" not in said
    assert said.endswith(f"draftconv parity {shlex.quote(str(LLAMA))} out --trace TRACE")
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "README.md", "config.json", "draftconv.json", "model.safetensors",
    ]  # fmt: skip


def test_a_program_reads_the_same(run: Run) -> None:
    words = ("--recipe", "w4a8", "--for", "vllm:mi325x", *TARGET, "--format", "json")
    told = json.loads(run("quantize", LLAMA, "out", *words).stdout)
    assert (told["written"], told["recipe"], told["format"], told["style"]) == (True, "w4a8", "compressed-pack", None)
    (engine,) = told["engines"]
    assert engine["engine"].endswith(":mi325x")
    assert "16-bit arithmetic" in engine["executed"]
    assert [verdict["status"] for verdict in told["verdicts"]] == ["loads"]
    assert [row["name"] for row in told["quantized"]] == [f"layers.0.{name}.weight" for name in WEIGHTS]
    for row in told["quantized"]:
        assert 0.05 < row["relative"] < row["worst"] < 0.3
        assert 3.5 < row["bytes_before"] / row["bytes_after"] < 4
    assert told["kept"]["fc.weight"] == "fc"
    assert told["warnings"] == []
    assert {row["scheme"] for row in told["quantized"]} == {"INT4 per channel, mse"}
    assert told["bytes_after"] < told["bytes_before"]
    total = told["total"]
    assert total["bytes_before"] == sum(row["bytes_before"] for row in told["quantized"])
    assert total["bytes_after"] == sum(row["bytes_after"] for row in told["quantized"])
    assert min(row["relative"] for row in told["quantized"]) < total["relative"] < total["worst"]
    worst = max(told["quantized"], key=lambda row: float(row["worst"]))
    assert (total["worst"], total["name"]) == (worst["worst"], worst["name"])
    written = sum(tensor.nbytes for tensor in load_file("out/model.safetensors").values())
    assert written == told["bytes_after"]


def test_a_dry_run_writes_nothing_and_says_what_would_be(run: Run) -> None:
    words = ("quantize", LLAMA, "out", "--recipe", "fp8", "--for", "sglang:mi325x", *TARGET)
    done = run(*words, "--dry-run")
    assert done.exit_code == 0
    said = flat(done.stdout)
    assert "Nothing written: would write: " in said
    assert "FP8 arithmetic" in said
    assert "Quantized weights" not in said
    assert "--dry-run" not in said.partition("Next:")[2]
    told = json.loads(run(*words, "--dry-run", "--format", "json").stdout)
    assert told["written"] is False
    assert all("relative" not in row for row in (*told["quantized"], told["total"]))
    assert not Path("out").exists()


def test_quiet_leaves_the_directory(run: Run) -> None:
    done = run("quantize", LLAMA, "out", "--recipe", "w4a16", "--no-card", "--quiet")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert sorted(path.name for path in Path("out").iterdir()) == ["config.json", "draftconv.json", "model.safetensors"]


def test_without_an_engine_it_says_who_reads_it(run: Run) -> None:
    said = flat(run("quantize", LLAMA, "out", "--recipe", "w4a16").stdout)
    assert "vLLM on h100, h200: 4-bit storage, 16-bit arithmetic (Machete, else Marlin)" in said
    assert "SGLang on h100, h200, b200: 4-bit storage" in said


def test_a_row_far_worse_than_the_others_is_a_warning(run: Run, lopsided: Path) -> None:
    words = ("quantize", lopsided, "out", "--recipe", "quark-w4a8", *TARGET)
    said = flat(run(*words).stdout)
    assert "Warning: layers.0.mlp.up_proj: row 7 has " in said
    warnings = json.loads(run(*words, "--overwrite", "--format", "json").stdout)["warnings"]
    assert said.count("Warning:") == len(warnings) == 4
    (warning,) = (line for line in warnings if not line.startswith("not for "))
    assert float(warning.partition(" has ")[2].split()[0]) > OUTLIER


def test_a_slower_kernel_is_a_warning(run: Run) -> None:
    words = (
        "quantize",
        LLAMA,
        "out",
        "--recipe",
        "w4a16",
        "--for",
        "vllm:h200",
        "--tensor-parallel-size",
        4,
        "--dry-run",
        *TARGET,
    )
    assert "Warning: vllm@0.33.0:h200: " in flat(run(*words).stdout)
    assert any(
        "Marlin is used instead" in line for line in json.loads(run(*words, "--format", "json").stdout)["warnings"]
    )


def test_calibrated(run: Run, recorded: Recorded) -> None:
    trace = recorded("llama", count=2, length=8)
    done = run("quantize", LLAMA, "out", "--recipe", "w4a8-awq", "--for", "trtllm:b200", "--calibrate", trace, *TARGET)
    assert done.exit_code == 0, done.stderr
    assert "W4A8_AWQ" in Path("out/hf_quant_config.json").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--recipe", "w4a9"), "no recipe is called w4a9"),
        (("--recipe", "w4a8", "--for", "trtllm:b200"), "--recipe w4a8-awq is the nearest"),
        (("--recipe", "w4a8", "--for", "vlm"), "vlm"),
        (("--recipe", "w4a8", "--for", "vllm:b300"), "b300"),
        (("--recipe", "fp8-tensor"), "--calibrate TRACE"),
        (("--recipe", "fp8-tensor", "--calibrate", "nowhere"), "nowhere"),
        (("--recipe", "w4a16", "--calibrate", "nowhere"), "recipe w4a16 needs no calibration"),
        (("--recipe", "fp8", "--calibrate", "nowhere"), "Its activations are scaled while the drafter runs"),
        (("--recipe", "w4a16-awq", "--calibrate", "nowhere"), "or add --backend modelopt, which smooths"),
        (("--recipe", "quark-w4a8", "--backend", "quarck"), "'quarck' is not one of 'native', 'quark', 'modelopt'"),
        (("--recipe", "w4a16", "--backend", "quark"), "recipes that it has: quark-w4a8"),
        (("--recipe", "w4a16-awq", "--backend", "modelopt"), "by nvidia-modelopt is AWQ, which is calibrated"),
        (("--recipe", "w4a16", "--requantize"), "--requantize is about quantized drafters"),
        (("--recipe", "w4a16", "--from-format", "gptq"), "--from-format is about quantized drafters"),
        (("--recipe", "w4a16", "--tensor-parallel-size", "0"), "0 is not in the range"),
        (
            ("--recipe", "w4a16-g128", "--for", "vllm:b200", "--tensor-parallel-size", "2"),
            "has no kernel for some sizes",
        ),
        ((), "Missing option '--recipe'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done(run: Run, words: tuple[str, ...], said: str) -> None:
    done = run("quantize", LLAMA, "out", *words, *TARGET)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in flat(done.stderr)
    assert "Traceback" not in done.stderr
    assert not Path("out").exists()


SERVERS = [f"{engine}:{hardware}" for engine in ENGINES for hardware in ENGINES[engine].hardware]


@pytest.mark.parametrize("engine", SERVERS)
def test_the_seed_is_refused_with_a_command_that_works(run: Run, engine: str) -> None:
    done = run("quantize", LLAMA, "OUT", "--recipe", "quark-w4a8", "--for", engine, *TARGET)
    assert done.exit_code == 2
    assert not Path("OUT").exists()
    command = shlex.split(flat(done.stderr).partition(": draftconv ")[2])
    assert command[:3] == ["convert", "OUT", "OUT2"]
    assert run("quantize", LLAMA, "OUT", "--recipe", "quark-w4a8", *TARGET).exit_code == 0
    assert run(*command, *TARGET).exit_code == 0
    assert run("verify", "OUT2", "--against", "OUT").exit_code == 0
    assert run("inspect", "OUT2", "--for", engine, *TARGET).exit_code == 0
    assert run("inspect", "OUT", "--for", engine, *TARGET).exit_code == 1


def test_a_source_that_was_quantized(run: Run, tmp_path: Path) -> None:
    path = seed(tmp_path, fc=True)
    words = ("quantize", path, "out", "--recipe", "fp8")
    refused = run(*words)
    assert refused.exit_code == 2
    assert "add --requantize" in flat(refused.stderr)
    assert not Path("out").exists()
    done = run(*words, "--requantize")
    assert done.exit_code == 0, done.stderr
    said = flat(done.stdout)
    assert "quantized already, as Quark INT4 per channel" in said
    assert "errors of both roundings add up" in said
    assert "floats again fc (in F16)" in said.replace("│", "").replace("  ", " ")
    told = json.loads(run(*words, "--requantize", "--overwrite", "--format", "json").stdout)
    assert told["source"]["quantized"] == "Quark INT4 per channel"
    assert told["floats_again"] == ["fc.weight"]
    before = sum(tensor.nbytes for tensor in load_file(path / "model.safetensors").values())
    assert told["bytes_before"] == before
    (down,) = (row for row in told["quantized"] if row["name"].endswith("down_proj.weight"))
    assert down["bytes_before"] < down["bytes_after"]
    assert 0 < down["relative"] < 0.1


def test_an_output_that_exists_is_kept(run: Run) -> None:
    assert run("quantize", LLAMA, "out", "--recipe", "w4a16").exit_code == 0
    before = Path("out/model.safetensors").read_bytes()
    done = run("quantize", LLAMA, "out", "--recipe", "fp8")
    assert done.exit_code == 2
    assert "out exists already" in done.stderr
    assert Path("out/model.safetensors").read_bytes() == before


def test_as_a_program(program: Program, tmp_path: Path) -> None:
    done = program("quantize", LLAMA, "out", "--recipe", "w4a16", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out/model.safetensors").exists()


def test_inspect_names_the_repack_that_is_served(run: Run) -> None:
    assert run("quantize", LLAMA, "out", "--recipe", "quark-w4a8", *TARGET).exit_code == 0
    seen = run("inspect", "out", "--for", "vllm:b200", *TARGET)
    assert seen.exit_code == 1
    said = flat(seen.stdout).partition("Next: ")[2]
    assert said.endswith("--pack compressed-pack")
    assert run(*shlex.split(said)[1:]).exit_code == 0
    assert run("inspect", "out-vllm", "--for", "vllm:b200", *TARGET).exit_code == 0
    assert run("verify", "out-vllm", "--against", LLAMA, *TARGET).exit_code == 0


def test_inspect_is_told_the_format(run: Run) -> None:
    assert run("quantize", LLAMA, "out", "--recipe", "quark-w4a8", "--no-card", *TARGET).exit_code == 0
    config = json.loads(Path("out/config.json").read_text())
    del config["quantization_config"]
    Path("out/config.json").write_text(json.dumps(config))
    asked = flat(run("inspect", "out", "--for", "vllm:b200", *TARGET).stdout)
    assert "add --from-format quark-int4:reorder if that is how they were written" in asked
    told = run("inspect", "out", "--for", "vllm:b200", "--from-format", "quark-int4:reorder", *TARGET)
    assert "--pack compressed-pack --from-format quark-int4:reorder\n" in told.stdout
