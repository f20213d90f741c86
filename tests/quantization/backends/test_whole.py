"""Whole drafters: what the packages write, and what draftconv makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from draftconv.api.convert import convert
from draftconv.api.quantize import quantize
from tests.quantization.backends.real import needs, same

pytestmark = [*needs("quark"), *needs("modelopt")]

SCRIPTS = Path(__file__).parents[3] / "scripts"
QUANTIZED = 7


def script(*words: str | Path) -> None:
    subprocess.run([sys.executable, *words], check=True, env=os.environ | {"PYTHONPATH": str(SCRIPTS.parent)})


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small drafter of random weights."""
    source = tmp_path_factory.mktemp("whole") / "source"
    script(SCRIPTS / "make_synthetic.py", SCRIPTS / "specs/tiny-eagle3.json", source)
    return source


def written(peer: str, source: Path) -> Path:
    """What a package makes of it."""
    out = source.parent / peer
    if not out.exists():
        script(SCRIPTS / "peer_quantize.py", peer, source, out)
    return out


def tensors(directory: Path) -> Mapping[str, Tensor]:
    return load_file(directory / "model.safetensors")


def dequantized(directory: Path, out: Path) -> Mapping[str, Tensor]:
    """Its weights as float32, by draftconv."""
    convert(directory, out, to="portable", dequantize=True, dtype="float32")
    return tensors(out)


def test_every_byte_of_quark_w4a8_is_amd_quarks(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "out", recipe="quark-w4a8")
    ours, theirs = tensors(tmp_path / "out"), tensors(written("quark-memory", source))
    assert sum(name.endswith("weight_zero_point") for name in ours) == QUANTIZED
    assert ours.keys() == theirs.keys() - {"t2d"}  # follows from d2t, and engines do not read it
    assert [name for name in ours if not same(ours[name], theirs[name])] == []


def test_amd_quarks_two_ways_to_a_file_are_read_as_the_same_drafter(source: Path, tmp_path: Path) -> None:
    """The one from file to file calls its natural order `reorder`."""
    memory, files = (written(peer, source) for peer in ("quark-memory", "quark-files"))
    raw, other = tensors(memory), tensors(files)
    assert not torch.equal(raw["midlayer.mlp.up_proj.weight"], other["midlayer.mlp.up_proj.weight"])
    ours, theirs = dequantized(memory, tmp_path / "memory"), dequantized(files, tmp_path / "files")
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not same(ours[name], theirs[name])] == []


def test_modelopts_export_is_read_as_what_it_rounded(source: Path, tmp_path: Path) -> None:
    floats, original = dequantized(written("modelopt", source), tmp_path / "out"), tensors(source)
    scales = {name for name in tensors(written("modelopt", source)) if name.endswith("weight_scale")}
    assert len(scales) == QUANTIZED
    for scale in scales:
        name = scale.removesuffix("_scale")
        error = (floats[name] - original[name].float()).norm() / original[name].float().norm()
        assert 0.05 < error < 0.15
