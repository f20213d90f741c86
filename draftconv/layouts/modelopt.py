"""NVIDIA Model-Optimizer: three exporters, no embed_tokens and never a t2d.

0.37-0.42 write `midlayer.`, 0.43 and later `layers.0.`, the Megatron path
`midlayer.{i}.` for several layers. Draft ids are in order of frequency, so offsets take
any sign. 0.41-0.47 train with a double normalisation of the state; the keys
next_layer_regular and parallel_draft_step came with it.
"""

from __future__ import annotations

import re

from draftconv.drafter.facts import Mla
from draftconv.drafter.fingerprint import Fingerprint
from draftconv.layouts import MARK
from draftconv.layouts.base import Clue, Layout, ProducerIds, Refusal, Spelling, Writer, Writing
from draftconv.layouts.clues import LAYERS_0, MIDLAYER, NO_EMBEDDING, NO_T2D, eagle_key
from draftconv.layouts.config_json import SWITCHES, after_ids, double_norm_mark, explicit_config, without
from draftconv.layouts.limits import lacks

_SOURCE = "NVIDIA/Model-Optimizer tags 0.35.0-0.46.0rc2 and HEAD 2026-08-21; 0.47.0 run"
_IDS = ProducerIds("modelopt", "after", True, "ModelOpt 0.29-0.47: hook on the output of layer n")
_MEGATRON_IDS = ProducerIds("modelopt-megatron", "after", True, "ModelOpt Megatron: output of layer n")
_UNWRITTEN = (
    "norm_before_fc", "norm_before_residual", "fc_norm", "norm_output", "rope_parameters", "rope_interleave",
    "num_aux_hidden_states",
)  # fmt: skip
_WRAPPED = Clue(
    "tensors still carry eagle_module., as before export",
    lambda e: any("eagle_module." in name for name in e.names.prefixed),
)
_MEGATRON = Clue(
    "tensors are named midlayer.{i}.*, or midlayer.* with ModelOpt's keys and a safetensors format mark",
    lambda e: (
        any(re.match(r"midlayer\.[0-9]+\.", name) for name in e.names.canonical.values()) or _is_single_megatron(e)
    ),
)


def _is_single_megatron(fingerprint: Fingerprint) -> bool:
    """One Megatron layer: the other exporters write no metadata, and later ones next_layer_regular."""
    keys = fingerprint.eagle.has("use_last_layernorm") and not fingerprint.eagle.has("next_layer_regular")
    return (
        keys
        and fingerprint.checkpoint.metadata.get("format") == "pt"
        and fingerprint.prefix("midlayer.")
        and fingerprint.architecture == "LlamaForCausalLMEagle3"
        and not fingerprint.has("t2d")
        and not any(fingerprint.config.has(key) for key in ("_torchspec_version", MARK))
    )


def _double_norm(fingerprint: Fingerprint) -> bool:
    """0.41 and later, by the keys that came with it or by layer 0 holding the norm of the state.

    0.41-0.42 rename that one on export; 0.40 and earlier keep it outside the layer.
    """
    marked = fingerprint.eagle.has("next_layer_regular") or fingerprint.eagle.has("parallel_draft_step")
    norm = fingerprint.names.canonical.get("layers.0.hidden_norm.weight", "")
    return marked or (norm.endswith("layers.0.hidden_norm.weight") and not fingerprint.config.has(MARK))


def _config(writing: Writing) -> dict[str, object]:
    eagle: dict[str, object] = {**SWITCHES, **double_norm_mark(writing.facts)}
    if writing.facts.double_norm:
        eagle |= {"next_layer_regular": True, "parallel_draft_heads_num_layers": 1}
    return without(explicit_config(writing), *_UNWRITTEN) | {"eagle_config": eagle | after_ids(writing)}


LAYOUTS = (
    Layout(
        "modelopt-raw",
        "ModelOpt (before export)",
        31,
        "likely",
        (_WRAPPED,),
        _IDS,
        _SOURCE,
        double_norm=_double_norm,
    ),
    Layout("modelopt-megatron", "ModelOpt Megatron", 40, "likely", (_MEGATRON,), _MEGATRON_IDS, _SOURCE),
    Layout(
        "modelopt-layers",
        "ModelOpt 0.43 and later",
        60,
        "likely",
        (eagle_key("use_last_layernorm"), NO_EMBEDDING, NO_T2D, LAYERS_0),
        _IDS,
        _SOURCE,
        double_norm=_double_norm,
        alias="modelopt",
        writer=Writer(
            Spelling(first="layers.{i}.", embedding="never", o_bias=True),
            _config,
            (
                *lacks(
                    "ModelOpt",
                    "both-fusions",
                    "norm_before_residual",
                    "norm_before_fc",
                    "fc_norm",
                    "post-norm",
                    "qk-norm",
                    "mlp-bias",
                    "fc-bias",
                    "window",
                    "lone-o-bias",
                ),
                Refusal(
                    lambda f: isinstance(f.attention, Mla) and f.attention.q_lora is None,
                    "ModelOpt's Kimi drafter always compresses the query",
                    "its exporter asserts the key set with q_a_proj",
                ),
                Refusal(
                    lambda f: f.own_embedding and f.target_hidden != f.hidden,
                    "ModelOpt stores no embedding, and this drafter's is not as wide as the target's",
                    "no engine could attach the target's table",
                ),
                Refusal(
                    lambda f: not f.double_norm,
                    "ModelOpt would normalise the state twice, and this drafter was trained with one normalisation",
                    "its class computes hidden_norm(input_layernorm(s)) since 0.41, so the same weights give "
                    "other logits there, and folding input_layernorm into q, k and v rounds them again (0.47.0 run)",
                ),
            ),
        ),
    ),
    Layout(
        "modelopt-midlayer",
        "ModelOpt 0.37-0.42",
        61,
        "likely",
        (eagle_key("use_last_layernorm"), NO_EMBEDDING, NO_T2D, MIDLAYER),
        _IDS,
        _SOURCE,
        double_norm=_double_norm,
    ),
)
