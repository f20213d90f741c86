"""TorchSpec: native (`midlayer.`) and exported for vLLM (`layers.0.`), Llama-style and MLA.

The vLLM export adds one to the layer ids, but only when model_type is kimi_k2; with any
other model_type the ids stay in the native numbering (tools/convert_to_hf, 2026-04…08).
Training from a published draft takes every tensor or none, the embedding too (training/checkpoint.py, 0d741940, run).
"""

from __future__ import annotations

from draftconv.drafter.fingerprint import Fingerprint
from draftconv.layouts.base import Clue, IdChoice, Layout, ProducerIds, Spelling, Writer, Writing
from draftconv.layouts.clues import LAYERS_0, MIDLAYER
from draftconv.layouts.config_json import SWITCHES, after_ids, double_norm_mark, explicit_config, without
from draftconv.layouts.limits import lacks

_SOURCE = "lightseekorg/TorchSpec 2026-04-28, later states through 2026-08-16 (run)"
_IDS = ProducerIds("torchspec", "after", True, "TorchSpec 2026-04…08: hook on the output of layer n")
_SHIFTED = ProducerIds("torchspec-vllm", "before", True, source="TorchSpec export for vLLM adds one for kimi_k2")
_UNSHIFTED = ProducerIds(
    "torchspec-vllm-unshifted", "after", True, source="TorchSpec's vLLM export shifts kimi_k2 only"
)
_UNWRITTEN = ("norm_before_fc", "norm_before_residual", "mlp_bias", "rope_parameters", "rope_interleave")
_VERSION = Clue(
    "TorchSpec's version mark in config.json or the safetensors metadata",
    lambda e: e.config.has("_torchspec_version") or "torchspec_version" in e.checkpoint.metadata,
)
_WRAPPED = Clue(
    "tensors still carry draft_model., as in a raw training state",
    lambda e: any("draft_model." in name for name in e.names.prefixed),
)


def _exported_ids(fingerprint: Fingerprint) -> ProducerIds:
    return _SHIFTED if fingerprint.config.text("model_type") == "kimi_k2" else _UNSHIFTED


def _config(writing: Writing) -> dict[str, object]:
    eagle = {**SWITCHES, **double_norm_mark(writing.facts), **after_ids(writing)}
    return without(explicit_config(writing), *_UNWRITTEN) | {"eagle_config": eagle}


LAYOUTS = (
    Layout(
        "torchspec-raw",
        "TorchSpec (raw state)",
        30,
        "likely",
        (_WRAPPED,),
        _IDS,
        _SOURCE,
        captures="either",
    ),
    Layout(
        "torchspec-vllm",
        "TorchSpec for vLLM",
        50,
        "certain",
        (_VERSION, LAYERS_0),
        IdChoice((_SHIFTED, _UNSHIFTED), _exported_ids),
        _SOURCE,
        unmarked=(LAYERS_0,),
    ),
    Layout(
        "torchspec-native",
        "TorchSpec",
        51,
        "certain",
        (_VERSION,),
        _IDS,
        _SOURCE,
        captures="either",
        unmarked=(MIDLAYER,),
        alias="torchspec",
        writer=Writer(
            Spelling(t2d=True, order="ascending", embedding="always", yarn_in_full=True),
            _config,
            lacks(
                "TorchSpec",
                "both-fusions",
                "layers",
                "norm_before_residual",
                "norm_before_fc",
                "qkv-bias",
                "o-bias",
                "qk-norm",
                "mlp-bias",
                "fc-bias",
                "mla-half-split",
                "window",
                "yarn-factors",
                "lent-head",
            ),
            {"torchspec_version": "0.1.0"},
        ),
    ),
)
