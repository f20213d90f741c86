"""What a quantization_config has to say before an engine reads it, and what it must not say falsely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftconv.checkpoint.dtypes import FLOATS
from draftconv.drafter.config import Config
from draftconv.drafter.tensors import expected
from draftconv.engines.checks import compressed_groups, listed, modelopt_algorithm, quant_method
from draftconv.engines.quantization_mismatch import numbered_names
from draftconv.engines.quantized_modules import built, declaration
from draftconv.engines.rules import SimulatedLoad

ROW = -1
"""As a group of inputs: one scale for a whole row, in the spelling of GPTQ."""

SCALES: Mapping[str, tuple[str, int]] = {"compressed-tensors": ("weight_scale", 1), "gptq": ("scales", 0),
                                         "awq": ("scales", 0)}  # fmt: skip
"""Method → what its scales are called, and the axis along which the groups of a row lie."""

BESIDE: Mapping[str, tuple[str, ...]] = {
    "compressed-tensors": ("weight_scale",), "quark": ("weight_scale",), "gptq": ("scales",),
    "awq": ("scales", "qzeros"), "auto-round": ("scales", "qzeros"),
    "FP8": ("weight_scale", "input_scale"), "NVFP4": ("weight_scale", "weight_scale_2", "input_scale"),
    "NVFP4_AWQ": ("weight_scale", "weight_scale_2", "input_scale"), "W4A16_NVFP4": ("weight_scale", "weight_scale_2"),
    "FP8_PER_CHANNEL_PER_TOKEN": ("weight_scale",), "MXFP8": ("weight_scale",), "W4A8_NVFP4_FP8": ("weight_scale",),
}  # fmt: skip
"""Method, or ModelOpt's algorithm → what every quantized weight has beside it. Others have more than one spelling.

Zero points of GPTQ are not looked at: vLLM (run) and SGLang (read) go by `sym`."""


def unnamed_method(load: SimulatedLoad) -> str | None:
    """A declaration without quant_method."""
    section = load.config.section("quantization_config").data
    return "no quant_method" if section and not declaration(load.spec, section, load.view.sidecars).method else None


def unexported(load: SimulatedLoad) -> str | None:
    """Quark's declaration without its export section."""
    section = load.config.section("quantization_config")
    return "no export" if quant_method(load) == "quark" and not section.section("export").data else None


def sparse_or_reordered(load: SimulatedLoad) -> str | None:
    """Sections of compressed-tensors that change what the tensors mean."""
    section = load.config.section("quantization_config")
    if quant_method(load) != "compressed-tensors":
        return None
    orders = (weights.raw("actorder") for weights, *_ in compressed_groups(load))
    reordered = [f"actorder: {order}" for order in orders if order in ("group", "dynamic")]
    return listed([*(["sparsity_config"] if section.section("sparsity_config").data else []), *reordered])


def other_grouping(load: SimulatedLoad) -> str | None:
    """Weights that have another number of scales than is declared."""
    method = quant_method(load)
    group = _group(load, method)
    if group is None:
        return None
    suffix, axis = SCALES[method]
    shapes = expected(load.built)
    misfits = []
    for canonical, name in {**load.results.loaded, **load.results.packed}.items():
        scale = load.view.tensors.get(f"{name.rpartition('.')[0]}.{suffix}")
        weight = canonical in shapes and canonical.endswith(".weight")  # a bias lies beside the same scale
        if weight and scale is not None and len(scale.shape) == 2:
            inputs = shapes[canonical].shape[1]
            if scale.shape[axis] * (inputs if group == ROW else group) != inputs:
                misfits.append(f"{canonical} has {scale.shape[axis]} scales for {inputs} inputs")
    declared = "one for a row" if group == ROW else f"groups of {group}"
    return f"{listed(misfits)}, declared: {declared}" if misfits else None


def _group(load: SimulatedLoad, method: str) -> int | None:
    """Inputs under one scale, as declared; None where no single number is."""
    if method == "compressed-tensors":
        groups = compressed_groups(load)
        weights = groups[0][0] if len(groups) == 1 else None
        strategy = weights.text("strategy") if weights else None
        return ROW if strategy == "channel" else weights.size("group_size") if weights and strategy == "group" else None
    return load.config.section("quantization_config").integer("group_size") if method in SCALES else None


