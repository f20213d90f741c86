"""What cannot be told of llama.cpp from a directory alone, and what is worth knowing."""

from __future__ import annotations

from draftconv.drafter.facts import AuxLayers
from draftconv.engines import checks
from draftconv.engines.llamacpp.aux_layers import HANDED_OUT, KEPT_BACK, captured
from draftconv.engines.llamacpp.sources import CONVERTER, GRAPHS, RUNTIME
from draftconv.engines.rules import Rules, SimulatedLoad

RULES = Rules()


@RULES.add("llamacpp-taps-undecided", "undecided", "which layers are captured depends on the target, whose config.json "
           "the converter asks for", CONVERTER, "read")  # fmt: skip
def _undecided_aux_layers(load: SimulatedLoad) -> str | None:
    if load.trained is AuxLayers.UNKNOWN:
        return checks.UNKNOWN_AUX_LAYERS
    layers = captured(load)
    if not checks.open_aux_layers(layers, load.trained):
        return None
    return f"captures {checks.shown(layers)}, trained on {checks.shown(load.trained)}; give --target"


@RULES.add("llamacpp-target-unread", "undecided", "whether this target's graph keeps the states before its layers was "
           "not looked at", GRAPHS, "read")  # fmt: skip
def _unread_target(load: SimulatedLoad) -> str | None:
    target = load.target
    if target is None or not target.model_type or target.model_type in (HANDED_OUT.keys() | KEPT_BACK):
        return None
    return f"{target.name} is {target.model_type}"


RULES.row("llamacpp-norm-switches", "note", "these switches are not read; the computation is that of true, true, "
          "false", RUNTIME, "read", checks.unusual_norms)  # fmt: skip
RULES.row("llamacpp-double-norm", "note", "the state is normalised once, as for every published figure of such "
          "drafters", RUNTIME, "read", checks.double_norm)  # fmt: skip
