"""`--overwrite` replaces what draftconv wrote, as it wrote it, and nothing else."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftconv.api import convert as convert_module
from draftconv.api import quantize as quantize_module
from draftconv.api.convert import ConvertOptions, convert
from draftconv.api.quantize import QuantizeOptions, quantize
from draftconv.checkpoint import open_checkpoint
from draftconv.conversion.provenance import output_digest
from draftconv.errors import UsageError, WriteError
from tests.api.conftest import Source
from tests.keywords import keywords
from tests.layouts.spelled import document

VLLM = ConvertOptions(to="vllm")
TRAINED = Path(__file__).parents[1] / "data/drafters/llama-eagle3"
AWQ = QuantizeOptions(recipe="w4a16-awq", engines=("trtllm:h200",), target_layers=8)


@pytest.fixture
def out(source: Source, tmp_path: Path) -> Path:
    convert(source("torchspec-native", "llama"), tmp_path / "out", **keywords(VLLM))
    return tmp_path / "out"


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def early(out: Path) -> None:
    """The record as versions without a list of files wrote it."""
    record = document(out, "draftconv.json")
    del record["files"]
    checkpoint = open_checkpoint(out)
    record["output"] = output_digest(checkpoint.tensors, checkpoint.config, record)
    (out / "draftconv.json").write_text(json.dumps(record))


def one_file(path: Path, out: Path) -> None:
    convert(path, out, **keywords(VLLM, overwrite=True))


def shards(path: Path, out: Path) -> None:
    convert(path, out, overwrite=True, to="vllm", shard_size=20_000)


def no_card(path: Path, out: Path) -> None:
    convert(path, out, overwrite=True, to="vllm", card=False)


def quantized(_: Path, out: Path) -> None:
    """With an hf_quant_config.json beside the rest."""
    quantize(TRAINED, out, **keywords(AWQ, overwrite=True))
    assert (out / "hf_quant_config.json").exists()


KINDS = (one_file, shards, no_card, quantized)


@pytest.mark.parametrize("write", KINDS)
def test_the_record_lists_all_other_files(write: Callable[[Path, Path], None], source: Source, tmp_path: Path) -> None:
    write(source("torchspec-native", "llama"), tmp_path / "out")
    files = document(tmp_path / "out", "draftconv.json")["files"]
    written = contents(tmp_path / "out")
    assert sorted([*files, "draftconv.json"]) == sorted(written)
    for name, told in files.items():
        assert told["size"] == len(written[name])
        assert told["sha256"] == hashlib.sha256(written[name]).hexdigest()


@pytest.mark.parametrize("age", [lambda _: None, early], ids=["listed", "early"])
@pytest.mark.parametrize("write", KINDS)
def test_what_was_left_alone_is_replaced(
    write: Callable[[Path, Path], None], age: Callable[[Path], None], source: Source, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    write(source("torchspec-native", "llama"), out)
    age(out)
    convert(source("torchspec-native", "3.1"), out, overwrite=True, to="sglang")
    assert document(out, "draftconv.json")["layout"] == "sglang"
    assert sorted(contents(out)) == ["README.md", "config.json", "draftconv.json", "model.safetensors"]


def write_card(out: Path) -> None:
    (out / "README.md").write_text((out / "README.md").read_text() + "\n## What we measured\n")


def checkout(out: Path) -> None:
    (out / ".git").mkdir()
    (out / ".git/HEAD").write_text("ref: refs/heads/main")


def report_inside(out: Path) -> None:
    (out / "report").mkdir()
    (out / "report/report.json").write_text("{}")


STRANGE: dict[Callable[[Path], object], str] = {
    write_card: "README.md",
    checkout: ".git/",
    report_inside: "report/",
    lambda out: (out / "notes.md").touch(): "notes.md",
    lambda out: (out / "model.safetensors.bak").touch(): "model.safetensors.bak",
    lambda out: edit(out / "config.json", lambda config: config.update(eos_token_id=7)): "config.json, draftconv.json",
    lambda out: edit(out / "draftconv.json", lambda record: record.update(note="tried on Monday")): "draftconv.json",
}


@pytest.mark.parametrize(("change", "named"), list(STRANGE.items()), ids=list(STRANGE.values()))
def test_the_work_of_the_user_is_named_and_kept(
    change: Callable[[Path], object], named: str, out: Path, source: Source
) -> None:
    change(out)
    before = contents(out)
    with pytest.raises(WriteError, match="out holds what draftconv did not write, or what was changed") as caught:
        convert(source("torchspec-native", "llama"), out, **keywords(VLLM, overwrite=True))
    assert caught.value.what.endswith(f": {named}")
    with pytest.raises(WriteError, match="out holds what draftconv did not write"):
        quantize(source("torchspec-native", "llama"), out, **keywords(AWQ, overwrite=True))
    assert contents(out) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda out: (out / "notes.md").touch(), ": notes.md"),
        (lambda out: edit(out / "config.json", lambda config: config.update(eos_token_id=7)), "draftconv.json of ours"),
        (lambda out: edit(out / "draftconv.json", lambda record: record.update(note="x")), "draftconv.json of ours"),
    ],
)
def test_the_record_of_an_early_version_covers_no_more(
    change: Callable[[Path], object], said: str, out: Path, source: Source
) -> None:
    early(out)
    change(out)
    before = contents(out)
    with pytest.raises(WriteError) as caught:
        convert(source("torchspec-native", "llama"), out, **keywords(VLLM, overwrite=True))
    assert caught.value.what.endswith(said)
    assert contents(out) == before


FOREIGN: dict[str, Callable[[str], str]] = {
    "empty": lambda _: "",
    "object": lambda _: "{}",
    "list": lambda _: "[]",
    "truncated": lambda text: text[: len(text) // 2],
    "another-program": lambda _: '{"format": 1, "files": {"model.safetensors": {}, "config.json": {}}}',
    "another-format": lambda text: text.replace('"format": 1', '"format": 2'),
    "bad-list": lambda text: text.replace('"files": {', '"files": {"x": 3, '),
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_another_draftconv_json_is_not_ours(change: Callable[[str], str], out: Path, source: Source) -> None:
    text = (out / "draftconv.json").read_text()
    (out / "draftconv.json").write_text(change(text))
    assert change(text) != text
    before = contents(out)
    with pytest.raises(WriteError, match=r"out was not written by draftconv: it holds no draftconv\.json of ours"):
        convert(source("torchspec-native", "llama"), out, **keywords(VLLM, overwrite=True))
    assert contents(out) == before


def test_a_shard_that_was_deleted_keeps_nothing(out: Path, source: Source) -> None:
    (out / "model.safetensors").unlink()
    convert(source("torchspec-native", "llama"), out, **keywords(VLLM, overwrite=True))
    assert (out / "model.safetensors").exists()


def test_a_copied_record_does_not_make_a_directory_ours(out: Path, source: Source, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(source("torchspec-native", "3.1"), mine)
    shutil.copy(out / "draftconv.json", mine)
    with pytest.raises(WriteError, match=r": config\.json, draftconv\.json, model\.safetensors"):
        convert(source("torchspec-native", "llama"), mine, **keywords(VLLM, overwrite=True))


def test_an_occupied_place_is_refused_before_any_work(
    out: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_module, "prepare", lambda *_: pytest.fail("it was planned"))
    monkeypatch.setattr(quantize_module, "prepare", lambda *_: pytest.fail("it was planned"))
    path = source("torchspec-native", "llama")
    (out / "notes.md").touch()
    for overwrite, said in ((False, "exists already"), (True, r"notes\.md")):
        with pytest.raises(WriteError, match=said):
            convert(path, out, **keywords(VLLM, overwrite=overwrite))
        with pytest.raises(WriteError, match=said):
            quantize(path, out, **keywords(AWQ, overwrite=overwrite))
    with pytest.raises(UsageError, match="is the source"):
        convert(path, path, **keywords(VLLM, overwrite=True))
    with pytest.raises(WriteError, match="which is not a directory"):
        convert(path, out / "config.json/new", **keywords(VLLM))
