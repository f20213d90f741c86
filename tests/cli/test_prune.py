"""`draftconv prune` as it is typed: what is said before a byte is written, and one document for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Program, Run
from tests.counted import LLAMA, Counts, target
from tests.traces.recorded import Recorded

LONG = "x" * 250


def words(counts: Counts, out: object, *more: object) -> list[object]:
    return ["prune", LLAMA, out, "--vocab", "256", "--counts", counts(), "--target", target(LLAMA), *more]


def test_everything_is_said_before_it_is_written_and_then_what_to_do_next(run: Run, counts: Counts) -> None:
    found = run(*words(counts, "out"))
    assert found.exit_code == 0
    told = ("256 of 2048 rows", "Coverage", "Was there enough text?", "Loss of accept length", "Wrote out:", "Next: ")
    places = [found.stdout.index(part) for part in told]
    assert places == sorted(places)
    assert "at most" in found.stdout
    (following,) = (line for line in found.stdout.splitlines() if line.startswith("Next: "))
    assert f"draftconv verify out --against {LLAMA} --target" in following
    again = run(*following.removeprefix("Next: draftconv ").split())
    assert again.exit_code == 0
    assert "Verified: pass" in again.stdout
    assert "left out: " in again.stdout


def test_a_dry_run_writes_nothing_and_names_the_command_without_it(run: Run, counts: Counts, tmp_path: Path) -> None:
    found = run(*words(counts, "out", "--dry-run"))
    assert found.exit_code == 0
    assert "Nothing written: would write" in found.stdout
    assert "Next: draftconv prune" in found.stdout
    assert "--dry-run" not in found.stdout.rpartition("Next: ")[2]
    assert not (tmp_path / "out").exists()


def test_one_document_for_programs(run: Run, counts: Counts, recorded: Recorded) -> None:
    found = run(*words(counts, "out", "--trace", recorded("llama", count=8), "--format", "json"))
    assert found.exit_code == 0
    document = json.loads(found.stdout)
    assert document["written"] is True
    assert (document["vocab"], document["rows"]) == (256, 2048)
    assert len(document["tokens"]) == 256
    (domain,) = document["coverage"]
    assert set(domain) == {"name", "weight", "tokens", "held", "covered"}
    assert [step["vocab"] for step in document["ladder"]] == [64, 128, 256, 512, 1024]
    assert document["text"]["enough"] == 30 * 256 <= document["text"]["tokens"]
    replay = document["replay"]
    assert replay["conversations"] == 4
    assert replay["interval"][0] <= replay["loss"] <= replay["interval"][1]
    assert document["accept_length"] == replay["before"] > replay["after"]
    assert document["predicted_loss"][0] <= document["predicted_loss"][1]


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({"--vocab": "100"}, ["--vocab 100 is no multiple of 64", "Give 64 or 128, or --force"]),
        ({"--vocab": "9999"}, ["the head has 2048 rows", "Give fewer, such as 512"]),
        ({"--vocab": "1984"}, ["too few to choose 1984 rows by", "Give more text"]),
        ({"--counts": "absent.jsonl"}, ["absent.jsonl: no such file", "Check the path"]),
        ({"--counts": "code=x:absent"}, ["x is no weight", "Write DOMAIN=WEIGHT:FILE"]),
        ({"--target": "mistral"}, ["--target mistral", ""]),
        ({"--keep": "4000"}, ["the head has no row for 4000", "that the drafter can draft"]),
        ({"--trace": "absent"}, ["the trace absent does not exist", "draftconv trace"]),
        ({"OUT": LONG}, ["255 is the limit", "Choose a shorter name"]),
    ],
)
def test_bad_input_is_one_error_with_a_cure_and_leaves_nothing(
    change: dict[str, str], lines: list[str], run: Run, counts: Counts, tmp_path: Path
) -> None:
    typed = {"--vocab": "256", "--counts": counts(), "--target": target(LLAMA)} | change
    out = typed.pop("OUT", "out")
    found = run("prune", LLAMA, out, *(word for pair in typed.items() for word in pair))
    assert found.exit_code == 2
    assert found.stdout == ""
    assert found.stderr.count("Error: ") == 1
    assert len(found.stderr.splitlines()) <= 3
    for line in lines:
        assert line in found.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "holds nothing that the target wrote"),
        (b"[1]\n", "holds a single conversation"),
        (b"[1]\n[2048]\n", "holds token 2048"),
        (b"[1]\n[2\n", "is not valid JSON"),
        (b"[1]\n[1e400]\n", "is not a list of token ids"),
        (b'{"text": "\\ud800"}\n', "half of a surrogate pair"),
        (b"[" * 100_000, "nested"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_hostile_texts_are_one_error(data: bytes, fault: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "counts.jsonl").write_bytes(data)
    found = run("prune", LLAMA, "out", "--vocab", "256", "--counts", "counts.jsonl", "--target", target(LLAMA))
    assert found.exit_code == 2
    assert fault in found.stderr
    assert "fault of draftconv" not in found.stderr
    assert len(found.stderr.splitlines()) <= 3
    assert not (tmp_path / "out").exists()


def test_absurd_sizes_are_refused_before_anything_is_read(run: Run, tmp_path: Path) -> None:
    for name, size, fault in (("a.jsonl", 10**12, "100000000000 is the limit"), ("a.json", 10**9, "268435456 is the")):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)
        found = run("prune", LLAMA, "out", "--vocab", "256", "--counts", name, "--target", target(LLAMA))
        assert (found.exit_code, fault in found.stderr) == (2, True)


def test_help_starts_at_once(program: Program) -> None:
    done = program("prune", "--help")
    assert done.returncode == 0
    assert "--counts [DOMAIN=WEIGHT:]FILE" in done.stdout
    listing = "import sys; import draftconv.cli.prune; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    listed = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "tokenizers", "transformers", "numpy", "datasets", "jinja2", "huggingface_hub"} & {*listed}
