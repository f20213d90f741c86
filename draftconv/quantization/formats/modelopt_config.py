"""What nvidia-modelopt writes about its weights: `hf_quant_config.json`, and `quantization_config` beside it.

Source: nvidia-modelopt 0.47 `torch/export/{quant_utils,convert_hf_config}.py`, read, and its
exports, run; for TensorRT-LLM `models/quant_config_utils.py`, `quantization/modelopt_config.py`
and `_torch/models/modeling_speculative.py`, 1.3.0rc at 00679c66, read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from draftconv.checkpoint import QUANT_FILE, show, show_some
from draftconv.drafter.config import Config
from draftconv.errors import BadCheckpoint, Refused, UsageError
from draftconv.quantization.formats.base import Declaration, Declared, DeclaredPart, Format
from draftconv.quantization.recipes import PER_MODULE
from draftconv.quantization.scheme import Granularity, InputScheme, WeightDtype

METHOD = "modelopt"
PRODUCER = {"name": METHOD, "version": "0.47.0"}
"""By this name TensorRT-LLM knows the config; the version is that of the layout."""

MIXED = "MIXED_PRECISION"

UNQUANTIZED = ("lm_head", "model.fc", "*fc", "re:.*fc")
"""What keeps the head and `fc` of a drafter in TensorRT-LLM: its older releases compare with fnmatch
alone, newer ones take `re:` too. An entry that would exclude a quantized module is left out."""

FP8_STATIC = InputScheme("fp8", "tensor", False)
FP8_TOKEN = InputScheme("fp8", "token", True)
NVFP4_STATIC = InputScheme("nvfp4", "tensor", False)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What one `quant_algo` stands for.

    Attributes:
        keys: what the legacy file says beside it; `group_size` is added where `granularity` is group.
        weights, activations: its config group, in the words of compressed-tensors; `group_size` likewise.
        writes_group: whether ModelOpt writes the config group when all layers share the algorithm.
        group: the only group size, where there is one.
    """

    dtype: WeightDtype
    granularity: Granularity
    inputs: InputScheme | None
    keys: Mapping[str, object]
    weights: Mapping[str, object]
    activations: Mapping[str, object] | None
    writes_group: bool
    group: int | None = None


class ModelOpt(Format):
    """A format whose word is ModelOpt's header.

    Styles: `plain` is one algorithm for all modules, as ModelOpt exports it. `PER_MODULE` names every
    quantized module under MIXED_PRECISION: a module that is not named never is. Several schemes are told so; one scheme
    is no more, for TensorRT-LLM builds no module of a drafter quantized under it. Published files have it.

    Attributes:
        algorithms: by `quant_algo`.
    """

    algorithms: ClassVar[Mapping[str, Algorithm]]
    styles = ("plain", PER_MODULE)

    def declare(self, declared: Declared, modules: Sequence[str]) -> Declaration:
        style = self.written(declared.style)
        named = self._algorithm(declared)
        if style == "plain":
            return _plain_declaration(named, declared.ignore)
        return _mixed_declaration([(named, modules)], declared.ignore)

    def declare_parts(self, parts: Sequence[DeclaredPart]) -> Declaration:
        if len(parts) == 1:
            return self.declare(parts[0].declared, parts[0].modules)
        named: list[tuple[NamedAlgorithm, Sequence[str]]] = []
        for part in parts:
            match part.format:
                case ModelOpt() as fmt:
                    named.append((fmt._algorithm(part.declared), part.modules))
                case other:
                    raise Refused(f"{self.title} and {other.title} are not told of in one config.json")
        return _mixed_declaration(named, parts[0].declared.ignore)

    def _algorithm(self, declared: Declared) -> NamedAlgorithm:
        """What these numbers are called."""
        for name, algorithm in self.algorithms.items():
            if (algorithm.dtype, algorithm.granularity, algorithm.inputs) == (
                declared.dtype,
                declared.granularity,
                declared.inputs,
            ):
                group = _group_size(algorithm, declared.group, self.title)
                if algorithm.granularity == "group" and group is None:
                    raise UsageError(f"{self.title} declares the size of groups, and none is given")
                return NamedAlgorithm(name, algorithm, group)
        raise Refused(
            f"{self.title} cannot declare {declared.dtype} weights per {declared.granularity} with activations "
            f"{declared.inputs or '16 bit'}",
            cure=f"its algorithms: {', '.join(self.algorithms)}",
        )

    def read(self, config: Mapping[str, object], sidecars: Mapping[str, Mapping[str, object]]) -> Declared | None:
        parts = self.read_parts(config, sidecars)
        if not parts:
            return None
        if parts[0].targets:
            raise Refused("quantized_layers gives modules different algorithms", why="each has a scheme of its own")
        return parts[0]

    def read_parts(
        self, config: Mapping[str, object], sidecars: Mapping[str, Mapping[str, object]]
    ) -> tuple[Declared, ...]:
        header = read_header(config, sidecars)
        if header is None:
            return ()
        several = len(header.algorithms) > 1
        return tuple(
            Declared(
                algorithm.dtype,
                algorithm.granularity,
                _group_size(algorithm, group, header.where),
                algorithm.inputs,
                header.ignore,
                PER_MODULE if header.layers else "plain",
                targets=tuple(m for m, its in header.layers.items() if its == (name, group)) if several else (),
            )
            for name, group in sorted(header.algorithms, key=str)
            if (algorithm := self.algorithms.get(name)) is not None
        )