def other_scheme(load: SimulatedLoad) -> str | None:
    """Modules that are matched by one of several groups of compressed-tensors, and stored as another one says."""
    section = load.config.section("quantization_config")
    groups = section.section("config_groups")
    if quant_method(load) != "compressed-tensors" or len(groups.data) < 2 or numbered_names(load):
        return None
    layers = load.target.layers if load.target else None
    found = built(load.spec, section.data, load.view.sidecars, load.built, layers, load.view.tensors)
    misfits = []
    for module, decided in found.items():
        entry = decided.because.removeprefix("targets: ")
        names = [name for name in groups.data if entry in groups.section(name).texts("targets")]
        if decided.outcome == "quantized" and names:
            group = groups.section(names[0])
            form = group.text("format") or section.text("format")
            misfits += [f"{module.name} ({names[0]})"] * any(
                _stored_otherwise(load, p, group, form) for p in module.parts
            )
    return listed(misfits)


LAYOUTS: Mapping[str, str] = {"I8": "int-quantized", "F8_E4M3": "float-quantized"}
"""Dtype of a weight in the shape of the floats → the format of compressed-tensors that stores it so."""


def _stored_otherwise(load: SimulatedLoad, part: str, group: Config, form: str | None) -> bool:
    """Whether a weight is stored in another format than its group has, of other bits or under other scales."""
    weights, shape = group.section("weights"), expected(load.built).get(f"{part}.weight")
    packed = load.results.packed.get(f"{part}.weight")
    name = packed or load.results.loaded.get(f"{part}.weight")
    if name is None or shape is None:
        return False
    ref = load.view.tensors[name]
    layout = "pack-quantized" if packed else LAYOUTS.get(ref.dtype)
    inputs = shape.shape[1]
    if layout != form or (packed and ref.shape[1] * 32 != inputs * (weights.integer("num_bits") or 0)):
        return True
    scale = load.view.tensors.get(f"{name.rpartition('.')[0]}.weight_scale")
    size = weights.size("group_size") if weights.text("strategy") == "group" else inputs
    return bool(scale and len(scale.shape) == 2 and size and scale.shape[1] * size != inputs)


def unscaled(load: SimulatedLoad) -> str | None:
    """Scales and zero points of quantized weights that the engine gets from nowhere."""
    return _unscaled(load, _beside(load))


def unscaled_weights(load: SimulatedLoad) -> str | None:
    """The same where inputs without a scale are taken as they come."""
    return _unscaled(load, tuple(suffix for suffix in _beside(load) if suffix != "input_scale"))


def _unscaled(load: SimulatedLoad, suffixes: Sequence[str]) -> str | None:
    stops = {part for part, name in load.unplaced.items() if name in load.results.fatal}
    missing = []
    for canonical in _quantized(load):
        stem = canonical.removesuffix(".weight")
        there = load.results.beside.get(canonical, frozenset())
        missing += [part for suffix in suffixes if suffix not in there and (part := f"{stem}.{suffix}") not in stops]
    return listed([load.gap(part) for part in missing])


def _quantized(load: SimulatedLoad) -> list[str]:
    """Canonical weights of linears that are stored quantized, as far as the engine finds them."""
    matrices = [
        name for name, tensor in load.expected_tensors.items() if name.endswith(".weight") and len(tensor.shape) == 2
    ]
    coded = {name for name in matrices if (ref := load.tensor(name)) is not None and ref.dtype not in FLOATS}
    return [name for name in matrices if name in coded or name in load.results.packed]


def _beside(load: SimulatedLoad) -> tuple[str, ...]:
    """What the declaration asks for beside every weight; nothing where it is silent, or of no known kind."""
    method = declaration(load.spec, load.config.section("quantization_config").data, load.view.sidecars).method
    suffixes = BESIDE.get((modelopt_algorithm(load) or "") if method == "modelopt" else method, ())
    return (*suffixes, *(("input_scale",) if method == "compressed-tensors" and _static_inputs(load) else ()))


def _static_inputs(load: SimulatedLoad) -> bool:
    return any(inputs.data and inputs.flag("dynamic") is False for _, inputs, _ in compressed_groups(load))
