"""Which targets hand out hidden states: our list against the classes in vLLM's registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from draftconv.checkpoint import open_checkpoint
from draftconv.engines import ENGINES, parse_engine
from truth import asking
from truth.drafts import DATA, read, target_of
from truth.store import Ask
from truth.table import Row

ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k25": "KimiK25ForConditionalGeneration",
    "kimi_linear": "KimiLinearForCausalLM",
    "kimi_vl": "KimiVLForConditionalGeneration",
    "kimi_audio": "MoonshotKimiaForCausalLM",
}
"""model_type of a target → its architecture."""

DRAFTER = "llama-eagle3-reduced"


def rows(spec: str, ask: Ask) -> Iterator[Row]:
    """One row per target; only the rule about its class is looked at."""
    path = DATA / "drafters" / DRAFTER
    for model_type, architecture in ARCHITECTURES.items():
        target = replace(target_of(DRAFTER), model_type=model_type)
        verdict = ENGINES["vllm"].check(open_checkpoint(path), read(path, DRAFTER).facts, target, parse_engine(spec))
        refused = any(line.rule.code == "vllm-target" for line in verdict.lines)
        case = f"a {model_type} target"
        answer = ask("loader", case, (architecture,), partial(observed, architecture))
        predicted = "refused" if refused else "loads"
        yield Row(
            "loader",
            case,
            predicted,
            answer["observed"],
            predicted == answer["observed"],
            answer["detail"],
            ("vllm-target",),
        )


def observed(architecture: str) -> dict[str, Any]:
    """Whether the class declares the EAGLE-3 interface; without it the engine stops when it loads the target."""
    declares = asking.ask(partial(_declares, architecture))
    if isinstance(declares, asking.Refusal):
        return {"observed": "not to be told", "detail": declares.error}
    return {"observed": "loads" if declares else "refused", "detail": f"{architecture}, by its class"}


def _declares(architecture: str) -> bool:
    from vllm.model_executor.models.interfaces import supports_eagle3
    from vllm.model_executor.models.registry import ModelRegistry

    return bool(supports_eagle3(ModelRegistry.models[architecture].load_model_cls()))
