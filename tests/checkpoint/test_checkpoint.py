import hashlib
import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftconv.checkpoint import TensorRef, open_checkpoint
from draftconv.checkpoint.checkpoint import hub_name, local_path
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.hashing import BLOCK, sha256, tensor_hash
from draftconv.errors import BadCheckpoint, NeedsExport, UsageError
from tests.checkpoint.made import MemoryFile, directory, tensor_bytes, tensors


def refuses(spec: Path | str, fault: str) -> BadCheckpoint:
    with pytest.raises(BadCheckpoint, match=fault) as caught:
        open_checkpoint(spec)
    return caught.value


def sharded(path: Path, suffix: str = "safetensors", *, index: bool = True) -> Path:
    """`tensors()` in two shards with an index."""
    directory(path)
    (path / "model.safetensors").unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = sorted(tensors())
    where: dict[str, str] = {}
    for number, part in enumerate((names[:3], names[3:]), start=1):
        file = f"{stem}-{number:05d}-of-00002.{suffix}"
        some = {name: tensors()[name] for name in part}
        if suffix == "safetensors":
            save_file(some, path / file, metadata={"format": "pt"})
        else:
            torch.save(some, path / file)
        where |= dict.fromkeys(part, file)
    if index:
        text = json.dumps({"metadata": {"total_size": 0}, "weight_map": where})
        (path / f"{stem}.{suffix}.index.json").write_text(text)
    return path


def reindex(path: Path, **changes: object) -> None:
    file = path / "model.safetensors.index.json"
    found = json.loads(file.read_text())["weight_map"] | {key.replace("__", "."): v for key, v in changes.items()}
    file.write_text(json.dumps({"weight_map": {key: value for key, value in found.items() if value is not None}}))


def check_tensors(spec: Path | str) -> None:
    opened = open_checkpoint(spec)
    assert {name: ref.read() for name, ref in opened.tensors.items()} == {
        name: tensor_bytes(tensor) for name, tensor in tensors().items()
    }


def test_a_directory(tmp_path: Path) -> None:
    path = directory(tmp_path / "drafter", config={"b": 1, "a": [2]})
    (path / "draftconv.json").write_text('{"version": 1}')
    (path / "generation_config.json").write_text("{}")
    (path / "README.md").write_text("hello")
    opened = open_checkpoint(str(path))
    assert (opened.name, opened.path, opened.revision) == ("drafter", path, None)
    assert opened.config == {"b": 1, "a": [2]}
    assert opened.config_text == (path / "config.json").read_text()
    assert opened.sidecars == {"draftconv.json": {"version": 1}, "generation_config.json": {}}
    assert opened.metadata == {"format": "pt"}
    assert [(info.name, info.size, info.unused) for info in opened.files] == [
        (name, (path / name).stat().st_size, False) for name in sorted(item.name for item in path.iterdir())
    ]
    check_tensors(path)


def test_the_working_directory_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory(tmp_path / "drafter"))
    assert open_checkpoint(".").name == "drafter"


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
@pytest.mark.parametrize("index", [True, False])
def test_shards(tmp_path: Path, suffix: str, index: bool) -> None:
    check_tensors(sharded(tmp_path / "drafter", suffix, index=index))


def test_torch_archives(tmp_path: Path) -> None:
    check_tensors(directory(tmp_path / "drafter", suffix="bin"))


def test_a_single_file_with_its_config(tmp_path: Path) -> None:
    path = directory(tmp_path / "drafter")
    torch.save({"other": torch.ones(1)}, path / "other.bin")
    check_tensors(path / "model.safetensors")
    opened = open_checkpoint(path / "other.bin")
    assert (opened.name, opened.path, list(opened.tensors)) == ("drafter", path, ["other"])
    assert [info.name for info in opened.files if info.unused] == ["model.safetensors"]
    refuses(path / "config.json", "neither a directory nor")


