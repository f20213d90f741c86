"""Tencent AngelSlim: `midlayer.`, both maps always, often the target's whole config copied."""

from draftconv.layouts.base import Clue, Layout, ProducerIds

_NAMES = ("Eagle3LlamaForCausalLM", "CosyVoice3Eagle3LlamaForCausalLM")

_IDS = ProducerIds("angelslim", "after", True, "AngelSlim 2026-08: hook on the output of layer n")

LAYOUTS = (
    Layout(
        "angelslim",
        "AngelSlim",
        80,
        "likely",
        (
            Clue(
                f"architectures says {_NAMES[0]}, or config.json has target_model_type and no SpecForge name",
                lambda e: (
                    e.architecture in _NAMES
                    or (e.config.has("target_model_type") and e.architecture != "LlamaForCausalLMEagle3")
                ),
            ),
        ),
        _IDS,
        "Tencent/AngelSlim 2026-08-07",
    ),
)
