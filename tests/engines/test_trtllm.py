"""Every rule of TensorRT-LLM, broken alone; names of the two copies that were read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftconv.drafter.facts import AuxLayers, Facts, Gqa, Rope
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.trtllm import RULES
from tests.engines.cases import (
    KEPT,
    LATENT_NAMES,
    PARTS,
    Case,
    Change,
    assert_case,
    compressed,
    judged,
    modelopt,
    quark,
    vary_target,
)
from tests.engines.views import (
    FACTS,
    KIMI_TARGET,
    LLAMA,
    LLAMA_TARGET,
    MLA,
    FakeView,
    File,
    H,
    V,
    vary,
    written,
)

REDUCED = FACTS["llama, reduced vocabulary"]
EMBEDDED = FACTS["llama with its own embedding"]
TWO = FACTS["llama, two layers"]
QUANTIZED = vary(LLAMA, quantization="int4")
FP8 = modelopt("FP8", "F8_E4M3")
NVFP4 = modelopt("NVFP4")
BIASED = FACTS["gqa with q/k/v biases"]
EVERYTHING = ("lm_head", "model*")


def layers_0(view: FakeView) -> FakeView:
    return view.rename(lambda n: n.replace("midlayer.", "layers.0."))


def in_files(*names: str) -> Change:
    return lambda view: replace(view, files=tuple(File(name) for name in names))


CASES = {
    "trtllm-safetensors": Case("pytorch_model.bin", in_files("config.json", "pytorch_model.bin"),
                               good=in_files("model.safetensors", "optimizer.pt")),
    "trtllm-architectures": Case("[]", lambda v: v.set(architectures=[])),
    "trtllm-model-type": Case("no model_type (a speculators config)",
                              lambda v: v.unset("model_type").set(speculators_config={})),
    "trtllm-null": Case("target_hidden_size: null", lambda v: v.set(target_hidden_size=None)),
    "trtllm-dtype": Case("torch_dtype", lambda v: v.unset("torch_dtype"),
                         good=lambda v: v.unset("torch_dtype").set(dtype="bfloat16")),
    "trtllm-draft-vocab": Case("absent", lambda v: v.unset("draft_vocab_size"), spec="@1.2"),
    "trtllm-class": Case("kv_lora_rank: 512", lambda v: v.set(kv_lora_rank=512),
                         good=lambda v: v.set(kv_lora_rank=0)),
    "trtllm-prefix": Case("model.fc.weight", lambda v: v.rename(lambda n: f"model.{n}")),
    "trtllm-old-names": Case("layers.0.", layers_0, spec="@1.2", good_spec="@1.3", good=layers_0),
    "trtllm-layer-names": Case("midlayer.0.", lambda v: v.rename(lambda n: n.replace("midlayer.", "midlayer.0."))),
    "trtllm-fused": Case("qkv_proj", lambda v: v.drop("q_proj", "k_proj", "v_proj")
                         .put("midlayer.self_attn.qkv_proj.weight", 48, 32)),
    "trtllm-missing-part": Case("layers.0.self_attn.k_proj.weight", lambda v: v.drop("k_proj")),
    "trtllm-missing-mla": Case("layers.0.hidden_norm.weight", lambda v: v.drop("hidden_norm"), MLA),
    "trtllm-d2t-missing": Case("smaller than", lambda v: v.drop("d2t"), REDUCED),
    "trtllm-head-missing": Case("40", lambda v: v.drop("lm_head"), REDUCED),
    "trtllm-shape": Case("built as [32, 16]", lambda v: v.set(intermediate_size=32)),
    "trtllm-target-width": Case("are 32", target=vary_target(LLAMA_TARGET, hidden=32), good_target=LLAMA_TARGET),
    "trtllm-plain-query": Case("q_lora_rank", lambda v: v.set(q_lora_rank=None), FACTS["mla, plain query"],
                               good_facts=MLA),
    "trtllm-reduced-mla": Case("40 of 160", facts=FACTS["mla, reduced vocabulary"], good_facts=MLA),
    "trtllm-next-layer": Case("next_layer_regular", lambda v: v.nest(next_layer_regular=False), TWO),
    "trtllm-zero-boundary": Case("[0, 3, 6]", facts=FACTS["llama, layers given"], truth={"boundaries": (0, 3, 6)}),
    "trtllm-quant-method": Case("quark", quark(), QUANTIZED, FP8),
    "trtllm-compressed-integers": Case("4-bit", compressed, QUANTIZED, FP8),
    "trtllm-algorithm": Case("W8A8_SQ", modelopt("W8A8_SQ_PER_CHANNEL"), QUANTIZED, FP8),
    "trtllm-awq-parts": Case("down_proj.pre_quant_scale", lambda v: modelopt("W4A16_AWQ")(v).drop(
        "down_proj.pre_quant_scale"), QUANTIZED, modelopt("W4A16_AWQ")),
    "trtllm-excluded": Case("model*", modelopt("W4A16_AWQ", exclude=EVERYTHING), QUANTIZED, modelopt("W4A16_AWQ")),
    "trtllm-joined-scales": Case("different weight_scale_2", NVFP4, QUANTIZED, NVFP4,
                                 known=frozenset({"joined-weight-scales"})),
    "trtllm-joined-fp8": Case("different scales", FP8, QUANTIZED, FP8, known=frozenset({"joined-fp8-scales"})),
    "trtllm-joined-inputs": Case("different input_scale", FP8, QUANTIZED, FP8,
                                 known=frozenset({"joined-input-scales"})),
    "trtllm-joined-smoothing": Case("pre_quant_scale", modelopt("W4A16_AWQ"), QUANTIZED, modelopt("W4A16_AWQ"),
                                    known=frozenset({"joined-smoothing"})),
    "trtllm-latent-quantized": Case("kv_b_proj", lambda v: FP8(v).retype("F8_E4M3", "kv_b_proj"),
                                    vary(MLA, quantization="fp8"), FP8, also=frozenset({"trtllm-excluded-fp8"})),
    "trtllm-packed-undeclared": Case("packed weights", lambda v: v.pack("mlp."), QUANTIZED, FP8),
    "trtllm-scales-missing": Case("layers.0.mlp.down_proj.weight_scale", lambda v: FP8(v).drop(
        "down_proj.weight_scale"), QUANTIZED, lambda v: FP8(v).drop("input_scale")),
    "trtllm-missing-tensor": Case("layers.0.self_attn.o_proj.weight", lambda v: v.drop("o_proj")),
    "trtllm-dropped": Case("midlayer.1.", lambda v: v.set(num_hidden_layers=1), TWO,
                           also=frozenset({"trtllm-layer-names"})),
    "trtllm-later-norm": Case("midlayer.1.input_layernorm.weight",
                              lambda v: v.rename(lambda n: n.replace("1.hidden_norm", "1.input_layernorm")), TWO),
    "trtllm-attention-bias": Case("q_proj.bias", lambda v: v.set(attention_bias=False), BIASED),
    "trtllm-bias-half": Case("o_proj.bias", lambda v: v.drop("o_proj.bias"), BIASED),
    "trtllm-mlp-bias": Case("mlp.gate_proj.bias", lambda v: v.set(mlp_bias=False), FACTS["llama, mlp bias"]),
    "trtllm-fc-bias": Case("fc.bias", lambda v: v.unset("bias"), FACTS["llama, fc bias"]),
    "trtllm-qk-norm": Case("q_norm", facts=FACTS["gqa with q/k norms"], good_facts=LLAMA),
    "trtllm-tied": Case("tie_word_embeddings", lambda v: v.set(tie_word_embeddings=True)),
    "trtllm-embedding-lost": Case("differs", facts=EMBEDDED, known=frozenset({"embedding-differs"})),
    "trtllm-norm-output": Case("built as pre-norm",
                               lambda v: v.unset("norm_output").nest(return_hidden_post_norm=False),
                               vary(LLAMA, feedback="post-norm"),
                               good=lambda v: v.nest(return_hidden_post_norm=False)),
    "trtllm-fusion": Case("built as plain, trained as norm_before_fc", lambda v: v.nest(norm_before_fc=False),
                          FACTS["llama, norm_before_fc"]),
    "trtllm-residual": Case("built as False", facts=FACTS["llama, normed residual"], good_facts=LLAMA),
    "trtllm-rope": Case("theta: built as 10000.0, trained as 50000.0", lambda v: v.unset("rope_theta"),
                        vary(LLAMA, rope=Rope(50000.0, "halves"))),
    "trtllm-eps": Case("1e-06", lambda v: v.set(rms_norm_eps=1e-6)),
    "trtllm-window": Case("64", facts=vary(LLAMA, window=64), good_facts=LLAMA),
    "trtllm-activation": Case("gelu", lambda v: v.set(hidden_act="gelu")),
    "trtllm-vocab": Case("vocab_size 160", target=vary_target(LLAMA_TARGET, vocab=170), good_target=LLAMA_TARGET),
    "trtllm-excluded-fp8": Case("model*", modelopt("FP8", "F8_E4M3", EVERYTHING), QUANTIZED, FP8),
    "trtllm-taps-unknown": Case("--aux-convention", facts=vary(LLAMA, boundaries=AuxLayers.UNKNOWN), good_facts=LLAMA),
    "trtllm-model-type-unknown": Case("strange", lambda v: v.set(model_type="strange")),
    "trtllm-draft-vocab-null": Case("null", lambda v: v.set(draft_vocab_size=None)),
    "trtllm-mla-norm-before-fc": Case("norm_before_fc", facts=FACTS["mla, norm_before_fc"], good_facts=MLA),
    "trtllm-taps": Case("eagle3_layers_to_capture: [1, 2, 5]", facts=FACTS["llama, layers given"], good_facts=LLAMA),
    "trtllm-embedding": Case("embed_tokens", facts=EMBEDDED, good_facts=LLAMA),
    "trtllm-ignored": Case("verifier_norm.weight", lambda v: v.put("verifier_norm.weight", H)),
    "trtllm-gqa-on-mla": Case("kimi-test", target=KIMI_TARGET, good_target=LLAMA_TARGET),
    "trtllm-mla-eagle31": Case("MLA", facts=FACTS["mla 3.1"], good_facts=FACTS["llama 3.1"]),
    "trtllm-auto-map": Case("auto_map", lambda v: v.set(auto_map={"AutoModel": "modeling.Drafter"})),
    "trtllm-layers": Case("layers.0.", layers_0),
    "trtllm-yarn": Case("64", facts=FACTS["llama, yarn"], good_facts=FACTS["mla, yarn"]),
    "trtllm-attention-bias-absent": Case("mistral", lambda v: v.unset("attention_bias").set(model_type="mistral")),
    "trtllm-positions": Case("131072", target=vary_target(LLAMA_TARGET, max_positions=131072),
                             good_target=LLAMA_TARGET),
    "trtllm-norm-switches": Case("use_last_layernorm: false", lambda v: v.nest(use_last_layernorm=False)),
    "trtllm-double-norm": Case("hidden_norm", facts=vary(LLAMA, double_norm=True), good_facts=LLAMA),
    "trtllm-not-excluded": Case("model.fc (nothing excludes it)", modelopt("FP8", "F8_E4M3", ("lm_head", "fc")),
                                QUANTIZED, FP8),
    "trtllm-torn": Case("model.midlayer.self_attn.qkv_proj",
                        lambda v: FP8(v).put("midlayer.self_attn.k_proj.weight", 16, 32), QUANTIZED, FP8),
    "trtllm-names-undecided": Case("the pattern (.*)*fc is not tried",
                                   modelopt("FP8", "F8_E4M3", ("lm_head", "re:(.*)*fc")), QUANTIZED, FP8),
}  # fmt: skip


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == {rule.code for rule in RULES}


@pytest.mark.parametrize("code", CASES)
def test_rule(code: str) -> None:
    assert_case("trtllm", code, CASES[code])


@pytest.mark.parametrize("algorithm", ["NVFP4", "W4A8_AWQ"])
@pytest.mark.parametrize("code", ["joined-weight-scales", "joined-input-scales"])
def test_four_bit_weights_must_share_both_scales(algorithm: str, code: str) -> None:
    view = modelopt(algorithm)(written(QUANTIZED, "trtllm", LLAMA_TARGET))
    verdict = ENGINES["trtllm"].check(view, QUANTIZED, LLAMA_TARGET, parse_engine("trtllm"), frozenset({code}))
    assert [line.rule.code for line in verdict.lines] == ["trtllm-joined-scales"]


def test_nothing_was_run() -> None:
    assert {rule.evidence for rule in RULES} <= {"read", "inferred"}


def codes(view: FakeView, facts: Facts = LLAMA, target: Target | None = LLAMA_TARGET, spec: str = "") -> set[str]:
    return {line.rule.code for line in judged("trtllm", view, facts, target, spec).lines}


GOOD = written(LLAMA, "trtllm", LLAMA_TARGET)


class TestNames:
    @pytest.mark.parametrize("spec", ["@1.2", "@1.3"])
    def test_midlayer_is_read_by_both(self, spec: str) -> None:
        assert codes(GOOD, spec=spec) == set()

    def test_layers_of_several(self) -> None:
        view = written(TWO, "trtllm", LLAMA_TARGET).rename(lambda n: n.replace("midlayer.", "layers."))
        assert codes(view, TWO) == {"trtllm-layers"}
        assert codes(view, TWO, spec="@1.2") == {"trtllm-old-names"}

    def test_a_bare_midlayer_among_several(self) -> None:
        view = written(TWO, "trtllm", LLAMA_TARGET).rename(lambda n: n.replace("midlayer.0.", "midlayer."))
        assert codes(view, TWO) == {"trtllm-layer-names"}

    def test_an_embedding_of_another_width_is_needed(self) -> None:
        facts = FACTS["llama, wide target"]
        target = vary_target(LLAMA_TARGET, hidden=24)
        view = written(facts, "trtllm", target)
        assert codes(view, facts, target) == set()
        assert codes(view.drop("embed_tokens"), facts, target) == {"trtllm-missing-tensor"}

    @pytest.mark.parametrize("name", ["t2d", "d2t", "midlayer.self_attn.rotary_emb.inv_freq", "embed_tokens.weight"])
    def test_ignored_in_silence(self, name: str) -> None:
        assert codes(GOOD.put(name, V)) == set()

    def test_a_missing_latent_projection_is_a_key_error(self) -> None:
        view = written(MLA, "trtllm", KIMI_TARGET).drop("q_a_proj")
        assert codes(view, MLA, KIMI_TARGET) == {"trtllm-missing-mla"}

    def test_an_mla_drafter_needs_kv_lora_rank(self) -> None:
        view = written(MLA, "trtllm", KIMI_TARGET).unset("kv_lora_rank")
        assert "trtllm-class" in codes(view, MLA, KIMI_TARGET)


class TestVersions:
    def test_eagle31_is_not_in_1_2(self) -> None:
        facts = FACTS["llama 3.1"]
        view = written(facts, "trtllm", LLAMA_TARGET)
        assert codes(view, facts, spec="@1.3") == set()
        assert codes(view, facts, spec="@1.2") == {"trtllm-fusion"}

    def test_post_norm_feedback_of_1_2_is_nested(self) -> None:
        facts = vary(LLAMA, feedback="post-norm")
        view = written(facts, "trtllm", LLAMA_TARGET)
        assert codes(view, facts, spec="@1.2") == set()
        assert codes(view.nest(return_hidden_post_norm=False), facts, spec="@1.2") == {"trtllm-norm-output"}

    def test_draft_vocab_defaults_since_1_3(self) -> None:
        assert codes(GOOD.unset("draft_vocab_size"), spec="@1.3") == set()


class TestConfigs:
    def test_fc_norm_wins_over_norm_before_fc(self) -> None:
        facts = vary(LLAMA, fusion="both")
        view = written(facts, "trtllm", LLAMA_TARGET).set(fc_norm=True).nest(norm_before_fc=True)
        (line,) = judged("trtllm", view, facts, LLAMA_TARGET).lines
        assert line.detail == "norm before fc: built as fc_norm, trained as both"

    def test_top_level_norm_before_fc_is_not_read(self) -> None:
        view = written(FACTS["llama, norm_before_fc"], "trtllm", LLAMA_TARGET).nest(norm_before_fc=None)
        assert codes(view, FACTS["llama, norm_before_fc"]) == {"trtllm-fusion"}

    def test_ids_of_the_checkpoint_are_not_read(self) -> None:
        key = "eagle_aux_hidden_state_layer_ids"
        assert codes(GOOD.set(**{key: [0, 1, 2]}).nest(**{key: [5, 6, 7]})) == set()

    def test_half_split_mla_is_rotated_in_pairs(self) -> None:
        facts = FACTS["mla, half-split rope"]
        assert codes(written(facts, "trtllm", KIMI_TARGET), facts, KIMI_TARGET) == {"trtllm-rope"}

    def test_without_a_target_explicit_layers_are_told(self) -> None:
        facts = FACTS["llama, layers given"]
        assert codes(written(facts, "trtllm"), facts, None) == {"trtllm-taps"}

    def test_block_fp8_may_hold_the_latent_projections(self) -> None:
        facts = vary(MLA, quantization="fp8")
        change = modelopt("FP8_BLOCK_SCALES", "F8_E4M3", latent=LATENT_NAMES[:3])
        view = change(written(facts, "trtllm", KIMI_TARGET)).retype("F8_E4M3", "kv_b_proj")
        assert codes(view, facts, KIMI_TARGET) == set()

    def test_compressed_tensors_of_floats_is_translated(self) -> None:
        weights = {"num_bits": 8, "type": "float"}
        groups = {"group_0": {"weights": weights, "input_activations": {"num_bits": 8, "type": "float"}}}
        config = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": KEPT}
        view = GOOD.retype("F8_E4M3", *PARTS).set(quantization_config=config)
        assert codes(view, QUANTIZED) == set()

    def test_qk_norms_have_no_place(self) -> None:
        facts = vary(LLAMA, attention=Gqa(4, 4, 4, qk_norm=True))
        assert codes(written(facts, "trtllm", LLAMA_TARGET), facts) == {"trtllm-qk-norm"}
