"""Sources on the Hub: what is downloaded is compared with the listing, what is only looked at says that it is not."""

import hashlib
import json
from pathlib import Path

import pytest

from draftconv import convert, inspect, quantize, verify
from draftconv.cli.describe import inspection_json
from draftconv.errors import BadCheckpoint
from tests.api.conftest import Source
from tests.checkpoint.hub import hub as hub
from tests.checkpoint.stub_hub import REPO, Hub
from tests.checkpoint.test_listed import WEIGHTS, flipped

SPEC = f"hf://{REPO}"


@pytest.fixture
def path(hub: Hub, source: Source) -> Path:
    """A drafter, and the Hub that has it."""
    path = source("torchspec-native", "llama")
    hub.files = {item.name: item.read_bytes() for item in path.iterdir()}
    return path


def sources(out: Path) -> dict[str, dict[str, object]]:
    rows = json.loads((out / "draftconv.json").read_text())["source"]["files"]
    return {row["name"]: row for row in rows}


def told(path: Path) -> dict[str, dict[str, object]]:
    """As `sha256sum` and `stat` have it."""
    return {
        item.name: {
            "name": item.name,
            "size": item.stat().st_size,
            "sha256": hashlib.sha256(item.read_bytes()).hexdigest(),
        }
        for item in path.iterdir()
    }


def test_the_record_holds_the_hashes_of_what_was_converted(path: Path, tmp_path: Path) -> None:
    convert(SPEC, tmp_path / "out", to="vllm")
    assert sources(tmp_path / "out") == told(path)
    assert verify(tmp_path / "out", SPEC).passed


def test_local_sources_are_hashed_on_request(path: Path, tmp_path: Path) -> None:
    convert(path, tmp_path / "converted", to="vllm", hash=True)
    quantize(path, tmp_path / "quantized", recipe="fp8", hash=True)
    assert sources(tmp_path / "converted") == sources(tmp_path / "quantized") == told(path)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_other_bytes_than_the_listed_are_not_converted(hub: Hub, path: Path, tmp_path: Path, name: str) -> None:
    assert path.is_dir()
    hub.served[name] = flipped(hub.files[name])
    for use in (
        lambda: convert(SPEC, tmp_path / "out", to="vllm"),
        lambda: quantize(SPEC, tmp_path / "out", recipe="fp8"),
        lambda: verify(path, SPEC),
    ):
        with pytest.raises(BadCheckpoint, match="is not what owner/drafter lists"):
            use()
    assert not [item.name for item in tmp_path.iterdir() if "out" in item.name]


def test_an_inspection_by_ranges_says_that_nothing_was_compared(hub: Hub, path: Path) -> None:
    hub.served[WEIGHTS] = flipped(hub.files[WEIGHTS])
    said = "the weights, which were read by ranges; convert downloads them and compares every file with its hash"
    there, here = inspect(SPEC), inspect(path)
    assert f"Not verified: {said}." in there.blocks()
    assert not [block for block in here.blocks() if isinstance(block, str) and block.startswith("Not verified")]
    assert (inspection_json(there)["not_verified"], inspection_json(here)["not_verified"]) == (said, None)
