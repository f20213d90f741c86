"""Every rule of vLLM, broken alone; what its loader does with names; its versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import pytest

from draftconv.drafter.config import Config
from draftconv.drafter.facts import AuxLayers, Facts, Gqa, Rope
from draftconv.engines.vllm import RULES
from tests.engines.cases import (
    FC,
    IDS,
    SCALING,
    Case,
    assert_case,
    compressed,
    declaring,
    grouped,
    ignoring,
    judged,
    modelopt,
    quark,
    quark_fp8,
    reordered,
    several,
    swapped,
    vary_target,
    with_packed_head,
    without_export,
)
from tests.engines.views import (
    FACTS,
    KIMI_TARGET,
    LLAMA,
    LLAMA_TARGET,
    MLA,
    YARN,
    FakeView,
    H,
    V,
    vary,
    written,
)

LAYERS = FACTS["llama, layers given"]
QUANTIZED = vary(LLAMA, quantization="int4")
FP8, NVFP4 = modelopt("FP8", "F8_E4M3"), modelopt("NVFP4")
DYNAMIC_FP8 = quark("fp8_e4m3")
QUANTIZED_AT = vary(LAYERS, quantization="int4")
INT8 = vary(LLAMA, quantization="int8")
POST_NORM = vary(LLAMA, feedback="post-norm")
FACTOR_ONE = Rope(50000.0, "interleaved", "yarn", MappingProxyType({**YARN, "attention_factor": 1.0}))
INNER = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
         "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act", "rope_theta", "rope_parameters",
         "max_position_embeddings")  # fmt: skip


def speculators(view: FakeView) -> FakeView:
    """The same drafter in speculators' nested config."""
    inner = {key: view.config[key] for key in INNER}
    outer = {key: view.config[key] for key in ("draft_vocab_size", "norm_before_residual", "fc_norm", "norm_output")}
    return replace(view, config={**outer, "speculators_config": {}, "transformer_layer_config": inner})


def fp8_inputs(view: FakeView) -> FakeView:
    """compressed-tensors INT4, declared to meet FP8 activations."""
    weights = {"num_bits": 4, "type": "int", "strategy": "channel"}
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}
    return compressed(view).set(quantization_config={**SCALING, "config_groups": groups})