@dataclass(frozen=True, slots=True)
class ModelOptHeader:
    """What a checkpoint says.

    Attributes:
        algorithms: `quant_algo` and `group_size` of its modules.
        layers: modules that are listed one by one, under MIXED_PRECISION, each with its own.
    """

    algorithms: frozenset[tuple[str, int | None]]
    ignore: tuple[str, ...]
    layers: Mapping[str, tuple[str, int | None]]
    where: str


def read_header(config: Mapping[str, object], sidecars: Mapping[str, Mapping[str, object]]) -> ModelOptHeader | None:
    """The header, from the legacy file, from `quantization_config` in either form, or from both.

    Raises:
        BadCheckpoint: the two say different things, or a key has another JSON type.
        Refused: weights have zero points.
    """
    entry, sidecar = Config(config, "quantization_config"), Config(sidecars.get(QUANT_FILE, {}), QUANT_FILE)
    headers = [
        header
        for header in (_legacy_header(sidecar), _legacy_header(entry) or _flat_header(entry))
        if header is not None
    ]
    if not headers:
        return None
    first = headers[0]
    if any(_contradict(first, other) for other in headers[1:]):
        raise BadCheckpoint(
            f"{QUANT_FILE} and quantization_config of config.json contradict each other: "
            f"{' against '.join(map(_summary, headers))}",
            why="some engines read the one and some the other",
            cure="correct the one that is wrong, or remove it",
        )
    return first


def _contradict(one: ModelOptHeader, other: ModelOptHeader) -> bool:
    # A group that only one of them has is no contradiction: ModelOpt leaves it out of config.json.
    groups = _group_sizes(one), _group_sizes(other)
    return (
        _algorithm_names(one) != _algorithm_names(other)
        or (all(groups) and groups[0] != groups[1])
        or {module: name for module, (name, _) in one.layers.items()}
        != {module: name for module, (name, _) in other.layers.items()}
        or set(one.ignore) != set(other.ignore)
    )


def _legacy_header(source: Config) -> ModelOptHeader | None:
    return _header(source.section("quantization"), "exclude_modules")


def _flat_header(source: Config) -> ModelOptHeader | None:
    if (source.text("quant_method") or "").startswith(METHOD) or source.section("producer").raw("name") == METHOD:
        return _header(source, "ignore")
    return None


def _header(source: Config, exclusions: str) -> ModelOptHeader | None:
    name = source.text("quant_algo")
    if name is None:
        return None
    if name != MIXED:
        return ModelOptHeader(frozenset({_algorithm(source)}), source.texts(exclusions), {}, source.where)
    layers = source.section("quantized_layers")
    algorithms: dict[str, tuple[str, int | None]] = {}
    for module, entry in layers.data.items():
        if not isinstance(entry, dict):
            raise BadCheckpoint(f"{layers.where}: {show(module)} is no object", cure="correct or remove the key")
        algorithms[module] = _algorithm(Config(entry, f"{layers.where}: {show(module)}"))
    if not algorithms:
        raise BadCheckpoint(
            f"{source.where}: {MIXED} without quantized_layers",
            why="no module would be taken for quantized",
            cure="list every quantized module with its quant_algo",
        )
    return ModelOptHeader(frozenset(algorithms.values()), source.texts(exclusions), algorithms, source.where)


