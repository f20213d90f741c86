"""Every rule of llama.cpp, broken alone; which of its two programs it is about; what earlier builds do otherwise."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.api.inspect import inspect
from draftconv.drafter.facts import AuxLayers, Facts, Rope
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES
from draftconv.engines.llamacpp import RULES
from draftconv.engines.llamacpp.aux_layers import HANDED_OUT, KEPT_BACK, LAST_STATE
from draftconv.engines.llamacpp.sources import IDS_BUILD
from draftconv.engines.rules import BrokenRule
from tests.engines.cases import IDS, Case, Change, assert_case, compressed, judged, vary_target
from tests.engines.views import (
    FACTS,
    GPT_OSS_TARGET,
    KIMI_TARGET,
    LLAMA,
    LLAMA_TARGET,
    FakeView,
    File,
    H,
    V,
    vary,
    written,
)

DATA = Path(__file__).parents[1] / "data"
REDUCED = FACTS["llama, reduced vocabulary"]
EMBEDDED = FACTS["llama with its own embedding"]
GIVEN = FACTS["llama, layers given"]
NORMED = FACTS["llama, norm_before_fc"]
QUANTIZED = vary(LLAMA, quantization="int4")
OLD = f"@{IDS_BUILD[0] - 1}"
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
YARN = {"factor": 4.0, "original_max_position_embeddings": 512}


def in_files(*names: str) -> Change:
    return lambda view: replace(view, files=tuple(File(name) for name in names))


def nested_only(view: FakeView) -> FakeView:
    return view.unset(IDS).nest(**{IDS: [2, 3, 6]})


def of_type(model_type: str) -> Target:
    return vary_target(LLAMA_TARGET, model_type=model_type)


CASES = {
    "llamacpp-files": Case("eagle.safetensors", in_files("config.json", "eagle.safetensors"),
                           good=in_files("model-00001-of-00001.safetensors", "training.pt")),
    "llamacpp-architecture": Case("Qwen3ForCausalLM", lambda v: v.set(architectures=["Qwen3ForCausalLM"]),
                                  good=lambda v: v.set(architectures=["Eagle3Speculator"])),
    "llamacpp-mla": Case("Eagle3DeepseekV2ForCausalLM", facts=FACTS["mla"], target=LLAMA_TARGET, good_facts=LLAMA),
    "llamacpp-draft-vocab": Case("absent", lambda v: v.unset("draft_vocab_size"),
                                 good=lambda v: v.set(draft_vocab_size=None)),
    "llamacpp-layers": Case("num_hidden_layers: 2", facts=FACTS["llama, two layers"], good_facts=LLAMA),
    "llamacpp-fc-norm": Case("fc_norm.0.weight", facts=vary(LLAMA, fusion="fc_norm"), good_facts=LLAMA),
    "llamacpp-qk-norm": Case("q_norm.weight", lambda v: v.set(architectures=["LlamaForCausalLMEagle3"]),
                             FACTS["gqa with q/k norms"], good_facts=FACTS["gqa"]),
    "llamacpp-names": Case("model.midlayer.", lambda v: v.rename(lambda n: n.replace("midlayer.", "model.midlayer.")),
                           good=lambda v: v.rename(lambda n: n.replace("midlayer.", "model.layers.0."))),
    "llamacpp-d2t-range": Case("vocabulary", facts=REDUCED, known=frozenset({"d2t-range"})),
    "llamacpp-vocab": Case("vocab_size 160", target=vary_target(LLAMA_TARGET, vocab=170),
                           good_target=vary_target(LLAMA_TARGET, vocab=V - 10)),
    "llamacpp-quant-method": Case("quark", lambda v: v.set(quantization_config={"quant_method": "quark"}),
                                  QUANTIZED, good_facts=LLAMA),
    "llamacpp-bias": Case("q_proj.bias", facts=FACTS["gqa with all biases"], good_facts=FACTS["gqa"]),
    "llamacpp-input-norm": Case("input_norm.weight", lambda v: v.unset("norm_before_fc"), NORMED),
    "llamacpp-states": Case("captures [2, 3, 5, 6]", facts=FACTS["llama, four states"], good_facts=GIVEN),
    "llamacpp-missing-tensor": Case("layers.0.hidden_norm.weight", lambda v: v.drop("hidden_norm")),
    "llamacpp-head-missing": Case("d2t has 40 entries", lambda v: v.drop("lm_head"), REDUCED,
                                  good_facts=FACTS["llama without a head"]),
    "llamacpp-shape": Case("lm_head.weight is [40, 16], built as [160, 16]", lambda v: v.drop("d2t"), REDUCED),
    "llamacpp-eps-missing": Case("rms_norm_eps: null", lambda v: v.set(rms_norm_eps=None), vary(LLAMA, eps=1e-6),
                                 good=lambda v: v.unset("rms_norm_eps")),
    "llamacpp-boundary": Case("captures [2, 4, 9], llama-test has 8", lambda v: v.set(**{IDS: [2, 4, 9]}),
                              truth={"boundaries": (2, 4, 9)}),
    "llamacpp-target": Case("kimi_k25", target=KIMI_TARGET, good_target=LLAMA_TARGET),
    "llamacpp-taps": Case("(ids in eagle_config are not read)", nested_only, GIVEN),
    "llamacpp-taps-fixed": Case("captures [2, 4, 5], trained on [2, 3, 6]", facts=GIVEN, spec=OLD, good_facts=LLAMA),
    "llamacpp-last-boundary": Case("which is llama", facts=FACTS["llama, last boundary"], good_target=GPT_OSS_TARGET),
    "llamacpp-target-width": Case("those of llama-test are 32", target=vary_target(LLAMA_TARGET, hidden=32),
                                  good_target=LLAMA_TARGET),
    "llamacpp-norm-output": Case("trained as post-norm", facts=vary(LLAMA, feedback="post-norm"), good_facts=LLAMA),
    "llamacpp-residual": Case("built as False", lambda v: v.unset("norm_before_residual"),
                              FACTS["llama, normed residual"]),
    "llamacpp-rope": Case("mscale_all_dim: built as 0.0, trained as 1.0", facts=FACTS["llama, yarn"],
                          good_facts=vary(LLAMA, rope=Rope(10000.0, "halves", "yarn", YARN))),
    "llamacpp-eps": Case("1e-06", lambda v: v.set(rms_norm_eps=1e-6)),
    "llamacpp-window": Case("64", facts=vary(LLAMA, window=64), good_facts=LLAMA),
    "llamacpp-activation": Case("gelu", facts=vary(LLAMA, activation="gelu"), good_facts=LLAMA),
    "llamacpp-d2t-values": Case("d2t", facts=REDUCED, known=frozenset({"d2t-absolute"})),
    "llamacpp-taps-undecided": Case("give --target", facts=GIVEN, target="none", good_target=LLAMA_TARGET,
                                    broken=nested_only),
    "llamacpp-target-unread": Case("strange", target=of_type("strange"), good_target=of_type("qwen3")),
    "llamacpp-norm-switches": Case("use_last_layernorm: false", lambda v: v.nest(use_last_layernorm=False)),
    "llamacpp-double-norm": Case("hidden_norm", facts=vary(LLAMA, double_norm=True), good_facts=LLAMA),
}  # fmt: skip


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == {rule.code for rule in RULES}


@pytest.mark.parametrize("code", CASES)
def test_rule(code: str) -> None:
    assert_case("llamacpp", code, CASES[code])


def test_a_rule_says_which_program_it_is_about_and_was_read() -> None:
    told = {rule.code for rule in RULES if "the converter" in rule.says or "the runtime" in rule.says}
    assert {rule.code for rule in RULES if rule.effect in ("refused", "mis-read")} <= told
    assert {rule.evidence for rule in RULES} <= {"read", "inferred"}
    assert all("b10547 (749f688f)" in rule.source or "b9795 (e8ecce53)" in rule.source for rule in RULES)


def lines(
    view: FakeView, facts: Facts = LLAMA, target: Target | None = LLAMA_TARGET, spec: str = ""
) -> tuple[BrokenRule, ...]:
    return judged("llamacpp", view, facts, target, spec).lines


def codes(view: FakeView, facts: Facts = LLAMA, target: Target | None = LLAMA_TARGET, spec: str = "") -> set[str]:
    return {line.rule.code for line in lines(view, facts, target, spec)}


GOOD = written(LLAMA, "vllm", LLAMA_TARGET)


class TestNames:
    @pytest.mark.parametrize("layer", ["midlayer.", "layers.0.", "model.layers.0."])
    @pytest.mark.parametrize("prefix", ["", "model."])
    def test_spellings_that_are_found(self, layer: str, prefix: str) -> None:
        view = written(EMBEDDED, "vllm", LLAMA_TARGET)
        view = (
            view.rename(lambda n: n.replace("midlayer.", layer) if "midlayer." in n else prefix + n)
            if layer + prefix != "midlayer."
            else view
        )
        assert codes(view, EMBEDDED) == set()

    @pytest.mark.parametrize(
        "name",
        ["verifier_norm.weight", "model.d2t", "layers.1.hidden_norm.weight", "midlayer.self_attn.qkv_proj.weight"],
    )
    def test_a_name_that_is_not_known_stops_the_converter(self, name: str) -> None:
        assert codes(GOOD.put(name, H)) == {"llamacpp-names"}

    @pytest.mark.parametrize("name", ["t2d", "midlayer.self_attn.rotary_emb.inv_freq"])
    def test_passed_over(self, name: str) -> None:
        assert codes(GOOD.put(name, V)) == set()

    def test_what_the_target_lends(self) -> None:
        wide = FACTS["llama, wide target"]
        target = vary_target(LLAMA_TARGET, hidden=24)
        view = written(wide, "vllm", target)
        assert codes(view, wide, target) == set()
        assert codes(view.drop("lm_head"), wide, target) == set()
        assert codes(view.drop("embed_tokens"), wide, target) == {"llamacpp-missing-tensor"}


class TestVocabulary:
    """The map decides how many tokens can be drafted, whatever number draft_vocab_size has."""

    @pytest.mark.parametrize("number", [None, 77])
    def test_the_number_is_not_read(self, number: int | None) -> None:
        view = written(REDUCED, "vllm", LLAMA_TARGET).set(draft_vocab_size=number)
        assert codes(view, REDUCED) == set()

    def test_an_embedding_may_have_any_rows(self) -> None:
        view = written(EMBEDDED, "vllm", LLAMA_TARGET)
        assert codes(view.put("embed_tokens.weight", V + 10, H), EMBEDDED) == set()
        assert codes(view.put("embed_tokens.weight", V, H + 1), EMBEDDED) == {"llamacpp-shape"}


class TestCapturedLayers:
    def test_the_order_of_the_list_counts(self) -> None:
        view = written(GIVEN, "vllm", LLAMA_TARGET)
        assert codes(view, GIVEN) == set()
        assert codes(view.set(**{IDS: [6, 3, 2]}), GIVEN) == {"llamacpp-taps"}

    def test_without_a_list_it_is_the_triple_of_the_target(self) -> None:
        view = GOOD.unset(IDS)
        assert codes(view) == set()
        assert codes(view, target=None) == set()
        assert codes(view, GIVEN) == {"llamacpp-taps"}
        assert codes(view.set(**{IDS: []})) == set()

    def test_unknown_layers_are_told(self) -> None:
        (line,) = lines(GOOD, vary(LLAMA, boundaries=AuxLayers.UNKNOWN))
        assert (line.rule.code, "--aux-convention" in line.detail) == ("llamacpp-taps-undecided", True)

    @pytest.mark.parametrize("model_type", ["gemma4", "qwen3_5", "llama"])
    def test_the_last_boundary_is_right_on_one_graph(self, model_type: str) -> None:
        last = FACTS["llama, last boundary"]
        view = written(last, "vllm", LLAMA_TARGET)
        assert codes(view, last, of_type(model_type)) == {"llamacpp-last-boundary"}
        assert codes(view, last, of_type("gpt_oss")) == set()

    def test_tables_of_targets_agree(self) -> None:
        assert not HANDED_OUT.keys() & KEPT_BACK
        assert set(HANDED_OUT) >= LAST_STATE

    def test_a_target_whose_graph_came_later(self) -> None:
        assert codes(GOOD, target=of_type("lfm2")) == set()
        (line,) = lines(GOOD, target=of_type("lfm2"), spec="@10539")
        assert (line.rule.code, line.detail) == ("llamacpp-target", "llama-test is lfm2, before b10540")


class TestEarlierBuilds:
    def test_norm_before_fc_came_with_the_ids(self) -> None:
        view = written(NORMED, "vllm", LLAMA_TARGET)
        assert codes(view, NORMED) == set()
        assert codes(view, NORMED, spec=OLD) == {"llamacpp-input-norm"}

    def test_before_what_was_read_nothing_is_known(self) -> None:
        assert codes(GOOD, spec="@9795") == set()
        assert codes(GOOD, spec="@9794") == {"llamacpp-version"}


class TestRope:
    @pytest.mark.parametrize(("kind", "scaling"), [("linear", {"factor": 2.0}), ("llama3", LLAMA3), ("yarn", YARN)])
    def test_kinds_that_reach_the_runtime(self, kind: str, scaling: dict[str, float]) -> None:
        facts = vary(LLAMA, rope=Rope(50000.0, "halves", kind, scaling))
        assert codes(written(facts, "vllm", LLAMA_TARGET), facts) == set()

    @pytest.mark.parametrize("kind", ["dynamic", "longrope"])
    def test_kinds_that_do_not(self, kind: str) -> None:
        facts = vary(LLAMA, rope=Rope(50000.0, "halves", kind, {"factor": 2.0}))
        (line,) = lines(written(facts, "vllm", LLAMA_TARGET), facts)
        assert (line.rule.code, line.detail) == ("llamacpp-rope", f"kind: built as default, trained as {kind}")

    def test_a_base_of_its_own(self) -> None:
        (line,) = lines(GOOD, vary(LLAMA, rope=Rope(5e5, "halves")))
        assert line.detail == "theta: built as 10000.0, trained as 500000.0"


def test_what_is_quantized_is_never_said_to_load() -> None:
    verdict = judged("llamacpp", compressed(written(QUANTIZED, "vllm", LLAMA_TARGET)), QUANTIZED, LLAMA_TARGET)
    assert (verdict.status, [line.rule.code for line in verdict.lines]) == ("undecided", ["llamacpp-uncovered"])


def test_a_config_of_speculators() -> None:
    """Its inner config lies over the outer one, in which norm_before_residual and the ids are looked for."""
    view = written(GIVEN, "speculators", LLAMA_TARGET)
    assert "model_type" not in view.config
    assert codes(view, GIVEN) == set()
    inner = view.config["transformer_layer_config"]
    assert isinstance(inner, dict)
    without = {key: value for key, value in inner.items() if key != "rms_norm_eps"}
    assert "llamacpp-eps-missing" in codes(view.set(transformer_layer_config=without), GIVEN)


@pytest.mark.parametrize(
    ("drafter", "status", "code"),
    [
        ("llama-eagle3", "loads", None),
        ("llama-eagle3-reduced", "loads", None),
        ("llama-eagle3.1", "refused", "llamacpp-fc-norm"),
        ("mla-eagle3", "refused", "llamacpp-mla"),
        ("mla-eagle3.1", "refused", "llamacpp-mla"),
    ],
)
def test_trained_drafters(drafter: str, status: str, code: str | None) -> None:
    target = DATA / "targets" / drafter.partition("-")[0]
    (verdict,) = inspect(DATA / "drafters" / drafter, engines="llamacpp", target=target).verdicts
    assert (verdict.status, verdict.reason and verdict.reason.rule.code) == (status, code)


def test_weights_under_another_name(tmp_path: Path) -> None:
    source = DATA / "drafters" / "llama-eagle3"
    shutil.copy(source / "config.json", tmp_path)
    shutil.copy(source / "model.safetensors", tmp_path / "eagle.safetensors")
    (verdict,) = inspect(tmp_path, engines="llamacpp", target=DATA / "targets" / "llama").verdicts
    assert [line.rule.code for line in verdict.lines] == ["llamacpp-files"]


def test_the_engine_is_only_named() -> None:
    engine = ENGINES["llamacpp"]
    assert engine.only_named
    assert "llamacpp" not in list(ENGINES)
    assert engine not in ENGINES.values()
    assert len(ENGINES) == len(list(ENGINES))
