"""What the formats of compressed-tensors have in common: `quantization_config`, and scales in the weight's dtype.

Sources: compressed-tensors 0.20.0 `quantization/{quant_args,quant_config,quant_scheme}.py`, run;
vLLM 0.32.0 `model_executor/layers/quantization/compressed_tensors/compressed_tensors.py`, read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from draftconv.checkpoint import show
from draftconv.drafter.config import Config
from draftconv.errors import BadCheckpoint, Refused
from draftconv.quantization.formats.base import Declaration, Declared, DeclaredPart, Format
from draftconv.quantization.formats.checks import (
    AGAIN,
    ASYMMETRIC,
    check_declared,
    check_groups,
    check_scheme,
)
from draftconv.quantization.formats.module_tensors import FLOAT, SPELLED, ModuleTensors
from draftconv.quantization.scheme import DTYPES, Granularity, InputScheme, WeightDtype

METHOD = "compressed-tensors"
MIXED = "mixed-precision"
"""`format` where groups have several; each says its own then."""
HEAD = "lm_head"
CLASS = "Linear"
"""A target that is a class: what engines call a module differs from engine to engine."""

TYPES: Mapping[tuple[str, int], WeightDtype] = {("int", 4): "int4", ("int", 8): "int8", ("float", 8): "fp8"}
"""`type` and `num_bits` of weights."""

INPUTS: Mapping[tuple[str, int, str, bool], InputScheme] = {
    ("int", 8, "token", True): InputScheme("int8", "token", True),
    ("float", 8, "token", True): InputScheme("fp8", "token", True),
    ("float", 8, "tensor", False): InputScheme("fp8", "tensor", False),
}
"""`type`, `num_bits`, `strategy` and `dynamic` of `input_activations`."""

PERS: Mapping[str, Granularity] = {"tensor": "tensor", "channel": "channel", "group": "group"}

FOREIGN: Mapping[str, str] = {
    "kv_cache_scheme": "the cache of keys and values is quantized too",
    "transform_config": "weights and activations are rotated first",
    "sparsity_config": "weights are stored sparse",
}
"""Sections that change what the tensors mean, and that engines or draftconv do not follow."""


class CompressedTensors(Format):
    """One of the formats of the package; `layout` is what `format` says of it.

    Attributes:
        wide: dtypes whose scales engines hold in float32; those of the others are rounded to the weight's dtype.
    """

    layout: ClassVar[str]
    wide: ClassVar[frozenset[WeightDtype]] = frozenset()

    def declare(self, declared: Declared, modules: Sequence[str]) -> Declaration:
        return _declaration([self._group(declared, [CLASS, *_heads(declared)])], self.layout, declared.ignore)

    def declare_parts(self, parts: Sequence[DeclaredPart]) -> Declaration:
        """Several groups: the first has all that no other names, which readers look for before they look at classes."""
        first, *others = parts
        if not others:
            return self.declare(first.declared, first.modules)
        groups = [self._group(first.declared, [CLASS, *_heads(first.declared)])]
        layouts = [self.layout]
        for part in others:
            match part.format:
                case CompressedTensors() as fmt:
                    groups.append(fmt._group(part.declared, part.modules))
                    layouts.append(fmt.layout)
                case other:
                    raise Refused(f"{self.title} and {other.title} are not told of in one config.json")
        groups = [{**group, "format": layout} for group, layout in zip(groups, layouts, strict=True)]
        whole = MIXED if len(set(layouts)) > 1 else self.layout
        return _declaration(groups, whole, first.declared.ignore)

    def _group(self, declared: Declared, targets: Sequence[str]) -> dict[str, object]:
        check_declared(self, declared)
        kind, bits = next(key for key, dtype in TYPES.items() if dtype == declared.dtype)
        weights = {
            "num_bits": bits,
            "type": kind,
            "symmetric": True,
            "strategy": declared.granularity,
            "group_size": declared.group,
            "dynamic": False,
        }
        return {
            "targets": list(targets),
            "weights": weights,
            "input_activations": _declared_inputs(declared.inputs),
            "output_activations": None,
        }

    def read(self, config: Mapping[str, object], sidecars: Mapping[str, Mapping[str, object]]) -> Declared | None:
        parts = self.read_parts(config, sidecars)
        if not parts:
            return None
        count = len(Config(config).section("config_groups").data)
        if count != 1:
            raise Refused(f"config_groups has {count} entries", why="each has a scheme of its own", cure=AGAIN)
        return parts[0]

    def read_parts(
        self, config: Mapping[str, object], sidecars: Mapping[str, Mapping[str, object]]
    ) -> tuple[Declared, ...]:
        section = Config(config, "config.json: quantization_config")
        if section.text("quant_method") != METHOD:
            return ()
        sections = section.section("config_groups")
        groups = [sections.section(name) for name in sections.data]
        mine = [group for group in groups if (group.text("format") or section.text("format")) == self.layout]
        if mine:
            for key, says in FOREIGN.items():
                if section.raw(key):
                    raise Refused(f"{key} is not known to draftconv", why=says)
        parts: list[Declared] = []
        for one in mine:
            dtype, granularity, group = _weights(one.section("weights"))
            inputs = _inputs(one)
            check_scheme(self, dtype, granularity, inputs)
            targets = one.texts("targets")
            head = any(target.endswith((HEAD, f"{HEAD}$")) for target in targets)
            several = targets if len(groups) > 1 else ()
            ignore = section.texts("ignore")
            parts.append(Declared(dtype, granularity, group, inputs, ignore, head=head, targets=several))
        return tuple(parts)

    def tensors(self, stored: Mapping[str, Tensor], *suffixes: str) -> ModuleTensors:
        """The tensors of a module, none but these.

        Raises:
            Refused: it is asymmetric. BadCheckpoint: it has a tensor that nobody would look at.
        """
        if "weight_zero_point" in stored:
            raise Refused("weight_zero_point makes the weight asymmetric", why=ASYMMETRIC, cure=AGAIN)
        tensors = ModuleTensors(self.title, stored)
        tensors.only(*suffixes)
        return tensors

    def scale(self, tensors: ModuleTensors, declared: Declared, shape: tuple[int, int]) -> Tensor:
        """`weight_scale` of a weight [O, I], as [O, G]."""
        scale_OG = tensors.get("weight_scale", FLOAT, shape[0], None)
        check_groups(shape[1], scale_OG.shape[1], declared.granularity, declared.group)
        return scale_OG

    def weight_dtype(self, scale: Tensor, dtype: WeightDtype, float_dtype: str) -> str:
        """The weight's float_dtype, which its scales have; `float_dtype` where they are F32 whatever the weight is."""
        own = SPELLED[scale.dtype]
        return float_dtype if own == "F32" and dtype in self.wide else own


