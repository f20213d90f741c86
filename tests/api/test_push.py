"""`push`: what a record names goes as it was written, nothing else, and never over what somebody else wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

import draftconv
from draftconv.api.push import Push
from draftconv.errors import BadCheckpoint, CheckFailed, DraftconvError, UsageError
from tests.checkpoint.stub_hub import REPO, SHA, Hub, serving

DATA = Path(__file__).parents[1] / "data"
TOKEN = "hf_verysecret"
WRITTEN = ["README.md", "config.json", "draftconv.json", "model.safetensors"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A repository that somebody made, private and still empty."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    close_session()
    with serving(Hub({".gitattributes": b""}, private=True)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
    close_session()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    draftconv.convert(DATA / "drafters/llama-eagle3.1", tmp_path / "out", to="vllm", target=str(DATA / "targets/llama"))
    return tmp_path / "out"


def push(out: Path, **options: object) -> Push:
    return draftconv.push(out, REPO, token=TOKEN, **options)  # type: ignore[arg-type]


def refused(kind: type[DraftconvError], what: str, hub: Hub, out: Path, **options: object) -> DraftconvError:
    with pytest.raises(kind, match=what) as caught:
        push(out, **options)
    assert (hub.pushed, hub.deleted, hub.committed, hub.created) == ({}, [], [], {})
    assert caught.value.why
    assert caught.value.cure
    return caught.value


def test_what_the_record_names_goes_and_nothing_else(hub: Hub, out: Path) -> None:
    for name in (".env", "notes.txt", "optimizer.bin"):
        (out / name).write_text("secret")
    (out / "link").symlink_to("/etc/passwd")
    done = push(out)
    assert hub.pushed == {name: (out / name).read_bytes() for name in WRITTEN}
    assert hub.committed == [("main", SHA, False)]
    assert hub.created == {}
    assert done.url == f"{hub.url}/{REPO}/commit/{SHA}"
    assert done.left == (".env", "link", "notes.txt", "optimizer.bin")
    assert {file.state for file in done.files} == {"as written"}
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert TOKEN not in repr(done) + done._repr_html_() + repr(done.upload)


def test_a_file_that_cannot_be_read_is_an_error_in_words(hub: Hub, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("huggingface_hub.lfs.UploadInfo.from_path", fails)
    refused(BadCheckpoint, r"README\.md cannot be read: Input/output error", hub, out)


def test_a_directory_that_cannot_be_listed_is_an_error_in_words(
    hub: Hub, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> None:
        raise OSError(4, "Interrupted system call")

    monkeypatch.setattr(Path, "iterdir", fails)
    with pytest.raises(BadCheckpoint, match="out cannot be listed: Interrupted system call"):
        push(out)
    assert hub.committed == []


def test_a_card_may_be_edited_or_missing(hub: Hub, out: Path) -> None:
    (out / "README.md").write_text("---\nlicense: mit\n---\nmine\n")
    assert [(file.name, file.state) for file in push(out).files if file.state != "as written"] == [
        ("README.md", "edited")
    ]
    assert hub.pushed["README.md"] == b"---\nlicense: mit\n---\nmine\n"
    (out / "README.md").unlink()
    assert "README.md" not in {file.name for file in push(out, overwrite=True).files}


def flipped(out: Path) -> None:
    """One bit of the last weight; the header is what it was."""
    path = out / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def unhashed(out: Path) -> None:
    """As early versions wrote records, and under a digest that fits."""
    from draftconv.checkpoint import open_checkpoint
    from draftconv.conversion.provenance import output_digest

    record = json.loads((out / "draftconv.json").read_text())
    record["files"]["model.safetensors"]["sha256"] = None
    opened = open_checkpoint(out)
    record["output"] = output_digest(opened.tensors, opened.config, record)
    (out / "draftconv.json").write_text(json.dumps(record))


def card_elsewhere(out: Path) -> None:
    (out / "README.md").unlink()
    (out / "README.md").symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (flipped, r"model\.safetensors was changed since it was written"),
        (unhashed, r"holds no hash of model\.safetensors"),
        (card_elsewhere, r"README\.md is not a file of out itself"),
        (lambda out: (out / "draftconv.json").unlink(), r"holds no draftconv\.json of its own"),
        (lambda out: (out / "draftconv.json").write_text("{}"), r"holds no draftconv\.json of its own"),
    ],
)
def test_what_is_not_as_it_was_written_stays(change: Callable[[Path], object], what: str, hub: Hub, out: Path) -> None:
    change(out)
    refused(CheckFailed, what, hub, out)


def test_a_new_repository_is_private_unless_asked(hub: Hub, out: Path) -> None:
    hub.exists = False
    push(out)
    private = dict(hub.created)
    push(out, public=True)
    assert (private.pop("visibility"), hub.created.pop("visibility")) == ("private", "public")
    assert private == hub.created
    assert hub.committed == [("main", None, False)] * 2


def test_a_public_repository_is_named(hub: Hub, out: Path) -> None:
    hub.private = False
    assert "--public" in refused(UsageError, "owner/drafter is public", hub, out).cure
    refused(UsageError, "is public", hub, out, create_pr=True)
    push(out, public=True)
    assert sorted(hub.pushed) == WRITTEN


def test_what_somebody_else_wrote_is_not_replaced(hub: Hub, out: Path) -> None:
    hub.files |= {"README.md": b"theirs", "model-00001-of-00002.safetensors": b"", "hf_quant_config.json": b"{}"}
    caught = refused(UsageError, "holds README.md, hf_quant_config.json, model-00001", hub, out)
    assert "--overwrite" in caught.cure
    done = push(out, overwrite=True)
    assert hub.deleted == ["hf_quant_config.json", "model-00001-of-00002.safetensors"]
    assert done.deleted == tuple(hub.deleted)
    assert sorted(hub.pushed) == WRITTEN


def test_the_same_output_may_go_again(hub: Hub, out: Path, tmp_path: Path) -> None:
    push(out)
    hub.files |= hub.pushed
    push(out)
    draftconv.convert(
        DATA / "drafters/llama-eagle3.1", tmp_path / "other", to="sglang", target=str(DATA / "targets/llama")
    )
    hub.pushed, hub.committed = {}, []
    refused(UsageError, "which this directory did not write", hub, tmp_path / "other")


def test_branches_and_pull_requests(hub: Hub, out: Path) -> None:
    push(out, revision="fp8")
    assert hub.branches == ["main", "fp8"]
    assert hub.committed == [("fp8", None, False)]
    hub.files["README.md"] = b"theirs"
    assert push(out, create_pr=True).url == f"{hub.url}/{REPO}/discussions/1"
    assert hub.committed[-1] == ("main", SHA, True)


def test_a_hub_that_refuses(hub: Hub, out: Path) -> None:
    hub.status = 403
    with pytest.raises(BadCheckpoint, match=r"refuses access to owner/drafter \(HTTP 403\)") as caught:
        push(out)
    assert TOKEN not in str(caught.value)


def test_a_file_that_changes_meanwhile(hub: Hub, out: Path) -> None:
    from draftconv.api.push import PushOptions, prepare

    decided = prepare(out, REPO, PushOptions(token=TOKEN))
    flipped(out)
    with pytest.raises(CheckFailed, match=r"model\.safetensors was changed while it was read"):
        decided.run()
    assert hub.pushed == {}