def test_unused_weights_are_noted(tmp_path: Path) -> None:
    path = directory(tmp_path / "drafter")
    torch.save(tensors(), path / "pytorch_model.bin")
    torch.save({}, path / "training_args.bin")
    save_file({"lora": torch.ones(1)}, path / "adapter_model.safetensors")
    check_tensors(path)
    unused = [info.name for info in open_checkpoint(path).files if info.unused]
    assert unused == ["adapter_model.safetensors", "pytorch_model.bin"]


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("config.json", None, r"has no config\.json"),
        ("config.json", "[]", r"config\.json holds a JSON list"),
        ("config.json", "{", r"config\.json is not valid JSON"),
        ("config.json", '{"a":1,"a":1}', r"config\.json has the key a twice"),
        ("config.json", " " * 10_000_001, r"config\.json has 10000001 bytes"),
        ("hf_quant_config.json", "[]", r"hf_quant_config\.json holds a JSON list"),
    ],
)
def test_bad_json(tmp_path: Path, name: str, text: str | None, fault: str) -> None:
    path = directory(tmp_path / "drafter")
    if text is None:
        (path / name).unlink()
    else:
        (path / name).write_text(text)
    refuses(path, fault)


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refuses(tmp_path / "empty", "empty is empty")
    refuses(tmp_path / "none", "none does not exist")
    refuses("no such thing", "no such thing does not exist")
    refuses("x" * 5000, r"x… \(5000 characters\) does not exist")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.json").write_text("{}")
    error = refuses(tmp_path / "bare", "bare holds no weights")
    assert error.why == "it holds config.json"
    save_file({}, tmp_path / "bare/model.safetensors")
    refuses(tmp_path / "bare", "bare holds no tensors")


@pytest.mark.parametrize(
    "name",
    [
        "../model.safetensors",
        "/etc/passwd",
        "sub/x.safetensors",
        "..",
        "",
        "x.bin",
        "a\0.safetensors",
        3,
        None,
    ],
)
def test_an_index_names_only_files_beside_it(tmp_path: Path, name: object) -> None:
    path = sharded(tmp_path / "drafter")
    file = path / "model.safetensors.index.json"
    found = json.loads(file.read_text())
    found["weight_map"]["norm.weight"] = name
    file.write_text(json.dumps(found))
    refuses(path, r"puts tensor norm\.weight into .*not the name of a \.safetensors file")


def test_an_index_must_match(tmp_path: Path) -> None:
    path = sharded(tmp_path / "drafter")
    file = path / "model.safetensors.index.json"
    good = file.read_text()
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    reindex(path, scalar=first)
    refuses(path, f"scalar is in {second}, but model.safetensors.index.json puts it into {first}")
    file.write_text(good)
    reindex(path, scalar=None)
    refuses(path, f"scalar is in {second}, but model.safetensors.index.json does not name it")
    file.write_text(good)
    reindex(path, more=first)
    refuses(path, f"puts more into {first}, which does not hold it")
    file.write_text(good)
    reindex(path, more="model-00003-of-00002.safetensors")
    refuses(path, r"lacks model-00003-of-00002\.safetensors")
    file.write_text('{"weight_map": {}}')
    refuses(path, "has no weight_map")
    file.write_text(good)
    save_file(tensors(), path / "model.safetensors")
    refuses(path, r"holds both model\.safetensors and model\.safetensors\.index\.json")


def test_shards_without_an_index_must_be_complete_and_apart(tmp_path: Path) -> None:
    path = sharded(tmp_path / "drafter", index=False)
    first = path / "model-00001-of-00002.safetensors"
    shutil.copy(first, path / "copy.safetensors")
    refuses(path, "is in both copy.safetensors and model-00001-of-00002.safetensors")
    (path / "copy.safetensors").unlink()
    first.unlink()
    refuses(path, r"lacks model-00001-of-00002\.safetensors")
    (path / "model-00002-of-00002.safetensors").rename(path / "model-00002-of-99999.safetensors")
    refuses(path, r"lacks model-00001-of-99999\.safetensors")


def test_shards_of_two_exports_are_noticed(tmp_path: Path) -> None:
    path = sharded(tmp_path / "drafter")
    second = path / "model-00002-of-00002.safetensors"
    save_file({name: tensors()[name] for name in sorted(tensors())[3:]}, second, metadata={"format": "np"})
    refuses(path, "differ in metadata format")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json"])
def test_links_do_not_leave_the_directory(tmp_path: Path, name: str) -> None:
    path = directory(tmp_path / "drafter")
    outside = tmp_path / "outside"
    outside.write_text("{}")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(outside)
    refuses(path, f"{name} in drafter is a link that leads out")
    (path / name).unlink()
    (path / name).symlink_to("missing")
    refuses(path, f"{name} cannot be read: No such file")
    (path / name).unlink()
    (path / name).symlink_to(name)
    refuses(path, f"{name} cannot be read: Too many levels")


