"""Step times from files, profiles and live reports: what follows from them, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.drafter.step_bytes import StepBytes
from draftconv.errors import BadReport, UsageError
from draftconv.live.step_times import read_server_speed
from draftconv.report.acceptance.speed import StepCost
from draftconv.report.model import Report, Speed
from draftconv.report.write import write_report
from tests.report.gallery import live
from tests.report.simulated import make

READS = StepBytes(once=400_000_000, each=3_200_000_000)


def written(text: str, tmp_path: Path) -> Path:
    (tmp_path / "steps.yaml").write_text(text)
    return tmp_path / "steps.yaml"


def costs(place: Path | str, target_step: float | None = None, content: str = "any") -> tuple[StepCost, ...]:
    return read_server_speed(place, target_step).costs("small", content, READS)


# ── files and profiles ─────────────────────────────────────────────────────────────


def test_a_file(tmp_path: Path) -> None:
    """H200s have 4.8 TB/s: 3.2 GB on eight of them take 0.0833 ms, 0.4 GB on each 0.0833 ms."""
    file = written(
        "engine: vllm:h200\ntensor_parallel_size: 8\nloads:\n"
        "  - {concurrency: 1, step_ms: {0: 11.8}}\n"
        "  - {concurrency: 4, step_ms: {0: 12}, draft_ms: 0.5}\n"
        "  - {concurrency: 8, step_ms: {3: 14, 0: 12.5, 1: 13}}\n",
        tmp_path,
    )
    estimate, given, measured = costs(file)
    assert (estimate.concurrency, estimate.target, estimate.evidence) == (1, 11.8, "estimate")
    assert (estimate.once, estimate.each) == pytest.approx((0.4 / 4.8, 3.2 / 8 / 4.8))
    assert estimate.source == ("3.200 GB per draft step and 0.400 GB per round, read by 8 x h200 at 4.8 TB/s each")
    assert (given.concurrency, given.target, given.evidence, given.once, given.each) == (4, 12, "given", 0, 0.5)
    assert (measured.evidence, measured.target, measured.measured) == ("measured", 12.5, ((1, 13), (3, 14)))


def test_a_profile_is_asked_with_the_time_of_a_step() -> None:
    """Eight B200 with 8 TB/s."""
    (cost,) = costs("b200-vllm", 12.0)
    assert (cost.concurrency, cost.target, cost.evidence) == (1, 12, "estimate")
    assert (cost.once, cost.each) == pytest.approx((0.4 / 8, 3.2 / 8 / 8))


def test_a_smaller_drafter_is_estimated_by_its_bytes_and_known_steps_shrink_with_them(tmp_path: Path) -> None:
    """With K = 2 the whole one reads 3.4 GB a step; a quarter of each part is a quarter of what is added."""
    text = (
        "engine: vllm:h200\nloads:\n  - {concurrency: 1, step_ms: {0: 10}}\n"
        "  - {concurrency: 2, step_ms: {0: 10}, draft_ms: 1}\n  - {concurrency: 4, step_ms: {0: 10, 2: 14}}\n"
    )
    server = read_server_speed(written(text, tmp_path), None)
    quarter, head = replace(READS, once=100_000_000, each=800_000_000), replace(READS, each=1_500_000_000)
    for reads, share in ((READS, 1.0), (quarter, 0.25), (head, 0.5)):
        _, given, measured = server.costs_of_smaller("small", "any", READS, reads, 2)
        assert (given.step(2), measured.step(2)) == pytest.approx((10 + share * 2, 10 + share * 4))
    estimate, *_ = server.costs_of_smaller("small", "any", READS, head, 2)
    assert (estimate.once, estimate.each) == pytest.approx((0.4 / 4.8, 1.5 / 4.8))


def test_a_machine_by_another_name_has_its_own_memory(tmp_path: Path) -> None:
    text = "engine: vllm:{}\nloads: [{{concurrency: 1, step_ms: {{0: 10}}}}]\n"
    for name, rate in (("h100", 3.35), ("h100-pcie", 2.0), ("H20", 4.0), ("GB200", 8.0)):
        (cost,) = costs(written(text.format(name), tmp_path))
        assert cost.each == pytest.approx(3.2 / rate)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("loads: []\n", "loads: list should have at least 1 item"),
        ("engine: vllm:h200\n", "loads: field required"),
        ("loads: [{concurrency: 1, step_ms: {1: 10}}]\n", "step_ms lacks 0"),
        ("loads: [{concurrency: 1, step_ms: {0: 0}}]\n", "greater than 0"),
        ("loads: [{concurrency: 1, step_ms: {0: -3}}]\n", "greater than 0"),
        ("loads: [{concurrency: 1, step_ms: {0: .inf}}]\n", "finite"),
        ("loads: [{concurrency: 1, step_ms: {0: .nan}}]\n", "loads.0.step_ms.0"),
        ("loads: [{concurrency: 1, step_ms: {-1: 3, 0: 3}}]\n", "greater than or equal to 0"),
        ("loads: [{concurrency: 0, step_ms: {0: 3}}]\n", "greater than or equal to 1"),
        ("loads: [{concurrency: 1, step_ms: {0: 3, 2: 4}, draft_ms: 1}]\n", "two answers to one question"),
        ("loads: [{concurrency: 1, step_ms: {0: 10, 3: 9}}]\n", "with 3 drafted tokens takes 9 ms, with 0 10 ms"),
        ("loads: [{concurrency: 1, step_ms: {0: 10}, step: 3}]\n", "step is no key of a file of step times"),
        ("engine: vlm:h200\nloads: [{concurrency: 1, step_ms: {0: 10}}]\n", "steps.yaml: "),
        ("- 1\n", "no mapping of keys to values"),
        ("loads: [\n", "is not YAML"),
    ],
)
def test_files_that_are_wrong(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        read_server_speed(written(text, tmp_path), None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("loads: [{concurrency: 1, step_ms: {0: 10}}]\n", "and it names no hardware"),
        ("engine: vllm\nloads: [{concurrency: 1, step_ms: {0: 10}}]\n", "has no published bandwidth"),
        ("engine: vllm:cpu\nloads: [{concurrency: 1, step_ms: {0: 10}}]\n", "has no published bandwidth"),
        ("engine: vllm:gh200\nloads: [{concurrency: 1, step_ms: {0: 10}}]\n", "has no published bandwidth"),
    ],
)
def test_an_estimate_needs_a_published_bandwidth(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        costs(written(text, tmp_path))


def test_a_step_is_told_once(tmp_path: Path) -> None:
    file = written("loads: [{concurrency: 1, step_ms: {0: 10}, draft_ms: 1}]\n", tmp_path)
    with pytest.raises(UsageError, match=r"--target-step beside --speed steps\.yaml"):
        read_server_speed(file, 10.0)
    for time in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UsageError, match="no time that a step can take"):
            read_server_speed("b200-vllm", time)


# ── reports of live runs ───────────────────────────────────────────────────────────


def reported(tmp_path: Path, *speed: Speed, **settings: str) -> Report:
    made = live(make(prompts=40, tokens=64, loss=0.01))
    made = replace(
        made,
        about=replace(made.about, settings={**made.about.settings, **settings}),
        arms=tuple(replace(arm, content=arm.name) for arm in made.arms),
        speed=speed,
    )
    write_report(made, tmp_path / "report")
    return made


def row(drafter: str | None, at: int, mean_tpot: float, accept_length: float | None = None) -> Speed:
    return Speed(drafter, at, 10 * at, mean_tpot - 1, mean_tpot, 70.0, 72.0, 50.0, accept_length)


def test_a_live_report(tmp_path: Path) -> None:
    """TPOT times accept length is the time of a step; drafters are known by content."""
    made = live(make(prompts=40, tokens=64, loss=0.01))
    name = made.arms[1].name
    reported(
        tmp_path, row(None, 1, 10.0), row(None, 4, 12.0), row(name, 1, 6.0, 2.5), row(name, 4, 8.0), devices="4",
        **{"for": "vllm@0.32.0:b200"},
    )  # fmt: skip
    (one,) = costs(tmp_path / "report", content=name)
    assert (one.target, one.evidence, one.measured) == (10, "measured", ((made.about.depth, 15.0),))
    others = costs(tmp_path / "report" / "report.json", content="unknown")
    assert [(cost.concurrency, cost.target, cost.evidence) for cost in others] == [
        (1, 10, "estimate"),
        (4, 12, "estimate"),
    ]
    assert others[0].each == pytest.approx(3.2 / 4 / 8)


def test_a_live_report_without_speed(tmp_path: Path) -> None:
    reported(tmp_path)
    with pytest.raises(UsageError, match="has no speed of the target alone"):
        read_server_speed(tmp_path / "report", None)


def test_an_edited_number_of_devices(tmp_path: Path) -> None:
    reported(tmp_path, row(None, 1, 10.0), devices="many")
    with pytest.raises(BadReport, match="many is no number of devices"):
        read_server_speed(tmp_path / "report", None)


def test_times_that_were_disturbed(tmp_path: Path) -> None:
    made = live(make(prompts=40, tokens=64, loss=0.01))
    reported(tmp_path, row(None, 1, 10.0), row(made.arms[1].name, 1, 3.0, 2.5))
    with pytest.raises(UsageError, match=r"takes 7\.5 ms, with 0 10 ms"):
        read_server_speed(tmp_path / "report", None)


def test_a_directory_that_holds_no_report(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.json").write_text(json.dumps({}))
    with pytest.raises(BadReport):
        read_server_speed(tmp_path / "report", None)
