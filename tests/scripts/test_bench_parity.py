"""scripts/bench parity: figures of the real thing, and no figures where two sides do not do the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bench_parity
import bench_replay
import pytest
import torch
from bench_parity import QUICK, WHOLE, Bench
from measuring import Row, Run

from draftconv.drafter.facts import Gqa
from draftconv.reference.accept_length import Counts
from draftconv.replay.replay import Arm, replay
from draftconv.traces.request import TraceRequest
from tests.programs import shebang
from tests.traces.recorded import DATA, make_trace

ROOT = Path(__file__).parents[2]
TINY = ROOT / "scripts" / "specs" / "tiny-eagle3.json"


Tell = Callable[..., Bench]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """A bench whose processes find what the test says."""

    def tell(**found: object) -> Bench:
        monkeypatch.setattr(Bench, "child", lambda *_, **__: (found, Run(1.0, 500_000_000)))
        return Bench(tmp_path / "draftconv", tmp_path, 1, WHOLE, 1)

    return tell


def named(rows: Sequence[Row], end: str) -> Row:
    (found,) = (row for row in rows if row.what.endswith(end))
    return found


@pytest.mark.slow
def test_the_miniature_has_every_figure(tmp_path: Path) -> None:
    program = tmp_path / "draftconv"
    program.write_text(f"{shebang()}from draftconv.cli import main\nmain()\n")
    program.chmod(0o755)
    start = "import sys, pathlib, bench; sys.exit(bench.main(sys.argv[2:], pathlib.Path(sys.argv[1])))"
    options = ["parity", "--quick", "--runs", "1", "--threads", "1", "--dir", str(tmp_path / "work")]
    done = subprocess.run(
        [sys.executable, "-c", start, program, *options, "--write", str(tmp_path / "benchmarks.md")],
        cwd=ROOT / "scripts",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "benchmarks.md").read_text()
    assert str(tmp_path) not in done.stdout
    table = dict(line.split("|")[1:3] for line in done.stdout.splitlines() if line.startswith("| "))
    figures = {what.strip(): figure.strip() for what, figure in table.items()}
    assert figures["llama: requests with equal counts, live and replayed"] == "4 of 4"
    assert " s, " in figures["llama-eagle3: `draftconv parity`"]
    assert "14 in " in figures["llama-eagle3: replay of one arm"]
    assert "96 in " in figures["tiny-eagle3 on CPU, 1 thread: replay of one arm"]
    assert "GFLOP per position" in figures["tiny-eagle3 on CPU, 1 thread: floor, its head alone"]
    assert list((tmp_path / "work").iterdir()) == []


# ── live decoding and replay are the same thing, or there is no figure ─────────────


def drafters() -> list[Path]:
    return [DATA / "drafters" / "llama-eagle3"] * 2


@pytest.mark.slow
def test_live_decoding_counts_what_replay_counts(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "trace", "llama", count=2, length=12)
    found = bench_replay.against_live(trace, DATA / "targets" / "llama", drafters(), 2)
    assert (found["requests"], found["arms"]) == (2, 2)
    assert [len(found[kind]) for kind in ("live", "replay")] == [2, 2]  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_live_loop_that_keeps_rejected_tokens_is_no_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = make_trace(tmp_path / "trace", "llama", count=2, length=12)
    monkeypatch.setattr(bench_replay.Live, "rewind", lambda *_: None)
    with pytest.raises(bench_replay.Differ, match="live decoding and replay differ in"):
        bench_replay.against_live(trace, DATA / "targets" / "llama", drafters(), 1)


def test_counts_are_compared_request_by_request() -> None:
    counts = {("a", "1"): Counts((3, 2)), ("a", "2"): Counts((1, 1))}
    bench_replay.compare(counts, dict(counts))
    with pytest.raises(bench_replay.Differ, match="1 of 2 cases, first a on request 2"):
        bench_replay.compare(counts, counts | {("a", "2"): Counts((2, 0))})
    with pytest.raises(bench_replay.Differ, match="None live"):
        bench_replay.compare(counts, {("a", "1"): Counts((3, 2))})


@pytest.mark.parametrize(("live", "met"), [(99.0, False), (101.0, True)])
def test_a_missed_target_shows(told: Tell, live: float, met: bool) -> None:
    bench = told(live=[live, 2 * live, live], replay=[1.0, 2.0, 1.0], requests=32, arms=2)
    row = named(list(bench_parity.against_live(bench, "llama", "llama-eagle3", [Run(8.0, 1)])), "round by round")
    assert (row.met, row.target) == (met, "at least 100 x")
    assert row.measured == f"{live:.3g} x ({live:.3g} to {live:.3g})"
    assert QUICK.times_faster is None


# ── full size ──────────────────────────────────────────────────────────────────────


def test_the_floor_is_the_head_alone() -> None:
    found = bench_replay.full_size(TINY, "cpu", 700, 1)
    hidden, heads, mlp = 64, 4 * 128 * 64 - 64 * 64, 3 * 64 * 96
    head, fc = 64 * hidden, hidden * 3 * hidden
    assert found["positions"] == 700
    assert found["floor_flop"] == 2 * 3 * head
    assert found["flop"] == 2 * (3 * (head + heads + mlp) + fc)
    assert found["head_bytes"] == 2 * head
    assert found["blocks"] == 1


def test_every_draft_of_a_full_size_drafter_is_accepted_whatever_its_weights() -> None:
    facts = bench_replay.read_facts(TINY)
    assert isinstance(facts.attention, Gqa)
    model = bench_replay.random_drafter(facts, "cpu")
    texts = bench_replay.accepted_texts(facts, 700)
    assert [request.counted - 1 for request in texts] == [512, 188]
    arm = Arm("random", model, (0, 1, 2))
    with torch.no_grad():
        drafted = [outcome.drafts_RK for _, (outcome,) in replay([arm], texts, (0, 1, 2), depth=3)]
    assert torch.cat(drafted).unique().tolist() == [0]
    assert model.lm_head.weight.unique(dim=0).shape[0] > 1


def test_a_rejected_draft_voids_the_full_size_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(facts: Any, positions: int) -> list[TraceRequest]:
        states_TAW = torch.zeros(positions + 4, facts.aux, facts.target_hidden)
        return [TraceRequest("0", "0", "", 1, positions + 1, torch.ones(positions + 5, dtype=torch.int64), states_TAW)]

    monkeypatch.setattr(bench_replay, "accepted_texts", other)
    with pytest.raises(bench_replay.Differ, match="a draft was rejected"):
        bench_replay.full_size(TINY, "cpu", 20, 1)


def test_a_gpu_is_named(told: Tell) -> None:
    bench = told(
        device="A GPU",
        threads=1,
        positions=1000,
        blocks=2,
        replay=[2.0],
        floor=[1.0],
        floor_flop=7e9,
        flop=10e9,
        head_bytes=2e9,
        weight_bytes=6e9,
        device_bytes=7e9,
    )
    rows = list(bench_parity.full_size(bench, "cuda"))
    assert len(rows) == 4 * len(WHOLE.specs)
    assert rows[0].measured == "500 positions/s; 1,000 in 2.00 s (2.00 to 2.00)"
    assert rows[1].measured.endswith("7 GFLOP per position, 7 TFLOP/s; 2 GB read 6 times, 12 GB/s")
    assert rows[2].measured == "2 x (2 to 2); all products with weights are 1.43 x the head's FLOPs"
    assert rows[3].measured == "0.50 GB, 7.00 GB on the device; the weights take 6 GB"
    assert all("on A GPU:" in row.what for row in rows)
