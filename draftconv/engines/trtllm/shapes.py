"""Sizes that TensorRT-LLM's kernels ask for."""

from __future__ import annotations

from draftconv.engines.shapes import Shape, Shapes

_SOURCE = "tensorrt_llm/_torch/modules/linear.py, 1.3.0rc at 00bbf71e"

SHAPES = Shapes((
    Shape(("modelopt-awq",), "inputs", None, "a group of scales cannot lie on two ranks", _SOURCE),
    Shape(("modelopt-awq",), "outputs", 2, "2 outputs share a byte", _SOURCE, joined=False),
    Shape(("modelopt-nvfp4",), "inputs", 16, "16 inputs share a scale", _SOURCE),
), uncopied={"modelopt-awq": _SOURCE})  # fmt: skip
