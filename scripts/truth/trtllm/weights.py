"""How one module takes its tensors: the linear methods, plain parameters, and torch's copy_ under both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from truth.trtllm.outcome import Header, Parameter, RaisedError, Shape, State
from truth.trtllm.source import BASE_MAPPER, LINEAR

FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
TORCH: Mapping[str, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}
FP8 = "F8_E4M3"
SCALE_NAMES = ("weight_scale", "weight_scale_inv", "scales", "qzeros")

Found = Mapping[str, tuple[str, Header]]
"""Name inside a module → the stored tensor's own name, and its header."""


def copied(into: Shape, header: Header, what: str, where: str) -> bool:
    """Whether copy_ writes every element from an element of its own.

    Raises:
        RaisedError: the shapes cannot be broadcast to each other.
    """
    if header.shape == into:
        return True
    shape = header.shape
    if len(shape) > len(into):
        raise RaisedError(f"{what}: {shape} into {into}", where)
    padded = (1,) * (len(into) - len(shape)) + shape
    if any(a not in (1, b) for a, b in zip(padded, into, strict=True)):
        raise RaisedError(f"{what}: {shape} into {into}", where)
    return math.prod(shape) == math.prod(into)


def means(into: str, stored: str, *, scaled: bool = False) -> bool:
    """Whether a cast keeps what the numbers mean: integers never, FP8 unless a scale is stored beside it."""
    return stored == into or (into in FLOATS and (stored in FLOATS or (stored == FP8 and not scaled)))


