"""Which modules are built quantized: our repetition of the matchers against the modules that vLLM built.

Nothing is loaded: vLLM builds a draft model from config.json, and each module's linear method says
whether it was matched. Lists that vLLM reads off tensor names come with a file that has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from draftconv.checkpoint import open_checkpoint
from draftconv.engines import parse_engine
from draftconv.engines.quantized_modules import built
from truth.asking import Refusal
from truth.drafts import Directory, Makers, read, target_of, target_path
from truth.store import Ask
from truth.table import Row
from truth.vllm import engine
from truth.vllm.loader import SPEC

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "dynamic": False}
L8 = "model.layers.8"
FUSED = ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"]
LATENT = [
    "self_attn.fused_qkv_a_proj",
    "self_attn.q_b_proj",
    "self_attn.kv_b_proj",
    "self_attn.o_proj",
    "mlp.gate_up_proj",
    "mlp.down_proj",
]


@dataclass(frozen=True, slots=True)
class Case:
    """A declaration on a drafter; `base` is a name that `Makers.base` knows, whose tensors come along."""

    base: str
    declared: Mapping[str, object]

    @property
    def name(self) -> str:
        settings = ", ".join(f"{key} {_short(value)}" for key, value in self.declared.items() if key in SHOWN)
        return f"{self.base}: {self.declared['quant_method']}, {settings or 'no list'}"


SHOWN = (
    "ignore", "targets", "exclude", "layer_quant_config", "modules_in_block_to_quantize", "modules_to_not_convert",
    "lm_head", "dynamic", "exclude_modules",
)  # fmt: skip


def _short(value: object) -> str:
    return str(list(value)) if isinstance(value, Mapping) else str(value)


def compressed(*ignore: str, targets: Sequence[str] = ("Linear",)) -> dict[str, object]:
    group = {"targets": list(targets), "weights": INT4, "input_activations": None, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": list(ignore), "targets": list(targets)}  # fmt: skip


def quark(*exclude: str, layers: Sequence[str] = ()) -> dict[str, object]:
    weight = {
        "dtype": "int4",
        "qscheme": "per_group",
        "group_size": 128,
        "symmetric": True,
        "is_dynamic": False,
        "ch_axis": -1,
    }
    section = {"weight": weight, "input_tensors": None, "output_tensors": None, "bias": None}
    export = {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"}
    return {"quant_method": "quark", "export": export, "global_quant_config": section, "exclude": list(exclude),
            "layer_quant_config": dict.fromkeys(layers, section), "layer_type_quant_config": {}}  # fmt: skip


def gptq(*listed: object, **more: object) -> dict[str, object]:
    lists = {"modules_in_block_to_quantize": list(listed)} if listed else {}
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False,
            "checkpoint_format": "gptq", "lm_head": False, **lists, **more}  # fmt: skip


def awq(*plain: str, **more: object) -> dict[str, object]:
    lists = {"modules_to_not_convert": list(plain)} if plain else {}
    return {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 128, "zero_point": True,
            "lm_head": False, **lists, **more}  # fmt: skip


def modelopt(*ignore: str) -> dict[str, object]:
    return {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": None, "ignore": list(ignore)}


LLAMA, MLA, QWEN3, TWO = "llama-eagle3", "mla-eagle3", "llama-query-norms", "llama-two-layers"
FC = r"re:.*\bfc$"

CASES: tuple[Case, ...] = (
    # compressed-tensors: an equal name or `re:` from the start, no suffix, no glob
    *(Case(base, compressed(*ignore)) for base in (LLAMA, MLA) for ignore in (
        (FC, "lm_head"), ("fc", "lm_head"), ("*fc",), ("model.fc",), ("re:fc$",),
        ("re:.*fc$", "midlayer.mlp.down_proj"), ("re:.*fc$", f"{L8}.mlp.down_proj"),
        ("re:.*fc$", "layers.0.mlp.down_proj"), (),
    )),
    Case(LLAMA, compressed(FC, r"re:.*\.(q|k|v)_proj$")),
    Case(LLAMA, compressed(FC, "re:.*(q|k|v)_proj$")),  # qkv_proj ends in v_proj
    Case(LLAMA, compressed(FC, "re:.*qkv_proj$")),
    Case(MLA, compressed(FC, r"re:.*\bq_a_proj$")),
    Case(MLA, compressed(FC, "re:.*qkv_a_proj$")),
    Case(MLA, compressed(FC, "re:.*kv_b_proj$")),
    *(Case(base, compressed(targets=targets)) for base in (LLAMA, MLA) for targets in (
        (r"re:.*self_attn\..*_proj$", r"re:.*mlp\..*_proj$"), ("re:midlayer.*",), ("linear",), ("RowParallelLinear",),
    )),
    Case(LLAMA, compressed(FC, targets=("Linear", "re:.*lm_head$"))),
    Case(LLAMA, compressed(FC, targets=("Linear", "ParallelLMHead"))),
    Case(QWEN3, compressed(FC, "re:.*self_attn.*")),  # its qkv_proj has no self_attn
    Case(TWO, compressed(FC, f"re:{L8}.*")),
    # Quark: an equal name or `re:`; globs match nothing; the head never
    *(Case(base, quark(*exclude)) for base in (LLAMA, MLA) for exclude in (
        (FC,), ("fc",), ("*fc", "*lm_head"), ("model.fc",), (FC, "midlayer.*"), (),
    )),
    Case(LLAMA, quark(FC, layers=("*down_proj",))),
    # GPTQ: parts of the fused names; without a list one that is read off the file
    Case(LLAMA, gptq(*FUSED)),
    Case(MLA, gptq(*LATENT)),
    Case(LLAMA, gptq(FUSED[:2], FUSED[2:])),
    Case(LLAMA, gptq("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")),
    Case(MLA, gptq("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.o_proj")),
    Case(f"{LLAMA}@gptq-g128", gptq()),
    Case("mla-eagle3.1@gptq-g128", gptq()),
    Case(LLAMA, gptq(*FUSED, dynamic={"-:.*down_proj": {}})),
    Case(LLAMA, gptq("midlayer.mlp.down_proj")),
    # AWQ: parts of the name; without a list the plain modules of the file
    *(Case(base, awq(*plain)) for base in (LLAMA, MLA) for plain in (("fc",), ("proj", "fc"), ("midlayer.mlp",))),
    Case(f"{LLAMA}@awq-g128", awq()),
    Case("mla-eagle3.1@awq-g128", awq()),
    # ModelOpt: an equal name, part of the name or a glob; the head too
    *(Case(base, modelopt(*ignore)) for base in (LLAMA, MLA) for ignore in (
        (), ("fc", "lm_head"), ("lm_head", "model*"), ("lm_head", "eagle_module.fc"), ("lm_head", "*.fc"), ("mlp",),
    )),
)  # fmt: skip


def summary(outcomes: Mapping[str, str]) -> str:
    """Modules that are not quantized, or what else came of it."""
    others = sorted({outcome for outcome in outcomes.values() if outcome not in ("plain", "quantized")})
    plain = sorted(name for name, outcome in outcomes.items() if outcome == "plain")
    return ", ".join(others) or f"plain: {', '.join(plain) or 'none'}"


def rows(makers: Makers, ask: Ask) -> Iterator[Row]:
    """One row per declaration."""
    for case in CASES:
        declared = {key: value for key, value in case.declared.items() if key != "targets"}
        directory = Directory.open(makers.base(case.base)).set(quantization_config=declared)
        with makers.made(directory) as path:
            facts, target = read(makers.base(case.base), case.base).facts, target_of(case.base)
            tensors = open_checkpoint(path).tensors
            modules = built(parse_engine(SPEC), declared, {}, facts, target.layers, tensors)
            predicted = summary({module.name: outcome.outcome for module, outcome in modules.items()})
            answer = ask("matcher", case.name, (path,), partial(observed, path, case.base))
        yield Row(
            "matcher", case.name, predicted, answer["observed"], predicted == answer["observed"], answer["detail"]
        )


def observed(path: Path, name: str) -> dict[str, Any]:
    draft = engine.look(path, target_path(name), load=False)
    if isinstance(draft, Refusal):
        return {"observed": "refused", "detail": draft.error}
    plain = {name: method.startswith("Unquantized") for name, method in draft.methods.items()}
    methods = sorted({method for method in draft.methods.values() if not method.startswith("Unquantized")})
    head = {name: unquantized for name, unquantized in plain.items() if name != "lm_head" or not name_of_mla(draft)}
    return {
        "observed": summary({name: "plain" if unquantized else "quantized" for name, unquantized in head.items()}),
        "detail": ", ".join(methods),
    }


def name_of_mla(draft: engine.Draft) -> bool:
    """The MLA class never asks for a quantization of its head, so that no list is matched against it."""
    return str(draft.built["class"]) == "Eagle3DeepseekV2ForCausalLM"


def fixed() -> frozenset[str]:
    """Names of the cases that every test run asks vLLM: the first three of each method on each base."""
    chosen: dict[tuple[str, object], list[str]] = {}
    for case in CASES:
        chosen.setdefault((case.base, case.declared["quant_method"]), []).append(case.name)
    return frozenset(name for names in chosen.values() for name in names[:3])
