"""Statements to be signed: their exact JSON, the digests of what was read, and where they are never written."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

import draftconv
from draftconv.api.convert import convert
from draftconv.api.quantize import quantize
from draftconv.api.verify import verify
from draftconv.attestation.inputs import files_of
from draftconv.attestation.statement import ResourceDescriptor, Statement, write_statement
from draftconv.checkpoint.checkpoint import Checkpoint, FileInfo
from draftconv.errors import UsageError, WriteError
from tests import quantized, tiny
from tests.api.conftest import Source
from tests.traces.recorded import Recorded

NAME = "llama-eagle3-reduced"


def digest(path: Path) -> dict[str, str]:
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def files(path: Path, prefix: str = "") -> list[dict[str, object]]:
    return [{"name": f"{prefix}{file.name}", "digest": digest(file)} for file in sorted(path.iterdir())]


def test_a_pruning_names_the_texts_that_were_counted(source: Source, tmp_path: Path) -> None:
    path, out, target = source("torchspec-native", "llama"), tmp_path / "out", tiny.write_target(tmp_path / "target")
    counts = tmp_path / "ids.json"
    counts.write_text(json.dumps([[token] for token in range(100)]))
    draftconv.prune(path, out, vocab=64, counts=str(counts), keep="0", force=True, target=str(target),
                    attest=tmp_path / "made.json")  # fmt: skip
    definition = read(tmp_path / "made.json")["predicate"]["buildDefinition"]
    assert definition["buildType"] == "pkg:pypi/draftconv#prune"
    assert definition["externalParameters"]["command"] == "prune"
    assert definition["externalParameters"]["pruning"] == read(out / "draftconv.json")["pruning"]
    inputs = {item["name"]: item["digest"] for item in definition["resolvedDependencies"]}
    assert inputs["text ids.json"] == digest(counts)
    assert f"{path.name}/model.safetensors" in inputs
    assert not any("target/model" in name for name in inputs)  # nothing was taken from its tables


def test_a_conversion(source: Source, tmp_path: Path) -> None:
    path, out, target = source("modelopt-layers", "llama"), tmp_path / "out", tiny.write_target(tmp_path / "target")
    convert(path, out, to="vllm", embed="from-target", target=str(target), attest=tmp_path / "made.json")
    (table,) = target.glob("*.safetensors")
    assert read(tmp_path / "made.json") == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": files(out),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "pkg:pypi/draftconv#convert",
                "externalParameters": {
                    "command": "convert",
                    "source": path.name,
                    "options": read(out / "draftconv.json")["options"],
                    "target": read(out / "draftconv.json")["target"],
                },
                "internalParameters": {},
                "resolvedDependencies": [
                    *files(path, f"{path.name}/"),
                    {"name": "target target/config.json", "digest": digest(target / "config.json")},
                    {"name": f"target target/{table.name}", "digest": digest(table)},
                ],
            },
            "runDetails": {
                "builder": {
                    "id": f"pkg:pypi/draftconv@{draftconv.__version__}",
                    "version": {"draftconv": draftconv.__version__},
                }
            },
        },
    }
    assert str(tmp_path) not in (tmp_path / "made.json").read_text()


def test_a_quantization_names_its_recipe_and_its_trace(recorded: Recorded, tmp_path: Path) -> None:
    trace = recorded("llama", count=2, length=8)
    said: dict[str, Any] = {"target": str(quantized.target(NAME).path), "calibrate": trace}
    quantize(quantized.source(NAME), tmp_path / "out", recipe="fp8-tensor", attest=tmp_path / "made.json", **said)
    definition = read(tmp_path / "made.json")["predicate"]["buildDefinition"]
    assert definition["buildType"] == "pkg:pypi/draftconv#quantize"
    assert definition["externalParameters"]["quantization"]["recipe"]["name"] == "fp8-tensor"
    assert definition["resolvedDependencies"][-1] == {
        "name": f"trace {trace.name}/trace.json", "digest": digest(trace / "trace.json")
    }  # fmt: skip


def test_a_verification(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm", max_positions=65536)
    found = verify(out, path, max_positions=65536, attest=tmp_path / "verified.json")
    statement = read(tmp_path / "verified.json")
    predicate = statement.pop("predicate")
    assert statement == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": files(out),
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
    }
    assert predicate["result"] == "PASSED"
    assert predicate["configuration"] == [
        {
            "name": "draftconv verify",
            "uri": f"pkg:pypi/draftconv@{draftconv.__version__}",
            "annotations": {"options": {"max_positions": 65536}},
        },
        *files(path, f"{path.name}/"),
    ]
    assert len(predicate["passedTests"]) == len(found.rows)
    assert "tensor: fc.weight: equal" in predicate["passedTests"]
    assert "fact: max_positions: declared" in predicate["passedTests"]
    assert "directory: vllm@0.33.0: equal" in predicate["passedTests"]
    assert (predicate["warnedTests"], predicate["failedTests"]) == ([], [])


def test_what_is_only_claimed_is_not_stated_as_passed(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm", max_positions=65536)
    verify(out, path, attest=tmp_path / "verified.json")
    predicate = read(tmp_path / "verified.json")["predicate"]
    assert (predicate["result"], predicate["failedTests"]) == ("FAILED", ["fact: max_positions: claimed"])


def test_the_same_again_is_the_same_to_the_byte(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        convert(path, tmp_path / place / "out", to="vllm", attest=tmp_path / place / "made.json")
        verify(tmp_path / place / "out", path, attest=tmp_path / place / "verified.json")
    for name in ("made.json", "verified.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


# ── where it is written ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("inside", ["statement.json", "deeper/statement.json"])
def test_it_is_never_written_inside_the_artifact(inside: str, source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    with pytest.raises(UsageError, match="lies inside out") as caught:
        convert(path, out, to="vllm", attest=out / inside)
    assert caught.value.cure == "write it beside it: --attest out.intoto.json"
    assert not out.exists()
    convert(path, out, to="vllm")
    before = sorted(file.name for file in out.iterdir())
    (tmp_path / "link").symlink_to(out)
    for place in (out / inside, tmp_path / "link" / inside):
        with pytest.raises(UsageError, match="lies inside out"):
            verify(out, path, attest=place)
    assert sorted(file.name for file in out.iterdir()) == before


def test_it_replaces_nothing(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    (tmp_path / "mine.json").write_text("mine")
    with pytest.raises(WriteError, match="exists already"):
        convert(path, tmp_path / "out", to="vllm", attest=tmp_path / "mine.json")
    assert not (tmp_path / "out").exists()
    with pytest.raises(WriteError, match="exists already"):
        write_statement(tmp_path / "mine.json", Statement((), "", {}))
    assert (tmp_path / "mine.json").read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["mine.json"]


def test_directories_above_it_are_made(source: Source, tmp_path: Path) -> None:
    path, room = source("torchspec-native", "llama"), tmp_path / "a" / "b"
    convert(path, room / "out", attest=room / "made.json")
    assert sorted(file.name for file in room.iterdir()) == ["made.json", "out"]
    with pytest.raises(WriteError, match=r"made\.json cannot stand in config\.json, which is not a directory"):
        convert(path, tmp_path / "out", attest=room / "out" / ".." / "out" / "config.json" / ".." / "made.json")


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(WriteError, match="no room left"):
        write_statement(tmp_path / "made.json", Statement((), "", {}))
    assert list(tmp_path.iterdir()) == []


# ── inputs ─────────────────────────────────────────────────────────────────────────


def test_a_repository_is_named_with_its_commit() -> None:
    """A file that was not read and whose digest nobody told is named by its URI alone."""
    listing = (FileInfo("config.json", 2), FileInfo("model.safetensors", 9, sha256="ab" * 32), FileInfo("notes.txt", 1))
    found = Checkpoint("owner/name", None, {}, "{}", {}, {}, {}, listing, "c0ffee")
    where = "pkg:huggingface/owner/name@c0ffee"
    assert list(files_of(found)) == [
        ResourceDescriptor("owner/name/config.json", hashlib.sha256(b"{}").hexdigest(), f"{where}#config.json"),
        ResourceDescriptor("owner/name/model.safetensors", "ab" * 32, f"{where}#model.safetensors"),
    ]


def test_what_is_not_read_is_no_input(tmp_path: Path) -> None:
    path = tiny.spell("llama", "torchspec-native").write(tmp_path / "source")
    (path / "notes.txt").write_text("mine")
    convert(path, tmp_path / "out", to="vllm", attest=tmp_path / "made.json")
    made = read(tmp_path / "made.json")["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert [item["name"] for item in made] == ["source/config.json", "source/model.safetensors"]
