"""ModelOpt 0.47: a target converted to its eagle mode, run by its own training forward, saved by its exporter."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from truth.trainers import kimi
from truth.trainers.steps import STEPS, Inputs, Steps, watching
from truth.trainers.trainer import Origin

ORIGIN = Origin("ModelOpt", package="nvidia-modelopt")
WRITES = "modelopt-layers"
ARCHITECTURE = (
    "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
    "mlp_bias", "attention_bias", "draft_vocab_size", "rope_theta",
)  # fmt: skip
"""Keys of config.json that a training recipe sets."""

SCHEMES: Mapping[str, str] = MappingProxyType({
    "FP8": "FP8_DEFAULT_CFG",
    "FP8 per channel": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "NVFP4": "NVFP4_DEFAULT_CFG",
    "INT4 AWQ": "INT4_AWQ_CFG",
    "W4A8 AWQ": "W4A8_AWQ_BETA_CFG",
    "INT8": "INT8_DEFAULT_CFG",
    "INT8 SmoothQuant": "INT8_SMOOTHQUANT_CFG",
    "MXFP4": "MXFP4_DEFAULT_CFG",
})  # fmt: skip
"""Its own configs, as `hf_ptq` offers them."""


LATENT = (
    "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
    "attention_bias", "draft_vocab_size", "rope_theta", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip
"""The same for `kimik2`."""


def build(config: Mapping[str, Any], embedding: Tensor | None) -> nn.Module:
    """A small target in eagle mode, as `mtsp.convert` makes it for training on kept states."""
    import modelopt.torch.speculative as mtsp
    from modelopt.torch.speculative.plugins import hf_eagle

    latent = config.get("kv_lora_rank") is not None
    eagle = dict(config["eagle_config"])
    rope = {"rope_theta": config["rope_theta"], **(config.get("rope_scaling") or {"rope_type": "default"})}
    architecture = {key: config[key] for key in (LATENT if latent else ARCHITECTURE) if key in config} | {
        "rope_scaling": rope,
        "use_aux_hidden_state": True,
        "use_last_layernorm": True,
        "has_lm_head": True,
        "eagle_aux_hidden_state_layer_ids": list(eagle.get("eagle_aux_hidden_state_layer_ids", ())),
    }
    with patch.object(hf_eagle, "_setup_kimi_k2_decoder", kimi.decoder):
        model: Any = mtsp.convert(_target(config, latent), [("eagle", {
            "eagle_decoder_type": "kimik2" if latent else "llama",
            "eagle_offline": True,
            "eagle_ttt_steps": STEPS,
            "eagle_use_torch_compile": False,
            "eagle_export_rope_scaling": {},
            "eagle_architecture_config": architecture,
        })])  # fmt: skip
    if embedding is not None:
        model.model.embed_tokens.weight.data = embedding.clone()
    drafter: nn.Module = model.float()
    return drafter


def _target(config: Mapping[str, Any], latent: bool) -> nn.Module:
    """A target whose config class is what the drafter's is made of; its layers are left out for kept states."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM

    sizes = {key: config[key] for key in ("hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads")}
    sizes |= {
        "num_hidden_layers": 8,
        "intermediate_size": 16,
        "max_position_embeddings": config["max_position_embeddings"],
    }
    if not latent:
        model: Any = LlamaForCausalLM(
            LlamaConfig(**sizes, head_dim=config["head_dim"], architectures=["LlamaForCausalLM"])
        )
    else:
        small = {key: config[key] for key in LATENT if key.endswith(("_dim", "_rank"))}
        model = DeepseekV3ForCausalLM(
            DeepseekV3Config(**sizes, **small, first_k_dense_replace=8, architectures=["DeepseekV3ForCausalLM"])
        )
    target: nn.Module = model.float()
    return target


def load(path: Path, embedding: Tensor) -> nn.Module:
    """Every tensor of the file, under the names that the exporter gave them; ModelOpt has no reader of its exports."""
    model: Any = build(json.loads((path / "config.json").read_text(encoding="utf-8")), embedding)
    model.eagle_module.load_state_dict(load_file(path / "model.safetensors"))
    drafter: nn.Module = model.float()
    return drafter


def run(model: nn.Module, inputs: Inputs) -> Steps:
    """Its states move one row to the right each step while the tokens stay: row i drafts for the chain of row i - k."""
    target: Any = model.train()
    rows, width, vocab = inputs.tokens_BT.shape[1], target.config.hidden_size, target.config.vocab_size
    teacher = {
        "base_model_hidden_states": torch.zeros(1, rows, width),
        "base_model_logits": torch.zeros(1, rows, vocab),
        "aux_hidden_states": inputs.joined,
    }
    fed = watching(target.eagle_module, lambda args, _: args[0])
    with torch.no_grad(), fed as states, watching(target.eagle_module.lm_head) as logits:
        target(input_ids=inputs.tokens_BT.roll(1, 1), base_model_outputs=teacher)
    back = [[table.roll(-k, 1) for k, table in enumerate(tables)] for tables in (states.given, logits.returned)]
    return Steps.of(back[0], back[1], getattr(target.eagle_module, "d2t", None))


def quantize(model: nn.Module, scheme: str, inputs: Inputs) -> nn.Module:
    """`mtq.quantize`, then the export's own first step, which gives weights that engines join one smoothing."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers

    dtype = next(model.parameters()).dtype
    states = replace(inputs, states_BTAW=inputs.states_BTAW.to(dtype))
    quantized: Any = mtq.quantize(model, copy.deepcopy(getattr(mtq, SCHEMES[scheme])), lambda m: _calibrate(m, states))
    quantized._cached_attn_blk_masks.clear()  # kept by step, whatever the length: the exporter asks with two tokens
    requantize_resmooth_fused_llm_layers(quantized)
    quantized._cached_attn_blk_masks.clear()
    drafter: nn.Module = quantized
    return drafter


def _calibrate(model: nn.Module, inputs: Inputs) -> None:
    run(model, inputs)


def as_stored(model: nn.Module) -> nn.Module:
    """`mtq.compress`, which keeps quantized values and scales, on the CPU too."""
    import modelopt.torch.quantization as mtq

    stored: Any = copy.deepcopy(model)
    for name, quantizer in stored.named_modules():
        # Activations stay as they are; the second quantizer of W4A8's weights rounds for the kernel's arithmetic.
        if name.endswith(("input_quantizer", "weight_quantizer.1")):
            quantizer.disable()
    mtq.compress(stored)
    drafter: nn.Module = stored
    return drafter


def save(model: nn.Module, path: Path) -> None:
    saved: Any = model
    saved.get_exporter().export(path)