def _algorithm(source: Config) -> tuple[str, int | None]:
    name = source.text("quant_algo")
    if name is None:
        raise BadCheckpoint(f"{source.where} has no quant_algo", cure="add it as the drafter was exported")
    if source.flag("has_zero_point"):
        raise Refused(
            f"{source.where}: has_zero_point is true",
            why="draftconv knows ModelOpt's symmetric weights",
            cure="quantize the 16-bit drafter with a recipe",
        )
    return name, source.size("group_size")


def _algorithm_names(header: ModelOptHeader) -> set[str]:
    return {name for name, _ in header.algorithms}


def _group_sizes(header: ModelOptHeader) -> set[int]:
    return {group for _, group in header.algorithms if group is not None}


def _summary(header: ModelOptHeader) -> str:
    algorithms = show_some(sorted(f"{name} {group or ''}".rstrip() for name, group in header.algorithms))
    return f"{algorithms} except {show_some(sorted(header.ignore)) or 'nothing'}"


def _group_size(algorithm: Algorithm, declared: int | None, where: str) -> int | None:
    """The group of an algorithm that declares one.

    Raises:
        BadCheckpoint: the algorithm has none, or another.
    """
    if declared not in (None, algorithm.group) and (algorithm.granularity != "group" or algorithm.group is not None):
        raise BadCheckpoint(
            f"{where}: group_size is {declared}",
            why=f"{algorithm.dtype} weights per {algorithm.granularity} have {algorithm.group or 'none'}",
            cure="correct or remove group_size",
        )
    return algorithm.group or declared


@dataclass(frozen=True, slots=True)
class NamedAlgorithm:
    """An algorithm by its name, with the size of groups where it has any."""

    name: str
    algorithm: Algorithm
    group: int | None

    @property
    def entry(self) -> dict[str, object]:
        """What is said of a module, or of all."""
        return {"quant_algo": self.name, **self._sized, **self.algorithm.keys}

    def config_group(self, targets: Sequence[str]) -> dict[str, object]:
        """The same in the words of compressed-tensors."""
        group: dict[str, object] = {"weights": {**self.algorithm.weights, **self._sized}, "targets": list(targets)}
        if self.algorithm.activations is not None:
            group["input_activations"] = {**self.algorithm.activations, **self._sized}
        return group

    @property
    def _sized(self) -> dict[str, int]:
        return {} if self.group is None else {"group_size": self.group}


def _plain_declaration(named: NamedAlgorithm, ignore: tuple[str, ...]) -> Declaration:
    entry = named.entry
    groups = {"config_groups": {"group_0": named.config_group(["Linear"])}} if named.algorithm.writes_group else {}
    flat = {**groups, "ignore": list(ignore), **entry, "producer": PRODUCER, "quant_method": METHOD}
    nested = {"quant_algo": named.name, "kv_cache_quant_algo": None, **entry, "exclude_modules": list(ignore)}
    return Declaration(flat, {QUANT_FILE: {"producer": PRODUCER, "quantization": nested}})


def _mixed_declaration(named: Sequence[tuple[NamedAlgorithm, Sequence[str]]], ignore: tuple[str, ...]) -> Declaration:
    """Every quantized module by its name, with what it is."""
    modules = [module for _, its in named for module in its]
    if not all(its for _, its in named):
        raise UsageError(f"{MIXED} has to name every quantized module, and none is given")
    entries = [entry for entry in UNQUANTIZED if not any(_entry_excludes(entry, module) for module in modules)]
    excluded = list(dict.fromkeys((*entries, *ignore)))
    layers = {module: algorithm.entry for algorithm, its in named for module in its}
    groups = (algorithm.config_group(sorted(its)) for algorithm, its in named)
    flat: dict[str, object] = {
        "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        "quantized_layers": layers,
        "ignore": excluded,
        "quant_algo": MIXED,
        "producer": PRODUCER,
        "quant_method": METHOD,
    }
    nested = {
        "quant_algo": MIXED,
        "kv_cache_quant_algo": None,
        "exclude_modules": excluded,
        "quantized_layers": layers,
    }
    return Declaration(flat, {QUANT_FILE: {"producer": PRODUCER, "quantization": nested}})


def _entry_excludes(entry: str, module: str) -> bool:
    if entry.startswith("re:"):
        return re.fullmatch(entry.removeprefix("re:"), module) is not None
    return fnmatchcase(module, entry)
