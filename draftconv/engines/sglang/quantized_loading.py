"""What SGLang's loaders do with the tensors of quantized linears: what fits, what is cut or cast, what stops the load.

A method builds parameters from quantization_config and the sizes of config.json (`PARAMETERS`); how a stored tensor
gets into one is decided by the class of the linear: srt/layers/linear.py and parameter.py, 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from draftconv.checkpoint.dtypes import FLOATS
from draftconv.drafter.config import Config
from draftconv.engines import checks
from draftconv.engines.checks import listed
from draftconv.engines.module_names import COLUMN, MERGED, REPLICATED, ROW, Module
from draftconv.engines.quantized_modules import BuiltModule, built, declaration
from draftconv.engines.rules import SimulatedLoad, TensorHeader
from draftconv.engines.sglang.loading import placed

Side = Literal["outputs", "inputs", "row", "one"]
"""Along which a parameter lies: outputs, inputs, all inputs of a row, or nothing."""

Outcome = Literal["fits", "cut", "cast", "stops"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of a quantized linear.

    Attributes:
        suffix: behind the linear's name. `axes`: side, and how many of them share an element; none: one number for
            every weight. `dtype`: that is built; None: the model's own.
    """

    suffix: str
    axes: tuple[tuple[Side, int], ...]
    dtype: str | None

    def shape(self, outputs: int, inputs: int) -> tuple[int, ...]:
        """That is built for a projection of this size."""
        sizes = {"outputs": outputs, "inputs": inputs, "row": 1, "one": 1}
        return tuple(sizes[side] // per for side, per in self.axes)


@dataclass(frozen=True, slots=True)
class Misfit:
    """One stored tensor that is not taken as it is; `joined`: one of the a-projections."""

    outcome: Outcome
    says: str
    joined: bool = False


# ── what is built ──────────────────────────────────────────────────────────────────


def parameters(load: SimulatedLoad) -> tuple[Parameter, ...]:
    """What every quantized linear has; nothing where the declaration is of no known kind."""
    section = load.config.section("quantization_config")
    declared = declaration(load.spec, section.data, load.view.sidecars)
    match declared.method.lower():
        case "compressed-tensors":
            return _compressed(load)
        case "gptq":
            return _gptq(section)
        case "auto-round" if packed_as_gptq(section):
            return _gptq(section)
        case "awq" | "auto-round":
            return _awq(section)
        case "quark":
            return _quark(section.section("global_quant_config"))
        case "modelopt":
            return () if load.mla and "FP4" in algorithm(load) else _modelopt(declared.modelopt(sidecar_wins=False))
        case _:
            return ()


def _scaled(dtype: str, scale: Parameter, *, static: bool) -> tuple[Parameter, ...]:
    """Weights of 8 bits in the shape of the floats, and what lies beside them."""
    weight = Parameter("weight", (("outputs", 1), ("inputs", 1)), dtype)
    return (weight, scale, *((_EACH_INPUT,) if static else ()))


_EACH = Parameter("weight_scale", (), "F32")
_EACH_INPUT = Parameter("input_scale", (), "F32")
_ROWS = Parameter("weight_scale", (("outputs", 1), ("one", 1)), "F32")


def _compressed(load: SimulatedLoad) -> tuple[Parameter, ...]:
    """One group: what several declare is not compared."""
    groups = checks.compressed_groups(load)
    if len(groups) != 1:
        return ()
    weights, inputs, _ = groups[0]
    bits, strategy = weights.integer("num_bits"), weights.text("strategy")
    static = bool(inputs.data) and inputs.flag("dynamic") is False
    scale = _ROWS if strategy == "channel" else _EACH
    if weights.text("type") == "float" and bits == 8:
        return _scaled("F8_E4M3", scale, static=static)
    if bits == 8 and inputs.data:
        return _scaled("I8", scale, static=static)
    group = weights.size("group_size") if strategy == "group" else None
    if weights.text("type") != "int" or bits not in (4, 8) or (strategy == "group" and not group):
        return ()
    ordered, uneven = weights.text("actorder") == "group", weights.flag("symmetric") is False
    inner: tuple[Side, int] = ("inputs", group) if group else ("row", 1)
    return (
        Parameter("weight_packed", (("outputs", 1), ("inputs", 32 // bits)), "I32"),
        Parameter("weight_scale", (("outputs", 1), inner), None),
        *((Parameter("weight_g_idx", (("inputs", 1),), "I32"),) if ordered else ()),
        *((Parameter("weight_zero_point", (("outputs", 32 // bits), inner), "I32"),) if uneven else ()),
    )


def _groups(section: Config) -> tuple[Side, int]:
    group = section.integer("group_size")
    return ("inputs", group) if group and group > 0 else ("row", 1)


def _gptq(section: Config) -> tuple[Parameter, ...]:
    words, groups = 32 // (section.size("bits") or 4), _groups(section)
    return (
        Parameter("qweight", (("inputs", words), ("outputs", 1)), "I32"),
        Parameter("scales", (groups, ("outputs", 1)), None),
        Parameter("qzeros", (groups, ("outputs", words)), "I32"),
        Parameter("g_idx", (("inputs", 1),), "I32"),
    )


def packed_as_gptq(section: Config) -> bool:
    """True where auto-round goes to GPTQ's method: by its packing, GPTQ's where it is absent, or its backend."""
    packing = section.text("packing_format") or "auto_round:auto_gptq"
    return "gptq" in packing or "gptq" in (section.text("backend") or "")


def _awq(section: Config) -> tuple[Parameter, ...]:
    words, groups = 32 // (section.size("bits") or 4), _groups(section)
    return (
        Parameter("qweight", (("inputs", 1), ("outputs", words)), "I32"),
        Parameter("scales", (groups, ("outputs", 1)), None),
        Parameter("qzeros", (groups, ("outputs", words)), "I32"),
    )


def _quark(section: Config) -> tuple[Parameter, ...]:
    weight, inputs = section.section("weight"), section.section("input_tensors")
    if weight.text("dtype") != "fp8_e4m3":
        return ()
    scale = Parameter("weight_scale", (("outputs", 1),), "F32") if weight.text("qscheme") == "per_channel" else _EACH
    return _scaled("F8_E4M3", scale, static=not inputs.flag("is_dynamic"))


def algorithm(load: SimulatedLoad) -> str:
    """ModelOpt's quant_algo, which config.json says before hf_quant_config.json; "" for other methods."""
    section = load.config.section("quantization_config")
    declared = declaration(load.spec, section.data, load.view.sidecars)
    if section.data and declared.method != "modelopt":
        return section.text("quant_algo") or ""
    return declared.modelopt(sidecar_wins=False).text("quant_algo") or ""


def _modelopt(section: Config) -> tuple[Parameter, ...]:
    kind = section.text("quant_algo")
    if kind == "FP8":
        return _scaled("F8_E4M3", _EACH, static=True)
    if kind not in ("NVFP4", "NVFP4_AWQ"):
        return ()
    return (
        Parameter("weight", (("outputs", 1), ("inputs", 2)), "U8"),
        Parameter("weight_scale", (("outputs", 1), ("inputs", section.size("group_size") or 16)), "F8_E4M3"),
        Parameter("weight_scale_2", (), "F32"),
        _EACH_INPUT,
        *((Parameter("pre_quant_scale", (("inputs", 1),), None),) if kind == "NVFP4_AWQ" else ()),
    )


# ── what is loaded ─────────────────────────────────────────────────────────────────


def quantized_as(load: SimulatedLoad) -> Mapping[Module, BuiltModule]:
    """Module by module, what is built."""
    layers = load.target.layers if load.target else None
    section = load.config.section("quantization_config").data
    return built(load.spec, section, load.view.sidecars, load.built, layers, load.view.tensors)


def stopping(load: SimulatedLoad) -> str | None:
    """Tensors that do not fit where they are looked for, but for the a-projections."""
    return listed([misfit.says for misfit in _misfits(load) if misfit.outcome == "stops" and not misfit.joined])


def unjoined(load: SimulatedLoad) -> str | None:
    """Tensors of the a-projections that cannot be joined, or do not fit when they are."""
    return listed([misfit.says for misfit in _misfits(load) if misfit.outcome == "stops" and misfit.joined])


def changed(load: SimulatedLoad) -> str | None:
    """Tensors that are cut, filled up or cast."""
    return listed([misfit.says for misfit in _misfits(load) if misfit.outcome in ("cut", "cast")])


VALUES = frozenset({"weight", "weight_packed", "qweight"})
UNREAD = frozenset({"qzeros", "g_idx"})
"""Built for GPTQ and left out by Marlin, which takes symmetric weights in order."""


def unfilled(load: SimulatedLoad) -> str | None:
    """What is declared beside a quantized weight, and what the file does not have for it."""
    stored, kinds = _stored(load), parameters(load)
    ordered = bool(load.config.section("quantization_config").flag("desc_act"))
    gptq = any(kind.suffix == "g_idx" for kind in kinds)
    unread = UNREAD - {"g_idx"} if ordered else UNREAD if gptq else frozenset()
    missing = []
    for module, state in quantized_as(load).items():
        for part in module.parts if state.outcome == "quantized" else ():
            suffixes = [kind.suffix for kind in kinds]
            coded = any((part, value) in stored and not _plain(stored[part, value][1]) for value in VALUES)
            missing += [f"{part}.{s}" for s in suffixes if coded and (part, s) not in stored and s not in unread]
    return listed([load.gap(name) for name in missing])


def _plain(tensor: TensorHeader) -> bool:
    return tensor.dtype in FLOATS


def unordered(load: SimulatedLoad) -> str | None:
    """An order of the inputs that is stored and that no parameter is built for."""
    built_for = {kind.suffix for kind in parameters(load)}
    stray = [name for (_, suffix), (name, _) in _stored(load).items() if suffix == "weight_g_idx"]
    return None if "weight_g_idx" in built_for or not built_for else listed(stray)


def _misfits(load: SimulatedLoad) -> Iterator[Misfit]:
    kinds, stored = parameters(load), _stored(load)
    for module, state in quantized_as(load).items():
        if module.kind == REPLICATED and len(module.parts) > 1:
            for misfit in _joined(load, module, kinds if state.outcome == "quantized" else (), stored):
                yield replace(misfit, joined=True)
        elif state.outcome == "quantized" and not module.head:
            for part in module.parts:
                yield from _part(load, module, part, kinds, stored)


def _stored(load: SimulatedLoad) -> Mapping[tuple[str, str], tuple[str, TensorHeader]]:
    """(Canonical linear, suffix) → name and header of the tensor that is looked for there."""
    there: dict[tuple[str, str], tuple[str, TensorHeader]] = {}
    for name, tensor in load.view.tensors.items():
        stem, _, suffix = name.rpartition(".")
        for part in placed(f"{stem}.weight", load):
            there[part.removesuffix(".weight"), suffix] = (name, tensor)
    return there


def _part(
    load: SimulatedLoad,
    module: Module,
    part: str,
    kinds: Sequence[Parameter],
    stored: Mapping[tuple[str, str], tuple[str, TensorHeader]],
) -> Iterator[Misfit]:
    outputs, inputs = load.expected_tensors[f"{part}.weight"].shape
    for kind in kinds:
        if (part, kind.suffix) not in stored:
            continue
        name, tensor = stored[part, kind.suffix]
        shape = kind.shape(outputs, inputs)
        yield from _told(name, tensor, shape, kind.dtype, _fit(module.kind, kind, tensor.shape, shape))
        yield from _told(name, tensor, shape, kind.dtype, _dtype(module.kind, kind, tensor.dtype))


def _told(
    name: str, tensor: TensorHeader, shape: tuple[int, ...], dtype: str | None, outcome: Outcome
) -> Iterator[Misfit]:
    if outcome != "fits":
        built_as = f"{dtype or 'the dtype of the model'} {list(shape)}"
        yield Misfit(outcome, f"{name} is {tensor.dtype} {list(tensor.shape)}, built as {built_as}")


def _fit(module: str, kind: Parameter, stored: tuple[int, ...], shape: tuple[int, ...]) -> Outcome:
    """By shape: the side that ranks share is cut, and in some classes filled up with zeros; all others have to fit."""
    if not kind.axes:
        return "fits" if stored in ((), (1,)) else "stops"
    if len(stored) != len(shape):
        return "stops"
    sides = ("inputs", "row") if module == ROW else ("outputs",)
    along = next((i for i, (side, _) in enumerate(kind.axes) if side in sides), None)
    if any(a != b for i, (a, b) in enumerate(zip(stored, shape, strict=True)) if i != along):
        return "stops"
    if along is None or stored[along] == shape[along]:
        return "fits"
    return "cut" if stored[along] > shape[along] or module in (MERGED, ROW) else "stops"


_RANKS = {"F8_E4M3": 0, "F8_E5M2": 0, "F16": 1, "BF16": 1, "F32": 2, "F64": 3}


def _dtype(module: str, kind: Parameter, stored: str) -> Outcome:
    """Column-parallel linears take no float that is wider than theirs; the others cast whatever comes.

    Scales of INT4 are in the model's dtype, so F32 ones lose digits.

    Floats that are cast to 8 bits are what a list does not exclude: rule sglang-not-excluded.
    """
    if stored == kind.dtype:
        return "fits"
    mine, theirs = _RANKS.get(kind.dtype or "BF16"), _RANKS.get(stored)
    if module == COLUMN and (mine is None or theirs is None or mine < theirs):
        return "stops"
    if kind.suffix == "weight" and stored in FLOATS:
        return "fits"
    return "fits" if mine and theirs and (kind.dtype or mine >= theirs) else "cast"


def _joined(
    load: SimulatedLoad,
    module: Module,
    kinds: Sequence[Parameter],
    stored: Mapping[tuple[str, str], tuple[str, TensorHeader]],
) -> Iterator[Misfit]:
    """The a-projections, joined tensor by tensor along the first side before a parameter is looked for."""
    by_suffix = {kind.suffix: kind for kind in kinds}
    sizes = [load.expected_tensors[f"{part}.weight"].shape for part in module.parts]
    outputs, inputs = sum(size[0] for size in sizes), sizes[0][1]
    for suffix in dict.fromkeys(suffix for _, suffix in stored):
        both = [stored[part, suffix] for part in module.parts if (part, suffix) in stored]
        if len(both) < len(module.parts):
            continue
        shapes, dtypes = [tensor.shape for _, tensor in both], {tensor.dtype for _, tensor in both}
        name = both[0][0]
        if not all(shapes) or len({shape[1:] for shape in shapes}) > 1:
            yield Misfit("stops", f"{name} is {list(shapes[0])}, and joined with {list(shapes[1])}")
        elif len(dtypes) > 1 and any(dtype.startswith("F8") for dtype in dtypes):
            yield Misfit("stops", f"{name} is {both[0][1].dtype}, and joined with {both[1][1].dtype}")
        else:
            whole = (sum(shape[0] for shape in shapes), *shapes[0][1:])
            yield from _whole(name, both[0][1], whole, by_suffix.get(suffix), (outputs, inputs), bool(kinds))


def _whole(
    name: str,
    tensor: TensorHeader,
    whole: tuple[int, ...],
    kind: Parameter | None,
    size: tuple[int, int],
    quantized: bool,
) -> Iterator[Misfit]:
    if kind is None:
        if quantized and name.endswith(".weight_shape"):
            yield Misfit("stops", f"{name} is joined with another")
        return
    shape = kind.shape(*size) or (1,)
    yield from _told(name, tensor, shape, kind.dtype, "fits" if whole == shape else "stops")
    yield from _told(name, tensor, shape, kind.dtype, _dtype(REPLICATED, kind, tensor.dtype))


def undeclared(load: SimulatedLoad) -> bool:
    """True for a quantized drafter that no file declares: every linear is built plain."""
    return bool(load.truth.quantization) and not load.config.section("quantization_config").data and not algorithm(load)


def in_words(load: SimulatedLoad) -> str | None:
    """Weights that lie in words of another shape under the name of the plain ones."""
    return listed([
        f"{name} is {tensor.dtype} {list(tensor.shape)}"
        for name, planned in load.expected_tensors.items()
        if (tensor := load.tensor(name)) is not None and tensor.dtype not in FLOATS and tensor.shape != planned.shape
    ])  # fmt: skip


def latent_quantized(load: SimulatedLoad) -> str | None:
    """kv_b_proj built quantized: it is split right after loading, and has to be floats there."""
    outcomes = [(m, b) for m, b in quantized_as(load).items() if m.name.endswith("kv_b_proj")]
    return listed([f"kv_b_proj ({b.because})" for _, b in outcomes if b.outcome == "quantized"])


def fc_coded(load: SimulatedLoad) -> str | None:
    """fc of the Llama class in 8 bits: a plain linear, which is filled with the codes."""
    tensor = load.tensor("fc.weight")
    if tensor is None or load.mla or tensor.dtype in FLOATS:
        return None
    return f"fc.weight is {tensor.dtype}" if tensor.shape == load.expected_tensors["fc.weight"].shape else None
