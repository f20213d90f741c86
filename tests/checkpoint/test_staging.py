import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftconv.checkpoint import staging as staging_module
from draftconv.checkpoint.directories import sync_directory
from draftconv.checkpoint.staging import FileDigest, OwnershipMark, refuse_occupied, refuse_same, staging, write_new
from draftconv.errors import UsageError, WriteError
from tests.checkpoint.made import synced


def names(path: Path) -> list[str]:
    return sorted(item.name for item in path.iterdir())


def written(path: Path) -> dict[str, FileDigest] | None:
    """A record that lists names, each with what was in the file."""
    try:
        listed: dict[str, str] = json.loads((path / "draftconv.json").read_text())
    except ValueError:
        return None
    return {"draftconv.json": FileDigest(), **{name: FileDigest.of(text.encode()) for name, text in listed.items()}}


OURS = OwnershipMark("draftconv.json", written)


def ours(path: Path) -> Path:
    path.mkdir()
    (path / "draftconv.json").write_text('{"old": "what was written"}')
    (path / "old").write_text("what was written")
    return path


def test_appears_at_the_end(tmp_path: Path) -> None:
    with staging(tmp_path / "out") as new:
        (new / "a").write_text("x")
        assert names(tmp_path) == [".out.draftconv"]
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["a"]


def test_the_output_and_its_name_are_made_durable(tmp_path: Path) -> None:
    with synced() as found, staging(tmp_path / "out"):
        pass
    assert {path.stat().st_ino for path in (tmp_path / "out", tmp_path)} <= found


def test_directories_above_it_are_made_and_made_durable(tmp_path: Path) -> None:
    with synced() as found, staging(tmp_path / "a/b/out") as new:
        (new / "x").touch()
    assert names(tmp_path / "a/b/out") == ["x"]
    assert {path.stat().st_ino for path in (tmp_path, tmp_path / "a", tmp_path / "a/b")} <= found


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_only_the_directories_that_it_made_go_with_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(error), staging(tmp_path / "a/b/c/out") as new:
        assert names(tmp_path / "a/b/c") == [".out.draftconv"]
        (new / "x").touch()
        raise error
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == []
    with pytest.raises(error), staging(tmp_path / "a/b/c/out"):
        (tmp_path / "a/b/notes.md").touch()
        raise error
    assert names(tmp_path / "a/b") == ["notes.md"]


