"""NVIDIA NeMo Automodel: everything but lm_head, d2t and t2d under `model.`."""

from draftconv.layouts.base import Clue, Layout

LAYOUTS = (
    Layout(
        "automodel",
        "Automodel",
        20,
        "certain",
        (
            Clue(
                "tensors are named model.fc.weight, model.layers.0.* beside a bare lm_head",
                lambda e: (
                    e.names.canonical.get("fc.weight") == "model.fc.weight"
                    and e.names.canonical.get("lm_head.weight", "lm_head.weight") == "lm_head.weight"
                ),
            ),
        ),
        "automodel",
        "NVIDIA-NeMo/Automodel 2026-08-22",
        captures="either",
        root="model.",
    ),
)
