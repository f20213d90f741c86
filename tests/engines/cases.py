"""One case per rule: a directory that breaks it, and one beside it that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts, Mla
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES, LoadVerdict, parse_engine
from draftconv.engines.registry import DEFAULT
from tests.engines.views import KIMI_TARGET, LLAMA, LLAMA_TARGET, FakeView, vary, written

Change = Callable[[FakeView], FakeView]
IDS = "eagle_aux_hidden_state_layer_ids"


def same(view: FakeView) -> FakeView:
    return view


@dataclass(frozen=True)
class Case:
    """How one rule is broken.

    Attributes:
        detail: what its line must say.
        facts: the drafter, written by the layout of `spelled_for`. `good_facts`: of the one that keeps the rule.
        broken, good: what is changed in the two directories.
        truth: facts that the broken directory does not have although it was trained so.
        target, good_target: None for the family's own; "none" for no target at all.
        spec, good_spec: version and hardware, as written after the engine's name.
        known: problems found in the drafter. `also`: other rules that this necessarily breaks.
    """

    detail: str
    broken: Change = same
    facts: Facts = LLAMA
    good: Change = same
    good_facts: Facts | None = None
    truth: Mapping[str, object] = field(default_factory=dict)
    target: Target | str | None = None
    good_target: Target | str | None = None
    spec: str = ""
    good_spec: str | None = None
    known: frozenset[str] = frozenset()
    also: frozenset[str] = frozenset()


def home(facts: Facts) -> Target:
    """A target that the drafter fits."""
    target = KIMI_TARGET if isinstance(facts.attention, Mla) else LLAMA_TARGET
    return target if facts.target_hidden == target.hidden else vary_target(target, hidden=facts.target_hidden)


def vary_target(target: Target, **changes: object) -> Target:
    return replace(target, **changes)  # type: ignore[arg-type]


def judged(engine: str, view: FakeView, truth: Facts, target: Target | None, spec: str = "") -> LoadVerdict:
    return ENGINES[engine].check(view, truth, target, parse_engine(engine + spec, reading=True))


def spelled_for(engine: str) -> str:
    """The layout to start from: the default engine's where nothing is written for this one."""
    return ENGINES[engine].layout if ENGINES[engine].layouts else DEFAULT


def assert_case(engine: str, code: str, case: Case) -> None:
    """The broken directory breaks this rule and, notes aside, no other; the good one keeps it."""
    rule = next(rule for rule in ENGINES[engine].rules if rule.code == code)
    assert rule.applies(parse_engine(engine + case.spec, reading=True))

    broken_target = _target(case.target, case.facts)
    view = case.broken(written(case.facts, spelled_for(engine), broken_target))
    truth = vary(case.facts, **case.truth)
    spec = parse_engine(engine + case.spec, reading=True)
    verdict = ENGINES[engine].check(view, truth, broken_target, spec, case.known)
    lines = {line.rule.code: line for line in verdict.lines}
    assert code in lines, list(lines)
    assert case.detail in lines[code].detail
    serious = {name for name, line in lines.items() if line.rule.effect != "note"}
    assert serious - {code} == case.also
    if not case.also:
        assert verdict.status == ("loads" if rule.effect == "note" else rule.effect)

    facts = case.good_facts or case.facts
    target = _target(case.target if case.good_target is None else case.good_target, facts)
    view = case.good(written(facts, spelled_for(engine), target))
    kept = judged(engine, view, facts, target, case.spec if case.good_spec is None else case.good_spec)
    assert code not in {line.rule.code for line in kept.lines}
    assert kept.status == "loads"


def _target(given: Target | str | None, facts: Facts) -> Target | None:
    return None if isinstance(given, str) else given or home(facts)


# ── changes that several engines' cases use ────────────────────────────────────────

PARTS = ("mlp.", "q_proj", "k_proj", "v_proj", "o_proj", "q_b_proj")
"""Parts of the names of what a recipe quantizes in a file of either kind."""

FC = r"re:.*\bfc$"
KEPT = [FC, "lm_head", r"re:.*\bfused_qkv_a_proj", r"re:.*\b(kv_a_proj_with_mqa|kv_b_proj)$"]
"""What it keeps, in the names that every engine matches."""

SCALING = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": KEPT,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "channel"},
            "input_activations": None,
        }
    },
}
"""A compressed-tensors W4A16 declaration."""


def compressed(view: FakeView) -> FakeView:
    """INT4 per channel, as compressed-tensors packs it."""
    return view.pack(*PARTS).set(quantization_config=SCALING)


def ignoring(*entries: str) -> Change:
    """The same with another list of what is ignored."""
    return lambda view: compressed(view).set(quantization_config={**SCALING, "ignore": list(entries)})


def declaring(**changes: object) -> Change:
    """The same with other keys of quantization_config; None is left out."""
    config = {key: value for key, value in {**SCALING, **changes}.items() if value is not None}
    return lambda view: compressed(view).set(quantization_config=config)


def weighing(**changes: object) -> Mapping[str, object]:
    """`config_groups` with other keys of the weights."""
    group = SCALING["config_groups"]["group_0"]  # type: ignore[index]
    return {"group_0": {**group, "weights": {**group["weights"], **changes}}}


grouped = declaring(config_groups=weighing(strategy="group", group_size=32))
"""INT4 per channel, declared as INT4 in groups."""
reordered = declaring(config_groups=weighing(actorder="group"), sparsity_config={"format": "sparse-24-bitmask"})
"""What compressed-tensors can say and vLLM rejects."""


