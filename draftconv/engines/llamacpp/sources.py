"""Files of llama.cpp that rules cite, in the repository ggml-org/llama.cpp.

All were read at its build b10547, commit 749f688f of 2026-08-21. What an earlier build does otherwise was read in
the commits between b9795 (e8ecce53 of 2026-06-25) and there.
"""

from __future__ import annotations

BUILD = "b10547 (749f688f)"

CONVERTER = f"conversion/llama.py LlamaModel, {BUILD}"
BASE = f"conversion/base.py ModelBase, TextModel, {BUILD}"
REGISTRY = f"conversion/__init__.py TEXT_MODEL_MAP, {BUILD}"
NAMES = f"gguf-py/gguf/constants.py MODEL_ARCH.EAGLE3 and tensor_mapping.py, {BUILD}"
RUNTIME = f"src/models/eagle3.cpp llama_model_eagle3, {BUILD}"
LOADER = f"src/llama-model-loader.cpp done_getting_tensors, {BUILD}"
SPECULATIVE = f"common/speculative.cpp common_speculative_impl_draft_eagle3, {BUILD}"
GRAPHS = f"src/llama-graph.cpp set_outputs and src/models/*.cpp t_layer_inp, {BUILD}"
ROPE = f"conversion/base.py set_gguf_parameters and src/llama-context.cpp, {BUILD}"

IDS_BUILD = (10158,)
"""Build of f8706784 of 2026-07-28: from here on ids of config.json are handed on, and norm_before_fc is known."""
