"""Files of SGLang that several rules cite, below `sglang/`."""

from __future__ import annotations

LLAMA = "srt/models/llama_eagle3.py, 0.5.23"
MLA = "srt/models/kimi_k25_eagle3.py, 0.5.23"
BOTH = "srt/models/{llama,kimi_k25}_eagle3.py, 0.5.23"
CAPTURE = "srt/models/{llama,deepseek_v2,gpt_oss,minimax_m3_vl}.py, 0.5.23"
CONFIG = "srt/configs/model_config.py, 0.5.23"
QUANT = "srt/layers/quantization"
MATCHED = f"{QUANT}/{{compressed_tensors,quark,modelopt_quant.py,awq,gptq,auto_round.py}}, 0.5.23"
