"""Weights larger than a block: everything that streams crosses several, and the last one counts as much as the first.

No drafter of these tests is as large as one block of draftconv's, so that the blocks are made small instead: every
constant that says how much is held at a time, wherever it was imported to.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import draftconv
from draftconv.api.convert import ConvertOptions, convert
from draftconv.api.diff import diff
from draftconv.api.inspect import inspect
from draftconv.api.verify import verify
from draftconv.checkpoint import TensorRef, open_checkpoint, row_blocks
from draftconv.checkpoint.hashing import tensor_hash
from draftconv.errors import BadCheckpoint, Refused
from draftconv.quantization.backends import BLOCKS
from draftconv.quantization.recipes import recipe_names
from draftconv.quantization.regroup import same_values
from tests import quantized, tiny
from tests.api.conftest import Source
from tests.keywords import evidence, keywords
from tests.quantization.formats import samples
from tests.traces import made
from tests.traces.recorded import Recorded
from tests.verification.test_verify import FLIPPED, different, flip, offsets_in_file
from tests.verification.test_verify_quantized import CODES, DOWN, NEAREST, REPACKED, rows

ROOT = Path(draftconv.__file__).parent
CONSTANTS = ("BLOCK", "COPY_CHUNK", "COPY_BUFFER", "ROWS")
NO_BYTES = {
    "draftconv.report.resampling.BLOCK": "draws of a bootstrap",
    "draftconv.checkpoint.hub_file.BLOCK": "pages of a server's file that are kept",
    "draftconv.drafter.kinds.eagle3.ROWS": "the rows of a table",
    "draftconv.drafter.kinds.eagle31.ROWS": "the same with those that it adds",
    "draftconv.replay.calibration.ROWS": "inputs of a layer that are sampled",
}
"""Constants of such names that do not say how much of a tensor is held at a time."""

TINY = 32
"""Sixteen BF16 values: a norm of the tiny drafters has four blocks, a matrix one for every row."""

Shrink = Callable[[int], "Crossed"]
Crossed = Counter[str]
"""Module → the most blocks in which it went through one tensor."""


def held_at_a_time() -> Iterator[tuple[str, str]]:
    """Module and name of every such constant, also where another module imported it."""
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(("draftconv", *path.relative_to(ROOT).with_suffix("").parts))
        names: set[str] = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)]):
                    names.add(name)
                case ast.ImportFrom(names=found):
                    names |= {alias.name for alias in found}
        yield from ((module, name) for name in CONSTANTS if name in names and f"{module}.{name}" not in NO_BYTES)


@pytest.fixture
def shrink(monkeypatch: pytest.MonkeyPatch) -> Shrink:
    """`shrink(size)`: blocks of that many bytes everywhere, and a count of those that were gone through since.

    A chunk that is copied at once has four of them.
    """

    def blocks_of(size: int) -> Crossed:
        crossed: Crossed = Counter()
        for name, constant in held_at_a_time():
            module = import_module(name)
            monkeypatch.setattr(module, constant, {"ROWS": 3, "COPY_CHUNK": 4 * size}.get(constant, size))
            if hasattr(module, "row_blocks"):
                monkeypatch.setattr(module, "row_blocks", counting(name, size, crossed))
        monkeypatch.setitem(BLOCKS, "native", size)
        return crossed

    return blocks_of


def counting(module: str, size: int, crossed: Crossed) -> Callable[[TensorRef, int], Iterator[tuple[int, int]]]:
    def counted(ref: TensorRef, limit: int) -> Iterator[tuple[int, int]]:
        assert limit == size, f"{module} holds {limit} bytes at a time, by a constant that is not among {CONSTANTS}"
        for number, block in enumerate(row_blocks(ref, limit), 1):
            crossed[module] = max(crossed[module], number)
            yield block

    return counted


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_the_constants_are_found() -> None:
    found = {f"{module}.{name}" for module, name in held_at_a_time()}
    assert len(found) >= 10
    assert {"draftconv.conversion.working_drafter.BLOCK", "draftconv.checkpoint.execute.COPY_CHUNK"} <= found
    assert not NO_BYTES.keys() & found
    for name in NO_BYTES:
        module, _, constant = name.rpartition(".")
        assert hasattr(import_module(module), constant)


# ── copies, casts, permutations, and what compares them ────────────────────────────


@pytest.mark.parametrize(
    ("producer", "variant", "options"),
    FLIPPED,
    ids=[f"{p}-{v}-{'-'.join(map(str, o.values()))}" for p, v, o in FLIPPED],
)
def test_a_conversion_and_its_proof_in_small_blocks(
    producer: str,
    variant: str,
    options: dict[str, Any],
    source: Source,
    shrink: Shrink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bytes of any block size; and the last bit of every tensor, which lies in its last block, is looked at."""
    path, out = source(producer, variant), tmp_path / "out"
    target = str(tiny.write_target(tmp_path / "target"))
    chosen = ConvertOptions(**options, target=target if "embed" in options else None, max_positions=32768)
    convert(path, out, **keywords(chosen))
    crossed = shrink(TINY)
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    convert(path, tmp_path / "again", **keywords(chosen))
    assert contents(tmp_path / "again") == contents(out)

    assert verify(out, path, **evidence(chosen)).passed
    assert crossed["draftconv.conversion.working_drafter"] >= 3
    weights = out / "model.safetensors"
    for name, (_, stop) in offsets_in_file(weights).items():
        flip(weights, stop - 1, 6)
        assert different(verify(out, path, **evidence(chosen))), name
        flip(weights, stop - 1, 6)


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_table_that_differs_in_its_last_row(
    dtype: str | None, source: Source, shrink: Shrink, tmp_path: Path
) -> None:
    """Bit by bit where both are BF16, by value where one of them is not."""
    path = source("torchspec-native", "llama")
    target = tiny.write_target(tmp_path / "target")
    if dtype is not None:
        tables = {name: table.float() for name, table in load_file(target / "model.safetensors").items()}
        save_file(tables, target / "model.safetensors")
    crossed = shrink(TINY)
    dropping = ConvertOptions(to="vllm", embed="drop", target=str(target))
    convert(path, tmp_path / "out", **keywords(dropping))
    assert crossed["draftconv.checkpoint.compare_values"] >= 3

    tables = load_file(target / "model.safetensors")
    tables["model.embed_tokens.weight"][-1, -1] += 1
    save_file(tables, target / "model.safetensors")
    with pytest.raises(Refused, match="embed_tokens is not the target's"):
        convert(path, tmp_path / "other", **keywords(dropping))


