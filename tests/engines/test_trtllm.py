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
    Case,
    Change,
    assert_case,
    compressed,
    judged,
    modelopt,
    quark_fp8,
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
    I,
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


def beside(**section: object) -> Change:
    return lambda view: view.beside("hf_quant_config.json", {"quantization": section})


def rows(axes: int) -> Change:
    """FP8 with a scale per row, stored as `[rows]` or `[rows, 1]`."""

    def change(view: FakeView) -> FakeView:
        made = modelopt("FP8_PER_CHANNEL_PER_TOKEN", "F8_E4M3")(view)
        for name in [name for name in made.tensors if name.endswith(".weight_scale")]:
            weight = made.tensors[f"{name.removesuffix('_scale')}"]
            made = made.put(name, weight.shape[0], *((1,) if axes == 2 else ()), dtype="F32")
        return made

    return change


def in_files(*names: str) -> Change:
    return lambda view: replace(view, files=tuple(File(name) for name in names))


UNNAMED = modelopt("FP8", "F8_E4M3", ("model.fc",))
"""FP8, and nothing keeps the head."""

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
    "trtllm-prefix": Case("model.fc.weight", lambda v: v.rename(
        lambda n: n if "lm_head" in n else f"model.{n}")),
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
    "trtllm-quant-method": Case("quark", lambda v: compressed(v).set(quantization_config={"quant_method": "quark"}),
                                QUANTIZED, FP8, also=frozenset({"trtllm-excluded"})),
    "trtllm-compressed": Case("4-bit integers per channel", compressed, QUANTIZED, FP8),
    "trtllm-row-scales": Case("is [16, 1]", rows(2), QUANTIZED, rows(1)),
    "trtllm-mixed-empty": Case("no quantized_layers", beside(quant_algo="MIXED_PRECISION"),
                               good=beside(quant_algo="MIXED_PRECISION", quantized_layers={})),
    "trtllm-config-type": Case("mlp_bias: null", lambda v: v.set(mlp_bias=None)),
    "trtllm-rope-refused": Case("no factor of yarn", lambda v: v.set(rope_scaling={"rope_type": "yarn"}),
                                also=frozenset({"trtllm-rope"})),
    "trtllm-index": Case("no index_n_heads", lambda v: v.set(architectures=["DeepseekV32ForCausalLM"])),
    "trtllm-attention-bias-lacking": Case("qwen2", lambda v: v.unset("attention_bias").set(model_type="qwen2"),
                                          good=lambda v: v.unset("attention_bias")),
    "trtllm-fc-prefix": Case("fc.weight", lambda v: v.drop("fc.weight"), FACTS["llama 3.1"],
                             also=frozenset({"trtllm-missing-tensor"})),
    "trtllm-mla-heads": Case("num_key_value_heads 2", lambda v: v.set(num_key_value_heads=2), MLA),
    "trtllm-mla-input-norm": Case("no input_norm", lambda v: v.nest(norm_before_fc=True), FACTS["mla 3.1"]),
    "trtllm-eh-proj": Case("eh_proj_before_attn", lambda v: v.nest(eh_proj_before_attn=True)),
    "trtllm-boundary-twice": Case("[2, 2, 6]", facts=FACTS["llama, layers given"],
                                  truth={"boundaries": (2, 2, 6)}),
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
    "trtllm-bytes": Case("midlayer.mlp.down_proj.weight", lambda v: v.retype("F8_E4M3", "mlp."), QUANTIZED, FP8,
                         also=frozenset({"trtllm-uncovered"})),
    "trtllm-broadcast": Case("norm.weight is [1]", lambda v: v.put("norm.weight", 1)),
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
    "trtllm-rope": Case("theta: built as 10000.0, trained as 50000.0",
                        lambda v: v.unset("rope_theta", "rope_parameters"),
                        vary(LLAMA, rope=Rope(50000.0, "halves"))),
    "trtllm-eps": Case("1e-06", lambda v: v.set(rms_norm_eps=1e-6)),
    "trtllm-window": Case("64", facts=vary(LLAMA, window=64), good_facts=LLAMA),
    "trtllm-activation": Case("gelu", facts=vary(LLAMA, activation="gelu"), good=lambda v: v.set(hidden_act="gelu"),
                              good_facts=LLAMA),
    "trtllm-vocab": Case("vocab_size 160", target=vary_target(LLAMA_TARGET, vocab=170), good_target=LLAMA_TARGET),
    "trtllm-excluded-fp8": Case("model*", modelopt("FP8", "F8_E4M3", EVERYTHING), QUANTIZED, FP8),
    "trtllm-taps-unknown": Case("--aux-convention", facts=vary(LLAMA, boundaries=AuxLayers.UNKNOWN), good_facts=LLAMA),
    "trtllm-model-type-unknown": Case("strange", lambda v: v.set(model_type="strange")),
    "trtllm-head-scales": Case("lm_head.weight", lambda v: UNNAMED(v).retype("F8_E4M3", "lm_head.weight"), QUANTIZED,
                               FP8),
    "trtllm-draft-vocab-null": Case("null", lambda v: v.set(draft_vocab_size=None), spec="@1.2"),
    "trtllm-mla-norm-before-fc": Case("norm_before_fc", facts=FACTS["mla, norm_before_fc"], good_facts=MLA),
    "trtllm-taps": Case("eagle3_layers_to_capture: [1, 2, 5]", facts=FACTS["llama, layers given"], good_facts=LLAMA),
    "trtllm-embedding": Case("embed_tokens", facts=EMBEDDED, good_facts=LLAMA),
    "trtllm-ignored": Case("verifier_norm.weight", lambda v: v.put("verifier_norm.weight", H)),
    "trtllm-gqa-on-mla": Case("kimi-test", target=KIMI_TARGET, good_target=LLAMA_TARGET),
    "trtllm-mla-eagle31": Case("MLA", facts=FACTS["mla 3.1"], good_facts=FACTS["llama 3.1"]),
    "trtllm-auto-map": Case("auto_map", lambda v: v.set(auto_map={"AutoModel": "modeling.Drafter"})),
    "trtllm-layers": Case("layers.0.", layers_0),
    "trtllm-yarn": Case("64", facts=FACTS["llama, yarn"], good_facts=FACTS["mla, yarn"]),
    "trtllm-attention-bias-absent": Case("mixtral", lambda v: v.unset("attention_bias").set(model_type="mixtral")),
    "trtllm-positions": Case("131072", target=vary_target(LLAMA_TARGET, max_positions=131072),
                             good_target=LLAMA_TARGET),
    "trtllm-norm-switches": Case("use_last_layernorm: false", lambda v: v.nest(use_last_layernorm=False)),
    "trtllm-double-norm": Case("hidden_norm", facts=vary(LLAMA, double_norm=True), good_facts=LLAMA),
    "trtllm-not-excluded": Case("model.fc (nothing excludes it)", modelopt("W4A16_AWQ", exclude=("lm_head", "fc")),
                                QUANTIZED, FP8),
    "trtllm-not-excluded-fp8": Case("model.fc (nothing excludes it)", modelopt("FP8", "F8_E4M3", ("lm_head", "fc")),
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


def compressed_rows(kind: str = "float", **changes: object) -> dict[str, object]:
    weights = {"num_bits": 8, "type": kind, "strategy": "channel"}
    groups = {"group_0": {"weights": weights, "input_activations": {"num_bits": 8, "strategy": "token"}}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": KEPT, **changes}


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
        view = written(MLA, "trtllm", KIMI_TARGET).set(kv_lora_rank=None)
        assert "trtllm-class" in codes(view, MLA, KIMI_TARGET)

    def test_classes_of_deepseek_have_a_kv_lora_rank_whatever_the_file_says(self) -> None:
        assert "trtllm-class" in codes(GOOD.set(model_type="deepseek_v3"))

    def test_only_names_without_lm_head_are_given_a_prefix(self) -> None:
        view = GOOD.rename(lambda n: n.replace("lm_head", "model.lm_head"))
        assert codes(view) == {"trtllm-missing-tensor"}


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

    def test_eight_bits_of_a_method_without_a_branch_are_cast(self) -> None:
        facts = vary(MLA, quantization="fp8")
        view = quark_fp8()(written(facts, "trtllm", KIMI_TARGET)).retype("F8_E4M3", "kv_b_proj")
        assert codes(view, facts, KIMI_TARGET) == {"trtllm-excluded-fp8"}

    def test_compressed_tensors_of_floats_is_translated(self) -> None:
        view = rows(1)(GOOD).set(quantization_config=compressed_rows())
        assert codes(replace(view, sidecars={}), QUANTIZED) == set()

    def test_the_type_of_eight_bits_is_not_looked_at(self) -> None:
        view = GOOD.set(quantization_config=compressed_rows("int", ignore=["lm_head", "model*"]))
        assert codes(view) == set()

    def test_several_groups_of_compressed_tensors_quantize_nothing(self) -> None:
        config = compressed_rows(ignore=[])
        groups = config["config_groups"]
        assert isinstance(groups, dict)
        view = GOOD.set(quantization_config={**config, "config_groups": {**groups, "group_1": groups["group_0"]}})
        assert codes(view) == set()

    @pytest.mark.parametrize("method", ["quark", "gptq", "awq", "bitsandbytes"])
    def test_a_method_that_has_no_branch_leaves_everything_plain(self, method: str) -> None:
        assert codes(GOOD.set(quantization_config={"quant_method": method})) == set()

    def test_modelopt_without_an_algorithm_quantizes_nothing(self) -> None:
        assert codes(beside(quant_algo=None, exclude_modules=["lm_head"])(GOOD)) == set()

    def test_layers_of_mixed_precision_come_too_late_for_a_drafter(self) -> None:
        view = modelopt("W4A16_AWQ")(GOOD)
        layers = {
            f"model.midlayer.{name}": {"quant_algo": "W4A16_AWQ"} for name in ("mlp.down_proj", "self_attn.o_proj")
        }
        mixed = beside(quant_algo="MIXED_PRECISION", quantized_layers=layers)(view)
        assert codes(mixed, QUANTIZED) == {"trtllm-excluded"}

    def test_undeclared_bytes_beside_packed_weights(self) -> None:
        view = GOOD.pack("down_proj").retype("F8_E4M3", "q_proj")
        assert codes(view, QUANTIZED) == {"trtllm-packed-undeclared", "trtllm-bytes"}

    def test_kv_b_is_asked_for_a_scale_in_fp8(self) -> None:
        facts = vary(MLA, quantization="fp8")
        view = modelopt("FP8", "F8_E4M3", latent=LATENT_NAMES[:3])(written(facts, "trtllm", KIMI_TARGET))
        assert codes(view, facts, KIMI_TARGET) == {"trtllm-not-excluded", "trtllm-not-excluded-fp8"}

    def test_joined_projections_of_other_sizes_that_add_up(self) -> None:
        view = GOOD.put("midlayer.mlp.gate_proj.weight", I - 8, H).put("midlayer.mlp.up_proj.weight", I + 8, H)
        assert codes(view) == {"trtllm-broadcast"}

    def test_the_latent_projections_are_not_repeated(self) -> None:
        view = written(MLA, "trtllm", KIMI_TARGET).put("midlayer.self_attn.kv_b_proj.weight", 1, 10)
        assert codes(view, MLA, KIMI_TARGET) == {"trtllm-shape"}

    def test_a_draft_vocab_size_of_null_is_that_of_the_target(self) -> None:
        assert codes(GOOD.set(draft_vocab_size=None)) == set()

    @pytest.mark.parametrize("dtype", ["bf16", "auto"])
    def test_dtypes_that_torch_does_not_have(self, dtype: str) -> None:
        assert codes(GOOD.set(torch_dtype=dtype)) == {"trtllm-dtype"}

    def test_numbers_of_another_type(self) -> None:
        assert codes(GOOD.set(rms_norm_eps=1)) >= {"trtllm-config-type"}

    @pytest.mark.parametrize("kind", ["llama", "kimi_k2"])
    def test_fields_of_every_class(self, kind: str) -> None:
        facts, target = (MLA, KIMI_TARGET) if kind == "kimi_k2" else (LLAMA, LLAMA_TARGET)
        view = written(facts, "trtllm", target).set(model_type=kind, is_encoder_decoder=None)
        assert codes(view, facts, target) == {"trtllm-config-type"}

    def test_sizes_of_the_own_class(self) -> None:
        view = written(MLA, "trtllm", KIMI_TARGET).set(model_type="kimi_k2", rms_norm_eps=None)
        assert "trtllm-config-type" in codes(view, MLA, KIMI_TARGET)

    def test_the_mlp_of_llama4_has_a_size_of_its_own(self) -> None:
        assert codes(GOOD.set(model_type="llama4_text")) == {"trtllm-shape"}
        assert codes(GOOD.set(model_type="llama4_text", intermediate_size_mlp=I)) == set()

    def test_qk_norms_have_no_place(self) -> None:
        facts = vary(LLAMA, attention=Gqa(4, 4, 4, qk_norm=True))
        assert codes(written(facts, "trtllm", LLAMA_TARGET), facts) == {"trtllm-qk-norm"}


def rope(view: FakeView, facts: Facts = LLAMA, target: Target | None = LLAMA_TARGET) -> set[str]:
    return codes(view, facts, target) - {"trtllm-yarn"}


class TestRope:
    """Read off RopeParams of _torch/attention_backend/interface.py, and off transformers 5.8.1 (run)."""

    @pytest.mark.parametrize(
        "scaling",
        [
            {"type": "dynamic", "factor": 2.0},
            {"rope_type": "mrope", "mrope_section": [1, 1]},
            {"rope_type": "default", "mrope_section": [1, 1]},
        ],
    )
    def test_what_is_not_read_changes_nothing(self, scaling: dict[str, object]) -> None:
        assert rope(GOOD.set(rope_scaling=scaling)) == set()

    def test_another_base_in_rope_parameters_is_read(self) -> None:
        view = GOOD.unset("rope_theta").set(rope_parameters={"rope_type": "default", "rope_theta": 5e5})
        assert rope(view) == {"trtllm-rope"}
        assert rope(view, vary(LLAMA, rope=Rope(5e5, "halves"))) == set()

    def test_the_top_level_wins_without_scaling(self) -> None:
        assert rope(GOOD.set(rope_theta=10000.0, rope_parameters={"rope_type": "default", "rope_theta": 5e5})) == set()

    def test_a_section_with_more_than_a_base_is_kept(self) -> None:
        section = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [1, 1]}
        assert rope(GOOD.set(rope_theta=10000.0, rope_parameters=section)) == {"trtllm-rope"}
        section = {"rope_type": "default", "rope_theta": 10000.0}
        assert rope(GOOD.set(model_type="phi3", rope_theta=5e5, rope_parameters=section)) == set()

    def test_a_part_of_a_head(self) -> None:
        assert rope(GOOD.set(partial_rotary_factor=0.5)) == {"trtllm-rope"}

    def test_an_unknown_kind(self) -> None:
        assert rope(GOOD.set(rope_scaling={"rope_type": "spiral", "factor": 2.0})) == {"trtllm-rope-refused"}

    def test_yarn_needs_positions(self) -> None:
        facts = FACTS["llama, yarn"]
        view = written(facts, "trtllm", LLAMA_TARGET)
        assert rope(view, facts) == set()
        assert "trtllm-rope-refused" in rope(view.set(max_position_embeddings=None), facts)

    def test_an_attention_factor_is_not_read(self) -> None:
        facts = FACTS["mla, yarn"]
        view = written(facts, "trtllm", KIMI_TARGET)
        parameters = view.config["rope_parameters"]
        assert isinstance(parameters, dict)
        view = view.set(rope_parameters={**parameters, "attention_factor": 3.0})
        assert rope(view, facts, KIMI_TARGET) == set()

    def test_the_own_class_lets_rope_parameters_win(self) -> None:
        facts = FACTS["mla, yarn"]
        view = written(facts, "trtllm", KIMI_TARGET).set(model_type="kimi_k2")
        assert rope(view.set(rope_scaling=None), facts, KIMI_TARGET) == set()
        assert rope(view.set(rope_parameters=None), facts, KIMI_TARGET) == set()
