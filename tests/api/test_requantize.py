"""Quantizing what is quantized already: only when asked, from exactly what it stands for, and declared as such."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.convert import convert
from draftconv.api.parity import parity
from draftconv.api.quantize import QuantizeOptions, prepare, quantize
from draftconv.api.verify import ComparedItem, verify
from draftconv.checkpoint import open_checkpoint
from draftconv.errors import Refused, UsageError
from draftconv.quantization import computations
from draftconv.quantization.computations import RestoredWeight, floats
from draftconv.quantization.rounding import dequantize
from draftconv.quantization.weight_detection import find_quantized
from tests import quantized
from tests.keywords import keywords
from tests.quantization.test_format_detection import seed, stored
from tests.traces.recorded import Recorded
from tests.traces.recorded import recorded as recorded

REDUCED, MLA31 = "llama-eagle3-reduced", "mla-eagle3.1"
DOWN = "layers.0.mlp.down_proj"

CHAINS = [("w4a16", "fp8"), ("fp8", "w4a16"), ("quark-w4a8", "w4a16-g128"), ("w4a8", "quark-w4a8"), ("w4a16", "w4a16")]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    torch.set_num_threads(1)


def again(source: Path, out: Path, name: str, recipe: str, **others: object) -> Path:
    quantize(source, out, **keywords(quantized.options(name, recipe, requantize=True, **others)))  # type: ignore[arg-type]
    return out


def said(name: str) -> dict[str, Any]:
    """What every quantization here was told."""
    return {"target": str(quantized.target(name).path)}


def rows(out: Path, source: Path, name: str) -> dict[str, ComparedItem]:
    found = verify(out, source, **said(name))
    return {row.what: row for row in (*found.tensors, *found.facts, *found.directory)}


def failed(out: Path, source: Path, name: str) -> list[str]:
    return [what for what, row in rows(out, source, name).items() if row.outcome == "different"]


@pytest.mark.parametrize("name", [REDUCED, MLA31])
@pytest.mark.parametrize(("first", "second"), CHAINS)
def test_it_is_what_dequantizing_and_quantizing_give(name: str, first: str, second: str, tmp_path: Path) -> None:
    """Byte for byte, although nothing is written in between."""
    source = tmp_path / "source"
    quantized.write(source, name, first)
    out = again(source, tmp_path / "out", name, second)
    convert(source, tmp_path / "floats", dequantize=True)
    quantize(tmp_path / "floats", tmp_path / "two steps", **keywords(quantized.options(name, second)))
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "two steps" / "model.safetensors").read_bytes()
    assert json.loads((out / "config.json").read_text()) == json.loads(
        (tmp_path / "two steps" / "config.json").read_text()
    )
    found = verify(out, source, **said(name))
    assert found.passed, failed(out, source, name)


def test_the_error_is_that_of_the_second_rounding(tmp_path: Path) -> None:
    source = tmp_path / "source"
    quantized.write(source, REDUCED, "w4a16")
    done = quantize(source, tmp_path / "out", **keywords(quantized.options(REDUCED, "fp8", requantize=True)))
    held = find_quantized(quantized.read(source, REDUCED)).load(DOWN)
    twin = floats(held).bfloat16().float()
    mine = dequantize(find_quantized(quantized.read(tmp_path / "out", REDUCED)).load(DOWN).quantized)
    wanted = float((mine - twin).norm() / twin.norm())
    assert done.decided.deviations[f"{DOWN}.weight"].relative == pytest.approx(wanted, rel=1e-4)
    assert done.decided.stored is not None


def test_the_record_says_so_and_is_needed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    quantized.write(source, REDUCED, "w4a16")
    out = again(source, tmp_path / "out", REDUCED, "fp8")
    record = json.loads((out / "draftconv.json").read_text())
    kinds = {change["what"]: change["kind"] for change in record["changes"]}
    assert kinds[f"{DOWN}.weight"] == "requantized"
    assert kinds["activations"] == "fact"
    (out / "draftconv.json").unlink()
    assert f"{DOWN}.weight" in failed(out, source, REDUCED)


@pytest.mark.parametrize("part", ["weight", "weight_scale"])
def test_what_was_changed_afterwards_fails(part: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    quantized.write(source, REDUCED, "w4a16")
    out = again(source, tmp_path / "out", REDUCED, "fp8")
    tensors = load_file(out / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith(f"down_proj.{part}"))
    changed = tensors[name].view(torch.uint8).clone() if part == "weight" else tensors[name] * 2
    if part == "weight":
        changed[5, 5] ^= 0x40
    save_file(tensors | {name: changed.view(tensors[name].dtype)}, out / "model.safetensors", {"format": "pt"})
    assert failed(out, source, REDUCED) == [f"{DOWN}.weight"]


def test_another_source_fails(tmp_path: Path) -> None:
    """The same config over other integers."""
    source = tmp_path / "source"
    quantized.write(source, REDUCED, "w4a16")
    out = again(source, tmp_path / "out", REDUCED, "fp8")
    tensors = load_file(source / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("down_proj.weight_packed"))
    save_file(tensors | {name: tensors[name].flip(0)}, source / "model.safetensors", {"format": "pt"})
    assert failed(out, source, REDUCED) == [f"{DOWN}.weight"]


@pytest.mark.parametrize("recipe", ["w4a16", "fp8"])
def test_the_seed_with_its_fc_packed(recipe: str, tmp_path: Path) -> None:
    """What the recipe keeps becomes floats of the drafter's dtype, and is named."""
    path = seed(tmp_path, fc=True)
    options = QuantizeOptions(recipe=recipe, requantize=True)
    done = quantize(path, tmp_path / "out", **keywords(options))
    assert done.decided.unpacked == ("fc.weight",)
    fc = open_checkpoint(tmp_path / "out").tensors["fc.weight"]
    assert fc.dtype == stored(path).dtype == "F16"
    made = torch.frombuffer(bytearray(fc.read()), dtype=torch.float16).reshape(fc.shape)
    assert torch.equal(made, floats(stored(path).load("fc")).half())
    found = {row.what: row for row in verify(tmp_path / "out", path).tensors}
    assert verify(tmp_path / "out", path).passed
    assert found["fc.weight"].outcome == "declared"


