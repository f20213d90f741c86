import errno
import json
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save

from draftconv import limits
from draftconv.checkpoint import hub as hub_module
from draftconv.checkpoint import open_checkpoint
from draftconv.checkpoint.hub import fetch_model, hub_directory
from draftconv.checkpoint.hub_file import BLOCK, HubFile, origin
from draftconv.checkpoint.upload import find_head
from draftconv.errors import BadCheckpoint, WriteError
from tests.checkpoint.hub import hub as hub
from tests.checkpoint.made import directory, tensor_bytes, tensors
from tests.checkpoint.stub_hub import REPO, SHA, Hub, serving
from tests.served import served

TOKEN = "hf_verysecret"
SPEC = f"hf://{REPO}"


def refuses(fault: str, spec: str = SPEC) -> BadCheckpoint:
    with pytest.raises(BadCheckpoint, match=fault) as caught:
        open_checkpoint(spec, token=TOKEN)
    assert TOKEN not in str(caught.value) + str(caught.value.__cause__)
    return caught.value


def large_file() -> bytes:
    """20 MiB whose header is small."""
    return save({"big": torch.zeros(20 * 1024 * 1024, dtype=torch.uint8), "small": torch.ones(1)})


@pytest.mark.parametrize("spec", [SPEC, REPO, f"{SPEC}@v1"])
def test_headers_are_read_by_ranges(hub: Hub, spec: str) -> None:
    hub.files["model.safetensors"] = large_file()
    opened = open_checkpoint(spec)
    assert (opened.name, opened.path, opened.revision) == (REPO, None, SHA)
    assert opened.config == {"hidden_size": 24}
    assert {name: ref.shape for name, ref in opened.tensors.items()} == {
        "small": (1,),
        "big": (20 * 1024 * 1024,),
    }
    assert {info.name: info.sha256 for info in opened.files} == {"config.json": None, "model.safetensors": None}
    assert hub.sent < 200_000
    assert len([1 for _, path, _, _ in hub.log if path.endswith("model.safetensors")]) == 1
    assert opened.tensors["small"].read() == tensor_bytes(torch.ones(1))
    revisions = [path for _, path, _, _ in hub.log if "/revision/" in path]
    assert bool(revisions) is spec.endswith("@v1")


def test_no_byte_is_asked_for_twice_or_beyond_the_end(hub: Hub) -> None:
    hub.files["model.safetensors"] = large_file()
    size = len(hub.files["model.safetensors"])
    ref = open_checkpoint(SPEC).tensors["big"]
    del hub.log[:]
    ref.file.read(ref.offset, 100_000)  # more than a block, and less
    ref.file.read(size - 4, 4)
    asked = [wanted for _, path, _, wanted in hub.log if path.endswith("model.safetensors")]
    last = size // BLOCK * BLOCK
    assert asked == [f"bytes={ref.offset}-{ref.offset + 99_999}", f"bytes={last}-{size - 1}"]


def test_a_redirection_leaves_no_encryption(hub: Hub) -> None:
    file = HubFile("x", "https://hub.example/x", 1, "https://hub.example", TOKEN)
    for location, leads in (("https://cdn.example/x", "https://cdn.example/x"), ("/y", "https://hub.example/y")):
        assert file._redirected("https://hub.example/x", {"location": location}) == leads
    with pytest.raises(BadCheckpoint, match="redirected from https to http"):
        file._redirected("https://hub.example/x", {"location": "http://cdn.example/x"})
    assert hub.log == []


