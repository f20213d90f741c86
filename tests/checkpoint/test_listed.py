"""What arrives from the Hub is held against what the Hub lists."""

import hashlib
import os
import shlex
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from draftconv.checkpoint import Copy, Plan, PlannedTensor, open_checkpoint, read_config
from draftconv.checkpoint.checkpoint import Checkpoint
from draftconv.checkpoint.execute import execute
from draftconv.checkpoint.hashing import blob_id
from draftconv.checkpoint.hub import fetch_model
from draftconv.checkpoint.memory_file import MemoryFile
from draftconv.errors import BadCheckpoint
from tests.checkpoint.hub import hub as hub
from tests.checkpoint.made import directory
from tests.checkpoint.stub_hub import REPO, Hub

SPEC = f"hf://{REPO}"
WEIGHTS = "model.safetensors"


def flipped(data: bytes) -> bytes:
    """The same with another last byte."""
    return data[:-1] + bytes([data[-1] ^ 1])


def sha256sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hashes(checkpoint: Checkpoint) -> dict[str, str | None]:
    return {info.name: info.sha256 for info in checkpoint.files}


def refused(fault: str) -> BadCheckpoint:
    with pytest.raises(BadCheckpoint, match=fault) as caught:
        open_checkpoint(SPEC, download=True)
    return caught.value


def copy(opened: Checkpoint) -> Plan:
    return Plan(
        tuple(PlannedTensor(ref.name, ref.dtype, ref.shape, Copy(ref)) for ref in opened.tensors.values()),
        {"config.json": {}},
    )


def test_weights_in_xet_are_listed_with_their_sha256(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloaded by the bridge that the Hub has for clients without Xet."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    hub.xet = True
    opened = open_checkpoint(SPEC, download=True)
    assert hashes(opened)[WEIGHTS] == hashlib.sha256(hub.files[WEIGHTS]).hexdigest()


def test_gits_id_of_a_file() -> None:
    """As `git hash-object` says it of these contents."""
    assert blob_id(MemoryFile("x", b"hello\n")) == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert blob_id(MemoryFile("x", b"")) == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


def test_a_true_listing_passes_and_the_hashes_are_of_the_files(hub: Hub) -> None:
    hub.files |= {"README.md": b"x", "draftconv.json": b"{}"}
    opened = open_checkpoint(SPEC, download=True)
    assert opened.path is not None
    read = ("README.md", "config.json", "draftconv.json", WEIGHTS)
    assert hashes(opened) == {name: sha256sum(opened.path / name) for name in read}
    assert (opened.path / WEIGHTS).is_symlink()


def test_a_listing_that_lies_about_weights(hub: Hub) -> None:
    hub.served[WEIGHTS] = flipped(hub.files[WEIGHTS])
    found, listed = (hashlib.sha256(data).hexdigest() for data in (hub.served[WEIGHTS], hub.files[WEIGHTS]))
    error = refused(rf"model\.safetensors is not what owner/drafter lists: its SHA-256 is {found}, listed is {listed}")
    assert "the server sends other bytes than it lists" in error.why


@pytest.mark.parametrize("name", ["config.json", "draftconv.json", "model.safetensors.index.json"])
def test_a_listing_that_lies_about_a_small_file(hub: Hub, name: str) -> None:
    """These are read whole, so they are held against git's blob id without a download, too."""
    hub.files.setdefault(name, b'{"weight_map": {"a": "model.safetensors"}}')
    hub.served[name] = hub.files[name][:-1] + b" }"
    hub.listed[name] = len(hub.served[name])
    for download in (False, True):
        with pytest.raises(BadCheckpoint, match=rf"{name} is not what owner/drafter lists: its git blob id is"):
            open_checkpoint(SPEC, download=download)


def test_the_config_of_a_target_is_held_against_the_listing(hub: Hub) -> None:
    assert read_config(SPEC) == {"hidden_size": 24}
    hub.served["config.json"] = hub.files["config.json"].replace(b"24", b"42")
    with pytest.raises(BadCheckpoint, match=r"config\.json is not what owner/drafter lists"):
        read_config(SPEC)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_a_damaged_cache_is_noticed_and_the_cure_mends_it(name: str, linked: bool) -> None:
    """With blobs behind links, as the cache has them, and with plain files, as it has them where there are no links."""
    opened = open_checkpoint(SPEC, download=True)
    assert opened.path is not None
    cached = opened.path / name
    if not linked:
        data = cached.read_bytes()
        cached.unlink()
        cached.write_bytes(data)
    cached.write_bytes(flipped(cached.read_bytes()))
    error = refused(rf"{name} is not what owner/drafter lists")
    words = shlex.split(error.cure.partition("start again:")[2])
    assert words == ["rm", os.path.realpath(cached)]
    Path(words[1]).unlink()
    assert hashes(open_checkpoint(SPEC, download=True))[name] == sha256sum(cached)


def test_what_has_no_hash_is_not_believed(hub: Hub) -> None:
    hub.unhashed = {WEIGHTS}
    assert "pass the directory" in refused(r"owner/drafter lists no hash of model\.safetensors").cure


def test_a_model_is_held_against_the_listing_in_all_its_directories(hub: Hub) -> None:
    hub.files |= {"chat_templates/tool.jinja": b"{{ x }}", "own.py": b"safe()\n", "pytorch_model.bin": b"unused"}
    hub.served["pytorch_model.bin"] = b"nobody"
    path, _ = fetch_model(REPO)
    for name in ("chat_templates/tool.jinja", "own.py", WEIGHTS):
        hub.served = {name: flipped(hub.files[name])}
        shutil.rmtree(path.parent.parent)  # what is in the cache is not sent again
        with pytest.raises(BadCheckpoint, match="is not what owner/drafter lists"):
            fetch_model(REPO)


def test_a_local_source_is_hashed_on_request(tmp_path: Path) -> None:
    path = directory(tmp_path / "local")
    (path / "notes.md").touch()
    assert set(hashes(open_checkpoint(path)).values()) == {None}
    told = {name: sha256sum(path / name) for name in ("config.json", WEIGHTS)} | {"notes.md": None}
    assert hashes(open_checkpoint(path, hashed=True)) == told
    assert hashes(open_checkpoint(path / WEIGHTS, hashed=True)) == told


@pytest.mark.usefixtures("hub")
def test_what_is_written_is_what_was_hashed(tmp_path: Path) -> None:
    """A file that changes between the two: what was staged vanishes."""
    opened = open_checkpoint(SPEC, download=True)
    assert opened.path is not None
    weights = opened.path / WEIGHTS
    weights.write_bytes(flipped(weights.read_bytes()))
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors was changed while it was read"):
        execute(copy(opened), tmp_path / "out")
    assert not [item.name for item in tmp_path.iterdir() if "out" in item.name]


@pytest.mark.usefixtures("hub")
def test_a_file_that_is_replaced_is_read_as_it_was_hashed(tmp_path: Path) -> None:
    """It stays open from the hash to the last byte."""
    opened = open_checkpoint(SPEC, download=True)
    assert opened.path is not None
    (opened.path / WEIGHTS).unlink()
    (opened.path / WEIGHTS).write_bytes(b"other")
    execute(copy(opened), tmp_path / "out")
    assert {name: ref.read() for name, ref in open_checkpoint(tmp_path / "out").tensors.items()} == {
        name: ref.read() for name, ref in opened.tensors.items()
    }