CASES = {
    "vllm-architecture": Case("DeepSeekForCausalLMEagle3",
                              lambda v: v.set(architectures=["DeepSeekForCausalLMEagle3"])),
    "vllm-class": Case("builds Llama-style", lambda v: v.set(architectures=["LlamaForCausalLMEagle3"]), MLA),
    "vllm-model-type": Case("no model_type", lambda v: v.unset("model_type")),
    "vllm-model-type-unknown": Case("model_type: foo", lambda v: v.set(model_type="foo")),
    "vllm-mtp": Case("deepseek_v3", lambda v: v.set(model_type="deepseek_v3"), MLA),
    "vllm-null": Case("n_routed_experts", lambda v: v.set(n_routed_experts=None), MLA),
    "vllm-activation": Case("gelu", lambda v: v.set(hidden_act="gelu")),
    "vllm-prefix": Case("model.fc.weight", lambda v: v.rename(lambda n: f"model.{n}")),
    "vllm-unknown-tensor": Case("verifier_lm_head.weight", lambda v: v.put("verifier_lm_head.weight", V, H)),
    "vllm-fc-norm-unflagged": Case("fc_norm.0.weight", lambda v: v.set(fc_norm=False), FACTS["llama 3.1"],
                                   also=frozenset({"vllm-fusion"})),
    "vllm-d2t-full": Case("d2t is stored", lambda v: v.put("d2t", V, dtype="I64")),
    "vllm-shape": Case("mlp.gate_proj.weight is [24, 16], built as [32, 16]", lambda v: v.set(intermediate_size=32)),
    "vllm-cut": Case("mlp.gate_proj.weight is [24, 16], built as [8, 16]", lambda v: v.set(intermediate_size=8)),
    "vllm-indexer-cpu": Case("2048", lambda v: v.set(index_topk=2048), MLA, spec=":cpu"),
    "vllm-plain-query": Case("q_lora_rank", lambda v: v.set(q_lora_rank=None), FACTS["mla, plain query"],
                             good_facts=MLA),
    "vllm-target": Case("kimi_vl", target=vary_target(KIMI_TARGET, model_type="kimi_vl"), good_target=KIMI_TARGET),
    "vllm-target-width": Case("are 32", target=vary_target(LLAMA_TARGET, hidden=32), good_target=LLAMA_TARGET),
    "vllm-zero-boundary": Case("[0, 3, 6] on kimi-test", lambda v: v.set(**{IDS: [0, 3, 6]}),
                               FACTS["mla, layers given"], truth={"boundaries": (0, 3, 6)}),
    "vllm-duplicate-id": Case("[2, 2, 6]", lambda v: v.set(**{IDS: [2, 2, 6]}), LAYERS,
                              truth={"boundaries": (2, 2, 6)}),
    "vllm-aux-count": Case("captures [2, 3, 6], fc is built for 4", lambda v: v.set(**{IDS: [2, 3, 6]}),
                           FACTS["llama, four states"]),
    "vllm-quark-per-channel": Case("without a group size", quark(), QUANTIZED, quark(group_size=32)),
    "vllm-quark-activations": Case("int8", quark(group_size=32, inputs="int8"), QUANTIZED, quark(group_size=32)),
    "vllm-joined-scales": Case("different weight_scale_2", NVFP4, QUANTIZED, NVFP4,
                                 known=frozenset({"joined-weight-scales"})),
    "vllm-static-fp8-cpu": Case("down_proj.weight", FP8, QUANTIZED, DYNAMIC_FP8, spec=":cpu"),
    "vllm-joined-fp8-cpu": Case("different scales", DYNAMIC_FP8, QUANTIZED, DYNAMIC_FP8,
                                known=frozenset({"joined-fp8-scales"}), spec=":cpu"),
    "vllm-tensor-fp8-cpu": Case("_proj.weight", quark_fp8(), QUANTIZED, DYNAMIC_FP8, spec=":cpu"),
    "vllm-head-packed": Case(
        "lm_head.weight_packed", with_packed_head, QUANTIZED, several("lm_head"), spec=":h200"),
    "vllm-head-order": Case("lm_head.g_idx", lambda v: compressed(v).put("lm_head.g_idx", 16, dtype="I32"), QUANTIZED,
                            compressed, spec=":cpu"),
    "vllm-other-scheme": Case("model.layers.8.mlp.down_proj (group_1)", swapped, QUANTIZED, several("lm_head")),
    "vllm-joined-fp8": Case("different scales", FP8, QUANTIZED, FP8, known=frozenset({"joined-fp8-scales"})),
    "vllm-joined-inputs": Case("different input_scale", FP8, QUANTIZED, FP8,
                                 known=frozenset({"joined-input-scales"})),
    "vllm-modelopt": Case("INT4_AWQ", modelopt("INT4_AWQ"), QUANTIZED, modelopt("FP8", "F8_E4M3")),
    "vllm-kernel-cpu": Case("INT4 weights with FP8 activations", fp8_inputs, QUANTIZED, compressed, spec=":cpu"),
    "vllm-kernel": Case("INT4 weights with FP8 activations on b200", fp8_inputs, QUANTIZED, compressed, spec=":b200"),
    "vllm-quant-method": Case("no quant_method", declaring(quant_method=None), QUANTIZED, compressed),
    "vllm-quark-export": Case("no export", without_export(quark(group_size=32)), QUANTIZED, quark(group_size=32)),
    "vllm-compressed-variant": Case("sparsity_config, actorder: group", reordered, QUANTIZED, compressed),
    "vllm-scales": Case("has 1 scales for", grouped, QUANTIZED, compressed),
    "vllm-packed-undeclared": Case("quantization_config", lambda v: v.pack("mlp."), QUANTIZED, compressed),
    "vllm-scales-missing": Case("layers.0.mlp.down_proj.weight_scale", lambda v: FP8(v).drop("down_proj.weight_scale"),
                                QUANTIZED, FP8),
    "vllm-missing-tensor": Case("layers.0.hidden_norm.weight", lambda v: v.drop("hidden_norm")),
    "vllm-later-norm": Case("layers.1.hidden_norm.weight",
                            lambda v: v.rename(lambda n: n.replace("1.input_layernorm", "1.hidden_norm")),
                            FACTS["llama, two layers"]),
    "vllm-d2t-missing": Case("smaller than", lambda v: v.drop("d2t"), FACTS["llama, reduced vocabulary"]),
    "vllm-head-missing": Case("40", lambda v: v.drop("lm_head"), FACTS["llama, reduced vocabulary"]),
    "vllm-bias-dropped": Case("midlayer.self_attn.q_proj.bias", lambda v: v.set(attention_bias=False),
                              FACTS["gqa with q/k/v biases"]),
    "vllm-bias-half": Case("o_proj.bias", lambda v: v.drop("o_proj.bias"), FACTS["gqa with q/k/v biases"]),
    "vllm-taps": Case("captures [2, 4, 5], trained on [2, 3, 6]",
                      lambda v: v.unset(IDS).nest(**{IDS: [2, 3, 6]}), LAYERS),
    "vllm-taps-v1": Case("captures [1, 3, 4], trained on [2, 4, 5]", lambda v: v.nest(**{IDS: [1, 3, 4]})),
    "vllm-last-state": Case("use_aux_hidden_state", lambda v: v.nest(use_aux_hidden_state=False)),
    "vllm-norm-output": Case("built as pre-norm, trained as post-norm", lambda v: v.unset("norm_output"), POST_NORM),
    "vllm-eagle31": Case("norm_output", facts=POST_NORM, spec="@0.21", good_spec="@0.22"),
    "vllm-fusion": Case("built as plain, trained as norm_before_fc",
                        lambda v: v.set(norm_before_fc=False).nest(norm_before_fc=False),
                        FACTS["llama, norm_before_fc"]),
    "vllm-mla-fc-norm": Case("fc_norm", facts=FACTS["mla 3.1"], spec="@0.22", good_spec="@0.23"),
    "vllm-residual": Case("built as False, trained as True", lambda v: v.unset("norm_before_residual"),
                          FACTS["llama, normed residual"]),
    "vllm-rope": Case("theta", lambda v: v.unset("rope_parameters").set(rope_theta=1e6)),
    "vllm-attention-factor": Case("1.0", facts=vary(MLA, rope=FACTOR_ONE), good_facts=FACTS["mla, yarn"]),
    "vllm-indexer": Case("2048", lambda v: v.set(index_topk=2048), MLA),
    "vllm-causal": Case("is_causal", lambda v: v.set(is_causal=False)),
    "vllm-eps": Case("1e-06", lambda v: v.set(rms_norm_eps=1e-6)),
    "vllm-window": Case("64", lambda v: v.unset("layer_types"), FACTS["gqa with q/k norms and a window"]),
    "vllm-vocab": Case("vocab_size 160", target=vary_target(LLAMA_TARGET, vocab=170), good_target=LLAMA_TARGET),
    "vllm-taps-undecided": Case("--aux-convention", facts=vary(LLAMA, boundaries=AuxLayers.UNKNOWN), good_facts=LLAMA),
    "vllm-taps-fallback": Case("captures [1, 3, 4], trained on [2, 4, 5]", lambda v: v.nest(**{IDS: [1, 3, 4]}),
                               spec=":b200"),
    "vllm-positions": Case("8192, llama-test has 131072", facts=FACTS["llama, yarn"],
                           target=vary_target(LLAMA_TARGET, max_positions=131072), good_target=LLAMA_TARGET),
    "vllm-speculators-keys": Case("num_aux_hidden_states", lambda v: speculators(v).set(num_aux_hidden_states=3),
                                  good=speculators),
    "vllm-norm-switches": Case("use_last_layernorm: false", lambda v: v.nest(use_last_layernorm=False)),
    "vllm-double-norm": Case("hidden_norm", facts=vary(LLAMA, double_norm=True), good_facts=LLAMA),
    "vllm-not-excluded": Case("model.fc (targets: Linear)", ignoring("fc", "lm_head"), QUANTIZED, compressed),
    "vllm-excluded": Case("model.layers.8.mlp.down_proj (ignore: re:.*down_proj)", ignoring("re:.*down_proj", FC),
                          QUANTIZED, compressed),
    "vllm-lists": Case("( is no regular expression", ignoring("re:(", FC), QUANTIZED, compressed),
    "vllm-torn": Case("model.layers.8.self_attn.qkv_proj", lambda v: compressed(v).pack_not("k_proj"), QUANTIZED,
                      compressed),
    "vllm-cast": Case("model.fc (global_quant_config)", quark("int8", exclude=("*fc", "*lm_head")), INT8,
                      quark("int8")),
    "vllm-names-undecided": Case(
        "model.layers.61.mlp.down_proj", ignoring("model.layers.61.mlp.down_proj", FC), QUANTIZED_AT,
        compressed, target="none"),
    "vllm-pattern-undecided": Case("(.*)*fc", ignoring("re:(.*)*fc", "lm_head"), QUANTIZED, compressed),
}  # fmt: skip


