"""Quantized drafters that SGLang is asked about: what `quantize` writes for it, and what others would have written.

Each form is made once per fixture and platform. Forms that draftconv does not write for SGLang (Quark's and ModelOpt's
own spellings, INT8, formats on the other platform) are respelled from one that it writes: the numbers stay, so that a
form that loads can be compared tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import yaml

from draftconv.api.quantize import quantize
from draftconv.drafter.shipped_files import recipes as shipped_directory
from truth.drafts import INT8, Change, Directory, Makers, family, target_path, whole
from truth.replaying import traced

CALIBRATION = (32, 8)
"""Generated tokens and prompts of the trace that static scales are taken from."""

ALL_PLAIN = (r"re:.*\bfc$", "lm_head", "re:.*kv_b_proj$")
"""What every form leaves as it is, as compressed-tensors and Quark are told."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a quantized directory is made.

    Attributes:
        recipe: that is shipped; `changes` to it. `spec`: the engine it is written for, none for any.
        calibrated: its scales are taken from a trace. `respelled`: what is done to what `quantize` writes.
    """

    recipe: str
    spec: str = ""
    changes: Mapping[str, object] = field(default_factory=dict)
    calibrated: bool = False
    respelled: Change = lambda d: d


def made(makers: Makers, plain: str, name: str) -> Path:
    """The directory of a form, made where it is not there yet.

    Raises:
        Refused: it cannot be written for this drafter.
    """
    form, path = FORMS[name], makers.work / "forms" / f"{plain}@{name}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.written")
        options: dict[str, Any] = {"engines": (form.spec,) if form.spec else ()}
        if form.calibrated:
            trace = traced(makers.work, family(plain), *CALIBRATION)
            options["calibrate"] = trace.directory
        quantize(
            makers.base(plain), partial, recipe=_recipe(makers.work, name, form), allow_a16=True,
            target=str(target_path(plain)), overwrite=True, **options,
        )  # fmt: skip
        whole(path, form.respelled(Directory.open(partial)))
    return path


def _recipe(work: Path, name: str, form: Form) -> str:
    if not form.changes:
        return form.recipe
    text = yaml.safe_load(shipped_directory().joinpath(f"{form.recipe}.yaml").read_text(encoding="utf-8"))
    file = work / "forms" / f"{name}.yaml"
    file.write_text(yaml.safe_dump({**text, **form.changes}), encoding="utf-8")
    return str(file)


# ── other spellings of the same numbers ────────────────────────────────────────────


def declare(d: Directory, section: Mapping[str, object]) -> Directory:
    """With this declaration, and no other file that has one."""
    return Directory(d.config, d.tensors).set(quantization_config=dict(section))


def compressed(fmt: str, weights: Mapping[str, object], inputs: Mapping[str, object] | None) -> Change:
    """Declared as compressed-tensors."""
    group = {"targets": ["Linear"], "weights": dict(weights), "input_activations": inputs, "output_activations": None}

    def change(d: Directory) -> Directory:
        kept = ALL_PLAIN if _quantized(d, "q_a_proj") else (*ALL_PLAIN, "re:.*fused_qkv_a_proj_with_mqa$")
        return declare(d, {
            "quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": list(kept),
        })  # fmt: skip

    return change


def _quantized(d: Directory, part: str) -> bool:
    return any(f".{part}.weight_scale" in name or f".{part}.weight_packed" in name for name in d.tensors)


FP8: Mapping[str, object] = {
    "num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": "tensor",
}  # fmt: skip
FP8_TOKEN: Mapping[str, object] = {**FP8, "dynamic": True, "strategy": "token"}
FP8_ROWS: Mapping[str, object] = {**FP8, "strategy": "channel"}


def quark_section(weight: Mapping[str, object] | None, inputs: Mapping[str, object] | None) -> dict[str, object]:
    """What Quark says of one kind of layer."""
    return {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None}


def quark(weight: Mapping[str, object], inputs: Mapping[str, object] | None) -> Change:
    """Declared as Quark's export."""

    def change(d: Directory) -> Directory:
        kept = ALL_PLAIN if _quantized(d, "q_a_proj") else (*ALL_PLAIN, "re:.*fused_qkv_a_proj_with_mqa$")
        return declare(d, {
            "quant_method": "quark", "global_quant_config": quark_section(weight, inputs), "exclude": list(kept),
            "layer_quant_config": {}, "layer_type_quant_config": {},
            "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
        })  # fmt: skip

    return change


TENSOR_FP8: Mapping[str, object] = {
    "dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True, "ch_axis": None,
}  # fmt: skip
ROWS_FP8: Mapping[str, object] = {**TENSOR_FP8, "qscheme": "per_channel", "ch_axis": 0}
TOKENS_FP8: Mapping[str, object] = {**ROWS_FP8, "is_dynamic": True}


