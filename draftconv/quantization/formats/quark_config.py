"""`quantization_config` as amd-quark writes it: the keys that all its schemes share.

Source: amd-quark 0.13 `torch/quantization/config/config.py` and its exported config.json, run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from draftconv.checkpoint import show
from draftconv.drafter.config import Config
from draftconv.errors import BadCheckpoint, Refused
from draftconv.quantization.formats.base import Declaration
from draftconv.quantization.scheme import InputScheme

METHOD = "quark"
VERSION = "0.13"

Spec = Mapping[str, object]

SPEC: Spec = {
    "dtype": None, "qscheme": None, "ch_axis": None, "group_size": None, "symmetric": True,
    "round_method": "half_even", "scale_type": "float", "is_dynamic": False, "observer_cls": None,
    "scale_format": None, "scale_calculation_mode": None, "mx_element_dtype": None, "is_scale_quant": False,
    "block_size": None, "enable_buffer_reuse": False, "max_input_numel": 4194304, "zero_point_type": "int32",
}  # fmt: skip
"""Every key of a spec, as it is where a scheme says nothing else."""

_TOKEN: Spec = {
    "qscheme": "per_channel", "ch_axis": 1, "is_dynamic": True, "observer_cls": "PerChannelMinMaxObserver",
}  # fmt: skip

INPUTS: Mapping[InputScheme, Spec] = {
    InputScheme("int8", "token", True): {**SPEC, **_TOKEN, "dtype": "int8"},
    InputScheme("fp8", "token", True): {**SPEC, **_TOKEN, "dtype": "fp8_e4m3"},
    InputScheme("fp8", "tensor", False): {
        **SPEC, "dtype": "fp8_e4m3", "qscheme": "per_tensor", "observer_cls": "PerTensorMinMaxObserver",
        "scale_type": "float32",
    },
}  # fmt: skip

_TELLING = ("dtype", "qscheme", "ch_axis", "group_size", "symmetric", "is_dynamic", "scale_format")
"""Keys that decide what the numbers are. The others say how scales were found, or belong to versions."""


def write(weight: Spec, scheme: InputScheme | None, exclude: tuple[str, ...], pack_method: str) -> Declaration:
    """The whole entry."""
    config: dict[str, object] = {
        "quant_method": METHOD,
        "version": VERSION,
        "quant_mode": "eager_mode",
        "algo_config": None,
        "exclude": list(exclude),
        "global_quant_config": {
            "weight": dict(weight),
            "input_tensors": None if scheme is None else dict(INPUTS[scheme]),
            "output_tensors": None,
            "bias": None,
            "target_device": None,
        },
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "kv_cache_quant_config": {},
        "kv_cache_post_rope": False,
        "softmax_quant_spec": None,
        "export": {
            "kv_cache_group": [],
            "min_kv_scale": 0.0,
            "pack_method": pack_method,
            "weight_format": "real_quantized",
            "weight_merge_groups": None,
        },
    }
    return Declaration(config)


def weight_spec(config: Mapping[str, object]) -> Config | None:
    """How weights are declared; None if another program wrote the config.

    Raises:
        BadCheckpoint: a key has another JSON type.
        Refused: weights are rounded twice.
    """
    entry = _entry(config)
    if entry.raw("quant_method") != METHOD:
        return None
    weights = entry.section("global_quant_config")
    if isinstance(weights.raw("weight"), list):
        raise Refused(
            "quantization_config: Quark's weights are rounded in two stages, such as FP8 and then INT4",
            why="they stand for a product of two scales, and no engine has a dense layer for it",
            cure="quantize the 16-bit drafter with a recipe of one stage",
        )
    return weights.section("weight")


def inputs(config: Mapping[str, object], known: Collection[InputScheme | None]) -> InputScheme | None:
    """How activations are declared, one of `known`.

    Raises:
        BadCheckpoint: a key has another JSON type.
        Refused: activations, outputs, biases or single layers are declared in a way that is not known.
    """
    entry = _entry(config)
    whole = entry.section("global_quant_config")
    for section, key in ((whole, "output_tensors"), (whole, "bias"), (entry, "layer_quant_config"),
                         (entry, "layer_type_quant_config"), (entry, "algo_config")):  # fmt: skip
        if section.raw(key):
            raise Refused(
                f"{section.where}: {key} is set",
                why="all weights are read under the one scheme of global_quant_config, and nothing beside it",
                cure="quantize the 16-bit drafter with a recipe",
            )
    spec = None if whole.raw("input_tensors") is None else whole.section("input_tensors")
    for scheme in known:
        if spec is None and scheme is None:
            return None
        if spec is not None and scheme is not None and tells(spec, INPUTS[scheme]):
            return scheme
    raise Refused(
        f"{whole.where}: input_tensors: {summary(spec)}",
        why="draftconv knows no such activations beside these weights",
        cure=f"known: {'; '.join(sorted(str(scheme or 'none') for scheme in known))}",
    )


def excluded(config: Mapping[str, object]) -> tuple[str, ...]:
    """Modules that stay unquantized.

    Raises:
        BadCheckpoint: it is no list of names.
    """
    return _entry(config).texts("exclude")


def pack_method(config: Mapping[str, object]) -> str:
    """The order of packed values, as the config has it.

    Raises:
        BadCheckpoint: it is missing.
        Refused: weights are stored unpacked.
    """
    export = _entry(config).section("export")
    stored = export.text("weight_format")
    if stored not in (None, "real_quantized"):
        raise Refused(
            f"{export.where}: weight_format is {show(stored)}",
            why="such weights are floats that were rounded, not codes",
            cure="export with weight_format real_quantized",
        )
    method = export.text("pack_method")
    if method is None:
        raise BadCheckpoint(
            f"{export.where} has no pack_method",
            why="nothing else tells the order of the quantized values, and engines stop without it",
            cure="add pack_method as the drafter was exported, reorder or order",
        )
    return method


def tells(section: Config, spec: Spec, ignoring: tuple[str, ...] = ()) -> bool:
    """Whether a spec from a file says of the numbers what one of ours does."""
    return all(section.raw(key) == spec[key] for key in _TELLING if key not in ignoring)


def summary(section: Config | None) -> str:
    """What a spec says of the numbers, for messages."""
    return "nothing" if section is None else ", ".join(f"{key} {show(section.raw(key))}" for key in _TELLING)


def _entry(config: Mapping[str, object]) -> Config:
    return Config(config, "quantization_config")
