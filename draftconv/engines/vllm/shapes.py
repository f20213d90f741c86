"""Sizes that vLLM's kernels ask for."""

from __future__ import annotations

from draftconv.engines.hardware import AMD
from draftconv.engines.shapes import INT4, Shape, Shapes

_SOURCE = "vllm/model_executor/kernels/linear/mixed_precision, 0.33.0"

SHAPES = Shapes((
    Shape(INT4, "inputs", None, "a group of scales cannot lie on two ranks", _SOURCE),
    Shape(("compressed-pack", "gptq"), "inputs", 8, "8 inputs share a word", _SOURCE),
    Shape(("autoawq", "quark-int4"), "outputs", 8, "8 outputs share a word", _SOURCE, joined=False),
    Shape(INT4, "outputs", 8, "TritonW4A16 takes outputs by 8", _SOURCE, chips=AMD),
    Shape(INT4, "inputs", 32, "CPUWNA16 takes inputs by 32", _SOURCE, "run", chips=("cpu",)),
    Shape(INT4, "outputs", 32, "CPUWNA16 takes outputs by 32", _SOURCE, "run", chips=("cpu",)),
    Shape(("compressed-pack",), "inputs", 128, "CUTLASS W4A8 takes inputs by 128", _SOURCE, chips=("sm90",),
          fp8=True),
    Shape(("compressed-pack",), "outputs", 128, "CUTLASS W4A8 takes outputs by 128", _SOURCE, chips=("sm90",),
          fp8=True),
    Shape(INT4, "outputs", 128, "Machete takes outputs by 128; Marlin is used instead", _SOURCE,
          chips=("sm90",), fp8=False, refused=False),
    Shape(INT4, "inputs", 64, "Machete takes inputs by 64; Marlin is used instead", _SOURCE,
          chips=("sm90",), fp8=False, refused=False),
    Shape(("modelopt-nvfp4",), "inputs", 16, "16 inputs share a scale", _SOURCE),
    Shape(("quark-mxfp4",), "inputs", 32, "32 inputs share a scale", _SOURCE),
))  # fmt: skip
