"""Every rule of SGLang, broken alone; its two loaders' names; its layer numbers per family."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftconv.drafter.facts import AuxLayers, Facts, Rope
from draftconv.drafter.targets import Target
from draftconv.engines.sglang import RULES
from tests.engines.cases import (
    IDS,
    KEPT,
    PARTS,
    Case,
    Change,
    assert_case,
    compressed,
    compressed_activations,
    declaring,
    ignoring,
    judged,
    modelopt,
    quark_fp8,
    several,
    swapped,
    targeting,
    vary_target,
    weighing,
)
from tests.engines.views import (
    FACTS,
    GPT_OSS_TARGET,
    KIMI_TARGET,
    LLAMA,
    LLAMA_TARGET,
    MINIMAX_TARGET,
    MLA,
    FakeView,
    H,
    vary,
    written,
)

LAYERS = FACTS["llama, layers given"]
REDUCED = FACTS["llama, reduced vocabulary"]
EMBEDDED = FACTS["llama with its own embedding"]
QUANTIZED = vary(LLAMA, quantization="int4")
FP8 = modelopt("FP8", "F8_E4M3")
MLA_QUANTIZED = vary(MLA, quantization="int4")
PLAIN_NORM = {"norm_before_fc": False}


def nvfp4(exclude: tuple[str, ...] = ("lm_head",), *more: str) -> Change:
    """ModelOpt's FP4: two values in a byte, one scale for sixteen."""

    def change(view: FakeView) -> FakeView:
        made = modelopt("NVFP4", exclude=exclude)(view).retype("U8", *(more or PARTS))
        for name, ref in [(name, ref) for name, ref in made.tensors.items() if ref.dtype == "U8"]:
            rows, columns = ref.shape
            made = made.put(name, rows, columns // 2, dtype="U8")
            made = made.put(f"{name}_scale", rows, columns // 16, dtype="F8_E4M3")
            for scalar in ("weight_scale_2", "input_scale"):
                made = made.put(f"{name.removesuffix('weight')}{scalar}", dtype="F32")
        return made

    return change


NVFP4 = nvfp4()


def words(view: FakeView, along: int) -> FakeView:
    """Packed weights as GPTQ (along the inputs) or AWQ (along the outputs) stores them, all inputs in one group."""
    for name, ref in list(view.pack(*PARTS).tensors.items()):
        stem, _, suffix = name.rpartition(".")
        if suffix == "weight_packed":
            rows, columns = ref.shape[0], ref.shape[1] * 8
            size = (columns // 8, rows) if along else (columns, rows // 8)
            view = view.drop(f"{stem}.weight").put(f"{stem}.qweight", *size, dtype="I32")
            view = view.put(f"{stem}.scales", 1, rows).put(f"{stem}.qzeros", 1, rows // 8, dtype="I32")
    return view


def gptq(view: FakeView, **keys: object) -> FakeView:
    config = {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True, "desc_act": False, **keys}
    return words(view, 1).set(quantization_config=config)


def awq(view: FakeView, **keys: object) -> FakeView:
    config = {"quant_method": "awq", "bits": 4, "group_size": -1, "zero_point": True, **keys}
    return words(view, 0).set(quantization_config=config)


def auto_round(view: FakeView, **keys: object) -> FakeView:
    config = {"quant_method": "auto-round", "bits": 4, "group_size": -1, "sym": True,
              "packing_format": "auto_round:auto_awq", **keys}  # fmt: skip
    return words(view, 0).set(quantization_config=config)


CASES = {
    "sglang-architecture": Case("Eagle3LlamaForCausalLM", lambda v: v.set(architectures=["Eagle3LlamaForCausalLM"])),
    "sglang-mtp": Case("DeepseekV3ForCausalLM", lambda v: v.set(architectures=["DeepseekV3ForCausalLM"]), MLA),
    "sglang-class": Case("builds MLA", lambda v: v.set(architectures=["Eagle3DeepseekV2ForCausalLM"])),
    "sglang-class-unfilled": Case("builds Llama-style", lambda v: v.set(architectures=["LlamaForCausalLMEagle3"]), MLA),
    "sglang-cut": Case("mlp.gate_proj.weight is [24, 16], built as [8, 16]", lambda v: v.set(intermediate_size=8)),
    "sglang-padded": Case("up_proj.weight is [8, 16]", lambda v: v.put("midlayer.mlp.up_proj.weight", 8, H)),
    "sglang-rope-kind": Case("spiral", lambda v: v.unset("rope_parameters").set(
        rope_scaling={"rope_type": "spiral"}), also=frozenset({"sglang-rope"})),
    "sglang-lone-state": Case("captures [2]", lambda v: v.set(num_aux_hidden_states=3).nest(**{IDS: [1]}),
                              also=frozenset({"sglang-taps"})),
    "sglang-d2t-values": Case("target ids instead of offsets", facts=REDUCED, known=frozenset({"d2t-absolute"})),
    "sglang-d2t-short": Case("d2t has 7 entries, lm_head 40 rows", lambda v: v.put("d2t", 7, dtype="I64"), REDUCED),
    "sglang-d2t-dtype": Case("d2t is F32", lambda v: v.put("d2t", 40, dtype="F32"), REDUCED),
    "sglang-null-theta": Case("rope_theta: null", lambda v: v.unset("rope_parameters").set(rope_theta=None)),
    "sglang-quant-method": Case("quant_method: absent", lambda v: v.set(quantization_config={"bits": 4})),
    "sglang-model-type": Case("no model_type", lambda v: v.unset("model_type")),
    "sglang-null": Case("n_routed_experts", lambda v: v.set(n_routed_experts=None), MLA),
    "sglang-null-width": Case("target_hidden_size", lambda v: v.set(target_hidden_size=None)),
    "sglang-draft-vocab": Case("absent", lambda v: v.unset("draft_vocab_size")),
    "sglang-activation": Case("gelu", lambda v: v.set(hidden_act="gelu")),
    "sglang-one-mla-layer": Case("num_hidden_layers: 2", lambda v: v.set(num_hidden_layers=2), MLA,
                                 also=frozenset({"sglang-missing-tensor"})),
    "sglang-plain-query": Case("q_lora_rank", lambda v: v.set(q_lora_rank=None), FACTS["mla, plain query"],
                               good_facts=MLA),
    "sglang-shape": Case("lm_head.weight is [40, 16], built as [48, 16]", lambda v: v.set(draft_vocab_size=48),
                         REDUCED, also=frozenset({"sglang-d2t-short"})),
    "sglang-target-width": Case("are 32", target=vary_target(LLAMA_TARGET, hidden=32), good_target=LLAMA_TARGET),
    "sglang-aux-count": Case("captures [2, 3, 6], fc is built for 4", lambda v: v.nest(**{IDS: [1, 2, 5]}),
                             FACTS["llama, four states"]),
    "sglang-context": Case("gives 4096, llama-test has 8192", lambda v: v.set(max_position_embeddings=4096)),
    "sglang-quark-int4": Case("Quark INT4", quark_fp8("int4"), QUANTIZED, quark_fp8()),
    "sglang-quark-scheme": Case("fp8_e5m2 per_tensor weights", quark_fp8("fp8_e5m2"), QUANTIZED, quark_fp8()),
    "sglang-compressed-scheme": Case("format: int-quantized", declaring(format="int-quantized"), QUANTIZED, compressed),
    "sglang-gptq": Case("sym: False", lambda v: gptq(v, sym=False), QUANTIZED, gptq),
    "sglang-awq": Case("bfloat16, where only float16 is read", awq, QUANTIZED, awq, spec="@0.5.23:mi325x",
                       good_spec="@0.5.23:b200"),
    "sglang-auto-round": Case("data_type: fp", lambda v: auto_round(v, data_type="fp"), QUANTIZED, auto_round),
    "sglang-joined-scales": Case("different weight_scale_2", NVFP4, QUANTIZED, NVFP4,
                                 known=frozenset({"joined-weight-scales"})),
    "sglang-joined-fp8": Case("different scales", FP8, QUANTIZED, FP8, known=frozenset({"joined-fp8-scales"})),
    "sglang-joined-inputs": Case("different input_scale", FP8, QUANTIZED, FP8,
                                 known=frozenset({"joined-input-scales"})),
    "sglang-modelopt": Case("INT4_AWQ", modelopt("INT4_AWQ"), QUANTIZED, modelopt("FP8", "F8_E4M3")),
    "sglang-mla-nvfp4": Case("NVFP4", modelopt("NVFP4"), MLA_QUANTIZED, modelopt("FP8", "F8_E4M3")),
    "sglang-int4-activations": Case("4-bit weights, 8-bit activations", compressed_activations, QUANTIZED, compressed),
    "sglang-head-block": Case("lm_head", several("lm_head", strategy="block"), QUANTIZED, several("lm_head")),
    "sglang-other-scheme": Case("model.down_proj (group_1)", swapped, QUANTIZED, several("lm_head")),
    "sglang-kv-b": Case("kv_b_proj", lambda v: ignoring(*KEPT[:3], "kv_a_proj_with_mqa")(v).pack("kv_b_proj"),
                        MLA_QUANTIZED, compressed),
    "sglang-a-projections": Case("q_a_proj.weight_scale is [], and joined with []", lambda v: FP8(v)
                                 .retype("F8_E4M3", "q_a_proj", "kv_a_proj_with_mqa"), MLA_QUANTIZED, FP8,
                                 also=frozenset({"sglang-excluded"})),
    "sglang-fc-quantized": Case("fc.weight is U8", nvfp4(("lm_head",), "fc."), QUANTIZED, NVFP4),
    "sglang-fc-coded": Case("F8_E4M3", lambda v: quark_fp8()(v).retype("F8_E4M3", "fc.weight"), QUANTIZED, quark_fp8()),
    "sglang-rocm": Case("gptq on ROCm", gptq, QUANTIZED, gptq, spec="@0.5.23:mi325x", good_spec="@0.5.23:h200"),
    "sglang-quark-export": Case("no export", quark_fp8(export=None), QUANTIZED, quark_fp8()),
    "sglang-scales": Case("q_proj.weight_scale is BF16 [16, 1], built as the dtype of the model [16, 2]",
                          declaring(config_groups=weighing(strategy="group", group_size=16)), QUANTIZED, compressed),
    "sglang-scales-cut": Case("o_proj.weight_scale is BF16 [16, 2]", lambda v: compressed(v)
                              .put("midlayer.self_attn.o_proj.weight_scale", 16, 2), QUANTIZED, compressed),
    "sglang-order-dropped": Case("down_proj.weight_g_idx", lambda v: compressed(v)
                                 .put("midlayer.mlp.down_proj.weight_g_idx", 16, dtype="I32"), QUANTIZED, compressed),
    "sglang-words-undeclared": Case("q_proj.weight is U8 [16, 16]", lambda v: replace(NVFP4(v), sidecars={}), QUANTIZED,
                                    NVFP4),
    "sglang-packed-undeclared": Case("quantization_config", lambda v: v.pack("mlp."), QUANTIZED, compressed,
                                     also=frozenset({"sglang-uncovered"})),
    "sglang-scales-missing": Case("layers.0.mlp.down_proj.input_scale", lambda v: FP8(v).drop("down_proj.input_scale"),
                                  QUANTIZED, FP8),
    "sglang-missing-tensor": Case("layers.0.hidden_norm.weight", lambda v: v.drop("hidden_norm")),
    "sglang-prefix": Case("model.fc.weight", lambda v: v.rename(lambda n: n if n == "lm_head.weight" else f"model.{n}"),
                          MLA),
    "sglang-dropped": Case("out_norm.weight", lambda v: v.rename(lambda n: n.replace("norm.weight", "out_norm.weight")
                                                                 if n == "norm.weight" else n)),
    "sglang-qkv-bias": Case("midlayer.self_attn.k_proj.bias", lambda v: v.set(attention_bias=False),
                            FACTS["gqa with q/k/v biases"], good_facts=LLAMA),
    "sglang-qk-norm": Case("k_norm", lambda v: v.set(architectures=["LlamaForCausalLMEagle3"]),
                           FACTS["gqa with q/k norms"], good_facts=LLAMA),
    "sglang-mlp-bias": Case("midlayer.mlp.down_proj.bias", facts=FACTS["llama, mlp bias"], good_facts=LLAMA),
    "sglang-bias": Case("o_proj.bias", lambda v: v.set(attention_bias=False), FACTS["gqa with an o bias"]),
    "sglang-bias-half": Case("o_proj.bias", lambda v: v.set(attention_bias=True)),
    "sglang-later-norm": Case("layers.1.input_layernorm.weight",
                              lambda v: v.rename(lambda n: n.replace("1.hidden_norm", "1.input_layernorm")),
                              FACTS["llama, two layers"]),
    "sglang-d2t-missing": Case("smaller than", lambda v: v.drop("d2t"), REDUCED),
    "sglang-head": Case("absent, lm_head is stored", lambda v: v.unset("draft_vocab_size"), MLA),
    "sglang-tied": Case("tie_word_embeddings", lambda v: v.set(tie_word_embeddings=True)),
    "sglang-embedding-lost": Case("differs", facts=EMBEDDED, known=frozenset({"embedding-differs"})),
    "sglang-taps": Case("captures [2, 4, 5], trained on [2, 3, 6] (ids at the top level are not read)",
                        lambda v: v.nest(**{IDS: None}), LAYERS),
    "sglang-last-state": Case("use_aux_hidden_state", lambda v: v.nest(use_aux_hidden_state=False)),
    "sglang-norm-output": Case("built as pre-norm, trained as post-norm", lambda v: v.unset("norm_output"),
                               vary(LLAMA, feedback="post-norm")),
    "sglang-fusion": Case("built as plain, trained as fc_norm", lambda v: v.set(fc_norm=False), FACTS["llama 3.1"]),
    "sglang-residual": Case("built as False", facts=FACTS["llama, normed residual"], good_facts=LLAMA),
    "sglang-rope": Case("theta", lambda v: v.unset("rope_parameters").set(rope_theta=1e6)),
    "sglang-eps": Case("1e-06", lambda v: v.set(rms_norm_eps=1e-6)),
    "sglang-window": Case("64", facts=vary(LLAMA, window=64), good_facts=LLAMA),
    "sglang-vocab": Case("vocab_size 160", target=vary_target(LLAMA_TARGET, vocab=170), good_target=LLAMA_TARGET),
    "sglang-taps-undecided": Case(
        "--aux-convention", facts=vary(LLAMA, boundaries=AuxLayers.UNKNOWN), good_facts=LLAMA
    ),
    "sglang-model-type-unknown": Case("strange", lambda v: v.set(model_type="strange")),
    "sglang-embedding": Case("embed_tokens", facts=EMBEDDED, good_facts=LLAMA),
    "sglang-ignored": Case("verifier_norm.weight", lambda v: v.put("verifier_norm.weight", H)),
    "sglang-context-untold": Case("2048", lambda v: v.set(max_position_embeddings=2048), target="none"),
    "sglang-target": Case("kimi_linear", target=vary_target(LLAMA_TARGET, model_type="kimi_linear"),
                          good_target=LLAMA_TARGET),
    "sglang-norm-switches": Case("use_last_layernorm: false", lambda v: v.nest(use_last_layernorm=False)),
    "sglang-double-norm": Case("hidden_norm", facts=vary(LLAMA, double_norm=True), good_facts=LLAMA),
    "sglang-not-excluded-shape": Case("model.fc (nothing excludes it)",
                                      modelopt("NVFP4", exclude=("lm_head",)), MLA_QUANTIZED,
                                      modelopt("FP8", "F8_E4M3"), also=frozenset({"sglang-mla-nvfp4"})),
    "sglang-excluded-shape": Case("model.gate_up_proj (ignore: gate_up_proj)",
                                  nvfp4(("lm_head", "gate_up_proj")), QUANTIZED, NVFP4),
    "sglang-words-cut": Case("model.down_proj (ignore: down_proj)", nvfp4(("lm_head", "down_proj")), QUANTIZED, NVFP4),
    "sglang-torn": Case("model.gate_up_proj", lambda v: NVFP4(v).drop("up_proj")
                        .put("midlayer.mlp.up_proj.weight", 24, H), QUANTIZED, NVFP4,
                        also=frozenset({"sglang-scales"})),
    "sglang-torn-silent": Case("model.gate_up_proj", lambda v: compressed(v).pack_not("up_proj"), QUANTIZED,
                               compressed),
    "sglang-unmatched": Case("model.qkv_proj (no target matches it)", targeting(r"re:.*self_attn.*proj$", "re:.*mlp"),
                             QUANTIZED, compressed),
    "sglang-not-excluded": Case("model.fc (targets: Linear)", ignoring(*KEPT[1:]), MLA_QUANTIZED, compressed),
    "sglang-excluded": Case("model.down_proj (ignore: down_proj)", ignoring(*KEPT, "down_proj"), QUANTIZED, compressed),
    "sglang-names-undecided": Case("MIXED_PRECISION", modelopt("MIXED_PRECISION", "F8_E4M3"), QUANTIZED,
                                   modelopt("FP8", "F8_E4M3")),
}  # fmt: skip


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == {rule.code for rule in RULES}


@pytest.mark.parametrize("code", CASES)
def test_rule(code: str) -> None:
    assert_case("sglang", code, CASES[code])


def codes(view: FakeView, facts: Facts = LLAMA, target: Target | None = LLAMA_TARGET, spec: str = "") -> set[str]:
    return {line.rule.code for line in judged("sglang", view, facts, target, spec).lines}


GOOD = written(LLAMA, "sglang", LLAMA_TARGET)
GOOD_MLA = written(MLA, "sglang", KIMI_TARGET)


class TestNames:
    @pytest.mark.parametrize("prefix", ["layers.0.", "model.layers.0.", "model.midlayer."])
    def test_llama_knows_three_spellings(self, prefix: str) -> None:
        assert codes(GOOD.rename(lambda n: n.replace("midlayer.", prefix))) == set()

    def test_llama_takes_the_root_prefix_but_not_on_lm_head(self) -> None:
        view = GOOD.rename(lambda n: n if n == "lm_head.weight" else f"model.{n}")
        assert codes(view) == set()
        assert codes(GOOD.rename(lambda n: f"model.{n}")) == {"sglang-prefix"}

    def test_mla_knows_the_bare_spellings(self) -> None:
        assert codes(GOOD_MLA, MLA, KIMI_TARGET) == set()
        view = GOOD_MLA.rename(lambda n: n.replace("midlayer.", "layers.0."))
        assert codes(view, MLA, KIMI_TARGET) == set()

    @pytest.mark.parametrize("name", ["d2t", "model.d2t", "t2d", "model.t2d"])
    def test_maps_are_found_by_part_of_their_name(self, name: str) -> None:
        facts = FACTS["llama, reduced vocabulary"]
        view = written(facts, "sglang", LLAMA_TARGET)
        if "d2t" in name:
            view = view.drop("d2t")
        assert codes(view.put(name, 40, dtype="I64"), facts) == set()

    def test_legacy_norms_of_the_first_31_files(self) -> None:
        facts = FACTS["llama 3.1"]
        legacy = {"fc_norm.0": "aux_norm_low", "fc_norm.1": "aux_norm_mid", "fc_norm.2": "aux_norm_high"}

        def old(name: str) -> str:
            stem = name.removesuffix(".weight")
            return f"{legacy.get(stem, stem)}.weight" if name.endswith(".weight") else name

        view = written(facts, "sglang", LLAMA_TARGET).rename(old).set(fc_norm=False, use_aux_norm=True)
        assert codes(view, facts) == set()
        mla = FACTS["mla 3.1"]
        view = written(mla, "sglang", KIMI_TARGET).rename(old)
        assert codes(view, mla, KIMI_TARGET) == {"sglang-dropped"}

    def test_trtllm_spelling_of_several_layers_is_dropped(self) -> None:
        facts = FACTS["llama, two layers"]
        view = written(facts, "trtllm", LLAMA_TARGET)
        assert "sglang-dropped" in codes(view, facts)

    def test_a_quantized_fc_of_the_llama_class_is_dropped(self) -> None:
        facts = vary(LLAMA, quantization="int4")
        assert "sglang-missing-tensor" in codes(compressed(GOOD).pack("fc.weight"), facts)

    def test_width_of_llama4_mlps(self) -> None:
        assert codes(GOOD.set(model_type="llama4_text", intermediate_size_mlp=24, intermediate_size=96)) == set()


class TestHead:
    def test_null_shares_the_targets_head(self) -> None:
        facts = FACTS["llama without a head"]
        view = written(facts, "sglang", LLAMA_TARGET)
        assert view.config["draft_vocab_size"] is None
        assert codes(view, facts) == set()
        assert codes(view.set(draft_vocab_size=160), facts) == {"sglang-missing-tensor"}

    def test_null_replaces_a_trained_head(self) -> None:
        assert codes(GOOD.set(draft_vocab_size=None)) == {"sglang-head"}


class TestAuxLayers:
    TRIPLE = (2, 4, 5)

    def given(self, facts: Facts, target: Target, ids: list[int]) -> set[str]:
        view = written(vary(facts, boundaries=AuxLayers.DEFAULT), "sglang", target)
        return codes(view.nest(**{IDS: ids}), facts, target)

    def test_other_families_add_one(self) -> None:
        assert self.given(LLAMA, LLAMA_TARGET, [1, 3, 4]) == set()
        assert self.given(LLAMA, LLAMA_TARGET, [2, 4, 5]) == {"sglang-taps"}

    def test_deepseek_adds_one_iff_the_first_is_one(self) -> None:
        for ids in ([1, 3, 4], [2, 4, 5]):
            assert self.given(MLA, KIMI_TARGET, ids) == set()
        assert self.given(vary(MLA, boundaries=(3, 4, 6)), KIMI_TARGET, [2, 3, 5]) == {"sglang-taps"}
        assert self.given(vary(MLA, boundaries=(3, 4, 6)), KIMI_TARGET, [3, 4, 6]) == set()

    def test_gpt_oss_takes_ids_as_they_are_when_the_last_is_the_layer_count(self) -> None:
        last = vary(LLAMA, boundaries=(2, 4, 8))
        assert self.given(last, GPT_OSS_TARGET, [2, 4, 8]) == set()
        assert self.given(last, GPT_OSS_TARGET, [1, 3, 7]) == set()
        assert self.given(LLAMA, GPT_OSS_TARGET, [2, 4, 5]) == {"sglang-taps"}

    def test_the_last_boundary_is_missing_elsewhere(self) -> None:
        assert self.given(vary(LLAMA, boundaries=(2, 4, 6)), LLAMA_TARGET, [1, 3, 7]) == {"sglang-aux-count"}

    def test_boundary_0_is_captured_on_deepseek(self) -> None:
        assert self.given(vary(MLA, boundaries=(0, 3, 6)), KIMI_TARGET, [0, 3, 6]) == set()

    def test_minimax_shifts_its_default_triple(self) -> None:
        view = written(LLAMA, "sglang", MINIMAX_TARGET)
        assert codes(view, LLAMA, MINIMAX_TARGET) == {"sglang-taps"}
        assert codes(view.nest(**{IDS: [1, 3, 4]}), LLAMA, MINIMAX_TARGET) == set()

    def test_without_a_target_only_a_first_one_is_plain(self) -> None:
        facts = FACTS["llama, layers given"]
        view = written(facts, "sglang")
        assert codes(view, facts, None) == set()
        assert codes(view.nest(**{IDS: [2, 3, 6]}), facts, None) == {"sglang-taps-undecided"}
        assert codes(view.nest(**{IDS: None}), facts, None) == {"sglang-taps-undecided"}

    def test_mla_reads_the_top_level_for_the_width_only(self) -> None:
        facts = FACTS["mla, four states"]
        view = written(facts, "sglang", KIMI_TARGET).nest(**{IDS: None})
        assert codes(view, facts, KIMI_TARGET) == {"sglang-aux-count"}


class TestContext:
    @pytest.mark.parametrize(
        ("scaling", "broken"),
        [
            ({"rope_type": "linear", "factor": 4.0}, {"sglang-rope"}),
            ({"rope_type": "yarn", "factor": 4.0}, {"sglang-rope"}),
            ({"rope_type": "yarn", "factor": 1.5}, {"sglang-rope", "sglang-context"}),
            ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
             {"sglang-rope", "sglang-context"}),
            ({"rope_type": "llama3", "factor": 4.0}, {"sglang-rope", "sglang-context"}),
        ],
    )  # fmt: skip
    def test_the_rope_factor_stretches_the_context(self, scaling: dict[str, object], broken: set[str]) -> None:
        view = GOOD.unset("rope_parameters").set(rope_scaling=scaling, max_position_embeddings=2048)
        assert codes(view) == broken


class TestHardware:
    def test_int4_of_compressed_tensors_needs_cuda(self) -> None:
        facts = vary(LLAMA, quantization="int4")
        assert codes(compressed(GOOD), facts, spec="@0.5.23:h100") == set()
        assert codes(compressed(GOOD), facts, spec="@0.5.23:mi300x") == {"sglang-rocm"}

    def test_half_split_mla_is_honoured(self) -> None:
        facts = FACTS["mla, half-split rope"]
        assert codes(written(facts, "sglang", KIMI_TARGET), facts, KIMI_TARGET) == set()


class TestPadding:
    """Zeros behind what is too short, which change nothing where all of an MLP is."""

    def test_a_whole_mlp_computes_the_same(self) -> None:
        assert codes(GOOD.set(intermediate_size=4096)) == set()

    def test_parts_of_different_widths_do_not(self) -> None:
        view = GOOD.set(intermediate_size=4096).put("midlayer.mlp.down_proj.weight", H, 8)
        assert codes(view) == {"sglang-padded"}

    def test_queries_are_not_padded(self) -> None:
        assert codes(GOOD.put("midlayer.self_attn.q_proj.weight", 4, 2 * H)) == {"sglang-shape"}


class TestRopeThatTransformersKeeps:
    """rope_scaling takes the place of rope_parameters, and its base with it."""

    def test_the_base_of_rope_parameters_is_lost(self) -> None:
        scaled = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 1e6}
        rope = Rope(1e6, "halves", "linear", {"factor": 2.0})
        parameters = {"rope_type": "default", "rope_theta": 10000.0}
        assert codes(GOOD.set(**scaled, rope_parameters=parameters), vary(LLAMA, rope=rope)) == set()

    def test_the_base_in_rope_scaling_wins(self) -> None:
        view = GOOD.unset("rope_parameters").set(
            rope_scaling={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}, rope_theta=1e6
        )
        assert codes(view, vary(LLAMA, rope=Rope(5e5, "halves", "linear", {"factor": 2.0}))) == set()

    @pytest.mark.parametrize(("keys", "broken"), [
        ({"partial_rotary_factor": 0.5}, {"sglang-rope"}),
        ({"partial_rotary_factor": 1.0}, set()),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}, set()),
    ])  # fmt: skip
    def test_half_of_each_head_is_asked_of_the_top_level_alone(self, keys: dict[str, object], broken: set[str]) -> None:
        assert codes(GOOD.set(**keys)) == broken


