"""SpecForge: `midlayer.`, d2t and t2d always, with the embedding (hf) or without (sglang).

Since 2026-07-19 its norm_output means "apply the final norm before the head" and the
state fed back is always pre-norm; every engine reads the key the other way.
"""

from __future__ import annotations

from draftconv.drafter.boundaries import IDS
from draftconv.layouts.base import Clue, Layout, ProducerIds, Spelling, Writer, Writing
from draftconv.layouts.clues import BOTH_MAPS, EMBEDDING, MIDLAYER, NO_EMBEDDING, architecture
from draftconv.layouts.config_json import after_ids, double_norm_mark, explicit_config, without
from draftconv.layouts.limits import lacks

_SOURCE = "sgl-project/SpecForge 2026-08-08 (run)"
_IDS = ProducerIds("specforge", "after", True, "SpecForge 2026-08: hook on the output of layer n")
_NAMED = architecture("LlamaForCausalLMEagle3")
_CLUES = (_NAMED, MIDLAYER, BOTH_MAPS)
_NESTED = frozenset({IDS, "use_aux_hidden_state"})
_NEVER = ("num_aux_hidden_states", "norm_before_fc", "norm_before_residual")
_OWN_KEYS = Clue(
    "config.json has no key that SpecForge never writes",
    lambda e: e.eagle.data.keys() <= _NESTED and not any(e.config.has(key) for key in _NEVER),
)
"""Maps are no condition: people take those of a full vocabulary out, because vLLM stops on them."""


def _config(writing: Writing) -> dict[str, object]:
    eagle = {"use_aux_hidden_state": True, **double_norm_mark(writing.facts), **after_ids(writing)}
    config = without(explicit_config(writing), *_NEVER)
    return config | {"norm_output": True, "eagle_config": eagle}


LAYOUTS = (
    Layout(
        "specforge-hf",
        "SpecForge",
        100,
        "likely",
        (*_CLUES, EMBEDDING),
        _IDS,
        _SOURCE,
        norm_output="final-norm",
        captures="by family",
        unmarked=(_NAMED, MIDLAYER, _OWN_KEYS, EMBEDDING),
        alias="specforge",
        writer=Writer(
            Spelling(t2d=True, maps="always", order="ascending", yarn_in_full=True),
            _config,
            lacks(
                "SpecForge",
                "both-fusions",
                "mla",
                "layers",
                "norm_before_residual",
                "norm_before_fc",
                "post-norm",
                "qkv-bias",
                "o-bias",
                "qk-norm",
                "mlp-bias",
                "fc-bias",
                "window",
                "three-states",
                "yarn-factors",
                "lent-head",
            ),
        ),
    ),
    Layout(
        "specforge-sglang",
        "SpecForge for SGLang",
        101,
        "likely",
        (*_CLUES, NO_EMBEDDING),
        _IDS,
        _SOURCE,
        norm_output="final-norm",
        captures="by family",
        unmarked=(_NAMED, MIDLAYER, _OWN_KEYS, NO_EMBEDDING),
        twin="specforge-hf",
    ),
)