def tensor_fp8(strategy: str) -> FakeView:
    """FP8 as compressed-tensors declares it, under one scale or one per row, activations scaled as they come."""
    kind = {"num_bits": 8, "type": "float", "strategy": strategy, "dynamic": False}
    groups = {"group_0": {"targets": ["Linear"], "weights": kind, "input_activations": {**kind, "dynamic": True}}}
    return DYNAMIC_FP8(written(QUANTIZED, "vllm")).set(quantization_config={**SCALING, "config_groups": groups})


@pytest.mark.parametrize(
    ("strategy", "spec", "told"),
    [("tensor", ":cpu", True), ("channel", ":cpu", False), ("tensor", ":h200", False)],
)
def test_one_fp8_scale_stops_a_cpu(strategy: str, spec: str, told: bool) -> None:
    verdict = judged("vllm", tensor_fp8(strategy), QUANTIZED, LLAMA_TARGET, spec)
    assert ("vllm-tensor-fp8-cpu" in {line.rule.code for line in verdict.lines}) is told


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == {rule.code for rule in RULES}


@pytest.mark.parametrize("code", CASES)
def test_rule(code: str) -> None:
    assert_case("vllm", code, CASES[code])


def codes(view: FakeView, facts: object = LLAMA, target: object = LLAMA_TARGET, spec: str = "") -> set[str]:
    return {line.rule.code for line in judged("vllm", view, facts, target, spec).lines}  # type: ignore[arg-type]


