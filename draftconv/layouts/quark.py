"""amd-quark 0.13's own trainer: `layers.0.` names, ids after the layer at the *top* level.

vLLM reads top-level ids as `before`, so these files are captured one layer early there.
The trainer's default ends with layer L-1, whose state it takes after the target's final
norm; engines deliver the pre-norm stream.
"""

from draftconv.drafter.boundaries import IDS
from draftconv.layouts.base import Layout, ProducerIds
from draftconv.layouts.clues import LAYERS_0, key, no_key

_IDS = ProducerIds("quark", "after", False, "amd-quark 0.13: hidden_states[n + 1]; another default")

LAYOUTS = (
    Layout(
        "quark-native",
        "Quark",
        70,
        "likely",
        (
            key(IDS),
            key("num_aux_hidden_states"),
            key("fc_norm"),
            key("norm_output"),
            no_key("eagle_config"),
            LAYERS_0,
        ),
        _IDS,
        "amd-quark 0.13 experimental/speculative_decoding",
        ids_at="top",
    ),
)
