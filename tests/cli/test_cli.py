"""Every command: exit codes, JSON, quiet, and what a person reads."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result
from huggingface_hub import close_session

from draftconv.cli import COMMANDS, cli
from draftconv.cli import convert as cli_convert
from draftconv.cli import quantize as cli_quantize
from draftconv.cli.output import safe, size
from draftconv.conversion.options import read_size
from draftconv.engines import ENGINES
from draftconv.errors import CheckFailed
from tests import tiny
from tests.checkpoint.stub_hub import REPO, SHA, Hub, serving
from tests.cli.conftest import Run

NO_PUSH = [name for name in COMMANDS if name != "push"]


def next_command(result: Result) -> list[str]:
    """What the output says to type, as a shell would split it."""
    [line] = [line for line in result.stdout.splitlines() if line.startswith("Next: ")]
    assert line.startswith("Next: draftconv "), line
    return shlex.split(line.removeprefix("Next: draftconv "))


# ── help and usage ─────────────────────────────────────────────────────────────────


def test_help_lists_every_command(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name, line in COMMANDS.items():
        assert f"  {name}" in result.stdout
        assert line[:40] in result.stdout
    assert "Exit codes" in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_each_help_shows_examples(name: str, flag: str, run: Run) -> None:
    result = run(name, flag)
    assert result.exit_code == 0
    examples = [line.strip() for line in result.stdout.split("Examples:")[1].splitlines() if line.strip()]
    assert len(examples) >= 2
    for example in examples:
        words = shlex.split(example)
        assert words[:2] == ["draftconv", name]
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if name != "push":  # whose argument must exist
            # As the program asks: a command keeps the help option that it first got.
            command.make_context(name, words[2:], parent=click.Context(cli, **cli.context_settings))


def test_version(run: Run) -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout.startswith("draftconv, version ")) == (0, True)


@pytest.mark.parametrize(("word", "hint"), [("convret", "convert"), ("inspekt", "inspect"), ("veryfy", "verify")])
def test_did_you_mean(word: str, hint: str, run: Run) -> None:
    result = run(word, "x")
    assert result.exit_code == 2
    assert f"Did you mean {hint}?" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("inspect",),
        ("convert", "drafter"),
        ("convert", "drafter", "out", "--dtype", "int4"),
        ("convert", "drafter", "out", "--shard-size", "lots"),
        ("convert", "drafter", "out", "--max-positions", "0"),
        ("verify", "out"),
        ("diff", "a"),
        ("inspect", "drafter", "--format", "xml"),
        ("inspect", "drafter", "--no-such-option"),
        ("nothing-like-it",),
        ("inspect", "nowhere-at-all"),
        ("inspect", "drafter", "--for", "vlm"),
        ("inspect", "drafter", "--target", "kimi-k3000"),
        ("inspect", "drafter", "--target-layers", "0"),
        ("inspect", "drafter", "--from", "torchspc"),
        ("convert", "drafter", "out", "--to", "angelslim"),
        ("convert", "drafter", "drafter"),
        ("serve", "drafter", "--for", "vllm"),
    ],
)
def test_usage_and_bad_input_exit_2(words: tuple[str, ...], run: Run, drafter: Path) -> None:
    result = run(*words)
    assert drafter.is_dir()
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Error:" in result.stderr
    assert "Traceback" not in result.stderr


REFUSED: dict[tuple[str, ...], dict[str, object]] = {
    ("inspect", "nowhere-at-all"): {
        "kind": "BadCheckpoint", "what": "nowhere-at-all does not exist", "why": None,
        "cure": "pass a directory with config.json and weights, or a Hub id OWNER/NAME[@REVISION]", "exit_code": 2},
    ("inspect", "drafter", "--no-such-option"): {
        "kind": "UsageError", "what": "No such option '--no-such-option'.", "why": None,
        "cure": "draftconv inspect --help", "exit_code": 2},
    ("verify", "out"): {
        "kind": "UsageError", "what": "Missing option '--against'.", "why": None,
        "cure": "draftconv verify --help", "exit_code": 2},
    ("nothing-like-it",): {
        "kind": "UsageError", "why": None, "cure": None, "exit_code": 2,
        "what": f"No command 'nothing-like-it'. Commands: {', '.join(COMMANDS)}."},
    ("--nope", "inspect"): {
        "kind": "UsageError", "what": "No such option '--nope'.", "why": None, "cure": "draftconv --help",
        "exit_code": 2},
    ("inspect", "drafter", "--for", "vlm"): {
        "kind": "UsageError", "what": "unknown engine vlm", "cure": "did you mean vllm?", "exit_code": 2,
        "why": f"known: {', '.join(ENGINES)}, written ENGINE[@VERSION][:HARDWARE]"},
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
@pytest.mark.parametrize("form", [("--format", "json"), ("--format=JSON",)])
@pytest.mark.usefixtures("drafter")
def test_a_program_reads_why_there_is_no_document(words: tuple[str, ...], form: tuple[str, ...], run: Run) -> None:
    told, asked = run(*words), run(*words, *form)
    assert json.loads(asked.stdout) == {"error": REFUSED[words]}
    assert (asked.exit_code, asked.stderr) == (told.exit_code, told.stderr)


@pytest.mark.parametrize("words", [("-q", "--format", "json"), ("--format", "human"), ("--", "--format", "json")])
def test_an_error_is_json_only_for_those_who_read_it(words: tuple[str, ...], run: Run) -> None:
    result = run("inspect", "nowhere-at-all", *words)
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("name", NO_PUSH)
def test_every_command_with_json_has_json_errors(name: str, run: Run) -> None:
    result = run(name, "--format", "json", "--no-such-option")
    assert (result.exit_code, json.loads(result.stdout)["error"]["kind"]) == (2, "UsageError")


def test_a_check_that_fails_is_a_document_and_no_error(run: Run, drafter: Path) -> None:
    result = run("inspect", drafter, "--for", "vllm", "--format", "json")
    assert (result.exit_code, "error" in json.loads(result.stdout)) == (1, False)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("1", 1), ("5GB", 5 * 10**9), ("5 gb", 5 * 10**9), ("1.5kB", 1500), ("512MiB", 512 << 20), ("2Gi", 2 << 30),
     ("0", None), ("-1", None), ("5TB", None), ("GB", None), ("²GB", None), ("1e9", None), ("0.5", None), ("", None)],
)  # fmt: skip
def test_sizes(text: str, wanted: int | None) -> None:
    if wanted is None:
        with pytest.raises(ValueError, match="is not a size; write 5GB or 512MiB"):
            read_size(text)
    else:
        assert read_size(text) == wanted


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (6_356_525_056, "6.36 GB"), (5 * 10**12, "5000.00 GB")],
)
def test_bytes_in_words(count: int, words: str) -> None:
    assert size(count) == words


# ── inspect ────────────────────────────────────────────────────────────────────────


def test_inspect_says_what_it_is_the_verdict_and_what_to_do(run: Run, drafter: Path) -> None:
    result = run("inspect", drafter, "--for", "sglang")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "drafter: EAGLE-3, Llama-style GQA 4/2 x 16, 1 layer, 143.87 kB in BF16; layout torchspec-native (certain)",
        "Verdict: loads on sglang@0.5.23.",
        f"Next: draftconv inspect {drafter} --for sglang --target TARGET",
    ]


def test_inspect_gives_the_main_reason_of_each_engine(run: Run, drafter: Path) -> None:
    found = json.loads(run("inspect", drafter, "--format", "json").stdout)
    reason = next(line for line in found["engines"][0]["lines"] if line["effect"] == "mis-read")
    assert run("inspect", drafter).stdout.splitlines()[1:] == [
        "Verdict: loads on sglang@0.5.23, trtllm@1.3; mis-read by vllm@0.33.0.",
        f"  vllm@0.33.0: {reason['says']}: {reason['detail']}.",
        f"Next: draftconv convert {drafter} drafter-portable --to portable",
    ]


def test_inspect_says_all_it_knows_when_asked(run: Run, drafter: Path) -> None:
    result = run("inspect", drafter, "-v")
    assert result.exit_code == 0
    assert all(line.startswith("Info: ") for line in result.stderr.splitlines())
    text = result.stdout
    assert text.startswith(run("inspect", drafter).stdout)
    for line in (
        "layout        torchspec-native (certain: TorchSpec's version mark in config.json",
        "drafter       EAGLE-3, Llama-style GQA 4/2 x 16, 1 layer",
        "sizes         hidden 64, MLP 96, 143.87 kB in BF16",
        "boundaries    2, 4, 5 (after the layer: TorchSpec",
        "vocabulary    full, 160",
        "rope          default, base 50000, halves pairs (read from rope_theta)",
        "norms         before fc: none; eps 1e-06",
        "feedback      pre-norm (norm_output absent: false everywhere)",
        "tables        embed_tokens stored, lm_head stored",
        "quantization  none",
        "No problems found.",
        "Not checked: sizes against the target (needs --target);",
        "vllm-taps-v1; v1/worker/gpu_model_runner.py, 0.32.0 and 0.33.0; run",
    ):
        assert line in text, line
    assert text.count("Verdict:") == text.count("Next:") == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 0),
        (("--for", "sglang"), 0),
        (("--for", "vllm"), 1),
        (("--for", "vllm", "--for", "sglang"), 1),
        (("--strict",), 0),
    ],
)
@pytest.mark.parametrize("said", [("--format", "human"), ("--format", "json"), ("-q",)])
def test_inspect_exit_codes(words: tuple[str, ...], code: int, said: tuple[str, ...], run: Run, drafter: Path) -> None:
    result = run("inspect", drafter, *words, *said)
    assert result.exit_code == code
    assert (result.stdout == "") == (said == ("-q",))
    assert result.stderr == ""


def test_strict_fails_on_a_warning(run: Run, tmp_path: Path) -> None:
    path = tiny.spell("llama", "modelopt-layers").write(tmp_path / "drafter")
    assert run("inspect", path).exit_code == 0
    assert run("inspect", path, "--strict").exit_code == 1


def test_inspect_json(run: Run, drafter: Path) -> None:
    found = json.loads(run("inspect", drafter, "--format", "json").stdout)
    assert list(found) == ["name", "revision", "files", "layout", "facts", "reasons", "readings", "tensors",
                           "companions", "dropped", "target", "problems", "weights", "not_verified",
                           "not_checked", "engines"]  # fmt: skip
    assert found["name"] == "drafter"
    assert found["layout"]["id"] == "torchspec-native"
    assert found["facts"]["eagle"] == "3"
    assert found["facts"]["attention"] == {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_dim": 16,
                                           "qkv_bias": False, "o_bias": False, "qk_norm": False}  # fmt: skip
    assert found["facts"]["boundaries"] == [2, 4, 5]
    assert found["tensors"]["norm.weight"] == {"file_name": "norm.weight", "dtype": "BF16", "shape": [64]}
    engine = found["engines"][0]
    assert list(engine) == ["engine", "version", "hardware", "status", "lines", "rules_kept"]
    assert (engine["engine"], engine["status"]) == ("vllm", "mis-read")
    assert list(engine["lines"][0]) == ["rule", "effect", "says", "detail", "source", "evidence"]
    assert {line["evidence"] for line in engine["lines"]} <= {"run", "read", "inferred"}


def test_problems_are_told_with_their_cure(run: Run, tmp_path: Path) -> None:
    spelled = tiny.spell("reduced", "torchspec-native")
    spelled.put("d2t", tiny.integers(tiny.ASCENDING))
    path = spelled.write(tmp_path / "broken")
    result = run("inspect", path)
    assert "d2t-absolute" in result.stdout
    told = " ".join(result.stdout.split())
    assert "Cure: convert --repair d2t-absolute subtracts the draft ids." in told
    assert "1 error" in result.stdout
    (problem,) = json.loads(run("inspect", path, "--format", "json").stdout)["problems"]
    assert list(problem) == ["code", "severity", "level", "title", "detail", "why", "cure", "repair"]
    assert next_command(result)[-2:] == ["--repair", "d2t-absolute"]
    assert run(*next_command(result)).exit_code == 0


# ── convert, verify, serve: each proposes the next, and it works ───────────────────


@pytest.mark.parametrize("name", ["drafter", "a drafter; rm -rf ~", "it's $HOME"])
def test_the_way_through_by_pasting(name: str, run: Run, tmp_path: Path) -> None:
    tiny.spell("3.1", "torchspec-native").write(tmp_path / name)
    tiny.write_target(tmp_path / "the target")
    result = run("inspect", name, "--target", "the target")
    for command in ("convert", "verify"):
        words = next_command(result)
        assert words[0] == command
        result = run(*words)
        assert result.exit_code == 0, result.output
    assert "Verified: pass" in result.stdout
    words = next_command(run("inspect", f"{name}-portable", "--target", "the target"))
    assert words == ["serve", f"{name}-portable", "--for", "vllm@0.33.0", "--target", "the target"]
    served = run(*words)
    assert served.exit_code == 0
    assert shlex.split(served.stdout.splitlines()[-1])[:2] == ["vllm", "serve"]


def test_the_proposed_directory_is_free(
    run: Run, tmp_path: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drafter-portable").mkdir()
    assert next_command(run("inspect", drafter))[2] == "drafter-portable-2"
    monkeypatch.chdir(drafter)
    words = next_command(run("inspect", "."))
    assert words[2] == str(tmp_path / "drafter-portable-2")
    assert run(*words).exit_code == 0


def test_a_dry_run_shows_everything_and_proposes_itself(run: Run, drafter: Path, tmp_path: Path) -> None:
    words = ("convert", drafter, "out", "--to", "vllm", "--dtype", "float32", "--shard-size", "100kB", "--no-card")
    result = run(*words, "--dry-run")
    assert result.exit_code == 0
    for line in ("Plan", "midlayer.mlp.up_proj.weight", "[96, 64]", "cast", "Nothing written: would write 14 tensors",
                 "Peak memory about", "BF16 → F32, every value exact"):  # fmt: skip
        assert line in result.stdout, line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drafter"]
    again = next_command(result)
    assert again == [
        "convert",
        str(drafter),
        "out",
        "--to",
        "vllm",
        "--dtype",
        "float32",
        "--shard-size",
        "100000",
        "--no-card",
    ]
    result = run(*again)
    assert result.exit_code == 0
    assert "Wrote out: 14 tensors" in result.stdout
    assert "in 4 files (vllm@0.33.0 loads)" in result.stdout


def test_convert_json(run: Run, drafter: Path) -> None:
    dry = json.loads(run("convert", drafter, "out", "--dry-run", "--format", "json").stdout)
    wet = json.loads(run("convert", drafter, "out", "--format", "json").stdout)
    assert list(wet) == ["written", "layout", "bytes", "peak_memory", "files", "tensors", "reading", "changes",
                         "findings", "warnings", "not_checked", "config", "engines", "left_out"]  # fmt: skip
    assert (dry.pop("written"), wet.pop("written")) == (False, True)
    assert dry == wet
    (file,) = wet["files"]
    assert file["size"] == (Path("out") / file["name"]).stat().st_size
    assert sum(tensor["bytes"][1] - tensor["bytes"][0] for tensor in wet["tensors"]) == wet["bytes"]
    assert {tensor["operation"] for tensor in wet["tensors"]} == {"copy"}
    assert wet["config"] == json.loads((Path("out") / "config.json").read_text())


def test_quiet_prints_nothing(run: Run, drafter: Path) -> None:
    for words in (("convert", drafter, "out"), ("verify", "out", "--against", drafter), ("diff", drafter, drafter)):
        result = run(*words, "--quiet")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_refusals_name_what_why_and_cure(run: Run, tmp_path: Path) -> None:
    path = tiny.spell("norm-before-residual", "speculators").write(tmp_path / "drafter")
    result = run("convert", path, "out", "--to", "sglang")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: SGLang cannot add the normed state as residual (norm_before_residual: true)\n"
        "       It does not read the flag and always adds the raw state\n"
        "       Convert to vllm\n"
    )


def test_verify_json_and_exit_codes(run: Run, drafter: Path) -> None:
    run("convert", drafter, "out", "--to", "vllm", "--embed", "drop", "--force")
    result = run("verify", "out", "--against", drafter, "--force", "--format", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert list(found) == ["passed", "result", "record", "tensors", "facts", "directory", "cures", "readings"]
    assert (found["passed"], found["result"], found["record"]) == (True, "pass", "believed")
    assert {row["outcome"] for row in found["tensors"]} == {"equal", "declared"}
    assert list(found["facts"][0]) == ["what", "outcome", "how"]
    (Path("out") / "draftconv.json").unlink()
    result = run("verify", "out", "--against", drafter)
    assert result.exit_code == 1
    assert "different  embed_tokens.weight  missing from the output" in result.stdout
    assert "There is no draftconv.json, so nothing is declared." in result.stdout
    assert "Verified: fail" in result.stdout
    assert "Next:" not in result.stdout
    assert run("verify", "out", "--against", drafter, "--quiet").exit_code == 1


def test_verify_proposes_serving_when_the_target_is_told(run: Run, drafter: Path, tmp_path: Path) -> None:
    tiny.write_target(tmp_path / "target")
    run("convert", drafter, "out", "--to", "sglang", "--target", "target")
    result = run("verify", "out", "--against", drafter, "--target", "target")
    assert next_command(result) == ["serve", "out", "--for", "sglang", "--target", "target"]
    assert run(*next_command(result)).exit_code == 0


def test_diff(run: Run, drafter: Path, tmp_path: Path) -> None:
    same = run("diff", drafter, drafter)
    said, *read = same.stdout.splitlines()
    assert (same.exit_code, said) == (0, "No difference.")
    assert [line.split(" (")[0] for line in read] == ["drafter is read as torchspec-native"] * 2
    other = tiny.spell("3.1", "torchspec-native").write(tmp_path / "other")
    result = run("diff", drafter, other)
    assert result.exit_code == 1
    assert "feedback  pre-norm  post-norm" in result.stdout
    assert "fc_norm.0.weight  absent  BF16 [64]" in result.stdout
    assert result.stdout.startswith("Different: 2 facts, 3 tensors, 2 config keys.\n")
    found = json.loads(run("diff", drafter, other, "--format", "json").stdout)
    assert list(found) == ["facts", "tensors", "config", "readings"]
    assert found["facts"][0] == {"what": "fusion", "left": "plain", "right": "fc_norm"}


def test_serve_refuses_what_would_be_misread_with_exit_1(run: Run, drafter: Path, tmp_path: Path) -> None:
    tiny.write_target(tmp_path / "target")
    result = run("serve", drafter, "--for", "vllm", "--target", "target")
    assert (result.exit_code, result.stdout) == (1, "")
    command = result.stderr.splitlines()[-1].split("first: draftconv ")[1]
    assert run(*shlex.split(command)).exit_code == 0


def test_what_fits_without_a_target_is_asked_with_one_next(run: Run) -> None:
    trained = Path(__file__).parents[1] / "data/drafters/llama-eagle3.1"
    result = run("inspect", trained, "--for", "vllm")
    assert next_command(result) == ["inspect", str(trained), "--for", "vllm", "--target", "TARGET"]


def test_push_needs_a_record(run: Run, drafter: Path) -> None:
    result = run("push", drafter, "me/drafter")
    assert result.exit_code == 1
    assert "no draftconv.json" in result.stderr


def test_push_lists_before_it_uploads(run: Run, drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.write_target(tmp_path / "target")
    assert run("convert", drafter, "out", "--to", "vllm", "--target", "target").exit_code == 0
    (tmp_path / "out" / ".env").write_text("secret")
    monkeypatch.setenv("NO_PROXY", "*")
    close_session()
    with serving(Hub({}, private=True)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        dry = run("push", "out", REPO, "--dry-run")
        assert (dry.exit_code, hub.pushed) == (0, {})
        done = run("push", "out", REPO)
        hub.status = 500
        failed = run("push", "out", REPO)
    close_session()
    listed = done.stdout.splitlines()
    assert sorted(line.split()[0] for line in listed if "as written" in line) == sorted(hub.pushed)
    assert any(line.split() == [".env", "stays", "here"] for line in listed)
    assert listed[-1].endswith(f"/{REPO}/commit/{SHA}")
    assert dry.stdout.splitlines()[:-1] == listed[:-1]
    assert dry.stdout.splitlines()[-1].startswith("Nothing uploaded: ")
    assert (failed.exit_code, failed.stdout) == (2, "")


# ── failures of every kind ─────────────────────────────────────────────────────────


def fails(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr("draftconv.cli.inspect.inspect", broken)


OUT_OF_MEMORY = (
    "Error: out of memory: this process could not get more\n"
    "       Nothing half written was left behind\n"
    "       End other programs, raise the limit of the container or of `ulimit -v`, or run it on a machine with more\n"
)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CheckFailed("the seal is broken.", why="somebody opened it.", cure="ask them"), 1,
         "Error: the seal is broken\n       Somebody opened it\n       Ask them\n"),
        (CheckFailed("x", why="d2t holds ids", cure="convert --repair d2t-absolute mends it."), 1,
         "Error: x\n       d2t holds ids\n       convert --repair d2t-absolute mends it\n"),
        (KeyError("surprise"), 2,
         "Error: KeyError: 'surprise'\n"
         "       This is a fault of draftconv; the same command with --debug shows where\n"),
        (BrokenPipeError(32, "Broken pipe"), 2,
         "Error: ConnectionError: [Errno 32] Broken pipe\n"
         "       This is a fault of draftconv; the same command with --debug shows where\n"),
        (KeyboardInterrupt(), 130, "\nInterrupted: nothing was left behind.\n"),
        (MemoryError(), 2, OUT_OF_MEMORY),
        (RuntimeError("std::bad_alloc"), 2, OUT_OF_MEMORY),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
                      "tried to allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)"), 2, OUT_OF_MEMORY),
        (OSError(12, "Cannot allocate memory"), 2, OUT_OF_MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), 2,
         OUT_OF_MEMORY.replace("this process", "the device")),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), 2,
         "Error: RuntimeError: mat1 and mat2 shapes cannot be multiplied\n"
         "       This is a fault of draftconv; the same command with --debug shows where\n"),
    ],
)  # fmt: skip
def test_every_failure_is_one_message(
    error: BaseException, code: int, text: str | None, run: Run, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("inspect", drafter)
    fails(monkeypatch, error)
    if code != 130:
        memory = text is not None and text.startswith("Error: out of memory")
        known = isinstance(error, CheckFailed) or memory
        told = json.loads(run("inspect", drafter, "--format", "json").stdout)["error"]
        kind = "ConnectionError" if isinstance(error, BrokenPipeError) else type(error).__name__
        assert (told["kind"], told["exit_code"]) == ("OutOfMemory" if memory else kind, code)
        assert known or told["cure"] == "the same command with --debug shows where"
    result = run("inspect", drafter)
    assert result.exit_code == code
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    if text is not None:
        assert result.stderr == text


@pytest.mark.parametrize("words", [("--debug", "inspect"), ("inspect", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(
    words: tuple[str, ...], run: Run, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("inspect", drafter)
    fails(monkeypatch, CheckFailed("x"))
    result = run(*words, drafter)
    assert isinstance(result.exception, CheckFailed)


def test_debug_after_two_dashes_is_a_name(run: Run) -> None:
    result = run("inspect", "--", "--debug")
    assert (result.exit_code, "--debug does not exist" in result.stderr) == (2, True)


# ── hostile text ───────────────────────────────────────────────────────────────────

EVIL = (
    "\x1b[31m\x1b]0;owned\x07 [bold red]x[/] \u202egnp\u2066 \x9b2J "
    "<img src=x onerror=alert(1)> [y](http://evil.example) \r\n# H"
)


def hostile(text: str) -> bool:
    return any(not character.isprintable() for character in text.replace("\n", ""))


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """Terminal escapes, rich markup, bidirectional controls and HTML wherever a checkpoint can hold text."""
    spelled = tiny.spell("reduced", "torchspec-native")
    spelled.tensors[f"rotary_emb.{EVIL}"] = tiny.floats("x", (4,), "BF16")
    spelled.config |= {EVIL: EVIL, "hidden_act": "silu", "model_name": EVIL, "dtype": EVIL}
    spelled.config["eagle_config"] |= {EVIL: {EVIL: EVIL}}
    spelled.metadata = {"torchspec_version": EVIL, EVIL.replace("\x00", ""): EVIL}
    name = EVIL.replace("/", "|")[:90]
    return spelled.write(tmp_path / name)


COMMANDS_ON_EVIL: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "inspect": lambda path: ("inspect", path),
    "inspect json": lambda path: ("inspect", path, "--format", "json"),
    "inspect from": lambda path: ("inspect", path, "--from", EVIL),
    "convert": lambda path: ("convert", path, path.with_name(path.name + "out")),
    "convert dry": lambda path: ("convert", path, "out", "--dry-run"),
    "convert json": lambda path: ("convert", path, "out", "--format", "json"),
    "refused": lambda path: ("convert", path, path),
    "verify": lambda path: ("verify", path, "--against", path),
    "diff": lambda path: ("diff", path, path.parent / "plain"),
    "missing": lambda path: ("inspect", path / EVIL.replace("/", "|")),
    "target": lambda path: ("inspect", path, "--target", EVIL),
}


@pytest.mark.parametrize("case", COMMANDS_ON_EVIL)
def test_hostile_text_never_reaches_the_terminal(case: str, run: Run, evil: Path, tmp_path: Path) -> None:
    tiny.spell("llama", "torchspec-native").write(tmp_path / "plain")
    result = run(*COMMANDS_ON_EVIL[case](evil))
    assert result.exit_code in (0, 1, 2)
    assert "Traceback" not in result.stderr
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)
    assert not hostile(result.stdout), result.stdout
    assert not hostile(result.stderr), result.stderr
    assert result.stdout + result.stderr != ""


def test_broken_inputs_with_hostile_names(run: Run, tmp_path: Path) -> None:
    """Names inside error messages: an unknown tensor, a wrong type, a shape, a repeated tensor."""
    for number, change in enumerate(
        (
            lambda s: s.tensors.update({f"layers.0.{EVIL}": tiny.floats("x", (4,), "BF16")}),
            lambda s: s.config.update(architectures=[EVIL], _draftconv_layout=EVIL),
            lambda s: s.config.update(hidden_act=EVIL),
            lambda s: s.config.update(rope_scaling={"type": EVIL, EVIL: {}}),
            lambda s: s.config.update(speculators_model_type=EVIL),
            lambda s: s.config.update(num_attention_heads=EVIL),
        )
    ):
        spelled = tiny.spell("llama", "torchspec-native")
        change(spelled)
        path = spelled.write(tmp_path / f"broken{number}")
        for words in (("inspect", path), ("convert", path, f"out{number}", "--to", "vllm")):
            result = run(*words)
            assert "fault of draftconv" not in result.stderr, result.stderr
            assert not hostile(result.stdout + result.stderr)


def test_the_card_holds_no_markup_of_others(run: Run, evil: Path) -> None:
    result = run("convert", evil, "out")
    assert result.exit_code == 0, result.stderr
    card = Path("out", "README.md").read_text()
    assert not hostile(card)
    prose = "\n".join(part for number, part in enumerate(card.split("`")) if number % 2 == 0)
    prose = re.sub(r"\\.", "", prose)  # what is escaped is text
    for markup in ("<img", "](http", "http://", "[bold"):
        assert markup not in prose
    assert card.partition("\n---\n")[2].count("\n# ") == 1
    record = json.loads(Path("out", "draftconv.json").read_text())
    assert record["source"]["config"][EVIL] == EVIL  # verbatim, in a file that nobody prints


def test_safe_escapes_and_keeps() -> None:
    assert safe("plain é 漢 → …") == "plain é 漢 → …"
    assert safe("a\x1b[0m\u202e\u200b\n\udc80\x9b") == "a\\x1b[0m\\u202e\\u200b\\n\\udc80\\x9b"


def test_markup_is_printed_as_text(run: Run, tmp_path: Path) -> None:
    path = tiny.spell("llama", "torchspec-native").write(tmp_path / "[red]x :smile:")
    text = run("inspect", path).stdout
    assert text.startswith("[red]x :smile:")


# ── an interrupt in the middle ─────────────────────────────────────────────────────


def test_an_interrupted_conversion_leaves_nothing(
    run: Run, drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftconv.checkpoint import execute

    written: list[list[str]] = []

    def interrupted(directory: Path, *_: object) -> None:
        written.append(sorted(path.name for path in directory.iterdir()))
        raise KeyboardInterrupt

    monkeypatch.setattr(execute, "_check_written", interrupted)
    result = run("convert", drafter, "out", "--to", "vllm")
    assert result.exit_code == 130
    assert written == [["README.md", "config.json", "draftconv.json", "model.safetensors"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drafter"]
    assert "Interrupted" in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_as_much_as_it_is_asked_to(name: str, run: Run) -> None:
    told = run(name, "--help").stdout
    assert "-q, --quiet " in told
    assert "-v, --verbose " in told
    assert ("--format [human|json] " in told) == (name in NO_PUSH)


def test_docs_do_not_lie_about_deleting(run: Run, drafter: Path, tmp_path: Path) -> None:
    """--overwrite replaces our own output only."""
    run("convert", drafter, "out")
    assert run("convert", drafter, "out").exit_code == 2
    assert run("convert", drafter, "out", "--overwrite").exit_code == 0
    shutil.copytree(drafter, tmp_path / "precious")
    assert run("convert", drafter, "precious", "--overwrite").exit_code == 2
    assert (tmp_path / "precious" / "model.safetensors").exists()
    (tmp_path / "out" / "notes\x1b[31m.md").touch()
    result = run("convert", drafter, "out", "--overwrite")
    assert result.exit_code == 2
    assert "or what was changed since: notes\\x1b[31m.md" in " ".join(result.stderr.split())
    assert (tmp_path / "out" / "notes\x1b[31m.md").exists()


@pytest.mark.parametrize("command", ["convert", "quantize"])
def test_an_occupied_directory_is_refused_before_anything_is_read(
    command: str, run: Run, drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.md").touch()
    for module in (cli_convert, cli_quantize):
        monkeypatch.setattr(module, "prepare", lambda *_, **__: pytest.fail("it was planned"))
    words = ("--recipe", "w4a8", "--for", "vllm:b200") if command == "quantize" else ()
    for overwrite, said in (((), "out exists already"), (("--overwrite",), "was not written by draftconv")):
        result = run(command, drafter, "out", *words, *overwrite)
        assert result.exit_code == 2
        assert said in result.stderr


# ── how drafters are read ──────────────────────────────────────────────────────────


@pytest.fixture
def alike(tmp_path: Path) -> Path:
    """Looks like SpecForge's, and is spelled for vLLM."""
    spelled = tiny.spell("reduced", "torchspec-native")
    del spelled.config["_torchspec_version"]
    spelled.metadata = {"format": "pt"}
    spelled.config |= {"eagle_config": {tiny.IDS: [2, 4, 5]}, "norm_output": True}
    tiny.write_target(tmp_path / "target", tiny.VARIANTS["llama"])
    return spelled.write(tmp_path / "alike")


