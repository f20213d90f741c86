"""Which targets hand out hidden states: our list against the classes of SGLang."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from draftconv.checkpoint import open_checkpoint
from draftconv.engines import ENGINES, parse_engine
from truth import asking
from truth.drafts import DATA, read, target_of
from truth.store import Ask
from truth.table import Row

CLASSES: Mapping[str, str] = {
    "apertus": "apertus.ApertusForCausalLM",
    "bailing_moe": "bailing_moe.BailingMoeForCausalLM",
    "deepseek_v2": "deepseek_v2.DeepseekV2ForCausalLM",
    "deepseek_v3": "deepseek_v2.DeepseekV3ForCausalLM",
    "deepseek_v32": "deepseek_v2.DeepseekV32ForCausalLM",
    "exaone_moe": "exaone_moe.ExaoneMoEForCausalLM",
    "gemma3": "gemma3_mm.Gemma3ForConditionalGeneration",
    "gemma3_text": "gemma3_causal.Gemma3ForCausalLM",
    "gemma4": "gemma4_mm.Gemma4ForConditionalGeneration",
    "glm4_moe": "glm4_moe.Glm4MoeForCausalLM",
    "glm4_moe_lite": "glm4_moe_lite.Glm4MoeLiteForCausalLM",
    "glm5_next": "glm5_next.Glm5NextForConditionalGeneration",
    "glm_moe_dsa": "glm4_moe.GlmMoeDsaForCausalLM",
    "gpt_oss": "gpt_oss.GptOssForCausalLM",
    "internlm3": "llama.InternLM3ForCausalLM",
    "kimi_k2": "deepseek_v2.DeepseekV3ForCausalLM",
    "kimi_k25": "kimi_k25.KimiK25ForConditionalGeneration",
    "llama": "llama.LlamaForCausalLM",
    "llama4": "mllama4.Llama4ForConditionalGeneration",
    "llama4_text": "llama4.Llama4ForCausalLM",
    "longcat_flash": "longcat_flash.LongcatFlashForCausalLM",
    "minimax_m2": "minimax_m2.MiniMaxM2ForCausalLM",
    "minimax_m3": "minimax_m3.MiniMaxM3SparseForCausalLM",
    "minimax_m3_vl": "minimax_m3_vl.MiniMaxM3SparseForConditionalGeneration",
    "mistral": "mistral.MistralForCausalLM",
    "mllama4": "mllama4.Llama4ForConditionalGeneration",
    "phi3": "llama.Phi3ForCausalLM",
    "qwen2": "qwen2.Qwen2ForCausalLM",
    "qwen2_5_vl": "qwen2_5_vl.Qwen2_5_VLForConditionalGeneration",
    "qwen2_moe": "qwen2_moe.Qwen2MoeForCausalLM",
    "qwen3": "qwen3.Qwen3ForCausalLM",
    "qwen3_5": "qwen3_5.Qwen3_5ForConditionalGeneration",
    "qwen3_5_text": "qwen3_5_text.Qwen3_5ForCausalLM",
    "qwen3_moe": "qwen3_moe.Qwen3MoeForCausalLM",
    "qwen3_next": "qwen3_next.Qwen3NextForCausalLM",
    "qwen3_vl": "qwen3_vl.Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "qwen3_vl_moe.Qwen3VLMoeForConditionalGeneration",
    # without it
    "cohere": "commandr.CohereForCausalLM",
    "ernie4_5": "ernie4.Ernie4_5_ForCausalLM",
    "gemma2": "gemma2.Gemma2ForCausalLM",
    "glm4": "glm4.Glm4ForCausalLM",
    "granite": "granite.GraniteForCausalLM",
    "kimi_linear": "kimi_linear.KimiLinearForCausalLM",
    "kimi_vl": "kimi_vl.KimiVLForConditionalGeneration",
    "mistral3": "mistral.Mistral3ForConditionalGeneration",
    "mixtral": "mixtral.MixtralForCausalLM",
    "nemotron_h": "nemotron_h.NemotronHForCausalLM",
    "olmo2": "olmo2.Olmo2ForCausalLM",
    "starcoder2": "starcoder2.Starcoder2ForCausalLM",
}
"""model_type of a target → its class, below sglang.srt.models."""

DRAFTER, RULE = "llama-eagle3", "sglang-target"
SETTER = "set_eagle3_layers_to_capture"
"""What the server calls on the target; a class without it stops the start with an AttributeError."""


def rows(spec: str, ask: Ask) -> Iterator[Row]:
    """One row per kind of target; only the note about its class is looked at."""
    path = DATA / "drafters" / DRAFTER
    for model_type, name in CLASSES.items():
        target = replace(target_of(DRAFTER), model_type=model_type)
        verdict = ENGINES["sglang"].check(open_checkpoint(path), read(path, DRAFTER).facts, target, parse_engine(spec))
        rules = tuple(line.rule.code for line in verdict.lines if line.rule.code == RULE)
        case, mine = f"a {model_type} target", f"hands out {'no' if rules else 'hidden'} states"
        answer = ask("loader", case, (name,), partial(observed, name))
        theirs = str(answer["observed"])
        yield Row("loader", case, mine, theirs, mine == theirs, answer["detail"], rules)


def observed(name: str) -> dict[str, Any]:
    """Whether a class has what the server calls."""
    hands_out = asking.ask(partial(_hands_out, name))
    if isinstance(hands_out, asking.Refusal):
        return {"observed": "not to be told", "detail": hands_out.error}
    return {"observed": f"hands out {'hidden' if hands_out else 'no'} states", "detail": f"{name}, by its class"}


def _hands_out(name: str) -> bool:
    module, _, cls = name.rpartition(".")
    return hasattr(getattr(import_module(f"sglang.srt.models.{module}"), cls), SETTER)
