"""Which modules are built quantized, and by which method: what quantization configs say to this loader."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from truth.trtllm.outcome import RaisedError
from truth.trtllm.source import COMPRESSED, LINEAR, MODEL_CONFIG, MODELOPT, QUANT_MODE

SIDECAR = "hf_quant_config.json"

ALGORITHMS: Mapping[str, str] = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8-rows",
    "FP8_BLOCK_SCALES": "fp8-blocks",
    "NVFP4": "nvfp4",
    "W8A16": "weight-only",
    "W4A16": "weight-only-int4",
    "W4A16_AWQ": "awq",
    "W4A8_AWQ": "awq-fp8",
    "MIXED_PRECISION": "",
    "NO_QUANT": "",
    "INT8": "",
}
"""QuantAlgo → the linear method of get_quant_method, or none. Those of `UNBUILT` are known and have no method here."""

UNBUILT = frozenset({
    "W8A16_GPTQ", "W4A16_GPTQ", "W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_TENSOR_PLUGIN",
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", "W4A8_QSERVE_PER_GROUP", "W4A8_QSERVE_PER_CHANNEL", "W4A16_MXFP4",
})  # fmt: skip

BLOCK_EXCLUDED = ("*kv_b_proj*", "*k_b_proj*", "*eh_proj")


@dataclass(frozen=True, slots=True)
class QuantConfig:
    """The global quantization of a drafter: per-layer ones come too late, its weights are created before."""

    algorithm: str | None = None
    group_size: int | None = None
    excluded: tuple[str, ...] | None = None

    @property
    def method(self) -> str:
        """The linear method of modules that are not excluded; empty for plain ones.

        Raises:
            RaisedError: get_quant_method has none.
        """
        if self.algorithm is None:
            return ""
        if self.algorithm in ALGORITHMS:
            return ALGORITHMS[self.algorithm]
        raise RaisedError(f"{self.algorithm} has no linear method", LINEAR.at("get_quant_method"))

    def excludes(self, *names: str) -> bool:
        """QuantConfig.is_module_excluded_from_quantization for any of them: the module or one of its parents."""
        return any(self._matches(name) for name in names)

    def _matches(self, name: str) -> bool:
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            candidate = ".".join(parts[:end])
            if any(_entry(candidate, entry) for entry in self.excluded or ()):
                return True
        return False


def _entry(candidate: str, entry: str) -> bool:
    if entry.startswith("re:"):
        return re.fullmatch(entry[3:], candidate) is not None
    if fnmatch.fnmatchcase(candidate, entry):
        return True
    return entry.endswith(".*") and fnmatch.fnmatchcase(candidate, entry[:-2])


def quant_config(config: Mapping[str, Any], sidecars: Mapping[str, Mapping[str, Any]]) -> QuantConfig:
    """ModelConfig.from_pretrained: hf_quant_config.json first, then quantization_config.

    Raises:
        RaisedError: what is declared cannot be read, or is not supported.
    """
    inline = config.get("quantization_config")
    if SIDECAR in sidecars:
        found = _modelopt(_normalized(sidecars[SIDECAR]))
        if found.algorithm is None and inline is not None and (second := _inline(inline)).algorithm is not None:
            return second
        return found
    return QuantConfig() if inline is None else _inline(inline)


def _is_modelopt(raw: Mapping[str, Any]) -> bool:
    if str(raw.get("quant_method", "")).lower().startswith("modelopt"):
        return True
    return bool((raw.get("producer") or {}).get("name") == "modelopt")


def _normalized(raw: Mapping[str, Any]) -> dict[str, Any]:
    """read_modelopt_quant_config: both shapes in the words of the older."""
    if "quantization" in raw:
        if not isinstance(raw["quantization"], dict):
            raise RaisedError("'quantization' is no object", MODELOPT.at("read_modelopt_quant_config"))
        result = dict(raw["quantization"])
    elif _is_modelopt(raw):
        result = {key: value for key, value in raw.items() if key not in ("quant_method", "ignore")}
        if "ignore" in raw:
            result["exclude_modules"] = raw["ignore"]
    else:
        raise RaisedError("not a ModelOpt config", MODELOPT.at("read_modelopt_quant_config"))
    if str(result.get("quant_algo", "")).lower() == "fp8_pb_wo":
        result["quant_algo"] = "FP8_BLOCK_SCALES"
    return result


def _modelopt(read: Mapping[str, Any]) -> QuantConfig:
    where = MODEL_CONFIG.at("ModelConfig._build_modelopt_quant_config")
    algorithm = read.get("quant_algo")
    if algorithm is not None and algorithm not in ALGORITHMS and algorithm not in UNBUILT:
        raise RaisedError(f"{algorithm!r} is no QuantAlgo", QUANT_MODE.at("QuantAlgo"))
    if algorithm == "MIXED_PRECISION" and not isinstance(read.get("quantized_layers"), dict):
        raise RaisedError("MIXED_PRECISION without quantized_layers", where)
    group = read.get("group_size")
    excluded = read.get("exclude_modules")
    if algorithm == "FP8_BLOCK_SCALES" and group is None:
        group = 128
    return QuantConfig(algorithm, group, None if excluded is None else tuple(excluded))


def _inline(raw: Mapping[str, Any]) -> QuantConfig:
    if _is_modelopt(raw):
        return _modelopt(_normalized(raw))
    method = raw.get("quant_method")
    kept = raw.get("modules_to_not_convert")
    found = READERS[method](raw) if isinstance(method, str) and method in READERS else QuantConfig()
    # The producer's lists come on top, whatever the method; a method that is not known leaves everything plain.
    more = (*(raw.get("ignored_layers") or ()), *(raw.get("ignore") or ()))
    if found.algorithm is None:
        kept = None
    excluded = (*(kept or ()), *(found.excluded or ()), *more)
    return QuantConfig(found.algorithm, found.group_size, tuple(dict.fromkeys(excluded)) or found.excluded)


def _fp8(raw: Mapping[str, Any]) -> QuantConfig:
    """Hugging Face's fp8: blocks of 128, or static scales, which are read as blocks too; the rest goes unread."""
    if not (raw.get("weight_block_size") or raw.get("activation_scheme") == "static"):
        return QuantConfig()
    if tuple(raw.get("weight_block_size", (128, 128)) or ()) != (128, 128):
        raise RaisedError("blocks other than 128 by 128", MODEL_CONFIG.at("ModelConfig.load_hf_quant_config"))
    return QuantConfig("FP8_BLOCK_SCALES", 128, BLOCK_EXCLUDED)