def _heads(declared: Declared) -> list[str]:
    """The head has a class of its own, which no reader takes for a Linear: it is named."""
    return [f"re:.*{HEAD}$"] if declared.head else []


def _declaration(groups: Sequence[Mapping[str, object]], layout: str, ignore: Sequence[str]) -> Declaration:
    return Declaration(
        {
            "quant_method": METHOD,
            "format": layout,
            "quantization_status": "compressed",
            "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
            "ignore": list(ignore),
            "kv_cache_scheme": None,
        }
    )


def _weights(section: Config) -> tuple[WeightDtype, Granularity | None, int | None]:
    """Grid, granularity and group of a `weights` section; granularity follows from group_size when it is not told."""
    if section.flag("symmetric") is False:
        raise Refused("the weights are asymmetric (symmetric: false)", why=ASYMMETRIC, cure=AGAIN)
    if section.flag("dynamic"):
        raise Refused("the weights are dynamic", why="nothing is stored then")
    if section.raw("actorder") not in (None, False, "weight", "static"):
        raise Refused(
            f"actorder {show(section.raw('actorder'))} permutes the inputs of a weight",
            why="engines refuse it, and so does draftconv",
            cure="quantize again without it",
        )
    kind, bits = (section.text("type") or "int").lower(), section.integer("num_bits")
    bits = 8 if bits is None else bits
    dtype = TYPES.get((kind, bits))
    if dtype is None:
        raise Refused(
            f"weights of {show(bits)} bits, type {show(kind)}, are not known to draftconv",
            why=f"it knows {', '.join(DTYPES[known].title for known in TYPES.values())}",
        )
    size = section.integer("group_size")
    strategy = section.text("strategy") or ("tensor" if size is None else "channel" if size == -1 else "group")
    granularity = PERS.get(strategy.lower())
    if granularity is None:
        raise Refused(f"weights with scales per {show(strategy)} are not known to draftconv")
    if granularity == "group":
        if section.size("group_size") is None:
            raise BadCheckpoint("strategy group lacks group_size", cure="correct config.json")
        return dtype, granularity, size
    if size not in (None, -1):
        raise BadCheckpoint(
            f"group_size {show(size)} contradicts strategy {granularity}",
            why="it tells how many scales a row has",
            cure="correct config.json",
        )
    return dtype, granularity, None


def _inputs(group: Config) -> InputScheme | None:
    if group.section("output_activations").data:
        raise Refused("output_activations are not known to draftconv")
    section = group.section("input_activations")
    if not section.data:
        return None
    strategy = section.text("strategy") or ("tensor" if section.integer("group_size") is None else "group")
    bits = section.integer("num_bits")
    key = (
        (section.text("type") or "int").lower(),
        8 if bits is None else bits,
        strategy.lower(),
        bool(section.flag("dynamic")),
    )
    if key not in INPUTS or section.flag("symmetric") is False:
        raise Refused(
            "input_activations are of a kind that draftconv does not know",
            why=f"it knows symmetric ones: {'; '.join(str(scheme) for scheme in INPUTS.values())}",
        )
    return INPUTS[key]


def _declared_inputs(inputs: InputScheme | None) -> dict[str, object] | None:
    if inputs is None:
        return None
    kind, bits, strategy, dynamic = next(key for key, scheme in INPUTS.items() if scheme == inputs)
    return {"num_bits": bits, "type": kind, "symmetric": True, "strategy": strategy, "dynamic": dynamic}