def test_large_reads_and_torch_archives(hub: Hub, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    torch.save(tensors() | {"big": torch.ones(300_000, dtype=torch.int8)}, path)
    del hub.files["model.safetensors"]
    hub.files["pytorch_model.bin"] = path.read_bytes()
    opened = open_checkpoint(SPEC)
    assert opened.tensors["big"].read() == b"\1" * 300_000
    assert opened.tensors["fc.weight"].read() == tensor_bytes(tensors()["fc.weight"])


def test_a_local_path_wins(hub: Hub, tmp_path: Path) -> None:
    directory(tmp_path / REPO, config={"local": True})
    assert open_checkpoint(REPO).config == {"local": True}
    assert hub.log == []
    assert open_checkpoint(SPEC).config == {"hidden_size": 24}


def test_the_token_reaches_the_endpoint_only(hub: Hub) -> None:
    with serving(Hub(dict(hub.files))) as elsewhere:
        hub.redirect = elsewhere.url + "/cdn/{name}"
        opened = open_checkpoint(SPEC, token=TOKEN)
        assert opened.tensors["norm.weight"].read() == tensor_bytes(tensors()["norm.weight"])
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert len(elsewhere.log) > 0
    assert elsewhere.tokens == {None}


def test_the_token_comes_from_the_environment(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    open_checkpoint(SPEC)
    assert hub.tokens == {None}
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.log.clear()
    open_checkpoint(SPEC)
    assert hub.tokens == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    "target",
    [
        "",
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "data:,x",
        "http://",
        "//",
        "http://[",
        "http://a b/",
        "http://a..b/",
        "http://x:99999",
        "http://\x7f/",
        "http://x/" + "a" * 20000,
    ],
)
def test_redirects_lead_to_http_or_nowhere(hub: Hub, target: str) -> None:
    hub.redirect = target
    refuses("the server redirected")


def test_redirects_end(hub: Hub) -> None:
    hub.redirect = f"/{REPO}/resolve/{SHA}/{{name}}"
    refuses("redirected more than 5 times")


class Redirecting(BaseHTTPRequestHandler):
    """/3 leads to /2, and so on; /0 is a file of four bytes."""

    def do_GET(self) -> None:
        left = int(self.path[1:])
        self.send_response(302 if left else 200)
        self.send_header("Location", f"/{left - 1}")
        self.end_headers()
        self.wfile.write(b"" if left else b"four")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.usefixtures("hub")
def test_so_many_redirects_are_followed() -> None:
    most = limits.HUB_REDIRECTS.value
    with served(Redirecting) as url:
        assert HubFile("x", f"{url}/{most}", 4, url, None).read(0, 4) == b"four"
        with pytest.raises(BadCheckpoint, match=f"more than {most} times"):
            HubFile("x", f"{url}/{most + 1}", 4, url, None).read(0, 4)


def test_a_list_of_files_has_an_end(hub: Hub) -> None:
    """At the limit it is read; one byte more, and neither it nor what would follow is kept."""
    whole = json.dumps({"id": REPO, "sha": SHA, "siblings": [{"rfilename": "config.json", "size": 2}]}).encode()
    hub.listing = whole.ljust(limits.HUB_LISTING.value)
    began = time.process_time()
    assert hub_directory(REPO).files == {"config.json": 2}
    hub.listing = whole.ljust(limits.HUB_LISTING.value + 1)
    refuses("the list of files .* 32000000 is the limit")
    assert time.process_time() - began < 6


@pytest.mark.parametrize("status", [401, 404, 500])
@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"\xff", b"<html>"])
def test_what_else_a_refusal_says_does_not_matter(hub: Hub, status: int, body: bytes) -> None:
    hub.status, hub.said = status, body
    refuses(f"HTTP {status}")


def test_an_origin_is_scheme_host_and_port() -> None:
    assert origin("https://Hub.co/x") == origin("https://hub.co:443")
    assert origin("https://hub.co") != origin("http://hub.co")
    assert origin("https://hub.co") != origin("https://hub.co:444")
    assert origin("https://hub.co") != origin("https://hub.co.evil.net")
    assert origin("https://hub.co@evil.net") == origin("https://evil.net")
    assert origin("http://[") == ("", "", None)


def test_a_server_without_ranges(hub: Hub) -> None:
    """The head of a file is read and the connection closed; what lies far behind is refused."""
    hub.files["model.safetensors"] = large_file()
    hub.ranges = False
    opened = open_checkpoint(SPEC)
    assert opened.tensors["small"].read() == tensor_bytes(torch.ones(1))
    last = opened.tensors["big"]
    assert last.offset + last.nbytes - 10 > limits.HUB_SKIP.value
    with pytest.raises(BadCheckpoint, match="the server ignores ranges"):
        last.rows(last.nbytes - 10, last.nbytes)
    assert hub.sent < 15 * 1024 * 1024


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        ({"Content_Range": "bytes 5-9/100"}, "another range than asked for"),
        ({"Content_Range": "nonsense"}, "another range than asked for"),
        ({"Content_Encoding": "gzip"}, "compressed it although"),
    ],
)
def test_answers_are_checked(hub: Hub, headers: dict[str, str], fault: str) -> None:
    hub.headers = headers
    refuses(fault)


def test_a_file_shorter_than_listed(hub: Hub) -> None:
    hub.listed["config.json"] = len(hub.files["config.json"]) + 10
    refuses(r"config\.json could not be read from the Hub: the server sent \d+ of \d+ bytes")


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (401, "refuses access to owner/drafter|not on the Hub"),
        (403, r"refuses access to owner/drafter \(HTTP 403\)"),
        (404, "not on the Hub, or is private"),
        (500, "answered HTTP 500 for owner/drafter"),
    ],
)
def test_refusals_in_words(hub: Hub, status: int, fault: str) -> None:
    hub.status = status
    assert refuses(fault).cure


def test_nobody_answers(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refuses(r"could not be reached on the Hub \(ConnectError\)")
    assert hub.log == []


def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "is_offline_mode", lambda: True)
    refuses("HF_HUB_OFFLINE is set")
    assert hub.log == []


def test_strange_names_in_the_listing_are_left_alone(hub: Hub) -> None:
    strange = [
        "../model.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "a\\b.safetensors",
        "..",
        "\0.bin",
    ]
    hub.listed |= dict.fromkeys(strange, 10)
    opened = open_checkpoint(SPEC)
    assert [info.name for info in opened.files] == ["config.json", "model.safetensors"]