GOOD = written(LLAMA, "vllm", LLAMA_TARGET)


@pytest.mark.parametrize(
    ("change", "facts", "refusing"),
    [
        (fp8_inputs, QUANTIZED, {"cpu", "b200", "mi325x"}),
        (modelopt("NVFP4", "U8"), QUANTIZED, {"cpu"}),
        (compressed, QUANTIZED, set()),
    ],
)
def test_hardware_without_a_kernel(change: Callable[[FakeView], FakeView], facts: Facts, refusing: set[str]) -> None:
    kernels = {"vllm-kernel", "vllm-kernel-cpu"}
    for hardware in ("cpu", "h200", "b200", "mi325x"):
        found = codes(change(GOOD), facts, spec=f":{hardware}") & kernels
        assert bool(found) is (hardware in refusing), hardware
    assert not codes(change(GOOD), facts) & kernels  # no hardware is named


def test_static_fp8_of_mla_runs_on_a_cpu() -> None:
    facts = vary(MLA, quantization="fp8")
    view = FP8(written(facts, "vllm", KIMI_TARGET))
    assert "vllm-static-fp8-cpu" not in codes(view, facts, KIMI_TARGET, ":cpu")


class TestNames:
    @pytest.mark.parametrize("spelling", ["layers.0.", "midlayer."])
    def test_both_prefixes_of_the_first_layer(self, spelling: str) -> None:
        view = replace(GOOD, tensors={n.replace("midlayer.", spelling): ref for n, ref in GOOD.tensors.items()})
        assert codes(view) == set()

    def test_fused_projections(self) -> None:
        view = GOOD.drop("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
        view = view.put("midlayer.self_attn.qkv_proj.weight", 48, 32).put("midlayer.mlp.gate_up_proj.weight", 48, 16)
        assert codes(view) == set()

    @pytest.mark.parametrize("name", ["model.d2t", "model.lm_head.weight", "model.norm.weight"])
    def test_prefixed_extras_are_fatal(self, name: str) -> None:
        assert codes(GOOD.put(name, 3)) == {"vllm-prefix"}

    @pytest.mark.parametrize(
        "name", ["t2d", "midlayer.self_attn.rotary_emb.inv_freq", "mask_hidden", "input_norm.weight"]
    )
    def test_skipped_in_silence(self, name: str) -> None:
        assert codes(GOOD.put(name, 3)) == set()

    def test_input_norm_is_fatal_for_mla(self) -> None:
        view = written(MLA, "vllm", KIMI_TARGET).put("input_norm.weight", 3 * H)
        assert codes(view, MLA, KIMI_TARGET) == {"vllm-unknown-tensor"}

    def test_norm_of_later_layers_is_input_layernorm(self) -> None:
        facts = FACTS["llama, two layers"]
        view = written(facts, "vllm", LLAMA_TARGET)
        assert codes(view.put("layers.1.hidden_norm.weight", H), facts) == set()
        renamed = view.rename(lambda n: n.replace("layers.1.input_layernorm", "layers.1.hidden_norm"))
        assert codes(renamed, facts) == {"vllm-later-norm"}

    def test_embedding_of_another_width_cannot_be_lent(self) -> None:
        facts = FACTS["llama, wide target"]
        target = vary_target(LLAMA_TARGET, hidden=24)
        view = written(facts, "vllm", target).drop("embed_tokens")
        assert codes(view, facts, target) == {"vllm-missing-tensor"}

    def test_embedding_has_vocab_size_rows(self) -> None:
        facts = FACTS["llama with its own embedding"]
        view = written(facts, "vllm", LLAMA_TARGET).drop("embed_tokens").put("embed_tokens.weight", V + 8, H)
        assert codes(view, facts) == {"vllm-shape"}

    def test_a_quantized_head_does_not_load_beside_mla(self) -> None:
        facts = vary(MLA, quantization="int4")
        view = compressed(written(facts, "vllm", KIMI_TARGET)).pack("lm_head")
        assert "vllm-unknown-tensor" in codes(view, facts, KIMI_TARGET)

    def test_packed_weights_count_as_present(self) -> None:
        facts = vary(LLAMA, quantization="int4")
        view = compressed(GOOD)
        assert codes(view, facts) == set()
        assert codes(view.drop("down_proj"), facts) == {"vllm-missing-tensor"}


class TestShapes:
    """Loaders take the part of a parallel layer that belongs to their rank; on one rank the first rows or columns."""

    @pytest.mark.parametrize(
        ("keys", "broken"),
        [
            ({"intermediate_size": 8}, {"vllm-cut"}),
            ({"intermediate_size": 32}, {"vllm-shape"}),
            ({"num_key_value_heads": 2}, {"vllm-cut"}),
            ({"head_dim": 2}, {"vllm-cut"}),
            ({"head_dim": 8}, {"vllm-shape"}),
            ({"num_aux_hidden_states": 2}, {"vllm-shape", "vllm-aux-count"}),  # fc is whole on every rank
        ],
    )
    def test_llama(self, keys: dict[str, object], broken: set[str]) -> None:
        assert codes(GOOD.set(**keys)) == broken

    @pytest.mark.parametrize(
        ("keys", "broken"),
        [
            ({"num_attention_heads": 2}, {"vllm-cut"}),
            ({"q_lora_rank": 8}, {"vllm-cut", "vllm-shape"}),  # its norm does not fit
        ],
    )
    def test_mla(self, keys: dict[str, object], broken: set[str]) -> None:
        assert codes(written(MLA, "vllm", KIMI_TARGET).set(**keys), MLA, KIMI_TARGET) == broken


class TestConfigs:
    def test_llama_class_has_a_window_too(self) -> None:
        facts = vary(LLAMA, window=64)
        view = GOOD.set(sliding_window=64, layer_types=["sliding_attention"])
        assert codes(view, facts) == set()
        assert codes(view) == {"vllm-window"}

    def test_transformers_forgets_a_width_that_is_not_in_use(self) -> None:
        """Its Qwen3Config does; a speculators config is read as it stands."""
        facts = FACTS["gqa with q/k norms and a window"]
        good = written(facts, "vllm", LLAMA_TARGET)
        assert codes(good, facts) == set()
        for forgotten in (good.unset("use_sliding_window"), good.set(use_sliding_window=False)):
            assert codes(forgotten, facts) == {"vllm-window"}
        theirs = written(facts, "speculators", LLAMA_TARGET)
        inner = dict(Config(theirs.config).section("transformer_layer_config").data) | {"use_sliding_window": False}
        assert codes(theirs.set(transformer_layer_config=inner), facts) == codes(theirs, facts) == set()

    @pytest.mark.parametrize("key", ["max_position_embeddings", "mlp_bias", "attention_bias"])
    def test_nulls_of_a_llama_config(self, key: str) -> None:
        assert codes(GOOD.set(**{key: None})) == {"vllm-null"}
        assert codes(GOOD.set(pad_token_id=None, rope_scaling=None)) == set()

    @pytest.mark.parametrize(("key", "broken"), [("max_position_embeddings", {"vllm-null"}), ("mlp_bias", set())])
    def test_nulls_of_a_deepseek_config(self, key: str, broken: set[str]) -> None:
        assert codes(written(MLA, "vllm", KIMI_TARGET).set(**{key: None}), MLA, KIMI_TARGET) == broken

    def test_kimi_linear_has_the_interface_but_on_amd(self) -> None:
        target = vary_target(LLAMA_TARGET, model_type="kimi_linear")
        assert codes(GOOD, target=target) == set()
        assert codes(GOOD, target=target, spec=":mi325x") == {"vllm-target"}

    def test_the_head_is_compared_with_the_target(self) -> None:
        view = GOOD.put("d2t", V, dtype="I64")
        assert codes(view, target=vary_target(LLAMA_TARGET, vocab=V + 8)) == {"vllm-vocab"}
        assert codes(view) == {"vllm-d2t-full"}

    def test_speculators_import_defaults_the_residual_to_normed(self) -> None:
        view = speculators(GOOD)
        assert codes(view) == set()
        assert codes(view.unset("norm_before_residual")) == {"vllm-residual"}

    def test_speculators_import_drops_the_width_of_fc(self) -> None:
        facts = FACTS["llama, four states"]
        whole = written(facts, "vllm", LLAMA_TARGET)
        view = speculators(whole).set(**{IDS: [2, 3, 5, 6]}, num_aux_hidden_states=4)
        assert {"vllm-shape", "vllm-speculators-keys"} <= codes(view, facts)
        inner = {**speculators(whole).config["transformer_layer_config"], "num_aux_hidden_states": 4}  # type: ignore[dict-item]
        assert codes(view.unset("num_aux_hidden_states").set(transformer_layer_config=inner), facts) == set()

    def test_speculators_import_has_no_mla(self) -> None:
        view = speculators(GOOD)
        inner = {**view.config["transformer_layer_config"], "model_type": "kimi_k2"}  # type: ignore[dict-item]
        lines = judged("vllm", view.set(transformer_layer_config=inner), LLAMA, LLAMA_TARGET).lines
        assert [line.detail for line in lines if line.rule.code == "vllm-architecture"] == [
            "speculators config with transformer_layer_config.model_type: kimi_k2"
        ]

    def test_a_speculators_config_with_model_type_is_not_imported(self) -> None:
        view = GOOD.set(speculators_config={}, architectures=["Eagle3Speculator"])
        assert "vllm-architecture" in codes(view)

    @pytest.mark.parametrize(
        ("outer", "architecture", "broken"),
        [
            ({"method": "eagle3"}, "LlamaForCausalLM", set()),
            ({"method": "eagle3"}, "LlamaForCausalLMEagle3", set()),
            ({}, "Eagle3LlamaForCausalLM", set()),
            ({}, "LlamaForCausalLMEagle3", {"vllm-architecture"}),  # becomes EagleLlamaForCausalLMEagle3
            ({}, "LlamaForCausalLM", {"vllm-architecture"}),  # becomes EAGLE-1's class
            ({"architectures": ["Eagle3LlamaForCausalLM"]}, "LlamaForCausalLM", {"vllm-architecture"}),  # not read
        ],
    )
    def test_legacy_wrapper(self, outer: dict[str, object], architecture: str, broken: set[str]) -> None:
        inner = {**GOOD.config, "architectures": [architecture]}
        assert codes(replace(GOOD, config={"model_type": "eagle", **outer, "model": inner})) == broken

    def test_null_draft_vocabulary_is_the_whole(self) -> None:
        assert codes(GOOD.set(draft_vocab_size=None)) == set()

    def test_absent_query_rank_is_1536(self) -> None:
        view = written(MLA, "vllm", KIMI_TARGET).unset("q_lora_rank")
        (line,) = judged("vllm", view, MLA, KIMI_TARGET).lines
        assert line.rule.code == "vllm-shape"
        assert "1536" in line.detail

    def test_absent_layer_count_is_32(self) -> None:
        assert codes(GOOD.unset("num_hidden_layers")) == {"vllm-missing-tensor"}

    def test_bias_key_builds_the_bias_of_o_alone(self) -> None:
        (line,) = judged("vllm", GOOD.set(bias=True), LLAMA, LLAMA_TARGET).lines
        assert (line.rule.code, line.detail) == ("vllm-bias-half", "layers.0.self_attn.o_proj.bias")

    def test_mla_ignores_use_aux_hidden_state(self) -> None:
        view = written(MLA, "vllm", KIMI_TARGET).nest(use_aux_hidden_state=False)
        assert codes(view, MLA, KIMI_TARGET) == set()

    def test_half_split_mla_is_rotated_in_pairs(self) -> None:
        facts = FACTS["mla, half-split rope"]
        assert codes(written(facts, "vllm", KIMI_TARGET), facts, KIMI_TARGET) == {"vllm-rope"}

    def test_qwen3_class_sizes_fc_by_its_own_keys(self) -> None:
        facts = vary(FACTS["llama, four states"], attention=Gqa(4, 2, 8, qk_norm=True))
        view = written(facts, "vllm", LLAMA_TARGET).unset("num_aux_hidden_states")
        assert codes(view, facts) == set()
        assert "vllm-shape" in codes(view.set(num_aux_layers=3), facts)


class TestAuxLayers:
    def test_v2_falls_back_to_layer_ids(self) -> None:
        facts = FACTS["llama, layers given"]
        view = written(facts, "vllm", LLAMA_TARGET).unset(IDS).nest(**{IDS: [2, 3, 6], "layer_ids": [2, 3, 6]})
        assert codes(view, facts) == set()

    def test_cpu_has_v1_only(self) -> None:
        facts = FACTS["llama, layers given"]
        view = written(facts, "vllm", LLAMA_TARGET).unset(IDS).nest(**{IDS: [2, 3, 6]})
        assert codes(view, facts, spec=":cpu") == set()
        assert codes(view, facts) == {"vllm-taps"}

    def test_v1_is_a_fallback_on_gpus_since_0_33(self) -> None:
        view = written(LLAMA, "vllm", LLAMA_TARGET).nest(**{IDS: [1, 3, 4]})
        assert codes(view, spec=":h200") == {"vllm-taps-fallback"}
        assert codes(view, spec="@0.22:h200") == {"vllm-taps-v1"}

    def test_after_ids_of_a_trainer_are_one_layer_early(self) -> None:
        facts = vary(LLAMA, boundaries=(2, 4, 5))
        view = written(facts, "vllm", LLAMA_TARGET).set(**{IDS: [1, 3, 4]})
        assert codes(view, facts) == {"vllm-taps", "vllm-taps-v1"}

    def test_the_last_boundary_is_captured(self) -> None:
        facts = FACTS["llama, last boundary"]
        assert codes(written(facts, "vllm", LLAMA_TARGET), facts) == set()

    def test_ids_beyond_the_target_leave_fc_short(self) -> None:
        facts = vary(LLAMA, boundaries=(2, 4, 9))
        assert codes(written(facts, "vllm"), facts) == {"vllm-aux-count"}

    def test_default_triple_of_six_layers_repeats_one(self) -> None:
        small = vary_target(LLAMA_TARGET, layers=6)
        assert codes(written(LLAMA, "vllm", small), LLAMA, small) == {"vllm-aux-count"}

    def test_ids_without_target_decide_against_the_default(self) -> None:
        view = written(FACTS["llama, layers given"], "vllm")
        assert codes(view, FACTS["llama, layers given"], None) == set()
        assert codes(view, LLAMA, None) == {"vllm-taps-undecided"}


class TestVersions:
    @pytest.mark.parametrize(
        ("spec", "broken"),
        [
            ("@0.21", {"vllm-fc-norm-unflagged", "vllm-eagle31", "vllm-fusion"}),
            ("@0.22", set()),
            ("@0.22.1", set()),
            ("@0.33", set()),
            ("@0.33.0", set()),
        ],
    )
    def test_eagle31(self, spec: str, broken: set[str]) -> None:
        facts = FACTS["llama 3.1"]
        assert codes(written(facts, "vllm", LLAMA_TARGET), facts, spec=spec) == broken

    @pytest.mark.parametrize(("spec", "broken"), [("@0.22", {"vllm-mla-fc-norm"}), ("@0.33", set())])
    def test_mla_eagle31(self, spec: str, broken: set[str]) -> None:
        facts = FACTS["mla 3.1"]
        assert codes(written(facts, "vllm", KIMI_TARGET), facts, KIMI_TARGET, spec) == broken
