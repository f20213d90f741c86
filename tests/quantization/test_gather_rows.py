"""Rows of a stored weight: the same integers and scales in every format, also where rows are packed together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftconv.conversion.repack_plan import same_integers
from draftconv.quantization.gather_rows import GatherRows
from draftconv.quantization.quantized_weights import read
from draftconv.quantization.recipes import recipe_names
from draftconv.quantization.weight_detection import find_quantized
from tests import quantized

MODULE = "layers.0.mlp.down_proj"
ROWS = (*range(5, 256, 8), 0, 255, 7, 8, 9, 10, 11, 12)


@pytest.mark.parametrize("recipe", [name for name in recipe_names() if name not in quantized.CALIBRATED])
def test_every_format_keeps_integers_and_scales(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    torch.set_num_threads(1)
    engines = ("trtllm:b200",) if recipe.endswith("awq") else ()
    quantized.write(tmp_path / "out", "llama-eagle3", recipe, *engines)
    stored = find_quantized(quantized.read(tmp_path / "out", "llama-eagle3"))
    gathered = GatherRows(MODULE, stored, ROWS)
    scheme, kept = same_integers(stored, stored.only.format, lossy=False)
    assert kept == "as stored"
    foretold = {part.suffix: (part.dtype, part.shape) for part in gathered.parts(scheme)}
    source = stored.load(MODULE).quantized
    made = gathered.run()
    assert made.keys() == foretold.keys() == stored.modules[MODULE].keys()
    loaded = stored.only.format.load(
        {suffix: torch.frombuffer(bytearray(data), dtype=read(stored.modules[MODULE][suffix]).dtype)
         .reshape(foretold[suffix][1]) for suffix, data in made.items()},
        stored.only.declared, stored.dtype,
    ).quantized  # fmt: skip
    picked = source.qvalues.view(torch.uint8)[list(ROWS)]
    assert torch.equal(loaded.qvalues.view(torch.uint8), picked)
    scales = source.scale[list(ROWS)] if len(source.scale) > 1 else source.scale
    assert torch.equal(loaded.scale.view(torch.uint8), scales.view(torch.uint8))
    assert gathered.run() == made
    assert gathered.memory > 0
    assert set(gathered.sources) == set(stored.modules[MODULE].values())
