"""Files of TensorRT-LLM that rules cite, below `tensorrt_llm/`.

They were read one by one, each at its own commit of the main line that became the 1.3.0 release candidates; where
none was noted, the line alone is named. `OLD` and `MLA` are of the line before, 1.2: c37531c3 of 2026-01-28
(PR 11010) is what parts the two.
"""

from __future__ import annotations

MAIN = "_torch/models/modeling_speculative.py, 1.3.0rc at 00679c66"
OLD = "_torch/models/modeling_speculative.py, 1.2, before c37531c3"
MLA = "_torch/models/modeling_deepseekv3.py, 1.2, early 2026"
LOADER = "_torch/models/checkpoints/hf/weight_loader.py, 1.3.0rc"
MAPPER = "_torch/models/checkpoints/hf/weight_mapper.py, 1.3.0rc"
COMPRESSED = "models/quant_config_utils.py, 1.3.0rc at 21156a7a"
CONFIG = "_torch/pyexecutor/config_utils.py, 1.3.0rc at 00679c66"
MODEL_CONFIG = "_torch/model_config.py, 1.3.0rc at 008e0af8"
QUANT = "quantization/modelopt_config.py, 1.3.0rc at 2edf354d"
UTILS = "_torch/models/modeling_utils.py, 1.3.0rc (80154 characters)"
ATTENTION = "_torch/attention/mla.py, 1.3.0rc at 047098b7"
LINEAR = "_torch/modules/linear.py, 1.3.0rc at 00bbf71e"
ROPE = "_torch/attention_backend/interface.py, 1.3.0rc"
CAPTURE = "_torch/speculative/eagle3.py, main at f933a608"
ARGUMENTS = "llmapi/llm_args.py, 1.3.0rc"
