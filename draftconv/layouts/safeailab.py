"""SafeAILab EAGLE, the original: usually pytorch_model.bin in float16, no embedding, no rope keys."""

from draftconv.layouts.base import Layout
from draftconv.layouts.clues import MIDLAYER, architecture, key

LAYOUTS = (
    Layout(
        "safeailab",
        "SafeAILab EAGLE",
        90,
        "likely",
        (architecture("LlamaForCausalLM"), key("draft_vocab_size"), MIDLAYER),
        "safeailab",
        "SafeAILab/EAGLE 2026-02-19",
    ),
)
