"""Tables that were drawn are told from tables that were trained: every trained table there is, and thousands drawn."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from draftconv.api.convert import convert
from draftconv.checkpoint import ByteCounter, MemoryFile, TensorRef, open_checkpoint
from draftconv.drafter.checks import check_drafter, deep_bytes
from draftconv.drafter.random_table import LIMIT, ROWS, TableStatistics, judged, sampled_bytes, table_statistics
from draftconv.layouts.reader import read_drafter
from tests import quantized, tiny

DRAWN = ("normal", "uniform", "truncated")


def drawn(kind: str, shape: tuple[int, int], seed: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    match kind:
        case "normal":
            values = rng.standard_normal(shape)
        case "truncated":
            values = np.clip(rng.standard_normal(shape), -2, 2)
        case _:
            values = rng.uniform(-1, 1, shape)
    return (0.02 * values).astype(np.float32)


def bf16(values: NDArray[np.float32]) -> TensorRef:
    bits = (values.view("<u4") + 0x8000 >> np.uint32(16)).astype("<u2").tobytes()
    return TensorRef("embed_tokens.weight", "BF16", values.shape, MemoryFile("x", bits), 0, len(bits))


def measured(values: NDArray[np.float32]) -> TableStatistics:
    found = table_statistics(bf16(values))
    assert found is not None
    return found


def trained() -> list[tuple[str, TensorRef]]:
    """Every embedding and head of the trained fixtures and their targets."""
    places = [*(quantized.DATA / "drafters").iterdir(), *(quantized.DATA / "targets").iterdir()]
    refs = ((path.name, open_checkpoint(path).tensors) for path in places)
    return [(f"{at} {n}", ref) for at, tensors in refs for n, ref in tensors.items()
            if n.endswith(("embed_tokens.weight", "lm_head.weight"))]  # fmt: skip


def test_no_trained_table_looks_drawn() -> None:
    distances = {name: found.farthest for name, ref in trained() if (found := table_statistics(ref))}
    assert len(distances) == len(trained()) == 12
    assert min(distances.values()) > 1000 > 100 * LIMIT


@pytest.mark.parametrize("kind", DRAWN)
def test_what_was_drawn_looks_drawn(kind: str) -> None:
    found = [measured(drawn(kind, (600, 64), seed)) for seed in range(100)]
    assert max(one.farthest for one in found) < 6 < LIMIT
    assert all(one.random for one in found)


def test_a_table_of_real_size_costs_a_sample() -> None:
    ref = replace(bf16(drawn("normal", (ROWS, 64), 0)), shape=(160_000, 7168), nbytes=160_000 * 7168 * 2)
    assert sampled_bytes(ref) == ROWS * 7168 * 2


@pytest.mark.parametrize("share", [1.0, 0.5, 0.2, 0.1])
def test_a_little_training_is_enough(share: float) -> None:
    """A tenth of the variance, or a tenth of the rows."""
    (learned,) = (ref for name, ref in trained() if name == "llama model.embed_tokens.weight")
    values = np.frombuffer(learned.rows(0, 2048), "<u2").astype("<u4") << np.uint32(16)
    unit = values.view("<f4").reshape(learned.shape)
    unit = unit / np.sqrt(np.square(unit).mean())
    noise = drawn("normal", unit.shape, 1) / np.float32(0.02)
    assert not measured((np.sqrt(1 - share) * noise + np.sqrt(share) * unit).astype(np.float32)).random
    some = np.random.default_rng(2).random((len(unit), 1)) < share
    assert not measured(np.where(some, unit, noise).astype(np.float32)).random


@pytest.mark.parametrize(
    "learned",
    [
        lambda x: x * np.linspace(0.5, 1.5, len(x), dtype=np.float32)[:, None],
        lambda x: x + np.float32(0.3) * x[:1],
        lambda x: np.where(np.arange(len(x))[:, None] % 2, np.float32(0.5) * x + np.float32(0.5) * np.roll(x, 1, 0), x),
        lambda x: x * 0 + x[:1],
    ],
    ids=["rows of other lengths", "a common part", "rows in pairs", "equal rows"],
)
def test_each_statistic_sees_what_it_is_for(learned: Any) -> None:
    assert not measured(learned(drawn("normal", (1024, 128), 3))).random


def test_padding_is_left_out_and_too_much_of_it_is_not_judged() -> None:
    values = drawn("normal", (1024, 64), 4)
    values[600:] = 0
    values[3] = np.nan
    assert measured(values).rows == 599
    assert measured(values).random
    values[500:] = 0
    assert table_statistics(bf16(values)) is None
    assert not judged(bf16(values[:511]))
    assert not judged(bf16(np.ascontiguousarray(values[:, :63])))
    assert not judged(replace(bf16(values), dtype="I8"))


def test_no_more_is_read_than_said() -> None:
    told: list[int] = []
    ref = bf16(drawn("normal", (3000, 64), 5))
    table_statistics(ref, ByteCounter(told.append))
    assert told == [sampled_bytes(ref)] == [ROWS * 128]


# ── as a problem ───────────────────────────────────────────────────────────────────


def with_table(path: Path, values: NDArray[np.float32] | None) -> Path:
    """A trained fixture, its embedding replaced."""
    shutil.copytree(quantized.source("llama-eagle3"), path)
    if values is not None:
        tensors = load_file(path / "model.safetensors")
        (name,) = (name for name in tensors if name.endswith("embed_tokens.weight"))
        tensors[name] = torch.from_numpy(values).bfloat16()
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def test_a_table_that_was_never_loaded_is_told_without_the_target(tmp_path: Path) -> None:
    for values, wanted in ((None, False), (drawn("normal", (2048, 256), 6), True)):
        drafter = read_drafter(open_checkpoint(with_table(tmp_path / str(wanted), values)))
        told: list[int] = []
        found = check_drafter(drafter, None, level="deep", progress=told.append)
        assert told[-1] == deep_bytes(drafter, None)
        problems = {problem.code: problem for problem in found.problems}
        assert ("embedding-random" in problems) == wanted
        if wanted:
            assert "1024 sampled rows look drawn with deviation 0.02" in problems["embedding-random"].detail
            assert "--embed from-target --target" in problems["embedding-random"].kind.cure
        assert "embedding-random" not in {p.code for p in check_drafter(drafter, None, level="sample").problems}


def test_the_targets_table_cures_it(tmp_path: Path) -> None:
    source, target = (
        with_table(tmp_path / "source", drawn("normal", (2048, 256), 7)),
        str(quantized.DATA / "targets/llama"),
    )
    kept = convert(source, tmp_path / "kept", target=target, deep=True)
    assert {"embedding-random", "embedding-differs"} <= {problem.code for problem in kept.warnings}
    done = convert(source, tmp_path / "out", target=target, embed="from-target", deep=True)
    assert not {"embedding-random", "embedding-differs"} & {problem.code for problem in done.warnings}
    assert json.loads((tmp_path / "out/draftconv.json").read_text())["warnings"] == []
    fixed = check_drafter(read_drafter(open_checkpoint(tmp_path / "out")), None, level="deep")
    assert "embedding-random" not in {problem.code for problem in fixed.problems}


def test_a_padded_table_is_told_as_not_checked(tmp_path: Path) -> None:
    values = drawn("normal", (2048, 256), 8)
    values[100:] = 0
    drafter = read_drafter(open_checkpoint(with_table(tmp_path / "x", values)))
    found = check_drafter(drafter, None, level="deep")
    assert [note for note in found.not_made if note.startswith("embed_tokens that were never trained")] == [
        f"embed_tokens that were never trained (most rows of {drafter.names[tiny.EMBEDDING]} are zero or not finite)"
    ]