def test_a_doubtful_reading_stops_with_the_options_that_decide(run: Run, alike: Path) -> None:
    result = run("convert", alike, "out", "--to", "vllm", "--target", "target")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "Error: alike can be read in 3 ways, and a wrong one costs accept length without a message",
        "       As detected, --from specforge: boundaries 3, 5, 6 and pre-norm feedback; --aux-convention before: "
        "boundaries 2, 4, 5 and pre-norm feedback; --from vllm: boundaries 2, 4, 5 and post-norm feedback",
        "       Add the option that fits how it was trained, or --accept-detected to go on as detected",
    ]
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "ids", "norm_output"),
    [
        (("--from", "vllm"), [2, 4, 5], True),
        (("--from", "specforge"), [3, 5, 6], False),
        (("--from", "specforge", "--aux-convention", "before"), [2, 4, 5], False),
        (("--accept-detected",), [3, 5, 6], False),
    ],
)
def test_what_was_said_is_what_is_written(
    words: tuple[str, ...], ids: list[int], norm_output: bool, run: Run, alike: Path
) -> None:
    result = run("convert", alike, "out", "--to", "vllm", "--target", "target", *words)
    assert result.exit_code == 0
    config = json.loads((Path("out") / "config.json").read_text())
    assert (config[tiny.IDS], config["norm_output"]) == (ids, norm_output)
    assert [line.split(" ")[0] for line in result.stdout.splitlines()[:2]] == ["Wrote", "alike"]
    assert ("Warning: alike: reading-doubtful: " in result.stderr) is (words == ("--accept-detected",))
    assert run(*next_command(result)).exit_code == 0


