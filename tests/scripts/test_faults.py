"""`scripts/faults`: calls fail as asked, and a command that leaves a mess is noticed."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fault_commands
import faults
import injection
import pytest
from fault_commands import Command
from faults import Case, Trial, sampled, table
from injection import Call, Fault, Injection, Ran, Unavailable, run_child

from draftconv.checkpoint.staging import FileDigest, OwnershipMark, staging
from draftconv.cli import output
from draftconv.errors import DraftconvError
from tests.checkpoint.stub_hub import Hub


@pytest.fixture(autouse=True)
def possible() -> None:
    """Skip where the kernel or the container does not allow it."""
    try:
        run_child(lambda: 0, [])
    except Unavailable as error:
        pytest.skip(str(error))


def written(place: Path) -> Callable[[], int]:
    def work() -> int:
        (place / "a").write_bytes(b"1")
        (place / "a").rename(place / "b")
        (place / "b").write_bytes(b"2")
        print("done")
        return 7

    return work


def test_calls_are_seen_by_kind_and_in_order(tmp_path: Path) -> None:
    ran = run_child(written(tmp_path), [tmp_path])
    assert (ran.code, ran.said, ran.hit) == (7, "done\n", None)
    assert [(call.kind, call.file) for call in ran.calls] == [
        ("open", "a"), ("write", "a"), ("rename", "a"), ("open", "b"), ("write", "b"),
    ]  # fmt: skip


def test_what_lies_elsewhere_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    assert run_child(written(tmp_path), [tmp_path / "root"], Injection("write", 1, "EIO")).code == 7


@pytest.mark.parametrize(
    ("fault", "said"), [("ENOSPC", "No space left on device"), ("EIO", "Input/output error"), ("EINTR", "done")]
)
def test_the_call_that_was_asked_for_fails(fault: Fault, said: str, tmp_path: Path) -> None:
    """Python itself tries again after an interruption."""
    ran = run_child(written(tmp_path), [tmp_path], Injection("write", 2, fault))
    assert said in ran.said
    assert ran.hit == Call("write", "write", "b")
    assert (tmp_path / "b").read_bytes() == (b"2" if fault == "EINTR" else b"")


def test_killed_before_the_call_is_carried_out(tmp_path: Path) -> None:
    ran = run_child(written(tmp_path), [tmp_path], Injection("rename", 1, "kill"))
    assert (ran.code, ran.said) == (-9, "")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_c_libraries_are_no_exception(tmp_path: Path) -> None:
    def work() -> int:
        import sqlite3

        with sqlite3.connect(tmp_path / "base") as base:
            base.execute("create table t (a)")
        return 0

    ran = run_child(work, [tmp_path], Injection("write", 1, "EIO"))
    assert "sqlite3.OperationalError: disk I/O error" in ran.said
    assert ran.hit is not None
    assert ran.hit.name == "pwrite64"


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    def work() -> int:
        while True:
            os.stat(tmp_path)  # noqa: PTH116

    assert run_child(work, [tmp_path], limit=0.2).code is None


# ── what is wrong with how a run ended ─────────────────────────────────────────────


def whole(out: Path) -> None:
    """As every command writes."""
    anything = OwnershipMark("a", lambda path: {item.name: FileDigest() for item in path.iterdir()})
    with staging(out, overwrite=True, mark=anything) as new:
        for name in ("a", "b"):
            (new / name).write_text(name)


def unstaged(out: Path) -> None:
    """A file after the other under the final name."""
    out.mkdir()
    for name in ("a", "b"):
        (out / name).write_text(name)


def unmoved(out: Path) -> None:
    """A rename whose failure nobody looks at."""
    new = out.with_name("new")
    new.mkdir()
    (new / "a").write_text("a")
    try:
        new.rename(out)
    except OSError:
        return


def littering(out: Path) -> None:
    """What was begun stays, and the next run stumbles over it."""
    new = out.with_name("new")
    new.mkdir()
    (new / "a").write_text("a")
    new.rename(out)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[Path], None]], Callable[[Path], Trial]]]:
    """A trial of a function in place of a command."""

    def of(write: Callable[[Path], None]) -> Callable[[Path], Trial]:
        def program(words: object, work: Path) -> Callable[[], int]:
            del words

            def run() -> int:
                logging.getLogger("draftconv").addHandler(logging.StreamHandler(sys.stderr))
                try:
                    write(work / "out")
                except DraftconvError as error:
                    output.print_error(error)
                    return 2
                except OSError as error:
                    print(f"Error: {error}", file=sys.stderr)
                    return 2
                return 0

            return run

        monkeypatch.setattr(faults, "program", program)
        return lambda room: Trial(Command("made up", (), (), "out"), room, room / "inputs")

    yield of


def wrong(trial: Trial) -> set[str]:
    """All that is said of all cases."""
    return {text for injection in trial.injections() for text in trial.case(injection).wrong}


def test_what_is_staged_breaks_no_promise(started: Callable[..., Callable[[Path], Trial]], tmp_path: Path) -> None:
    trial = started(whole)(tmp_path)
    assert {call.kind for call in trial.calls} == {"open", "write", "fsync", "mkdir", "rename", "unlink"}
    assert wrong(trial) == set()


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (unstaged, "what stands under the final name is neither the old nor the complete new output"),
        (unmoved, "it says that it succeeded and has not"),
        (littering, "the next run exits with 2"),
    ],
)
def test_a_careless_writer_is_noticed(
    write: Callable[[Path], None], said: str, started: Callable[..., Callable[[Path], Trial]], tmp_path: Path
) -> None:
    assert any(text.startswith(said) for text in wrong(started(write)(tmp_path)))


def test_a_claim_that_is_not_true_is_noticed() -> None:
    command = Command("x", (), (), "out")
    lie = Ran(2, "Error: x\n       Nothing was left behind\n", (), None)
    undisturbed = fault_commands.Outcome(0, {"out/a": b"1"})
    assert list(command.faults({}, undisturbed, lie, {"new": None})) == [
        "it says that nothing was left behind, and ['new'] was"
    ]
    assert list(command.faults({}, undisturbed, lie, {})) == []


@pytest.mark.parametrize(
    ("ran", "said"),
    [
        (Ran(None, "", (), None), "it hangs"),
        (Ran(1, "", (), None), "exit code 1"),
        (Ran(2, "Traceback …", (), None), "not one error in words: 'Traceback …'"),
        (Ran(2, "Error: OSError\n This is a fault of draftconv", (), None), "not one error in words"),
    ],
)
def test_ends_that_are_none(ran: Ran, said: str) -> None:
    found = list(Command("x", (), (), "out").faults({}, fault_commands.Outcome(0, {"out/a": b"1"}), ran, {}))
    assert len(found) == 1
    assert found[0].startswith(said)


def test_a_half_commit_is_noticed() -> None:
    hub = Hub(pushed={"a": b"1"})
    command = Command("push", (), (), "out", hub=hub)
    killed = Ran(-9, "", (), None)
    undisturbed = fault_commands.Outcome(0, {}, {"a": b"1", "b": b"2"})
    assert list(command.faults({}, undisturbed, killed, {})) == ["the Hub holds a part: ['a']"]
    hub.pushed["b"] = b"2"
    assert list(command.faults({}, undisturbed, killed, {})) == []


# ── the table ──────────────────────────────────────────────────────────────────────


def test_the_sample_has_every_kind_and_every_fault() -> None:
    every = [Injection(kind, n, fault) for kind in ("open", "write") for n in range(1, 6) for fault in faults.FAULTS]
    chosen = sampled(every)
    assert {(one.kind, one.fault) for one in chosen} == {(one.kind, one.fault) for one in every}
    assert sorted(one.number for one in chosen if one.kind == "open") == [1, 3, 3, 3, 5]


def test_the_table_counts_cases_and_broken_ones() -> None:
    cases = [Case("convert", Injection("open", n, "EIO"), None, ("bad",) * (n == 2)) for n in (1, 2, 3)]
    assert list(table(cases))[2:] == [
        "| `convert` | open | 0, 0 broken | 3, **1 broken** | 0, 0 broken | 0, 0 broken |"
    ]
    assert str(cases[1]) == "convert: EIO at open 2 (not reached): bad"


def test_both_machines_have_a_number_for_every_kind() -> None:
    for kind, calls in injection.KINDS.items():
        for column in (0, 1):
            assert any(numbers[column] is not None for numbers in calls.values()), kind