def flat_scales(d: Directory) -> Directory:
    """Scales of rows in one dimension, as Quark writes them."""
    for name, tensor in d.tensors.items():
        if name.endswith(".weight_scale"):
            d = d.put(name, tensor.flatten())
    return d


def quark_rows(d: Directory) -> Directory:
    """FP8 per row, activations scaled per token."""
    return quark(ROWS_FP8, TOKENS_FP8)(flat_scales(d))


QUARK_INT8 = {"dtype": "int8", "qscheme": "per_channel", "is_dynamic": False, "symmetric": True, "ch_axis": 0}
GROUP = {"weights": {"dtype": "int4", "granularity": "group", "group": 128, "scale_rule": "mse",
                     "scale_dtype": "weight"}}  # fmt: skip


def with_order(d: Directory) -> Directory:
    """Groups of inputs in another order, as compressed-tensors stores it: here the order is as it was."""
    for name, tensor in d.tensors.items():
        if name.endswith(".weight_packed"):
            inputs = torch.arange(tensor.shape[1] * 8, dtype=torch.int32) // 128
            d = d.put(name.replace("weight_packed", "weight_g_idx"), inputs)
    return reordered(d)


def reordered(d: Directory) -> Directory:
    """Declared to have its inputs in another order."""
    group = d.config["quantization_config"]["config_groups"]["group_0"]
    weights = {**group["weights"], "actorder": "group"}
    return d.quantization(config_groups={"group_0": {**group, "weights": weights}})


def as_auto_round(d: Directory) -> Directory:
    """AWQ's tensors, declared as auto-round."""
    plain = d.config["quantization_config"].get("modules_to_not_convert") or []
    names = {f"model.{name}" for name in plain if name != "lm_head"} | {
        f"model.self_attn.{name.rpartition('.')[2]}" for name in plain if name.startswith("self_attn")
    }
    return declare(d, {
        "quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": False, "data_type": "int",
        "packing_format": "auto_round:auto_awq", "extra_config": {name: {"bits": 16} for name in sorted(names)},
    })  # fmt: skip


def in_legacy_file(d: Directory) -> Directory:
    """ModelOpt's declaration in hf_quant_config.json alone."""
    return d.unset("quantization_config")


B200, MI325X = "sglang:b200", "sglang:mi325x"

FORMS: Mapping[str, Form] = MappingProxyType({
    # what `quantize --for` writes
    **{f"{recipe}, b200": Form(recipe, B200) for recipe in ("fp8", "w4a16", "w4a16-g128", "w4a8", "w4a8-fp8")},
    "fp8-all, b200": Form("fp8-all", B200),
    # How a value was chosen is nothing that a reader sees, and needs no trace here.
    "w4a16-g128-all, b200": Form("w4a16-g128-all", B200, {"rounding": "nearest"}),
    "int8-all, h200": Form("int8-all", "sglang@0.5.23:h200"),
    "fp8, mi325x": Form("fp8", MI325X),
    "fp8-all, mi325x": Form("fp8-all", MI325X),
    "fp8-tensor, b200": Form("fp8-tensor", B200, calibrated=True),
    "nvfp4, b200": Form("nvfp4", B200, calibrated=True),
    "gptq, b200": Form("w4a16", B200, {"format": "gptq"}),
    "gptq-g128, b200": Form("w4a16-g128", B200, {"format": "gptq"}),
    "awq, b200": Form("w4a16-g128", B200, {"format": "autoawq"}),
    "auto-round, mi325x": Form("w4a16-g128", MI325X, {"format": "autoawq"}),
    # what is written for no engine
    "quark-int4": Form("quark-w4a8"),
    "int8": Form("w4a8", changes=INT8),
    "nvfp4": Form("nvfp4", calibrated=True),
    # the same numbers in others' words
    "quark-fp8": Form("fp8", B200, respelled=quark_rows),
    "quark-fp8-static": Form("fp8-tensor", B200, calibrated=True, respelled=quark(TENSOR_FP8, TENSOR_FP8)),
    "quark-int8": Form("w4a8", changes=INT8, respelled=lambda d: quark(QUARK_INT8, QUARK_INT8)(flat_scales(d))),
    "fp8-a16": Form("fp8", B200, respelled=compressed("float-quantized", FP8_ROWS, None)),
    "fp8-static": Form(
        "fp8-tensor", B200, calibrated=True, respelled=compressed("float-quantized", FP8, FP8)
    ),
    "fp8-tensor-dynamic": Form(
        "fp8-tensor", B200, calibrated=True,
        respelled=lambda d: compressed("float-quantized", FP8, FP8_TOKEN)(d.drop("input_scale")),
    ),
    "actorder": Form("w4a16-g128", B200, respelled=with_order),
    "auto-round-awq": Form("w4a16-g128", B200, {"format": "autoawq"}, respelled=as_auto_round),
    "modelopt-legacy": Form("fp8-tensor", B200, calibrated=True, respelled=in_legacy_file),
})  # fmt: skip