def test_names_are_quoted_in_urls(hub: Hub) -> None:
    hub.files["a ?#%2e&.safetensors"] = hub.files.pop("model.safetensors")
    assert set(open_checkpoint(SPEC).tensors) == set(tensors())


def test_missing_parts_are_named(hub: Hub) -> None:
    del hub.files["config.json"]
    refuses(r"owner/drafter has no config\.json")
    hub.files.clear()
    refuses("owner/drafter is empty")


def test_download_keeps_the_name(hub: Hub, tmp_path: Path) -> None:
    hub.files |= {
        "pytorch_model.bin": b"unused",
        "README.md": b"x",
        "LICENSE": b"terms",
        "NOTICE": b"n" * (limits.LICENSE.value + 1),
        "draftconv.json": b"{}",
        "eval[1].json": b"1",
    }
    opened = open_checkpoint(SPEC, token=TOKEN, download=True)
    assert (opened.name, opened.revision) == (REPO, SHA)
    assert opened.path is not None
    assert opened.path.is_relative_to(tmp_path / "cache")
    assert sorted(item.name for item in opened.path.iterdir()) == [
        "LICENSE",
        "README.md",
        "config.json",
        "draftconv.json",
        "model.safetensors",
    ]
    assert {name: ref.read() for name, ref in opened.tensors.items()} == {
        name: tensor_bytes(tensor) for name, tensor in tensors().items()
    }
    assert [(info.name, info.size, info.unused) for info in opened.files] == [
        (info.name, info.size, info.unused) for info in open_checkpoint(SPEC).files
    ]
    assert {name: text().size for name, text in opened.texts.items()} == {
        "LICENSE": 5,
        "NOTICE": limits.LICENSE.value + 1,  # stayed there: it can be asked for
        "README.md": 1,
    }


def test_a_model_comes_with_all_it_takes_to_run_it(hub: Hub, tmp_path: Path) -> None:
    hub.files |= {"pytorch_model.bin": b"unused", "tokenizer.json": b"{}", "own.py": b"", "original/x.pth": b"unused"}
    path, commit = fetch_model(REPO)
    assert commit == SHA
    assert path.is_relative_to(tmp_path / "cache")
    names = ["config.json", "model.safetensors", "own.py", "tokenizer.json"]
    assert sorted(item.name for item in path.iterdir()) == names


def test_a_model_of_an_older_day_comes_as_bin(hub: Hub) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"weights", "model.onnx": b"unused"}
    path, _ = fetch_model(REPO)
    assert sorted(item.name for item in path.iterdir()) == ["config.json", "pytorch_model.bin"]


def test_a_full_disk_is_not_the_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(WriteError, match="the Hub cache could not be written: there is no room left"):
        open_checkpoint(SPEC, download=True)
    assert hub.log


def test_the_token_is_in_no_repr(hub: Hub) -> None:
    opened = open_checkpoint(SPEC, token=TOKEN)
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert TOKEN not in repr(opened) + repr(dict(opened.tensors))
    assert TOKEN not in repr(hub_module.hub_directory(REPO, None, TOKEN))


def listing(**changes: object) -> bytes:
    return json.dumps({"id": REPO, "modelId": REPO, "sha": SHA, "siblings": [], **changes}).encode()


def sibling(**fields: object) -> bytes:
    return listing(siblings=[{"rfilename": "config.json", "size": 3, **fields}])


def test_nothing_is_asked_beside_the_repository(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would fetch a list of agents once a day, and fail in everything where a login page answered."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr("huggingface_hub.utils._detect_agent._registry", [])
    open_checkpoint(SPEC, download=True)
    find_head(REPO, None, None)
    assert not [path for _, path, _, _ in hub.log if REPO not in path]
    assert constants.HF_HUB_DISABLE_TELEMETRY is False


NO_LISTINGS = {
    "a login page": b"<html>log in</html>",
    "nothing": b"",
    "a list": b"[]",
    "null": b"null",
    "bad UTF-8": b'{"id": "\xff\xfe"}',
    "nested too deeply": b"[" * 100_000,
    "a commit that is a number": listing(sha=5),
    "a commit that is a word": listing(sha="main"),
    "a commit that leads elsewhere": listing(sha="../other"),
    "no commit": listing(sha=None),
    "siblings that are none": listing(siblings=[None, 3]),
    "siblings in a mapping": listing(siblings={"a": 1}),
    "a name that is a number": sibling(rfilename=5),
    "a size that is a text": sibling(size="3"),
    "a size below zero": sibling(size=-3),
    "a size without end": sibling(size=float("inf")),
    "hashes that are a number": sibling(lfs=7),
    "a hash that is none": sibling(lfs={"sha256": "f", "size": 3, "pointerSize": 1}),
}


@pytest.mark.parametrize("answer", NO_LISTINGS.values(), ids=NO_LISTINGS)
def test_what_answers_and_is_no_hub(answer: bytes, hub: Hub) -> None:
    hub.listing = answer
    error = refuses("what answered for owner/drafter is no Hub: it lists no repository")
    assert hub.url in error.why
    assert "HF_ENDPOINT" in error.cure
