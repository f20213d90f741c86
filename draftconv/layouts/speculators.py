"""speculators 0.9 (vLLM project): a nested config, `layers.{i}.` names, boundaries as ids.

vLLM imports this format itself and defaults a missing norm_before_residual to *true*
(0.33.0 transformers_utils/configs/speculators), while the trainer reads false; it is
always written here. MLA cannot be expressed: `transformer_layer_config.model_type` must
be llama or qwen3. Its class lets embed_tokens be missing and then never fills it (0.9.0, models/eagle3/core.py,
run: zeros or what lay in memory), and builds fc and fc_norm for hidden_size, whatever target_hidden_size says.
"""

from __future__ import annotations

from collections.abc import Mapping

from draftconv.drafter.config import Config
from draftconv.drafter.facts import Gqa
from draftconv.layouts.base import Clue, Layout, ProducerIds, Refusal, Spelling, Writer, Writing
from draftconv.layouts.config_json import attention_keys, double_norm_mark, explicit_config, top_ids
from draftconv.layouts.limits import lacks

_INNER = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "hidden_act", "rms_norm_eps", "vocab_size",
    "rope_theta", "rope_scaling", "rope_parameters", "mlp_bias", "max_position_embeddings", "bos_token_id",
    "eos_token_id", "pad_token_id", "initializer_range", "attention_dropout", "use_cache", "sliding_window",
    "use_sliding_window", "layer_types",
)  # fmt: skip


def _flatten(config: Mapping[str, object]) -> Mapping[str, object]:
    """Lift `transformer_layer_config` to the top; the outer keys win."""
    inner = Config(config).section("transformer_layer_config").data
    outer = {key: value for key, value in config.items() if key != "transformer_layer_config" and value is not None}
    return {**inner, **outer, "model_type": inner.get("model_type", "llama")}


def _config(writing: Writing) -> dict[str, object]:
    facts = writing.facts
    flat = explicit_config(writing) | attention_keys(facts)
    inner = {key: flat[key] for key in (*_INNER, *attention_keys(facts)) if key in flat}
    target = writing.target
    # null is what its classes read as none; a name that nobody can open stops them, and so does an empty one.
    verifier = {
        "name_or_path": writing.verifier or (target.hub_id if target else "") or None,
        "architectures": list(target.architectures) if target else [],
    }
    config: dict[str, object] = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "accept_tolerance": 0.0,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": verifier,
        },
        "transformer_layer_config": inner,
        "draft_vocab_size": facts.draft_vocab,
        "norm_before_residual": facts.norm_before_residual,
        "norm_before_fc": facts.fusion == "norm_before_fc",
        "fc_norm": facts.fusion == "fc_norm",
        "norm_output": facts.feedback == "post-norm",
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "dtype": writing.dtype,
        **top_ids(writing),
    }
    if facts.target_hidden != facts.hidden:
        config["target_hidden_size"] = facts.target_hidden
    if mark := double_norm_mark(facts):
        config["eagle_config"] = mark
    return config


_IDS = ProducerIds("speculators", "before", True, "speculators 0.9: Hugging Face hidden_states index")

LAYOUTS = (
    Layout(
        "speculators",
        "speculators",
        10,
        "certain",
        (
            Clue(
                "speculators_model_type is eagle3",
                lambda e: e.config.text("speculators_model_type") == "eagle3",
            ),
        ),
        _IDS,
        source="vllm-project/speculators 0.9.0 (run)",
        flatten=_flatten,
        ids_at="top",
        writer=Writer(
            Spelling(first="layers.{i}.", t2d=True, order="ascending", o_bias=True, embedding="always"),
            _config,
            (
                *lacks("speculators", "both-fusions", "mla", "lone-o-bias", "fc-bias", "wide-states", "lent-head"),
                Refusal(
                    lambda f: isinstance(f.attention, Gqa) and f.attention.qk_norm and f.mlp_bias,
                    "speculators' Qwen3 layer has no MLP biases",
                    "the tensors would be unexpected",
                ),
            ),
            names_verifier=True,
        ),
    ),
)
