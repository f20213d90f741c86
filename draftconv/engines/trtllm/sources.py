"""Files of TensorRT-LLM that several rules cite, below `tensorrt_llm/`."""

from __future__ import annotations

MAIN = "_torch/models/modeling_speculative.py, main 2026 H2"
OLD = "_torch/models/modeling_speculative.py, before 2026-01-28"
MLA = "_torch/models/modeling_deepseekv3.py, early 2026"
MAPPER = "_torch/models/checkpoints/hf/weight_mapper.py, main 2026 H2"
CONFIG = "_torch/pyexecutor/config_utils.py, main 2026 H2"
QUANT = "quantization/modelopt_config.py, main 2026 H2"
MODEL_CONFIG = "_torch/model_config.py, main 2026 H2"