def test_links_inside_the_directory_are_fine(tmp_path: Path) -> None:
    path = directory(tmp_path / "drafter")
    (path / "model.safetensors").rename(path / "weights")
    (path / "model.safetensors").symlink_to("weights")
    check_tensors(path)
    (tmp_path / "link").symlink_to(path)
    check_tensors(tmp_path / "link")


def test_the_hub_cache_links_to_its_blobs(tmp_path: Path) -> None:
    cache = tmp_path / "models--owner--name"
    path = directory(cache / "snapshots/0123")
    (cache / "blobs").mkdir()
    for number, file in enumerate(sorted(path.iterdir())):
        file.rename(cache / f"blobs/{number}")
        file.symlink_to(f"../../blobs/{number}")
    check_tensors(path)
    (tmp_path / "secret").write_text("{}")
    (path / "generation_config.json").symlink_to("../../../secret")
    refuses(path, "leads out of the directory")


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    path = directory(tmp_path / "drafter")
    os.mkfifo(path / "generation_config.json")
    assert open_checkpoint(path).sidecars == {}


@pytest.mark.parametrize("inner", ["", "model", "iter_0000100", "iter_0000100/model"])
def test_distributed_checkpoints_need_their_exporter(tmp_path: Path, inner: str) -> None:
    state = tmp_path / "run" / inner
    state.mkdir(parents=True)
    (state / ".metadata").touch()
    (state / "__0_0.distcp").touch()
    (tmp_path / "run/config.json").write_text("{}")
    with pytest.raises(NeedsExport, match="run is a distributed training checkpoint") as caught:
        open_checkpoint(tmp_path / "run")
    wanted = tmp_path / ("run/iter_0000100" if "iter" in inner else "run")
    assert f"convert_to_hf.py --input-dir {shlex.quote(str(wanted))} --output-dir" in caught.value.cure


def test_the_newest_iteration_is_named(tmp_path: Path) -> None:
    for number in (9, 10, 2):
        (tmp_path / f"iter_{number:07d}/model").mkdir(parents=True)
        (tmp_path / f"iter_{number:07d}/model/.metadata").touch()
    with pytest.raises(NeedsExport) as caught:
        open_checkpoint(tmp_path)
    assert f"{shlex.quote(str(tmp_path / 'iter_0000010'))} " in caught.value.cure


def test_training_states_need_their_exporter(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "training_state.pt").touch()
    with pytest.raises(NeedsExport, match=r"training_state\.pt") as caught:
        open_checkpoint(path)
    assert "specforge.export.to_hf" in caught.value.cure
    directory(path)
    check_tensors(path)


def test_a_local_path_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it has no revision"):
        open_checkpoint(directory(tmp_path / "drafter"), revision="main")


@pytest.mark.parametrize("spec", ["hf://", "hf://owner", "hf://a/b/c", "hf://../x", "hf://owner/name with space"])
def test_hub_ids_are_checked(spec: str) -> None:
    with pytest.raises(UsageError, match="is not a Hub id"):
        open_checkpoint(spec)
    with pytest.raises(UsageError, match="names one revision and the option another"):
        open_checkpoint("hf://owner/name@v1", revision="v2")


def test_sha256(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc" * 2_000_000)
    seen: list[int] = []
    assert sha256(LocalFile(path), seen.append) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert seen == [4 * 1024 * 1024, 6_000_000]
    (tmp_path / "y").touch()
    assert sha256(LocalFile(tmp_path / "y")) == hashlib.sha256().hexdigest()


def test_the_hash_of_a_tensor_is_that_of_all_its_blocks_and_of_nothing_else() -> None:
    data = b"head" + bytes(range(256)) * (2 * BLOCK // 256 + 1) + b"tail"
    ref = TensorRef("a", "U8", (len(data) // 256, 256), MemoryFile(data), 4, len(data) - 8)
    assert ref.nbytes > 2 * BLOCK
    assert tensor_hash(ref) == hashlib.sha256(data[4:-4]).hexdigest()


@pytest.mark.parametrize("spec", ["owner/name", "owner/name@main", "owner/name@0a1b2c3", "hf://owner/name@refs/pr/1"])
def test_a_hub_id_may_be_pinned(spec: str) -> None:
    assert local_path(spec) is None
    assert hub_name(spec)[0] == "owner/name"


@pytest.mark.parametrize("spec", ["owner/name@", "owner/name@-x", "owner/name@a b", "name@main", "a/b/c@main"])
def test_what_is_no_pinned_hub_id(spec: str) -> None:
    with pytest.raises(BadCheckpoint, match="does not exist"):
        local_path(spec)