def test_a_directory_above_that_cannot_be_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = Path.mkdir

    def second_fails(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        fails() if path.name == "b" else mkdir(path, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", second_fails)
    with pytest.raises(WriteError, match="Input/output error") as caught, staging(tmp_path / "a/b/out"):
        pytest.fail("it must not start")
    assert caught.value.why == "nothing was left behind"
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_leaves_nothing_after_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), staging(tmp_path / "out") as new:
        (new / "a").write_text("x")
        raise error
    assert names(tmp_path) == []


@pytest.fixture(params=["exchange", "two renames"])
def swap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "two renames":
        monkeypatch.setattr(staging_module, "exchange", lambda *_: False)
    yield


@pytest.mark.usefixtures("swap")
def test_overwrite_swaps(tmp_path: Path) -> None:
    out = ours(tmp_path / "out")
    with staging(out, overwrite=True, mark=OURS) as new:
        (new / "new").touch()
        assert names(out) == ["draftconv.json", "old"]
    assert names(out) == ["new"]
    assert names(tmp_path) == ["out"]


@pytest.mark.usefixtures("swap")
def test_a_failed_overwrite_keeps_the_old(tmp_path: Path) -> None:
    out = ours(tmp_path / "out")
    with pytest.raises(ValueError, match="no"), staging(out, overwrite=True, mark=OURS):
        raise ValueError("no")
    assert names(out) == ["draftconv.json", "old"]
    assert names(tmp_path) == ["out"]


def test_an_interrupted_swap_is_undone_by_the_next_run(tmp_path: Path) -> None:
    """Killed between the two renames of a file system that cannot exchange names."""
    room = tmp_path / ".out.draftconv"
    room.mkdir()
    ours(room / "old")
    (room / "new").mkdir()
    with pytest.raises(WriteError, match="exists already"), staging(tmp_path / "out"):
        pytest.fail("the old output is back and must not be replaced")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["draftconv.json", "old"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_refuses_what_is_in_the_way(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/photo").touch()
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake/draftconv.json").write_text("not ours")
    (tmp_path / "linked").mkdir()
    (tmp_path / "elsewhere.json").write_text("{}")
    (tmp_path / "linked/draftconv.json").symlink_to(tmp_path / "elsewhere.json")
    before = names(tmp_path)
    for name in ("file", "link", "full", "fake", "linked"):
        with pytest.raises(WriteError, match=name), staging(tmp_path / name, overwrite=overwrite, mark=OURS):
            pytest.fail("it must not start")
    for name, above in (("file/a/out", "file"), ("link/out", "link")):
        said = f"out cannot stand in {above}, which is not a directory"
        with pytest.raises(WriteError, match=said), staging(tmp_path / name, overwrite=overwrite):
            pytest.fail("it must not start")
    assert names(tmp_path) == before


def note(out: Path) -> None:
    (out / "notes.md").write_text("precious")


def edit(out: Path) -> None:
    (out / "old").write_text("what was Written")


def cut(out: Path) -> None:
    (out / "old").write_text("what")


def checkout(out: Path) -> None:
    (out / ".git/objects").mkdir(parents=True)
    (out / ".git/config").touch()


def nest(out: Path) -> None:
    (out / "old").unlink()
    (out / "old").mkdir()
    (out / "old/photo").touch()


def link(out: Path) -> None:
    (out / "old").rename(out.parent / "elsewhere")
    (out / "old").symlink_to(out.parent / "elsewhere")


def dangle(out: Path) -> None:
    (out / "notes.md").symlink_to(out / "nowhere")


def pipe(out: Path) -> None:
    (out / "old").unlink()
    os.mkfifo(out / "old")


STRANGE = {
    note: "notes.md", edit: "old", cut: "old", checkout: ".git/", nest: "old/", link: "old", dangle: "notes.md",
    pipe: "old",
    lambda out: (out / "OLD").touch(): "OLD",
    lambda out: (out / "a\nb").touch(): "a\nb",
    lambda out: (out / os.fsdecode(b"\xff")).touch(): "\udcff",
    lambda out: [(out / f"{i:02}").touch() for i in range(11)]: "00, 01, 02, 03, 04, 05, 06, 07 and 3 more",
}  # fmt: skip


@pytest.mark.parametrize(("change", "named"), list(STRANGE.items()), ids=[repr(name) for name in STRANGE.values()])
def test_what_draftconv_did_not_write_is_named_and_kept(
    change: Callable[[Path], object], named: str, tmp_path: Path
) -> None:
    out = ours(tmp_path / "out")
    change(out)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    for refuse in (lambda: refuse_occupied(out, overwrite=True, mark=OURS), lambda: overwritten(out)):
        with pytest.raises(WriteError, match="out holds what draftconv did not write") as caught:
            refuse()
        assert caught.value.what.endswith(f": {named}")
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def overwritten(out: Path) -> None:
    with staging(out, overwrite=True, mark=OURS) as new:
        (new / "new").touch()


def test_a_file_that_is_missing_does_not_keep_the_rest(tmp_path: Path) -> None:
    out = ours(tmp_path / "out")
    (out / "old").unlink()
    overwritten(out)
    assert names(out) == ["new"]


def test_without_a_mark_nothing_is_ours(tmp_path: Path) -> None:
    out = ours(tmp_path / "out")
    with pytest.raises(WriteError, match="was not written by draftconv"):
        refuse_occupied(out, overwrite=True)


@pytest.mark.usefixtures("swap")
def test_notes_made_during_the_work_are_kept(tmp_path: Path) -> None:
    out = ours(tmp_path / "out")
    with pytest.raises(WriteError, match=r": notes\.md\n"), staging(out, overwrite=True, mark=OURS) as new:
        (new / "new").touch()
        note(out)
    assert names(tmp_path) == ["out"]
    assert names(out) == ["draftconv.json", "notes.md", "old"]


@pytest.mark.usefixtures("swap")
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_made_during_the_work_is_kept(overwrite: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = "was not written by draftconv" if overwrite else "exists already"
    with pytest.raises(WriteError, match=said), staging(out, overwrite=overwrite, mark=OURS) as new:
        (new / "new").touch()
        out.mkdir()
        note(out)
    assert names(tmp_path) == ["out"]
    assert names(out) == ["notes.md"]


@pytest.mark.parametrize("empty", [False, True])
def test_the_directory_that_one_is_in_is_not_taken_away(
    empty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir() if empty else ours(out)
    before = names(out)
    monkeypatch.chdir(out)
    for place in (Path(), out):
        with pytest.raises(WriteError, match="out is the directory that you are in"):
            overwritten(place)
    assert names(out) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_is_lost_with_an_empty_directory(overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with staging(tmp_path / "out", overwrite=overwrite) as new:
        (new / "a").touch()
    assert names(tmp_path / "out") == ["a"]


def test_a_file_put_there_at_the_last_moment_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last look and the rename."""
    out = tmp_path / "out"
    out.mkdir()
    look = staging_module._refuse_target

    def slow(*args: Any, **more: Any) -> None:
        look(*args, **more)
        if (tmp_path / ".out.draftconv/new/a").exists():
            note(out)

    monkeypatch.setattr(staging_module, "_refuse_target", slow)
    with pytest.raises(WriteError, match="exists already"), staging(out) as new:
        (new / "a").touch()
    assert names(out) == ["notes.md"]


def test_needs_a_name() -> None:
    with pytest.raises(UsageError, match="has no name"), staging(Path("/")):
        pytest.fail("it must not start")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that takes no directories")
def test_where_nothing_can_be_made_is_an_error() -> None:
    """mkdir says ENOENT there, as it does when another run has just finished; trying again would never end."""
    with pytest.raises(WriteError, match=r"out could not be written"), staging(Path("/proc/out")):
        pytest.fail("it must not start")


@pytest.mark.parametrize(("flags", "said"), [(os.ST_RDONLY, "Read-only file system"), (0, "Permission denied")])
def test_what_may_not_be_written_to_is_told_before_the_work(
    flags: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, so the answers of the system are played."""
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))
    for out in (tmp_path / "out", tmp_path / "a/b/out"):
        with pytest.raises(WriteError, match=f"out could not be written: {said}"):
            refuse_occupied(out)
    monkeypatch.undo()
    assert refuse_occupied(tmp_path / "out") == tmp_path / "out"


def test_two_runs_do_not_meet(tmp_path: Path) -> None:
    with staging(tmp_path / "out") as first:
        (first / "a").touch()
        with pytest.raises(WriteError, match="another run is writing out"), staging(tmp_path / "out"):
            pytest.fail("it must not start")
        with staging(tmp_path / "other"):
            pass
        assert names(first) == ["a"]
    assert names(tmp_path) == ["other", "out"]


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    room = tmp_path / ".out.draftconv"
    (room / "new").mkdir(parents=True)
    (room / "new/half").touch()
    (room / "lock").touch()
    with staging(tmp_path / "out") as new:
        assert names(new) == []
    assert names(tmp_path) == ["out"]


def test_a_lock_that_vanished_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other run removed its directory between our open and our flock: start over."""
    real = fcntl.flock
    calls: list[int] = []

    def slow(descriptor: int, how: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / ".out.draftconv/lock").unlink()
            (tmp_path / ".out.draftconv").rmdir()
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with staging(tmp_path / "out"):
        pass
    assert len(calls) == 2
    assert names(tmp_path) == ["out"]


def test_a_run_that_moved_in_early_is_left_alone(tmp_path: Path) -> None:
    """The next run made its lock between our unlink and our rmdir."""
    with staging(tmp_path / "out"):
        (tmp_path / ".out.draftconv/its-lock").touch()
    assert names(tmp_path) == [".out.draftconv", "out"]
    assert names(tmp_path / ".out.draftconv") == ["its-lock"]


def test_a_foreign_working_directory_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".out.draftconv").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WriteError, match="is in the way"), staging(tmp_path / "out"):
        pytest.fail("it must not start")
    assert names(tmp_path / "elsewhere") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of someone else")
@pytest.mark.parametrize(("mode", "fine"), [(0o1777, False), (0o755, True)])
def test_a_working_directory_of_someone_else(tmp_path: Path, mode: int, fine: bool) -> None:
    place = tmp_path / "place"
    (place / ".out.draftconv").mkdir(parents=True)
    os.chown(place / ".out.draftconv", 12345, -1)
    place.chmod(mode)
    if fine:
        with staging(place / "out"):
            pass
        assert names(place) == ["out"]
    else:
        with pytest.raises(WriteError, match="is in the way"), staging(place / "out"):
            pytest.fail("it must not start")


def test_output_and_source_must_be_apart(tmp_path: Path) -> None:
    source = tmp_path / "a/source"
    source.mkdir(parents=True)
    (source / "model.safetensors").touch()
    (tmp_path / "link").symlink_to(source)
    wrong = [
        (source, source, "is the source"),
        (source / "model.safetensors", source, "is the source"),
        (source, tmp_path / "link", "is the source"),
        (tmp_path / "link", source / "x", "lies inside"),
        (source, source / "x/y", "lies inside"),
        (source, tmp_path / "a", "contains"),
        (source, tmp_path / "a/source/..", "contains"),
    ]
    for left, out, relation in wrong:
        with pytest.raises(UsageError, match=relation):
            refuse_same(left, out)
    refuse_same(source, tmp_path / "a/other")
    refuse_same(source, tmp_path / "a/source2")
    refuse_same(source, Path(os.path.relpath(tmp_path / "b")))


# ── one call that fails ────────────────────────────────────────────────────────────


def fails(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def cleaning_fails(out: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException | None = None) -> None:
    """Write `out` where nothing can be removed any more."""
    with monkeypatch.context() as patched, staging(out, overwrite=True, mark=OURS) as new:
        (new / "new").touch()
        patched.setattr(shutil, "rmtree", fails)
        patched.setattr(Path, "rmdir", fails)
        if fault is not None:
            raise fault


@pytest.mark.usefixtures("swap")
def test_what_cannot_be_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out = ours(tmp_path / "out")
    cleaning_fails(out, monkeypatch)
    assert names(out) == ["new"]
    assert caplog.messages == [f"{tmp_path}/.out.draftconv could not be removed; the next run for out does it"]


def test_an_error_does_not_hide_behind_that_of_the_cleaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="the reason"):
        cleaning_fails(tmp_path / "out", monkeypatch, ValueError("the reason"))
    with pytest.raises(WriteError, match="no room left") as caught:
        cleaning_fails(tmp_path / "out", monkeypatch, OSError(errno.ENOSPC, "full"))
    assert caught.value.why == (
        "what was begun is in .out.draftconv beside it, until the next run gives it back or removes it"
    )
    with staging(tmp_path / "out"):
        pass
    assert names(tmp_path) == ["out"]


def test_an_output_that_may_not_last_is_not_called_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename is done, and its sync fails."""

    def parent_fails(path: Path) -> None:
        fails() if path == tmp_path else sync_directory(path)

    monkeypatch.setattr(staging_module, "sync_directory", parent_fails)
    with (
        pytest.raises(WriteError, match="out could not be written: Input/output error") as caught,
        staging(tmp_path / "out"),
    ):
        pass
    assert caught.value.why == "it stands there complete, but might not outlast a power cut"
    assert names(tmp_path) == ["out"]


def test_an_output_that_cannot_be_looked_into_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ours(tmp_path / "out")
    monkeypatch.setattr(Path, "iterdir", fails)
    with pytest.raises(WriteError, match="out could not be written: Input/output error"):
        refuse_occupied(out, overwrite=True, mark=OURS)


# ── a single file ──────────────────────────────────────────────────────────────────


def test_a_file_appears_whole_and_replaces_nothing(tmp_path: Path) -> None:
    write_new(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a", b"second")
    assert ((tmp_path / "a").read_bytes(), names(tmp_path)) == (b"first", ["a"])


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_file_that_cannot_be_written_is_not_there(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        write_new(tmp_path / "a", b"first")
    assert names(tmp_path) == []