@dataclass
class Linear:
    """A Linear: its features, its method, and the parts that are stored one by one.

    Attributes:
        parts: names of the stored projections and their rows; none for a module under its own name.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool
    dtype: str
    method: str = ""
    group_size: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def weight(self) -> Parameter:
        rows, columns = self.outputs, self.inputs
        shape, dtype = {
            "": ((rows, columns), self.dtype),
            "fp8": ((rows, columns), FP8),
            "fp8-rows": ((rows, columns), FP8),
            "fp8-blocks": ((rows, columns), FP8),
            "nvfp4": ((rows, columns // 2), "U8"),
            "weight-only": ((columns, rows), "I8"),
            "weight-only-int4": ((columns, rows // 2), "I8"),
            "awq": ((columns, rows // 2), "I8"),
            "awq-fp8": ((columns, rows // 2), "I8"),
        }[self.method]
        return Parameter(f"{self.name}.weight", shape, dtype, "uninitialised")

    def created(self) -> Iterator[Parameter]:
        """Its parameters before anything is loaded.

        Raises:
            RaisedError: create_weights refuses the sizes.
        """
        where = LINEAR.at("create_weights")
        if self.method == "nvfp4" and self.inputs % 16:
            raise RaisedError(f"{self.name}: {self.inputs} inputs are no multiple of 16", where)
        if self.method in ("awq", "awq-fp8") and (not self.group_size or self.inputs % self.group_size):
            raise RaisedError(f"{self.name}: {self.inputs} inputs in groups of {self.group_size}", where)
        yield self.weight
        if self.bias:
            yield Parameter(f"{self.name}.bias", (self.outputs,), self.dtype, "uninitialised")
        for name, shape, dtype, state in self._scales():
            yield Parameter(f"{self.name}.{name}", shape, dtype, state)

    def _scales(self) -> Iterator[tuple[str, Shape, str, State]]:
        match self.method:
            case "fp8":
                # A scale for each of several parts lies in memory that nothing has written yet.
                yield "weight_scale", (), "F32", "uninitialised" if self.parts else "initial"
            case "fp8-rows":
                yield "weight_scale", (self.outputs,), "F32", "uninitialised"
            case "fp8-blocks":
                shape = (-(-self.outputs // 128), -(-self.inputs // 128))
                yield "weight_scale", shape, "F32", "uninitialised"
            case "nvfp4":
                yield "weight_scale", (self.outputs, self.inputs // 16), FP8, "uninitialised"
                yield "weight_scale_2", (1,), "F32", "uninitialised"
            case "weight-only" | "weight-only-int4":
                yield "weight_scale", (self.outputs,), self.dtype, "uninitialised"
            case "awq" | "awq-fp8":
                shape = (self.inputs // (self.group_size or 1), self.outputs)
                yield "weight_scale", shape, self.dtype if self.method == "awq" else "F16", "uninitialised"

    def load(self, found: Sequence[Found]) -> Iterator[Parameter]:
        """Its parameters after load_weights with the tensors of its parts, or with its own.

        Raises:
            RaisedError: an assertion fails, or a shape does not fit.
        """
        where = LINEAR.at(f"load_weights, {self.method or 'plain'}")
        for part in found:
            if "weight" not in part:
                raise RaisedError(f"{self.name}: no weight", where)
            if self.bias and "bias" not in part:
                raise RaisedError(f"{self.name}: no bias", where)
        created = {p.name.rpartition(".")[2]: p for p in self.created()}
        yield self._weight(created["weight"], found, where)
        if self.bias:
            yield self.joined(created["bias"], [part["bias"] for part in found], where)
        if self.method:
            yield from SCALES[self.method](self, created, found, where)

    def _weight(self, made: Parameter, found: Sequence[Found], where: str) -> Parameter:
        stored = [part["weight"] for part in found]
        if self.method.startswith(("weight-only", "awq")):
            # As they are stored: [out, in] or [out / 2, in]; .T before they are copied.
            headers = [(name, Header("I8" if h.dtype in ("I8", "U8") else h.dtype, h.shape)) for name, h in stored]
            flat = Parameter(made.name, made.shape[::-1], "I8", made.state)
            joined = self.joined(flat, headers, where)
            return Parameter(made.name, made.shape, made.dtype, joined.state, joined.sources)
        if self.method == "nvfp4":
            stored = [(name, Header("U8" if h.dtype in ("U8", "I8") else h.dtype, h.shape)) for name, h in stored]
        scaled = any(name in part for part in found for name in SCALE_NAMES)
        return self.joined(made, stored, where, scaled=scaled)

    def joined(
        self, made: Parameter, stored: Sequence[tuple[str, Header]], where: str, *, scaled: bool = False
    ) -> Parameter:
        """torch.cat of the parts along their rows, and one copy; parts of other sizes may still add up."""
        names = tuple(name for name, _ in stored)
        if len(stored) == 1:
            header = stored[0][1]
            whole = copied(made.shape, header, made.name, where)
            state: State = "filled" if whole and means(made.dtype, header.dtype, scaled=scaled) else "wrong"
            return Parameter(made.name, made.shape, made.dtype, state, names)
        tails = {header.shape[1:] for _, header in stored}
        if len(tails) != 1 or any(not header.shape for _, header in stored):
            raise RaisedError(f"{made.name}: parts of different widths", where)
        rows = [header.shape[0] for _, header in stored]
        whole = copied(made.shape, Header(stored[0][1].dtype, (sum(rows), *tails.pop())), made.name, where)
        wanted = [made.shape[0] * size // self.outputs for size in self.parts.values()]
        meant = all(means(made.dtype, header.dtype, scaled=scaled) for _, header in stored)
        state = "filled" if whole and meant and rows == wanted else "wrong"
        return Parameter(made.name, made.shape, made.dtype, state, names)


Scales = Callable[[Linear, Mapping[str, Parameter], Sequence[Found], str], Iterator[Parameter]]


def _scalars(_: Linear, made: Mapping[str, Parameter], found: Sequence[Found], where: str) -> Iterator[Parameter]:
    """FP8QDQLinearMethod: one number for each part."""
    scale, names, lacking = made["weight_scale"], [], False
    for part in found:
        for kind in ("weight_scale", "input_scale"):
            if kind in part and math.prod(part[kind][1].shape) != 1:
                raise RaisedError(f"{part[kind][0]} is no single number", where)
        if "weight_scale" in part:
            names.append(part["weight_scale"][0])
        else:
            lacking = True
    names += [part["input_scale"][0] for part in found if "input_scale" in part]
    yield Parameter(scale.name, scale.shape, scale.dtype, scale.state if lacking else "filled", tuple(names))


def _rows(linear: Linear, made: Mapping[str, Parameter], found: Sequence[Found], where: str) -> Iterator[Parameter]:
    """FP8RowwiseLinearMethod: `[out]` alone is copied, `[out, 1]` does not fit."""
    kind = "weight_scale_inv" if "weight_scale_inv" in found[0] else "weight_scale"
    yield _each_part(made["weight_scale"], linear, found, kind, where, lambda rows: (rows,))


def _blocks(linear: Linear, made: Mapping[str, Parameter], found: Sequence[Found], where: str) -> Iterator[Parameter]:
    kind = "weight_scale_inv" if any("weight_scale_inv" in part for part in found) else "weight_scale"
    columns = -(-linear.inputs // 128)
    squeezed = [
        {name: (stored, _squeezed(header)) for name, (stored, header) in part.items() if name == kind} for part in found
    ]
    yield _each_part(made["weight_scale"], linear, squeezed, kind, where, lambda rows: (-(-rows // 128), columns))


def _squeezed(header: Header) -> Header:
    """ModelOpt writes two more axes of one element."""
    shape = header.shape
    return Header(header.dtype, (shape[0], shape[2]) if len(shape) == 4 and shape[1] == shape[3] == 1 else shape)


def _each_part(
    scale: Parameter, linear: Linear, found: Sequence[Found], kind: str, where: str, shape: Callable[[int], Shape]
) -> Parameter:
    """Scales that are copied part by part; a part that has none stays as it is."""
    names, whole = [], True
    sizes = list(linear.parts.values()) or [linear.outputs]
    for part, rows in zip(found, sizes, strict=True):
        if kind not in part:
            whole = False
            continue
        name, header = part[kind]
        whole &= copied(shape(rows), header, name, where) and means("F32", header.dtype)
        names.append(name)
    state: State = "filled" if whole else "uninitialised" if len(names) < len(found) else "wrong"
    return Parameter(scale.name, scale.shape, scale.dtype, state, tuple(names))


def _nvfp4(linear: Linear, made: Mapping[str, Parameter], found: Sequence[Found], where: str) -> Iterator[Parameter]:
    scales = [part["weight_scale"] for part in found if "weight_scale" in part]
    if not scales:
        raise RaisedError(f"{linear.name}: no weight_scale", where)
    for name, header in scales:
        if header.dtype != FP8:
            raise RaisedError(f"{name} is {header.dtype}", where)
    rows = sum(header.shape[0] for _, header in scales)
    if any(len(header.shape) != 2 for _, header in scales):
        raise RaisedError(f"{linear.name}: weight_scale of no matrix", where)
    padded = (-(-rows // 128) * 128, -(-scales[0][1].shape[1] // 4) * 4)
    wanted = (-(-linear.outputs // 128) * 128, -(-(linear.inputs // 16) // 4) * 4)
    if math.prod(padded) != math.prod(wanted):
        raise RaisedError(f"{linear.name}: scales {padded} into {wanted}", where)
    second = [part["weight_scale_2"][0] for part in found if "weight_scale_2" in part]
    inputs = [part["input_scale"][0] for part in found if "input_scale" in part]
    if inputs and not second:
        raise RaisedError(f"{linear.name}: input_scale without weight_scale_2", where)
    for name in ("weight_scale", "weight_scale_2"):
        parameter = made[name]
        sources = tuple(name for name, _ in scales) if name == "weight_scale" else (*second, *inputs)
        lacking = name == "weight_scale_2" and not second
        yield Parameter(
            parameter.name, parameter.shape, parameter.dtype, "uninitialised" if lacking else "filled", sources
        )


def _weight_only(
    linear: Linear, made: Mapping[str, Parameter], found: Sequence[Found], where: str
) -> Iterator[Parameter]:
    if any("weight_scale" not in part for part in found):
        raise RaisedError(f"{linear.name}: no weight_scale", where)
    yield linear.joined(made["weight_scale"], [part["weight_scale"] for part in found], where)


def _awq(linear: Linear, made: Mapping[str, Parameter], found: Sequence[Found], where: str) -> Iterator[Parameter]:
    """Groups along the inputs, and what the inputs are multiplied by before, without which a lone module stops."""
    names: list[str] = []
    lone = not linear.parts
    fp8 = linear.method == "awq-fp8"
    if lone and "pre_quant_scale" not in found[0]:
        raise RaisedError(f"{linear.name}: no pre_quant_scale", where)
    if any("weight_scale" not in part for part in found):
        raise RaisedError(f"{linear.name}: no weight_scale", where)
    if fp8 and not all(any(kind in part for part in found) for kind in ("input_scale", "weight_scale_2")):
        raise RaisedError(f"{linear.name}: no input_scale or weight_scale_2", where)
    # W4A16's joined loaders read no pre_quant_scale; it is dropped there.
    for kind in ("pre_quant_scale", "input_scale", "weight_scale_2"):
        if (kind == "pre_quant_scale" and (lone or fp8)) or (kind != "pre_quant_scale" and fp8):
            names += [part[kind][0] for part in found if kind in part]
    for part in found[:1]:
        if "pre_quant_scale" in part and (lone or fp8):
            copied((linear.inputs,), part["pre_quant_scale"][1], part["pre_quant_scale"][0], where)
    scale = made["weight_scale"]
    flat = Parameter(scale.name, scale.shape[::-1], scale.dtype, scale.state)
    joined = linear.joined(flat, [part["weight_scale"] for part in found], where)
    yield Parameter(scale.name, scale.shape, scale.dtype, joined.state, (*joined.sources, *names))


SCALES: Mapping[str, Scales] = {
    "fp8": _scalars,
    "fp8-rows": _rows,
    "fp8-blocks": _blocks,
    "nvfp4": _nvfp4,
    "weight-only": _weight_only,
    "weight-only-int4": _weight_only,
    "awq": _awq,
    "awq-fp8": _awq,
}


@dataclass(frozen=True, slots=True)
class Plain:
    """A module whose parameters are copied one by one: a norm, torch's own Linear, or the model itself."""

    name: str
    created: tuple[Parameter, ...]

    def load(self, found: Found) -> Iterator[Parameter]:
        """BaseWeightMapper.handle_manual_copy of each.

        Raises:
            RaisedError: one is not among the tensors, or does not fit.
        """
        where = BASE_MAPPER.at("BaseWeightMapper.handle_manual_copy")
        for parameter in self.created:
            kind = parameter.name.rpartition(".")[2]
            if kind not in found:
                raise RaisedError(f"{parameter.name} is not stored", where)
            name, header = found[kind]
            whole = copied(parameter.shape, header, parameter.name, where)
            integers = parameter.dtype == "I32" and header.dtype in ("I64", "I32", "I16", "U8", "I8", "BOOL")
            # copy_ casts floats to integers too, which a map of floats survives unless it has no whole numbers
            meant = integers or parameter.dtype == "I32" or means(parameter.dtype, header.dtype)
            state: State = "filled" if whole and meant else "wrong"
            yield Parameter(parameter.name, parameter.shape, parameter.dtype, state, (name,))
