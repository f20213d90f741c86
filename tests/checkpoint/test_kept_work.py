"""What a long computation keeps beside its output, and when it is gone."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from draftconv.checkpoint.kept_work import kept_work, room_of
from draftconv.errors import Refused, UsageError, WriteError


def left(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir()) if out.parent.exists() else []


def stop(out: Path, key: str, name: str, error: BaseException) -> None:
    with pytest.raises(type(error)), kept_work(out, key, "calibration") as work:
        (work / name).write_text(name)
        raise error


def test_it_is_gone_when_the_work_is_done(tmp_path: Path) -> None:
    with kept_work(tmp_path / "above/out", "key", "calibration") as work:
        assert work.is_dir()
        assert left(tmp_path / "above/out") == [".out.calibration"]
    assert left(tmp_path / "above/out") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), WriteError("full"), MemoryError()], ids=repr)
def test_a_run_that_was_stopped_goes_on(error: BaseException, tmp_path: Path) -> None:
    stop(tmp_path / "out", "key", "done", error)
    assert left(tmp_path / "out") == [".out.calibration"]
    with kept_work(tmp_path / "out", "key", "calibration") as work:
        assert [path.name for path in work.iterdir()] == ["done"]
    assert left(tmp_path / "out") == []


def test_who_goes_on_is_told_so(tmp_path: Path) -> None:
    told: list[str] = []
    stop(tmp_path / "out", "key", "done", KeyboardInterrupt())
    for key in ("key", "other key"):
        with pytest.raises(KeyboardInterrupt), kept_work(tmp_path / "out", key, "calibration", told.append):
            raise KeyboardInterrupt
    assert told == ["going on with what an earlier run did, which is in .out.calibration beside out"]


def test_a_run_that_was_stopped_before_it_did_anything_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), kept_work(tmp_path / "above/out", "key", "search"):
        raise KeyboardInterrupt
    assert left(tmp_path / "above/out") == []


def test_it_is_called_by_what_it_is(tmp_path: Path) -> None:
    with kept_work(tmp_path / "out", "key", "search"):
        assert left(tmp_path / "out") == [".out.search"]
    assert room_of(Path("a/out"), "search") == Path("a/.out.search")


def test_other_work_begins_anew(tmp_path: Path) -> None:
    stop(tmp_path / "out", "key", "done", KeyboardInterrupt())
    with kept_work(tmp_path / "out", "other key", "calibration") as work:
        assert list(work.iterdir()) == []


def test_an_error_that_would_come_again_leaves_nothing(tmp_path: Path) -> None:
    stop(tmp_path / "above/out", "key", "done", Refused("not finite"))
    assert left(tmp_path / "above/out") == []


def test_a_refusing_file_system_is_told_with_what_is_kept(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="no room left") as error, kept_work(tmp_path / "out", "key", "calibration"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "what was done so far is in .out.calibration" in error.value.why


def test_two_runs_do_not_share_it(tmp_path: Path) -> None:
    with (
        kept_work(tmp_path / "out", "key", "calibration"),
        pytest.raises(WriteError, match="another run"),
        kept_work(tmp_path / "out", "key", "calibration"),
    ):
        pass


def test_a_name_that_would_be_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="bytes"), kept_work(tmp_path / ("x" * 250), "key", "calibration"):
        pass
