"""Writing traces: whole or not at all, resumable, never over anything else."""

from __future__ import annotations

import errno
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draftconv.checkpoint.directories import sync_directory
from draftconv.errors import BadCheckpoint, UsageError, Void, WriteError
from draftconv.traces import writer as writer_module
from draftconv.traces.trace import Trace, digest, open_trace
from draftconv.traces.writer import CapturedText, Slot
from tests.traces import made


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_stopped_run_goes_on_and_ends_in_the_same_bytes(tmp_path: Path) -> None:
    whole = made.trace(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt), made.writer(tmp_path / "cut") as writer:
        writer.write(0, made.captured(0))
        raise KeyboardInterrupt
    # what a kill in the middle of a file leaves
    (tmp_path / "cut/requests/.000001.safetensors.new").write_bytes(b"half")
    assert not (tmp_path / "cut/trace.json").exists()
    with made.writer(tmp_path / "cut") as writer:
        held = writer.held(0)
        assert held is not None
        assert torch.equal(held.tokens_N, made.captured(0).tokens_N)
        assert (held.prompt, held.counted) == (2, 1)
        assert writer.held(1) is None
        writer.write(1, made.captured(1))
        writer.write(2, made.captured(2))
        found = writer.finish()
    assert found.entries == whole.entries
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_missing_request_keeps_the_trace_incomplete(tmp_path: Path) -> None:
    with made.writer(tmp_path / "cut") as writer:
        writer.write(0, made.captured(0))
        with pytest.raises(UsageError, match="2 of 3 requests are missing, first a/2"):
            writer.finish()
    assert not (tmp_path / "cut/trace.json").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"depth": 4}, "has depth 3, this command 4"),
        ({"boundaries": (2, 4)}, r"has boundaries \[2, 4, 5\], this command \[2, 4\]"),
        ({"prompts_sha256": "1" * 64}, "has prompts_sha256 0000"),
        ({"revision": "main"}, "has revision None, this command main"),
    ],
)
def test_other_settings_do_not_go_on_with_it(tmp_path: Path, changed: dict[str, object], said: str) -> None:
    with made.writer(tmp_path / "cut"):
        pass
    with pytest.raises(UsageError, match=said), made.writer(tmp_path / "cut", replace(made.ABOUT, **changed)):  # type: ignore[arg-type]
        pass


def test_other_requests_or_tables_do_not_go_on_with_it(tmp_path: Path) -> None:
    with made.writer(tmp_path / "cut"):
        pass
    others = (*made.SLOTS[:2], Slot("c", "c", "code"))
    with pytest.raises(UsageError, match="lists other requests"), made.writer(tmp_path / "cut", slots=others):
        pass
    with pytest.raises(UsageError, match="has tables"), made.writer(tmp_path / "cut", tables={}):
        pass


def test_a_request_in_anothers_place_is_noticed(tmp_path: Path) -> None:
    with made.writer(tmp_path / "cut") as writer:
        writer.write(1, made.captured(1))
        (tmp_path / "cut/requests/000001.safetensors").rename(tmp_path / "cut/requests/000000.safetensors")
        with pytest.raises(BadCheckpoint, match="is request a/2, not a/1"):
            writer.held(0)


@pytest.mark.parametrize("at", [-1, -40])
def test_a_request_that_changed_since_is_noticed(at: int, tmp_path: Path) -> None:
    """A run that goes on believes what an earlier one wrote, and not what somebody made of it."""
    with made.writer(tmp_path / "cut") as writer:
        writer.write(1, made.captured(1))
    path = tmp_path / "cut/requests/000001.safetensors"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with (
        made.writer(tmp_path / "cut") as writer,
        pytest.raises(BadCheckpoint, match="not hold what was written") as caught,
    ):
        writer.held(1)
    assert caught.value.cure.startswith("remove the file")


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    made.trace(tmp_path / "done")
    before = contents(tmp_path / "done")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name, said in (
        ("done", "done holds a complete trace"),
        ("mine", "mine exists and holds no incomplete trace"),
        ("file", "file exists and is not a directory"),
        ("link", "link exists and is not a directory"),
        ("file/where", "where cannot stand in file, which is not a directory"),
    ):
        with pytest.raises(WriteError, match=said), made.writer(tmp_path / name):
            pass
    assert contents(tmp_path / "done") == before
    assert list(contents(tmp_path / "mine")) == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    with made.writer(tmp_path / "empty"):
        pass


def test_directories_above_it_are_made_and_go_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made.writer(tmp_path / "a/out"):
        pass
    assert (tmp_path / "a/out").is_dir()
    monkeypatch.setattr(writer_module, "_locked", lambda _: fails())
    with pytest.raises(WriteError, match="out could not be written"), made.writer(tmp_path / "b/c/out"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_two_runs_do_not_write_one_trace(tmp_path: Path) -> None:
    with (
        made.writer(tmp_path / "out"),
        pytest.raises(WriteError, match="another run is writing out right now"),
        made.writer(tmp_path / "out"),
    ):
        pass
    with made.writer(tmp_path / "out"):
        pass


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompt": 0}, "0 prompt tokens"),
        ({"counted": 5}, "5 counted ones, 1 to 4 may be"),
        ({"counted": 3}, r"\[8\] tokens of torch.int64, 9 of int64"),
        ({"tokens_N": made.captured(1).tokens_N[:-1]}, r"\[7\] tokens"),
        ({"tokens_N": made.captured(1).tokens_N.int()}, "tokens of torch.int32"),
        ({"tokens_N": made.captured(1).tokens_N + 50}, "outside the vocabulary of 50"),
        ({"states_TAW": made.captured(1).states_TAW[1:]}, r"states \[6, 3, 6\], bfloat16 \[7, 3, 6\]"),
        ({"states_TAW": made.captured(1).states_TAW[:][:, 1:]}, r"states \[7, 2, 6\]"),
        ({"states_TAW": made.captured(1).states_TAW[:].float()}, "torch.float32 states"),
        ({"states_TAW": made.captured(1).states_TAW[:] * torch.inf}, "not finite"),
        ({"states_TAW": made.captured(1).states_TAW[:].index_fill(0, torch.tensor([6]), torch.nan)}, "not finite"),
    ],
)
def test_what_does_not_fit_is_void(tmp_path: Path, changed: dict[str, object], said: str) -> None:
    with made.writer(tmp_path / "out") as writer:
        with pytest.raises(Void, match=said) as caught:
            writer.write(1, replace(made.captured(1), **changed))  # type: ignore[arg-type]
        assert caught.value.exit_code == 4
        assert writer.held(1) is None
        writer.write(1, made.captured(1))