@pytest.mark.parametrize("command", ["convert", "verify", "diff"])
def test_doubts_are_in_json_and_beside_it(command: str, run: Run, alike: Path) -> None:
    run("convert", alike, "made", "--to", "vllm", "--target", "target", "--accept-detected")
    words = {
        "convert": (str(alike), "out", "--to", "vllm", "--accept-detected"),
        "verify": ("made", "--against", str(alike), "--accept-detected"),
        "diff": ("made", str(alike)),
    }[command]
    result = run(command, *words, "--target", "target", "--format", "json")
    found = json.loads(result.stdout)
    reading = (
        found["reading"] if command == "convert" else found["readings"]["source" if command == "verify" else "right"]
    )
    assert [row["code"] for row in reading["warnings"]] == [
        "aux-other-triple", "norm-output-specforge", "reading-doubtful"
    ]  # fmt: skip
    assert [row["option"] for row in reading["readings"]] == [
        "--from specforge", "--aux-convention before", "--from vllm"
    ]  # fmt: skip
    assert all(line.startswith("Warning: alike: ") for line in result.stderr.splitlines())
    assert len(result.stderr.splitlines()) == 3


def test_inspect_tells_every_reading_and_proposes_none(run: Run, alike: Path) -> None:
    result = run("inspect", alike, "--for", "vllm", "--target", "target")
    said = " ".join(result.stdout.split())
    assert result.exit_code == 1
    assert "if it is read as detected (3 readings fit)" in said
    assert "reading-doubtful" in said
    assert "commands that act on it stop until then" in said
    assert "Next:" not in result.stdout


def test_an_engine_that_loads_one_reading_is_not_said_to_load_the_drafter(run: Run, tmp_path: Path) -> None:
    """Unmarked, with norm_output false: the detected reading aside, every reading loads on vLLM."""
    spelled = tiny.spell("reduced", "torchspec-native", ids=False)
    del spelled.config["_torchspec_version"]
    spelled.metadata = {"format": "pt"}
    assert run("inspect", spelled.write(tmp_path / "plain"), "--for", "vllm").exit_code == 0
    spelled.config["norm_output"] = False
    path = spelled.write(tmp_path / "flagged")
    assert run("inspect", path, "--for", "vllm").exit_code == 1
    assert run("inspect", path, "--for", "vllm", "--from", "vllm").exit_code == 0


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("recipes", "trace", "accept")])
def test_a_hub_id_of_a_target_is_no_path(name: str) -> None:
    """A path would lose one of two slashes."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    (option,) = [param for param in command.params if "--target" in param.opts]
    assert option.type.convert("hf://owner/name", option, None) == "hf://owner/name"
