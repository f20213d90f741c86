"""scripts/bench gpu: run here with the CPU in the GPU's place, so that a machine that has one finds it working."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import bench_gpu
import bench_replay
import pytest
import torch
from bench_gpu import NO_GPU, TITLE
from bench_parity import QUICK, Bench
from measuring import Row, Run


def made(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "draftconv", tmp_path / "work", 1, QUICK, 1)


def by_name(rows: Iterator[Row]) -> Mapping[str, Row]:
    return {row.what: row for row in rows}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is at hand")
def test_without_a_gpu_nothing_is_claimed(tmp_path: Path) -> None:
    options = argparse.Namespace(dir=tmp_path, runs=1, quick=True)
    section = bench_gpu.measure(options, tmp_path / "draftconv")
    assert (section.title, section.rows, section.met) == (TITLE, (NO_GPU,), True)
    assert "not run on hardware: no GPU at hand" in section.markdown()


@pytest.mark.slow
def test_every_row_with_another_device_in_its_place(tmp_path: Path) -> None:
    found = by_name(bench_gpu.measured(made(tmp_path), "cpu", quick=True))
    row = found["llama-eagle3: requests with the counts of a CPU, float32"]
    assert (row.measured, row.met) == ("2 of 2", True)
    for recipe in bench_gpu.RECIPES:
        assert found[f"{recipe}: bytes of the two"].met
        assert " s (" in found[f"`quantize --recipe {recipe}` of tiny-eagle3 on the device"].measured
    assert any(what.endswith("replay : floor, round by round") for what in found)
    assert not (tmp_path / "work").exists()


def test_counts_that_differ_are_a_missed_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "child", lambda *_, **__: ({"equal": 31, "requests": 32}, Run(1.0, 1)))
    (row,) = bench_gpu.counted(made(tmp_path), "cuda", ["llama-eagle3"])
    assert (row.measured, row.met) == ("31 of 32", False)


def test_bytes_that_differ_are_a_missed_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def quantized(argv: list[str], *_: object) -> Run:
        out = Path(argv[5])
        out.mkdir()
        (out / "model.safetensors").write_text(argv[argv.index("--device") + 1])
        return Run(1.0, 1)

    monkeypatch.setattr(bench_gpu, "run", quantized)
    bench = made(tmp_path)
    bench.work.mkdir()
    found = by_name(bench_gpu.quantized(bench, "cuda", "tiny-eagle3", "kimi-k2.5"))
    assert [found[f"{recipe}: bytes of the two"].met for recipe in bench_gpu.RECIPES] == [False, False]


def test_equal_counts_are_counted_by_request() -> None:
    torch.set_num_threads(1)
    assert bench_replay.counts("llama-eagle3-reduced", 2, 8, "cpu") == {"requests": 2, "equal": 2}