@pytest.mark.parametrize(
    ("code", "what", "cure"),
    [
        (errno.ENOSPC, "no room left", "free some space or choose an output on another file system"),
        (errno.EFBIG, "exceed the size limit", "raise the limit (`ulimit -f`)"),
    ],
)
def test_a_full_disk_leaves_what_was_captured(
    code: int, what: str, cure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made.writer(tmp_path / "out") as writer:
        writer.write(0, made.captured(0))

        def full(_: int) -> None:
            raise OSError(code, "refused")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(WriteError, match=what) as caught:
            writer.write(1, made.captured(1))
        assert caught.value.why == "what was captured so far is kept"
        assert caught.value.cure == f"{cure}; the same command then goes on"
        monkeypatch.undo()
        assert writer.held(0) is not None
        assert writer.held(1) is None


def test_a_table_in_memory_cannot_be_linked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--link-tables"), made.writer(tmp_path / "out", link=True):
        pass


def test_states_of_every_dtype_come_back(tmp_path: Path) -> None:
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        about = replace(made.ABOUT, dtype=dtype)
        given = made.captured(2, about)
        with made.writer(tmp_path / dtype, about, made.SLOTS[2:], {}, tokenizer=None) as writer:
            writer.write(0, CapturedText(given.prompt, given.counted, given.tokens_N, given.states_TAW))
            trace: Trace = writer.finish()
        assert torch.equal(trace.read(trace.entries[0], (2, 4, 5)).states_TAW[:], given.states_TAW[:])
        assert trace.tokenizer is None
        assert json.loads((tmp_path / dtype / "trace.json").read_text())["tables"] == {}


def finished(out: Path) -> Trace:
    with made.writer(out) as writer:
        for index in range(3):
            writer.write(index, made.captured(index))
        return writer.finish()


def fails(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_complete_trace_is_no_failure_because_of_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Path, "unlink", fails)
    assert finished(tmp_path / "out").entries
    assert (tmp_path / "out/trace.partial.json").exists()
    assert caplog.messages == [
        "trace.partial.json could not be removed ([Errno 5] Input/output error); "
        "with trace.json beside it nobody reads it"
    ]


def test_a_trace_that_may_not_last_is_not_called_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def last_fails(path: Path) -> None:
        fails() if (path / "trace.json").exists() else sync_directory(path)

    monkeypatch.setattr(writer_module, "sync_directory", last_fails)
    with pytest.raises(WriteError, match="out could not be written: Input/output error") as caught:
        finished(tmp_path / "out")
    assert caught.value.why == "it stands there complete, but might not outlast a power cut"
    assert "goes on" not in caught.value.cure


# ── languages ──────────────────────────────────────────────────────────────────────


def test_a_trace_without_languages_has_the_bytes_that_it_always_had(tmp_path: Path) -> None:
    """As written before a prompt could say its language: such traces, and reports of them, stay what they were."""
    whole = made.trace(tmp_path / "whole")
    index = (tmp_path / "whole/trace.json").read_bytes()
    assert hashlib.sha256(index).hexdigest() == "c7f05d1fdfcab091d6e8e38e8bff75be1d8902eaea0bbc8bb2f6e6cecc3cd9c7"
    assert digest(whole.about, whole.tables, whole.entries) == (
        "fdffa142a391f2a1c8c2480161124075234615537711ae66604e53bc4015c164"
    )


def test_a_language_comes_back_and_is_part_of_what_the_trace_is(tmp_path: Path) -> None:
    slots = tuple(replace(slot, language=language) for slot, language in zip(made.SLOTS, ("de", "de", ""), strict=True))
    with made.writer(tmp_path / "told", slots=slots) as writer:
        for index in range(len(slots)):
            writer.write(index, made.captured(index))
        told = writer.finish()
    assert [entry.language for entry in open_trace(tmp_path / "told").entries] == ["de", "de", ""]
    assert [told.read(entry, (2,)).language for entry in told.entries] == ["de", "de", ""]
    rows = json.loads((tmp_path / "told/trace.json").read_text())["requests"]
    assert [row.get("language") for row in rows] == ["de", "de", None]
    plain = made.trace(tmp_path / "plain")
    assert digest(told.about, told.tables, told.entries) != digest(plain.about, plain.tables, plain.entries)


def test_a_run_that_goes_on_with_another_language_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), made.writer(tmp_path / "cut") as writer:
        writer.write(0, made.captured(0))
        raise KeyboardInterrupt
    slots = tuple(replace(slot, language="de") for slot in made.SLOTS)
    with pytest.raises(UsageError), made.writer(tmp_path / "cut", slots=slots):
        pass
