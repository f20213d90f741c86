"""NVIDIA NeMo Automodel: everything but lm_head, d2t and t2d under `model.`."""

from draftconv.layouts.base import Clue, Layout, ProducerIds

_IDS = ProducerIds("automodel", "after", True, "Automodel 2026-08: default 1, L//2-1, L-4 after the layer")

LAYOUTS = (
    Layout(
        "automodel",
        "Automodel",
        20,
        "certain",
        (
            Clue(
                "every tensor is named model.* but lm_head, d2t and t2d",
                lambda e: (
                    e.has("fc.weight")
                    and all(
                        file == (name if name in ("lm_head.weight", "d2t", "t2d") else f"model.{name}")
                        for name, file in e.names.canonical.items()
                    )
                ),
            ),
        ),
        _IDS,
        "NVIDIA-NeMo/Automodel 2026-08-22",
        captures="either",
    ),
)
