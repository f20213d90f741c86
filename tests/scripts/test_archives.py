"""What a release must hold and must not: each fault is planted into archives that were really built."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from archives import faults

ROOT = Path(__file__).parents[2]
METADATA = "draftconv-0.1.0.dist-info/METADATA"
HOME = "https://github.com/draftconv/draftconv"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(directory)], cwd=ROOT, check=True, capture_output=True
    )
    return directory


@pytest.fixture
def archives(built: Path, tmp_path: Path) -> Path:
    for path in built.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_a_release_is_whole_and_no_more(archives: Path) -> None:
    assert [*faults(archives)] == []


def _rewrite(wheel: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """Write the archive anew with every member as `change` has it; None leaves it out."""
    with zipfile.ZipFile(wheel) as old:
        members = {name: change(name, old.read(name)) for name in old.namelist()}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in members.items():
            if data is not None:
                new.writestr(name, data)


def _metadata(old: bytes, new: bytes) -> Callable[[str, bytes], bytes | None]:
    def change(name: str, data: bytes) -> bytes:
        if name != METADATA:
            return data
        assert old in data
        return data.replace(old, new)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda name, data: None if name.endswith("recipes/w4a16.yaml") else data,
            "draftconv-0.1.0-py3-none-any.whl lacks draftconv/recipes/w4a16.yaml",
        ),
        (
            lambda name, data: None if name == "draftconv/py.typed" else data,
            "draftconv-0.1.0-py3-none-any.whl lacks draftconv/py.typed",
        ),
        (_metadata(b"\nProject-URL: ", b"\nX-Other: "), "the wheel names no project URL"),
        (
            _metadata(f"]: {HOME}/blob/main/docs/convert.md\n".encode(), b"]: docs/convert.md\n"),
            "README.md links to docs/convert.md, which is nothing outside a checkout",
        ),
        (
            _metadata(b"/docs/convert.md\n", b"/docs/gone.md\n"),
            "README.md links to docs/gone.md, which is not there",
        ),
        (
            _metadata(b"\n[convert]: ", b"\n[converts]: "),
            "README.md refers to [convert], which is defined nowhere",
        ),
        (
            _metadata(b"\n[convert]: ", b"\n[converts]: "),
            "README.md defines [converts], to which nothing refers",
        ),
    ],
)
def test_a_fault_of_the_wheel_is_named(
    archives: Path, change: Callable[[str, bytes], bytes | None], message: str
) -> None:
    (wheel,) = archives.glob("*.whl")
    _rewrite(wheel, change)
    assert message in [*faults(archives)]


def test_an_sdist_with_trained_weights_is_named(archives: Path, tmp_path: Path) -> None:
    (sdist,) = archives.glob("*.tar.gz")
    with tarfile.open(sdist) as old:
        old.extractall(tmp_path / "old", filter="data")
    with tarfile.open(sdist, "w:gz") as new:
        new.add(tmp_path / "old" / "draftconv-0.1.0", "draftconv-0.1.0")
        weights = ROOT / "tests" / "data" / "drafters" / "llama-eagle3" / "model.safetensors"
        new.add(weights, "draftconv-0.1.0/tests/data/model.safetensors")
    assert [line for line in faults(archives) if "bytes" not in line] == [
        "draftconv-0.1.0.tar.gz holds tests/data/model.safetensors"
    ]
    assert any("bytes, more than" in line for line in faults(archives))


def test_one_of_each_is_wanted(archives: Path) -> None:
    next(archives.glob("*.whl")).unlink()
    assert [*faults(archives)] == [f"{archives} holds 1 sdists and 0 wheels, not one of each"]


def test_an_environment_with_torch_tells_nothing() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "try_wheel.py", ROOT / "tests" / "data"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "Error: torch is installed here, so nothing is learned about doing without\n",
    )