def test_two_drafters_that_differ_in_their_last_rows(source: Source, shrink: Shrink, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    convert(path, tmp_path / "out", to="vllm")
    shrink(TINY)
    assert not [row for row in diff(path, tmp_path / "out").tensors if row.what == "lm_head.weight"]
    weights = tmp_path / "out/model.safetensors"
    flip(weights, offsets_in_file(weights)["lm_head.weight"][1] - 1, 6)
    assert [row for row in diff(path, tmp_path / "out").tensors if row.what == "lm_head.weight"]


def test_a_look_at_every_value_reaches_the_last(shrink: Shrink, tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native")
    down, up = (f"midlayer.mlp.{part}_proj.weight" for part in ("down", "up"))
    spelled.write(tmp_path / "source")
    tensors = load_file(tmp_path / "source/model.safetensors")
    tensors[down].zero_()
    tensors[down][-1, -1] = 1
    tensors[up][-1, -1] = torch.nan
    save_file(tensors, tmp_path / "source/model.safetensors", {"torchspec_version": "0.1.0"})
    crossed = shrink(TINY)
    found = inspect(str(tmp_path / "source"), deep=True).problems
    last = tensors[up].numel() - 1
    assert [problem.detail for problem in found if problem.code == "not-finite"] == [f"{up}: 1 values, first at {last}"]
    assert not [problem for problem in found if problem.code == "all-zero"]
    assert crossed["draftconv.checkpoint.compare_values"] >= 3
    with pytest.raises(Refused, match=f"{up} holds NaN"):
        convert(tmp_path / "source", tmp_path / "out", to="vllm", dtype="float32")


# ── hashes ─────────────────────────────────────────────────────────────────────────


def test_hashes_of_files_and_tensors(source: Source, shrink: Shrink, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    crossed = shrink(TINY)
    convert(path, tmp_path / "out", to="vllm", hash=True)
    record = json.loads((tmp_path / "out/draftconv.json").read_text())
    wanted = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    assert wanted in json.dumps(record["source"])
    ref = open_checkpoint(path).tensors["lm_head.weight"]
    assert tensor_hash(ref) == hashlib.sha256(ref.read()).hexdigest()
    assert crossed["draftconv.checkpoint.hashing"] >= 3


def test_a_table_of_a_trace(shrink: Shrink, tmp_path: Path) -> None:
    made.trace(tmp_path / "whole")
    crossed = shrink(TINY)
    trace = made.trace(tmp_path / "small")
    assert contents(tmp_path / "small") == contents(tmp_path / "whole")
    assert crossed["draftconv.traces.writer"] >= 3
    assert trace.table("embed_tokens") is not None
    [file] = (tmp_path / "small/tables").iterdir()
    flip(file, file.stat().st_size - 1)
    with pytest.raises(BadCheckpoint):
        trace.table("embed_tokens")


# ── quantized weights ──────────────────────────────────────────────────────────────

NAME = "llama-eagle3-reduced"
SOURCE = quantized.source(NAME)
SEVERAL = 2048
"""A few rows of the trained fixtures: their narrowest weight has three blocks and more."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def flip_last_code(path: Path, bit: int = 6) -> None:
    """One bit in the last byte of the codes of down_proj."""
    sizes = offsets_in_file(path / "model.safetensors")
    codes = next(name for name in sizes if name.endswith(tuple(f"down_proj.{part}" for part in CODES)))
    flip(path / "model.safetensors", sizes[codes][1] - 1, bit)


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_quantizer_and_its_proof_in_small_blocks(
    recipe: str, recorded: Recorded, shrink: Shrink, tmp_path: Path
) -> None:
    trace = quantized.calibration(recorded, "llama", recipe)
    quantized.write(tmp_path / "whole", NAME, recipe, trace=trace)
    crossed = shrink(SEVERAL)
    quantized.write(tmp_path / "out", NAME, recipe, trace=trace)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    said: dict[str, Any] = {"target": str(quantized.target(NAME).path), "calibrate": trace}
    assert verify(tmp_path / "out", SOURCE, **said).passed
    assert crossed["draftconv.quantization.computations"] >= 3

    flip_last_code(tmp_path / "out")
    assert different(verify(tmp_path / "out", SOURCE, **said)) == {DOWN}
    (tmp_path / "out/draftconv.json").unlink()  # without its hashes the codes themselves are looked at
    _, how = rows(verify(tmp_path / "out", SOURCE))[DOWN]
    assert any(said in how for said in NEAREST), how


@pytest.mark.parametrize("form", REPACKED)
def test_a_repack_and_its_proof_in_small_blocks(form: str, shrink: Shrink, tmp_path: Path) -> None:
    """Also with scales grouped anew, whose values are compared in blocks of rows."""
    quantized.write(tmp_path / "start", NAME, "w4a16")
    packing = ConvertOptions(target=str(quantized.target(NAME).path), pack=form)
    convert(tmp_path / "start", tmp_path / "whole", **keywords(packing))
    shrink(SEVERAL)
    convert(tmp_path / "start", tmp_path / "out", **keywords(packing))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert verify(tmp_path / "out", tmp_path / "start", **evidence(packing)).passed
    flip_last_code(tmp_path / "out", bit=0)
    (tmp_path / "out/draftconv.json").unlink()
    _, how = rows(verify(tmp_path / "out", tmp_path / "start"))[DOWN]
    assert "other integers than the source's" in how


def test_other_values_in_the_last_row(shrink: Shrink) -> None:
    weight = samples.weight("int4", 16, rows=10)
    shrink(SEVERAL)
    assert same_values(weight.quantized, weight.quantized)
    other = weight.quantized.scale.clone()
    other[-1, -1] *= 2
    assert not same_values(weight.quantized, replace(weight.quantized, scale=other))


def test_floats_again_in_small_blocks(shrink: Shrink, tmp_path: Path) -> None:
    """Quantized and dequantized, held against the floats that it was made from: they are rounded once more."""
    target = str(quantized.target(NAME).path)
    crossed = shrink(SEVERAL)
    quantized.write(tmp_path / "quantized", NAME, "w4a16")
    convert(tmp_path / "quantized", tmp_path / "out", target=target, dequantize=True)
    assert verify(tmp_path / "out", SOURCE, target=target).passed
    assert crossed["draftconv.quantization.computations"] >= 3
    weights = tmp_path / "out/model.safetensors"
    stop = offsets_in_file(weights)["midlayer.mlp.down_proj.weight"][1]
    flip(weights, stop - 1, 3)
    for against in (SOURCE, tmp_path / "quantized"):
        assert DOWN in different(verify(tmp_path / "out", against, target=target))
