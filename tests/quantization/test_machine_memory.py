"""How much memory there is, by everything that may hold a process to less than the machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftconv.quantization import machine_memory as module
from draftconv.quantization.machine_memory import machine_memory

resource = pytest.importorskip("resource")
UNLIMITED = 9223372036854771712
"""What version 1 says where nobody has set a limit."""


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No limits at all, until a test makes one."""
    monkeypatch.setattr(module, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(module, "OWN", tmp_path / "own")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return tmp_path / "groups"


def limit(groups: Path, file: str, text: object) -> None:
    (groups / file).parent.mkdir(parents=True, exist_ok=True)
    (groups / file).write_text(f"{text}\n")


@pytest.mark.parametrize("file", ["memory.max", "memory/memory.limit_in_bytes"])
def test_the_group_that_a_container_sees(file: str, groups: Path) -> None:
    whole = machine_memory("cpu")
    assert whole is not None
    for text in ("max", UNLIMITED, "nonsense"):
        limit(groups, file, text)
        assert machine_memory("cpu") == whole
    limit(groups, file, 1_000_000)
    assert machine_memory("cpu") == 1_000_000


@pytest.mark.parametrize(
    ("own", "place", "file"),
    [
        ("0::/user.slice/one.scope\n", "user.slice/one.scope", "memory.max"),
        ("7:cpu,memory:/jobs/7\n0::/\n", "memory/jobs/7", "memory.limit_in_bytes"),
    ],
)
def test_the_groups_that_the_process_is_in(own: str, place: str, file: str, groups: Path, tmp_path: Path) -> None:
    (tmp_path / "own").write_text(own)
    whole = machine_memory("cpu")
    limit(groups, f"{Path(place).parent}/other/{file}", 1_000)
    assert machine_memory("cpu") == whole  # not its own
    limit(groups, f"{Path(place).parent}/{file}", 3_000_000)
    assert machine_memory("cpu") == 3_000_000  # one above it
    limit(groups, f"{place}/{file}", 2_000_000)
    assert machine_memory("cpu") == 2_000_000


@pytest.mark.usefixtures("groups")
def test_a_group_outside_of_what_is_seen_is_not_looked_for(tmp_path: Path) -> None:
    whole = machine_memory("cpu")
    (tmp_path / "own").write_text("0::/../../elsewhere\nnonsense\n")
    limit(tmp_path, "elsewhere/memory.max", 1_000)
    assert machine_memory("cpu") == whole


@pytest.mark.usefixtures("groups")
def test_a_limit_on_addresses_counts_those_that_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STATM", tmp_path / "statm")
    monkeypatch.setattr("os.sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 1 << 40)
    (tmp_path / "statm").write_text("1000 300 50 1 0 400 0\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5000 * 4096, -1))
    assert machine_memory("cpu") == 4300 * 4096
    (tmp_path / "statm").unlink()
    assert machine_memory("cpu") == 5000 * 4096


def test_of_another_device_nobody_tells() -> None:
    assert machine_memory("meta") is None
