"""Files of vLLM that several rules cite, below `vllm/`."""

from __future__ import annotations

LLAMA = "model_executor/models/llama_eagle3.py, 0.33.0"
LOADERS = "model_executor/models/{llama,qwen3,deepseek}_eagle3.py, 0.33.0"
MLA = "model_executor/models/deepseek_eagle3.py, 0.33.0"
SPEC = "config/speculative.py, 0.33.0"
QUANT = "model_executor/layers/quantization"
MATCHED = f"{QUANT}/{{compressed_tensors,quark,modelopt,auto_awq,auto_gptq}}, 0.33.0"