def _nvfp4(raw: Mapping[str, Any]) -> QuantConfig:
    if raw.get("group_size", 16) != 16:
        raise RaisedError("NVFP4 groups other than 16", MODEL_CONFIG.at("ModelConfig.load_hf_quant_config"))
    return QuantConfig("NVFP4", 16, ("*.mlp.gate", "lm_head"))


def _unsupported(name: str) -> Callable[[Mapping[str, Any]], QuantConfig]:
    def read(_: Mapping[str, Any]) -> QuantConfig:
        raise RaisedError(f"{name} has no linear method", LINEAR.at("get_quant_method"))

    return read


def _compressed(raw: Mapping[str, Any]) -> QuantConfig:
    where = COMPRESSED.at("update_quant_config_from_compressed_tensors")
    groups = raw.get("config_groups")
    if not groups:
        raise RaisedError("config_groups is not set", where)
    cache = raw.get("kv_cache_scheme")
    if cache is not None and not (cache.get("num_bits") == 8 and cache.get("type") == "float"):
        raise RaisedError("kv_cache_scheme is not FP8", where)
    excluded = tuple(raw.get("ignore", None) or ())
    if len(groups) > 1:
        # No module names are handed over, so that no module gets a scheme of its own.
        return QuantConfig("MIXED_PRECISION", None, ())
    group = next(iter(groups.values()))
    algorithm, size = _scheme(group, group.get("format", raw.get("format")))
    return QuantConfig(algorithm, size, excluded)


def _scheme(group: Mapping[str, Any], stored: object) -> tuple[str, int | None]:
    """_quant_config_from_config_group, its exceptions of Python included."""
    where = COMPRESSED.at("_quant_config_from_config_group")
    weights = group.get("weights")
    if not isinstance(weights, Mapping) or "strategy" not in weights or "num_bits" not in weights:
        raise RaisedError("weights lack strategy or num_bits", where)
    strategy, bits, kind, inputs = (
        weights["strategy"], weights["num_bits"], weights.get("type"), group.get("input_activations"),
    )  # fmt: skip
    if stored == "mxfp4-pack-quantized" or (bits == 4 and kind == "float" and strategy == "group" and inputs is None):
        raise RaisedError("MXFP4 has no linear method", LINEAR.at("get_quant_method"))
    if not isinstance(inputs, Mapping) or "strategy" not in inputs:
        raise RaisedError("input_activations is null, and its strategy is read", where)
    if bits == 8:
        match strategy, inputs["strategy"]:
            case "channel", "token":
                return "FP8_PER_CHANNEL_PER_TOKEN", None
            case "block", "group" if inputs.get("group_size") == 128:
                return "FP8_BLOCK_SCALES", 128
        raise RaisedError(f"8 bits per {strategy} beside activations per {inputs['strategy']}", where)
    if bits == 4 and kind == "float" and strategy == inputs["strategy"] == "tensor_group":
        if weights.get("group_size") != 16:
            raise RaisedError("NVFP4 groups other than 16", where)
        return "NVFP4", 16
    raise RaisedError(f"{bits} bits of type {kind}", where)


READERS: Mapping[str, Callable[[Mapping[str, Any]], QuantConfig]] = {
    "fp8": _fp8,
    "nvfp4": _nvfp4,
    "compressed-tensors": _compressed,
    "mxfp4": _unsupported("MXFP4"),
    "mxfp8": _unsupported("MXFP8"),
}
