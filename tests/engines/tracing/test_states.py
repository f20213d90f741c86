"""The connector's file: a right one is read and removed, every broken one is void."""

from __future__ import annotations

import fcntl
import inspect
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftconv import limits
from draftconv.engines.vllm.tracing.states import ExpectedStates, StatesFile, take_states
from draftconv.errors import EngineError, Void

from .stub import BOUNDARIES, WIDTH, Change, states, write

WANTED = ExpectedStates(BOUNDARIES, WIDTH, "bfloat16", "vllm serve tiny")
PROMPT, GENERATED = (3, 1, 4, 1, 5), (9, 2, 6)
TOKENS = (*PROMPT, *GENERATED)


def answer(storage: Path, change: Change = lambda tensors: tensors) -> StatesFile:
    path = storage / "cmpl-1.safetensors"
    write(path, TOKENS, change)
    return StatesFile(PROMPT, GENERATED, str(path))


def test_states_are_read_and_the_files_removed(tmp_path: Path) -> None:
    found_TAW = take_states(answer(tmp_path), WANTED, tmp_path)
    assert found_TAW.shape == (7, 3, WIDTH)
    assert torch.equal(found_TAW, states(TOKENS))
    assert list(tmp_path.iterdir()) == []


def zeroed(states_TAW: Tensor) -> Tensor:
    states_TAW[4] = 0
    return states_TAW


def infinite(states_TAW: Tensor) -> Tensor:
    states_TAW[2, 1, 0] = torch.inf
    return states_TAW


