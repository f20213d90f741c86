"""Sizes that SGLang's kernels ask for."""

from __future__ import annotations

from draftconv.engines.hardware import NVIDIA
from draftconv.engines.shapes import INT4, Shape, Shapes

_MARLIN = "sglang/srt/layers/quantization/marlin_utils.py, 0.5.23"

SHAPES = Shapes((
    Shape(INT4, "inputs", None, "a group of scales cannot lie on two ranks", _MARLIN),
    Shape(INT4, "outputs", 64, "Marlin takes outputs by 64, and nothing is padded", _MARLIN, chips=NVIDIA),
    Shape(INT4, "inputs", 128, "Marlin takes inputs by 128, and nothing is padded", _MARLIN, chips=NVIDIA),
    Shape(("autoawq",), "outputs", 8, "8 outputs share a word", "sglang/srt/layers/quantization/awq, 0.5.23",
          joined=False),
    Shape(("modelopt-nvfp4",), "inputs", 16, "16 inputs share a scale",
          "sglang/srt/layers/quantization/modelopt_quant.py, 0.5.23"),
))  # fmt: skip