class TestContextKeys:
    def test_other_keys_go_first(self) -> None:
        assert codes(GOOD.set(model_max_length=64)) == {"sglang-context"}


class TestArchitectures:
    @pytest.mark.parametrize(("names", "broken"), [
        (["Foo", "LlamaForCausalLMEagle3"], set()),
        (["LlamaForCausalLM", "LlamaForCausalLMEagle3"], {"sglang-architecture"}),
        (["Foo"], {"sglang-architecture"}),
    ])  # fmt: skip
    def test_the_first_that_it_has_is_taken(self, names: list[str], broken: set[str]) -> None:
        assert codes(GOOD.set(architectures=names)) == broken


@pytest.mark.parametrize("view", [GOOD.nest(**{IDS: []}), GOOD_MLA.nest(**{IDS: []})])
def test_an_empty_list_captures_nothing(view: FakeView) -> None:
    facts, target = (LLAMA, LLAMA_TARGET) if view.config["model_type"] == "llama" else (MLA, KIMI_TARGET)
    assert "sglang-aux-count" in codes(view, facts, target) or "sglang-shape" in codes(view, facts, target)


@pytest.mark.parametrize(("algorithm", "told"), [("FP8", False), ("NVFP4", False), ("W4A16_AWQ", True), ("", True)])
def test_a_nested_header_of_modelopt_names_its_method(algorithm: str, told: bool) -> None:
    """As ModelOpt 0.47 exports a drafter: no quant_method, and the algorithm one level down (0.5.23, run)."""
    header = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": algorithm}}
    assert ("sglang-quant-method" in codes(GOOD.set(quantization_config=header))) is told


def test_a_longer_map_is_read_as_far_as_the_head_goes() -> None:
    view = written(REDUCED, "sglang", LLAMA_TARGET)
    assert codes(view.put("d2t", 50, dtype="I64"), REDUCED) == set()


def test_sections_of_a_picture_turn_text_as_ever() -> None:
    rope = {"type": "mrope", "mrope_section": [1, 1], "rope_theta": 10000.0}
    assert codes(GOOD.unset("rope_parameters").set(rope_scaling=rope)) == set()
