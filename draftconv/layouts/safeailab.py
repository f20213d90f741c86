"""SafeAILab EAGLE, the original: usually pytorch_model.bin in float16, no embedding, no rope keys."""

from draftconv.layouts.base import Layout, ProducerIds
from draftconv.layouts.clues import MIDLAYER, architecture, key

_IDS = ProducerIds("safeailab", "before", True, "SafeAILab/EAGLE traineagle3: before layers 2, L//2, L-3")

LAYOUTS = (
    Layout(
        "safeailab",
        "SafeAILab EAGLE",
        90,
        "likely",
        (architecture("LlamaForCausalLM"), key("draft_vocab_size"), MIDLAYER),
        _IDS,
        "SafeAILab/EAGLE 2026-02-19",
    ),
)