def test_it_drafts(recorded: Recorded, tmp_path: Path) -> None:
    source = tmp_path / "source"
    quantized.write(source, REDUCED, "w4a16")
    out = again(source, tmp_path / "out", REDUCED, "fp8-tensor", trace=recorded("llama", count=2, length=8))
    assert verify(out, source, calibrate=recorded("llama", count=2, length=8), **said(REDUCED)).passed
    report = parity(source, [out], trace=recorded("llama", count=4))
    estimate = report.comparisons[0].verdict.estimate
    assert estimate is not None
    assert estimate.ratio > 0.9


# ── refusals ───────────────────────────────────────────────────────────────────────


def test_it_has_to_be_asked_for(tmp_path: Path) -> None:
    source = tmp_path / "source"
    quantized.write(source, REDUCED, "w4a16")
    with pytest.raises(Refused, match="quantized already") as caught:
        prepare(source, quantized.options(REDUCED, "fp8"))
    assert "add --requantize" in caught.value.cure


@pytest.mark.parametrize("option", ["--requantize", "--from-format"])
def test_a_plain_source_has_nothing_to_quantize_again(option: str) -> None:
    options = quantized.options(REDUCED, "fp8", requantize=option == "--requantize")
    if option == "--from-format":
        options = replace(options, from_format="gptq")
    with pytest.raises(UsageError, match=f"{option} is about quantized drafters"):
        prepare(quantized.source(REDUCED), options)


# ── in blocks ──────────────────────────────────────────────────────────────────────


def test_blocks_of_a_stored_weight_are_the_whole(tmp_path: Path) -> None:
    for recipe in ("w4a16-g128", "fp8"):
        quantized.write(tmp_path / recipe, REDUCED, recipe)
        found = find_quantized(quantized.read(tmp_path / recipe, REDUCED))
        ref = RestoredWeight(f"{DOWN}.weight", found)
        blocks = list(computations.rows(ref, 7 * ref.shape[1] * 2))
        assert {len(block) for block in blocks[:-1]} == {7}
        assert torch.equal(torch.cat(blocks), floats(found.load(DOWN)).bfloat16())
        assert ref.nbytes == 2 * ref.shape[0] * ref.shape[1]
        assert torch.equal(torch.cat(list(computations.rows(ref, 1))), torch.cat(blocks))
