"""Which modules are built quantized: our repetition of the matchers against the modules that SGLang built.

Nothing is loaded: SGLang builds a draft model from config.json on a pretended GPU, and each module's method says
whether it was matched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftconv.engines import parse_engine
from draftconv.engines.quantized_modules import built
from truth.asking import Refusal
from truth.drafts import Directory, Makers, read, target_of, target_path
from truth.sglang import engine
from truth.sglang.observing import sample_of
from truth.sglang.quantized import SPECS
from truth.sglang.quantized_forms import ROWS_FP8, TENSOR_FP8, TOKENS_FP8, quark_section
from truth.store import Ask
from truth.table import Row
from truth.trained import Truth

LLAMA, MLA, TWO = "llama-eagle3", "mla-eagle3", "llama-two-layers"
BASES = (LLAMA, MLA)


@dataclass(frozen=True, slots=True)
class Case:
    """A declaration on a drafter whose tensors are plain; `base` is a name that `Makers.base` knows."""

    base: str
    declared: Mapping[str, object]
    platform: engine.Platform = "cuda"

    @property
    def name(self) -> str:
        settings = ", ".join(f"{key} {_short(value)}" for key, value in self.declared.items() if key in SHOWN)
        where = "" if self.platform == "cuda" else " on ROCm"
        return f"{self.base}: {self.declared['quant_method']}{where}, {settings or 'no list'}"


SHOWN = (
    "ignore", "targets", "exclude", "exclude_modules", "layer_quant_config", "layer_type_quant_config",
    "modules_to_not_convert", "extra_config", "block_name_to_quantize", "lm_head", "dynamic", "quant_algo",
)  # fmt: skip


def _short(value: object) -> str:
    match value:
        case {**items}:
            return ", ".join(f"{key} {_short(item)}".strip() for key, item in items.items())
        case None | False:
            return "off"
        case _:
            return str(value)


INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "dynamic": False}


def compressed(*ignore: str, targets: Sequence[str] = ("Linear",)) -> dict[str, object]:
    group = {"targets": list(targets), "weights": INT4, "input_activations": None, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": list(ignore),
            "config_groups": {"group_0": group}, "targets": list(targets)}  # fmt: skip


def quark(*exclude: str, layers: Sequence[str] = (), types: Sequence[str] = ()) -> dict[str, object]:
    """FP8, for some layers or classes of layers by another scheme."""
    section, other = quark_section(TENSOR_FP8, TENSOR_FP8), quark_section(ROWS_FP8, TOKENS_FP8)
    return {"quant_method": "quark", "export": {"kv_cache_group": [], "pack_method": "reorder"},
            "global_quant_config": section, "exclude": list(exclude),
            "layer_quant_config": dict.fromkeys(layers, other),
            "layer_type_quant_config": dict.fromkeys(types, other)}  # fmt: skip


def gptq(**more: object) -> dict[str, object]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False, **more}


def awq(*plain: str, **more: object) -> dict[str, object]:
    lists = {"modules_to_not_convert": list(plain)} if plain else {}
    return {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, **lists, **more}


def auto_round(extra: Mapping[str, object] | None = None, **more: object) -> dict[str, object]:
    lists = {} if extra is None else {"extra_config": extra}
    return {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": False, "data_type": "int",
            "packing_format": "auto_round:auto_awq", **lists, **more}  # fmt: skip


def modelopt(*ignore: str, algorithm: str = "FP8") -> dict[str, object]:
    more = {"group_size": 16} if "NVFP4" in algorithm else {}
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": list(ignore), **more}


ENTRIES: Sequence[tuple[str, ...]] = (
    (), ("fc",), ("model.fc",), ("lm_head",), ("*lm_head",), ("down_proj",), ("mlp.down_proj",), ("model.down_proj",),
    ("model.mlp.down_proj",), ("layers.0.mlp.down_proj",), ("midlayer.mlp.down_proj",), ("*down_proj",), ("model.*",),
    ("model",), ("mlp",), ("model.mlp",), ("self_attn",), ("model.self_attn",), ("*self_attn*",), ("o_proj",),
    ("qkv_proj",), ("model.qkv_proj",), ("model.self_attn.qkv_proj",), ("q_proj",), ("q_proj", "k_proj", "v_proj"),
    ("model.q_proj", "model.k_proj", "model.v_proj"), ("gate_proj",), ("gate_proj", "up_proj"), ("gate_up_proj",),
    ("model.gate_proj",), ("model.gate_proj", "model.up_proj"), ("model.mlp.gate_proj", "model.mlp.up_proj"),
    ("kv_b_proj",), ("*kv_b_proj",), ("self_attn.kv_b_proj",), ("q_a_proj",), ("kv_a_proj_with_mqa",),
    ("model.self_attn.q_a_proj",), ("model.self_attn.q_a_proj", "model.self_attn.kv_a_proj_with_mqa"),
    ("fused_qkv_a_proj_with_mqa",), ("model.layers.0.self_attn.q_b_proj",), ("q_b_proj.",), ("proj",), ("MLP",),
)  # fmt: skip
"""Names and globs; none of them is a regular expression."""

PATTERNS: Sequence[tuple[str, ...]] = (
    (r"re:.*\bfc$",), ("re:fc$",), ("re:.*fc",), ("re:.*lm_head$",), ("re:model",), ("re:.*proj$",),
    ("re:.*qkv_proj$",),
    ("re:.*[qkv]_proj$",), ("re:.*q_proj$",), ("re:.*self_attn.*",), ("re:.*mlp.*",), ("re:.*down_proj$",),
    ("re:.*gate_proj$",), ("re:.*(gate|up)_proj$",), ("re:.*q_a_proj$",), ("re:.*(q_a_proj|kv_a_proj_with_mqa)$",),
    ("re:.*kv_b_proj$",), ("re:.*qkv_a_proj.*",), ("re:midlayer.*",), (r"re:model\.down_proj",), ("RE:.*proj",),
)  # fmt: skip
"""With `re:`, which compressed-tensors and Quark read."""

TARGETS: Sequence[tuple[str, ...]] = (
    ("Linear", "re:.*lm_head$"), ("Linear", "lm_head"), ("Linear", "ParallelLMHead"), ("linear",), ("LINEAR",),
    ("RowParallelLinear",), ("re:.*_proj$",), (r"re:.*self_attn\..*_proj$", r"re:.*mlp\..*_proj$"),
    ("re:model.*",), ("re:.*",), ("re:.*Linear",), ("re:midlayer.*",),
    (r"re:model\.\w+_proj", r"re:model\.self_attn.*"),
    ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    ("model.qkv_proj", "model.self_attn.qkv_proj", "model.self_attn.o_proj", "model.gate_up_proj",
     "model.mlp.gate_up_proj", "model.down_proj", "model.mlp.down_proj"),
)  # fmt: skip

RULES: Sequence[Mapping[str, object]] = (
    {}, {r"-:.*\bfc$": {}}, {"-:fc": {}}, {"-:model.fc": {}}, {"-:.*down_proj": {}}, {"-:.*mlp.*": {}},
    {"-:.*lm_head": {}}, {"-:.*q_proj": {}}, {"+:.*down_proj": {"bits": 8}}, {r".*down_proj": {"bits": 8}},
    {"-:.*kv_b_proj$": {}, "-:.*a_proj.*": {}}, {"-:model.self_attn": {}},
)  # fmt: skip
"""`dynamic` of GPTQ."""

PLAIN = {"bits": 16}
EXTRA: Sequence[Mapping[str, object]] = (
    {}, {"model.fc": PLAIN}, {"fc": PLAIN}, {"model.down_proj": PLAIN}, {"model.mlp.down_proj": PLAIN},
    {".*down_proj": PLAIN}, {".*mlp.*": PLAIN}, {"model.*": PLAIN}, {"lm_head": PLAIN}, {"lm_head": {"bits": 4}},
    {"model.qkv_proj": PLAIN}, {"q_proj": PLAIN}, {"model.q_proj": PLAIN}, {".*_b_proj": PLAIN},
    {"model.self_attn.kv_b_proj": PLAIN, "model.self_attn.fused_qkv_a_proj_with_mqa": PLAIN},
    {"model.down_proj": {}},
)  # fmt: skip
"""`extra_config` of auto-round."""

BLOCKS = ("model", "model.self_attn", ["model.mlp", "model.down_proj"], "model.layers", "lm_head", "model,lm_head")

CASES: tuple[Case, ...] = (
    *(Case(base, compressed(*entries)) for base in BASES for entries in (*ENTRIES, *PATTERNS)),
    *(Case(base, compressed(targets=targets)) for base in BASES for targets in TARGETS),
    *(Case(base, quark(*entries)) for base in BASES for entries in (*ENTRIES, *PATTERNS)),
    *(Case(base, quark(*entries), "hip") for base in BASES for entries in PATTERNS[:3]),
    *(Case(base, quark(layers=(layer,))) for base in BASES for layer in (
        "*down_proj", "*gate_proj", "*gate_up_proj", "*q_proj", "*v_proj", "*q_a_proj", "*proj*", "model.self_attn.*",
    )),
    *(Case(base, quark(types=(kind,))) for base in BASES for kind in ("RowParallelLinear", "ReplicatedLinear")),
    *(Case(base, modelopt(*entries)) for base in BASES for entries in ENTRIES),
    *(Case(LLAMA, modelopt(*entries, algorithm="NVFP4")) for entries in ENTRIES[:12]),
    *(Case(base, awq(*entries)) for base in BASES for entries in ENTRIES),
    Case(LLAMA, awq(lm_head=True)),
    *(Case(base, gptq(dynamic=rules)) for base in BASES for rules in RULES),
    *(Case(base, gptq(lm_head=True, dynamic=rules)) for base in BASES for rules in (RULES[0], RULES[6])),
    *(Case(base, auto_round(extra), "hip") for base in BASES for extra in EXTRA),
    *(Case(base, auto_round(block_name_to_quantize=blocks), "hip") for base in BASES for blocks in BLOCKS),
    *(Case(TWO, declared) for declared in (
        compressed(), compressed("re:.*down_proj$"), compressed("model.layers.1.mlp.down_proj"), modelopt("down_proj"),
        quark("model.down_proj"), awq("qkv_proj"),
    )),
)  # fmt: skip


def summary(outcomes: Mapping[str, str]) -> str:
    """Modules that are not quantized, by their last name, or what else came of it."""
    if "stops" in outcomes.values():
        return "refused"
    if "unknown" in outcomes.values():
        return "undecided"
    plain = sorted({name.rpartition(".")[2] for name, outcome in outcomes.items() if outcome == "plain"})
    return f"plain: {', '.join(plain) or 'none'}"


def rows(makers: Makers, ask: Ask) -> Iterator[Row]:
    """One row per declaration."""
    for case in CASES:
        declared = {key: value for key, value in case.declared.items() if key != "targets"}
        directory = Directory.open(makers.base(case.base)).set(quantization_config=declared)
        with makers.made(directory) as path:
            yield _row(case, path, makers, ask)


def _row(case: Case, path: Path, makers: Makers, ask: Ask) -> Row:
    facts, target = read(makers.base(case.base), case.base).facts, target_of(case.base)
    modules = built(parse_engine(SPECS[case.platform]), case.declared, {}, facts, target.layers, {})
    predicted = summary({module.name: outcome.outcome for module, outcome in modules.items()})
    names = frozenset(module.name.rpartition(".")[2] for module in modules)
    truth = Truth(facts, {}, target)

    def observe() -> dict[str, Any]:
        return observed(path, case, truth, names)

    answer = ask("matcher", case.name, (path, case.platform, Path(__file__)), observe)
    return Row("matcher", case.name, predicted, answer["observed"], predicted == answer["observed"], answer["detail"])


def observed(path: Path, case: Case, truth: Truth, names: frozenset[str]) -> dict[str, Any]:
    sample = sample_of(truth, truth.target.max_positions)
    draft = engine.look(path, target_path(case.base), sample, case.platform, "auto", load=False)
    if isinstance(draft, Refusal):
        return {"observed": "refused", "detail": draft.error}
    methods = {name: method for name, method in draft.methods.items() if name.rpartition(".")[2] in names}
    detail = ", ".join(sorted({method for method in methods.values() if not method.startswith("Unquantized")}))
    outcomes = {n: "plain" if method.startswith("Unquantized") else "quantized" for n, method in methods.items()}
    return {"observed": summary(outcomes), "detail": detail}
