"""Scales of static activations are measured on a trace, as a replay feeds the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draftconv.errors import Refused
from draftconv.quantization.weight_detection import find_quantized
from draftconv.replay.calibration import input_peaks
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.traces.trace import open_trace
from tests import quantized
from tests.traces.recorded import Recorded

LLAMA, REDUCED, LLAMA31, MLA, MLA31 = (
    "llama-eagle3", "llama-eagle3-reduced", "llama-eagle3.1", "mla-eagle3", "mla-eagle3.1",
)  # fmt: skip
DOWN = "layers.0.mlp.down_proj"


def test_scales_are_the_largest_inputs_of_a_replay(recorded: Recorded, tmp_path: Path) -> None:
    path = recorded("llama", count=2, length=8)
    quantized.write(tmp_path / "out", LLAMA, "fp8-tensor", trace=path)
    stored = find_quantized(quantized.read(tmp_path / "out", LLAMA))
    trace = open_trace(path)
    arm = load_arm("arm", quantized.read(quantized.source(LLAMA), LLAMA), LoadSettings(trace.table))
    requests = [trace.read(entry, arm.boundaries) for entry in trace.entries]
    peaks = input_peaks(arm, requests, arm.boundaries, list(stored.modules))
    for module, peak in peaks.items():
        scale = stored.load(module).input_scale
        assert scale is not None
        assert float(scale) == float(peak / 448)
    # q, k and v have the same input, and so the same peak
    assert len({float(peak) for module, peak in peaks.items() if module.endswith(("q_proj", "k_proj", "v_proj"))}) == 1


def test_inputs_that_are_all_zeros_are_refused(recorded: Recorded) -> None:
    trace = open_trace(recorded("llama", count=1, length=8))
    arm = load_arm("arm", quantized.read(quantized.source(LLAMA), LLAMA), LoadSettings(trace.table))
    silent = arm.model.changed(tensors={"layers.0.post_attention_layernorm.weight": torch.zeros(256)})
    requests = [trace.read(entry, arm.boundaries) for entry in trace.entries]
    with pytest.raises(Refused, match=r"inputs of layers\.0\.mlp\.up_proj peak at 0 on this trace"):
        input_peaks(replace(arm, model=silent), requests, arm.boundaries, ["layers.0.mlp.up_proj"])