BROKEN: dict[str, tuple[Change, str]] = {
    "the prompt alone": (
        lambda t: {"hidden_states": t["hidden_states"][:5], "token_ids": t["token_ids"][:5]},
        "include_output_tokens was ignored",
    ),
    "one row short": (
        lambda t: {"hidden_states": t["hidden_states"][:-1], "token_ids": t["token_ids"][:-1]},
        r"token_ids I64 \[6\].*make I64 \[7\]",
    ),
    "one row too many": (
        lambda t: {"hidden_states": torch.cat((t["hidden_states"],) * 2)[:8], "token_ids": torch.tensor(TOKENS)},
        r"token_ids I64 \[8\]",
    ),
    "states without tokens": (lambda t: {"hidden_states": t["hidden_states"]}, "holds no token_ids"),
    "tokens without states": (lambda t: {"token_ids": t["token_ids"]}, "holds no hidden_states"),
    "fewer states than tokens": (lambda t: {**t, "hidden_states": t["hidden_states"][1:]}, r"\[6, 3, 6\]"),
    "tokens shifted by one": (lambda t: {**t, "token_ids": t["token_ids"].roll(1)}, "holds token 2 at position 0"),
    "another text": (
        lambda t: {**t, "token_ids": torch.tensor([*TOKENS[:6], 7])},
        "holds token 7 at position 6, the answer 2",
    ),
    "tokens as I32": (lambda t: {**t, "token_ids": t["token_ids"].int()}, "token_ids I32"),
    "a boundary too few": (lambda t: {**t, "hidden_states": t["hidden_states"][:, :2]}, r"\[7, 2, 6\]"),
    "a boundary too many": (
        lambda t: {**t, "hidden_states": torch.cat((t["hidden_states"],) * 2, 1)[:, :4]},
        r"\[7, 4, 6\]",
    ),
    "another width": (lambda t: {**t, "hidden_states": t["hidden_states"][..., :4]}, r"\[7, 3, 4\]"),
    "another dtype": (lambda t: {**t, "hidden_states": t["hidden_states"].float()}, "hidden_states F32"),
    "infinity": (lambda t: {**t, "hidden_states": infinite(t["hidden_states"])}, "not finite"),
    "not a number": (lambda t: {**t, "hidden_states": t["hidden_states"] * torch.nan}, "not finite"),
    "a row that was never written": (
        lambda t: {**t, "hidden_states": zeroed(t["hidden_states"])},
        "at 1 of 7 positions are all zero, first at 4",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_void_and_kept(tmp_path: Path, name: str) -> None:
    change, told = BROKEN[name]
    with pytest.raises(Void, match=told) as caught:
        take_states(answer(tmp_path, change), WANTED, tmp_path)
    assert caught.value.exit_code == 4
    assert caught.value.cure.endswith("compare how vLLM was started with: vllm serve tiny")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_cut_short_is_void(tmp_path: Path) -> None:
    given = answer(tmp_path)
    os.truncate(given.file, 200)
    with pytest.raises(Void, match="leave the file"):
        take_states(given, WANTED, tmp_path)


def test_a_file_that_was_never_written_is_void(tmp_path: Path) -> None:
    """A disk that is full: vLLM logs it, gives the lock back and answers all the same."""
    given = answer(tmp_path)
    Path(given.file).unlink()
    with pytest.raises(Void, match="cannot be read"):
        take_states(given, WANTED, tmp_path)


def test_an_answer_that_the_file_does_not_belong_to_is_void(tmp_path: Path) -> None:
    given = replace(answer(tmp_path), prompt=(3, 1, 4, 1, 6))
    with pytest.raises(Void, match="holds token 5 at position 4, the answer 6"):
        take_states(given, WANTED, tmp_path)


# ── the lock ───────────────────────────────────────────────────────────────────────


def test_reading_waits_for_the_writer(tmp_path: Path) -> None:
    given = answer(tmp_path)
    whole = Path(given.file).read_bytes()
    Path(given.file).write_bytes(b"")
    with Path(f"{given.file}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def finish() -> None:
            Path(given.file).write_bytes(whole)
            fcntl.flock(lock, fcntl.LOCK_UN)

        timer = threading.Timer(0.2, finish)
        timer.start()
        assert torch.equal(take_states(given, WANTED, tmp_path), states(TOKENS))
        timer.join()
    assert inspect.signature(take_states).parameters["patience"].default == limits.ENGINE_FILE.value


def test_a_writer_that_never_ends_is_void(tmp_path: Path) -> None:
    given = answer(tmp_path)
    with Path(f"{given.file}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Void, match=r"still being written after 0\.05 s"):
            take_states(given, WANTED, tmp_path, patience=0.05)


def test_a_file_without_a_lock_is_not_read(tmp_path: Path) -> None:
    given = answer(tmp_path)
    Path(f"{given.file}.lock").unlink()
    with pytest.raises(EngineError, match="no lock file"):
        take_states(given, WANTED, tmp_path)


# ── a hostile answer ───────────────────────────────────────────────────────────────


def outside(tmp_path: Path) -> dict[str, Path]:
    elsewhere, storage = tmp_path / "elsewhere", tmp_path / "storage"
    elsewhere.mkdir()
    (storage / "below").mkdir(parents=True)
    write(elsewhere / "x.safetensors", TOKENS)
    write(storage / "below" / "x.safetensors", TOKENS)
    (storage / "link.safetensors").symlink_to(elsewhere / "x.safetensors")
    (storage / "link.safetensors.lock").touch()
    (storage / "notes.txt").touch()
    return {
        "absolute": elsewhere / "x.safetensors",
        "relative": storage / ".." / "elsewhere" / "x.safetensors",
        "link": storage / "link.safetensors",
        "below": storage / "below" / "x.safetensors",
        "suffix": storage / "notes.txt",
        "the directory": storage,
    }


@pytest.mark.parametrize("name", ["absolute", "relative", "link", "below", "suffix", "the directory"])
def test_only_the_directory_is_read(tmp_path: Path, name: str) -> None:
    path = outside(tmp_path)[name]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(EngineError, match="only that directory is read"):
        take_states(StatesFile(PROMPT, GENERATED, str(path)), WANTED, tmp_path / "storage")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    given = answer(tmp_path)
    lock = Path(f"{given.file}.lock")
    lock.unlink()
    (tmp_path / "mine").touch()
    lock.symlink_to(tmp_path / "mine")
    with pytest.raises(EngineError, match="no lock file"):
        take_states(given, WANTED, tmp_path)


def test_a_name_that_no_path_can_have(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="only that directory is read"):
        take_states(StatesFile(PROMPT, GENERATED, "a\0b.safetensors"), WANTED, tmp_path)


def test_the_directory_may_be_given_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "named").symlink_to(tmp_path / "real")
    given = answer(tmp_path / "real")
    assert len(take_states(given, WANTED, tmp_path / "named")) == 7