def targeting(*targets: str) -> Change:
    groups = {"group_0": {**SCALING["config_groups"]["group_0"], "targets": list(targets)}}  # type: ignore[index]
    return lambda view: compressed(view).set(quantization_config={**SCALING, "config_groups": groups})


FP8_GROUP = {
    "format": "float-quantized",
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
}


def several(*targets: str, strategy: str = "channel") -> Change:
    """INT4 in the layer, and an FP8 head in a group of its own, which has these targets."""

    def change(view: FakeView) -> FakeView:
        scale = view.tensors["lm_head.weight"].shape[0], 1
        headed = compressed(view).retype("F8_E4M3", "lm_head.weight").put("lm_head.weight_scale", *scale, dtype="F32")
        group = {**FP8_GROUP, "targets": list(targets), "weights": {**FP8_GROUP["weights"], "strategy": strategy}}  # type: ignore[dict-item]
        main = {**SCALING["config_groups"]["group_0"], "format": "pack-quantized"}  # type: ignore[index]
        said = {
            **SCALING, "format": "mixed-precision", "config_groups": {"group_0": main, "group_1": group},
            "ignore": [entry for entry in KEPT if entry != "lm_head"],
        }  # fmt: skip
        return headed.set(quantization_config=said)

    return change


def with_packed_head(view: FakeView) -> FakeView:
    """INT4 everywhere but in fc."""
    group = {**SCALING["config_groups"]["group_0"], "targets": ["Linear", "lm_head"]}  # type: ignore[index]
    ignored = [entry for entry in KEPT if entry != "lm_head"]
    said = {**SCALING, "config_groups": {"group_0": group}, "ignore": ignored}
    return view.pack(*PARTS, "lm_head").set(quantization_config=said)


def swapped(view: FakeView) -> FakeView:
    """The same, with a projection of the layer named in the group of the head."""
    return several("lm_head", r"re:.*\bdown_proj$")(view)


def compressed_activations(view: FakeView) -> FakeView:
    groups = {"group_0": {**SCALING["config_groups"]["group_0"], "input_activations": {"num_bits": 8}}}  # type: ignore[index]
    return view.pack(*PARTS).set(quantization_config={**SCALING, "config_groups": groups})


def quark(
    dtype: str = "int4", group_size: int | None = None, inputs: str | None = None, exclude: Sequence[str] = ()
) -> Change:
    def change(view: FakeView) -> FakeView:
        section = {
            "weight": {"dtype": dtype, "group_size": group_size},
            "input_tensors": {"dtype": inputs} if inputs else None,
        }
        config = {
            "quant_method": "quark",
            "global_quant_config": section,
            "exclude": list(exclude or KEPT),
            "export": {"pack_method": "reorder"},
        }
        return view.retype({"int4": "I32", "int8": "I8"}.get(dtype, "F8_E4M3"), *PARTS).set(quantization_config=config)

    return change


def quark_fp8(dtype: str = "fp8_e4m3", exclude: Sequence[str] = (), **keys: object) -> Change:
    """Quark's FP8, one scale for a tensor and activations scaled as they come."""
    kind = {"dtype": dtype, "qscheme": "per_tensor", "is_dynamic": False}

    def change(view: FakeView) -> FakeView:
        config = {
            "quant_method": "quark", "export": {"pack_method": "reorder"}, "exclude": list(exclude or KEPT),
            "layer_quant_config": {}, "layer_type_quant_config": {},
            "global_quant_config": {"weight": kind, "input_tensors": {**kind, "is_dynamic": True}}, **keys,
        }  # fmt: skip
        return view.retype("F8_E4M3", *PARTS).set(quantization_config=config)

    return change


def without_export(change: Change) -> Change:
    """The same with a null in place of Quark's export section."""

    def lacking(view: FakeView) -> FakeView:
        made = change(view)
        return made.set(quantization_config={**Config(made.config).section("quantization_config").data, "export": None})

    return lacking


LATENT_NAMES = (
    "*.fused_qkv_a_proj", "*.fused_qkv_a_proj_with_mqa", "model.midlayer.self_attn.kv_a_proj_with_mqa",
    "*.self_attn.kv_b_proj",
)  # fmt: skip


def modelopt(
    algorithm: str,
    dtype: str = "U8",
    exclude: tuple[str, ...] = ("lm_head", "model.fc"),
    latent: Sequence[str] = LATENT_NAMES,
) -> Change:
    def change(view: FakeView) -> FakeView:
        section = {"quant_algo": algorithm, "exclude_modules": [*exclude, *latent]}
        made = view.retype(dtype, *PARTS).beside("hf_quant_config.json", {"quantization": section})
        return awq_parts(made) if algorithm.endswith("_AWQ") else scalars(made, dtype)

    return change


def scalars(view: FakeView, dtype: str) -> FakeView:
    """With what ModelOpt keeps beside a weight that has a scale: that of its activations and, in FP4, of its scales."""
    for name in [name for name in view.tensors if name.endswith(".weight_scale")]:
        stem = name.removesuffix(".weight_scale")
        for scalar in ("input_scale", *(("weight_scale_2",) if dtype == "U8" else ())):
            view = view.put(f"{stem}.{scalar}", dtype="F32")
    return view


def awq_parts(view: FakeView) -> FakeView:
    """With all that ModelOpt's AWQ keeps beside an INT4 weight."""
    for name, ref in view.tensors.items():
        if ref.dtype == "U8":
            stem = name.removesuffix(".weight")
            view = view.put(f"{stem}.weight_scale", ref.shape[0], 1, dtype="F32").put(
                f"{stem}.pre_quant_scale", ref.shape[1]
            )
            for scalar in ("weight_scale_2", "input_scale"):
                view = view.put(f"{stem}.{scalar}", dtype="F32")
    return view
