"""The directories that engines are asked about: trained fixtures, edited file by file.

A `Directory` is held in memory with real weights; each method returns one that differs in one
point. `BASES` are sound drafters in the layout of the engine that is asked: the fixtures, and what no fixture has
(several layers, biases, q/k norms …), made from a fixture's weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftconv.api.convert import convert
from draftconv.api.quantize import quantize
from draftconv.checkpoint import QUANT_FILE, open_checkpoint
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.shipped_files import recipes as shipped_directory
from draftconv.drafter.targets import Target, find_target
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
IDS = "eagle_aux_hidden_state_layer_ids"
LAYER = "midlayer."

FIXTURES = tuple(sorted(path.name for path in (DATA / "drafters").iterdir()))


def family(name: str) -> str:
    """Which target a fixture, or a base made from one, drafts for."""
    return "mla" if name.startswith("mla") else "llama"


def target_path(name: str) -> Path:
    return DATA / "targets" / family(name)


@cache
def target_of(name: str) -> Target:
    """The target with its config and tables."""
    target = find_target(str(target_path(name)), None)
    if target is None:
        raise SystemExit(f"{target_path(name)} is no target")
    return target


def read(path: Path, name: str) -> Drafter:
    """A drafter of a fixture's target."""
    return read_drafter(open_checkpoint(path), ReadOptions(target=target_of(name)))


@dataclass(frozen=True)
class Directory:
    """A checkpoint in memory: config.json, tensors by file name, other JSON files."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    sidecars: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> Directory:
        sidecar = path / QUANT_FILE
        return cls(
            json.loads((path / "config.json").read_text(encoding="utf-8")),
            {name: tensor for file in sorted(path.glob("*.safetensors")) for name, tensor in load_file(file).items()},
            {QUANT_FILE: json.loads(sidecar.read_text(encoding="utf-8"))} if sidecar.exists() else {},
        )

    def write(self, path: Path) -> Path:
        path.mkdir(parents=True)
        for name, data in {"config.json": self.config, **self.sidecars}.items():
            (path / name).write_text(json.dumps(data, indent=1), encoding="utf-8")
        tensors = {name: tensor.contiguous().clone() for name, tensor in self.tensors.items()}
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return path

    def set(self, **keys: object) -> Directory:
        return replace(self, config={**self.config, **keys})

    def unset(self, *keys: str) -> Directory:
        return replace(self, config={key: value for key, value in self.config.items() if key not in keys})

    def nest(self, **keys: object) -> Directory:
        """Set keys of eagle_config."""
        inner = self.config.get("eagle_config")
        return self.set(eagle_config={**(inner if isinstance(inner, dict) else {}), **keys})

    def quantization(self, **keys: object) -> Directory:
        """Set keys of quantization_config."""
        inner = self.config.get("quantization_config")
        return self.set(quantization_config={**(inner if isinstance(inner, dict) else {}), **keys})

    def put(self, name: str, tensor: Tensor) -> Directory:
        return replace(self, tensors={**self.tensors, name: tensor})

    def drop(self, *parts: str) -> Directory:
        """Without the tensors whose names hold any of these."""
        tensors = {name: tensor for name, tensor in self.tensors.items() if not any(part in name for part in parts)}
        if len(tensors) == len(self.tensors):
            raise ValueError(f"no tensor is called like {parts}")
        return replace(self, tensors=tensors)

    def rename(self, change: Callable[[str], str]) -> Directory:
        return replace(self, tensors={change(name): tensor for name, tensor in self.tensors.items()})

    def cast(self, dtype: torch.dtype) -> Directory:
        tensors = {name: t.to(dtype) if t.is_floating_point() else t for name, t in self.tensors.items()}
        return replace(self, tensors=tensors)

    def fuse(self, joined: str, *parts: str) -> Directory:
        """With several projections of the first layer joined into one tensor."""
        names = [f"{LAYER}{part}.weight" for part in parts]
        whole = torch.cat([self.tensors[name] for name in names])
        return self.drop(*names).put(f"{LAYER}{joined}.weight", whole)


Change = Callable[[Directory], Directory]


# ── sound drafters ─────────────────────────────────────────────────────────────────


def some(*shape: int, scale: float = 0.05, around: float = 0.0) -> Tensor:
    """Weights of a tensor that no fixture has: the same ones whenever they are asked for."""
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) * scale + around).bfloat16()


def _two_layers(d: Directory) -> Directory:
    first = {name: tensor for name, tensor in d.tensors.items() if name.startswith(LAYER) and "hidden_norm" not in name}
    hidden = d.tensors["norm.weight"].shape[0]
    second = {
        name.replace(LAYER, "layers.1."): tensor[..., -hidden:] if tensor.shape[-1] == 2 * hidden else tensor
        for name, tensor in first.items()
    }
    return replace(d, tensors={**d.tensors, **second}).set(num_hidden_layers=2)


def _biased(d: Directory) -> Directory:
    for part in ("q", "k", "v", "o"):
        name = f"{LAYER}self_attn.{part}_proj"
        d = d.put(f"{name}.bias", some(d.tensors[f"{name}.weight"].shape[0]))
    return d.set(attention_bias=True)


def _mlp_biased(d: Directory) -> Directory:
    for part in ("gate", "up", "down"):
        name = f"{LAYER}mlp.{part}_proj"
        d = d.put(f"{name}.bias", some(d.tensors[f"{name}.weight"].shape[0]))
    return d.set(mlp_bias=True)


def _query_norms(d: Directory) -> Directory:
    norms = {f"{LAYER}self_attn.{part}_norm.weight": some(64, around=1.0) for part in "qk"}
    qwen3: dict[str, object] = {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"}
    return replace(d, tensors={**d.tensors, **norms}).set(**qwen3)


def _window(d: Directory) -> Directory:
    return _query_norms(d).set(sliding_window=64, use_sliding_window=True, layer_types=["sliding_attention"])


def _four_states(d: Directory) -> Directory:
    """One boundary more; nested ids go on in the numbering of the engine that the directory is for."""
    wide = torch.cat((d.tensors["fc.weight"], some(256, 256)), dim=1)
    boundaries = [2, 4, 5, 7]
    nested = d.config.get("eagle_config", {}).get(IDS)
    first = nested[0] if nested else 1
    return (
        d.put("fc.weight", wide)
        .set(**{IDS: boundaries}, num_aux_hidden_states=4)
        .nest(**{IDS: [boundary - boundaries[0] + first for boundary in boundaries]})
    )


def _small_vocabulary(d: Directory) -> Directory:
    tables = {name: d.tensors[name][:1024] for name in ("embed_tokens.weight", "lm_head.weight")}
    return replace(d, tensors={**d.tensors, **tables}).set(vocab_size=1024, draft_vocab_size=1024)


def _normed_before_fc(d: Directory) -> Directory:
    return d.put("input_norm.weight", some(768, around=1.0)).set(norm_before_fc=True).nest(norm_before_fc=True)


def _own_embedding(d: Directory) -> Directory:
    """A table that differs from the target's, row by row."""
    return d.put("embed_tokens.weight", d.tensors["embed_tokens.weight"].roll(1, 0))


BASES: Mapping[str, tuple[str, Callable[[Directory], Directory]]] = MappingProxyType({
    **{name: (name, lambda d: d) for name in FIXTURES},
    "llama-two-layers": ("llama-eagle3", _two_layers),
    "llama-biased": ("llama-eagle3", _biased),
    "llama-mlp-biased": ("llama-eagle3", _mlp_biased),
    "llama-query-norms": ("llama-eagle3", _query_norms),
    "llama-window": ("llama-eagle3", _window),
    "llama-four-states": ("llama-eagle3", _four_states),
    "llama-norm-before-fc": ("llama-eagle3", _normed_before_fc),
    "llama-fc-bias": ("llama-eagle3", lambda d: d.put("fc.bias", some(256)).set(bias=True)),
    "llama-small-vocabulary": ("llama-eagle3", _small_vocabulary),
    "llama-normed-residual": ("llama-eagle3", lambda d: d.set(norm_before_residual=True)),
    "mla-normed-residual": ("mla-eagle3", lambda d: d.set(norm_before_residual=True)),
    "llama-own-embedding": ("llama-eagle3", _own_embedding),
    "mla-own-embedding": ("mla-eagle3", _own_embedding),
    "mla-two-layers": ("mla-eagle3", _two_layers),
    "mla-four-states": ("mla-eagle3", _four_states),
})  # fmt: skip
"""Name → the fixture it is made from, and how."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a quantized form is made: a shipped recipe, what of it is changed, and a repack after it."""

    recipe: str
    changes: Mapping[str, object] = field(default_factory=dict)
    pack: str | None = None


INT8 = {"weights": {"dtype": "int8", "granularity": "channel", "scale_rule": "max/127", "scale_dtype": "weight"}}
WITH_HEAD = {"exclude": ["embed", "fc", "norms", "kv_b", "a_projections"], "may_stay": ["lm_head"]}
"""The head too, where the class asks how it is quantized."""
WAYS: Mapping[str, Way] = {
    "ct-channel": Way("w4a16"),
    "ct-g128": Way("w4a16-g128"),
    "gptq-channel": Way("w4a16", {"format": "gptq"}),
    "gptq-g128": Way("w4a16-g128", {"format": "gptq"}),
    "awq-g128": Way("w4a16-g128", {"format": "autoawq"}),
    "quark-reorder": Way("w4a16-g128", {"format": "quark-int4"}),
    "quark-order": Way("w4a16-g128", pack="quark-int4:order"),
    "seed": Way("quark-w4a8", pack="compressed-pack"),
    "pack-w4a8": Way("w4a8", {"format": "compressed-pack"}),
    "int-w4a8": Way("w4a8"),
    "int-w8a8": Way("w4a8", INT8),
    "fp8": Way("fp8"),
    "int8-all": Way("int8-all"),
    "fp8-all": Way("fp8-all"),
    "g128-all": Way("w4a16-g128-all", {"rounding": "nearest"}),  # a reader does not see how a value was chosen
    "ct-head": Way("w4a16-g128", WITH_HEAD),
    "awq-head": Way("w4a16-g128", {**WITH_HEAD, "format": "autoawq"}),
}
"""Quantized forms that vLLM on a CPU loads."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Which engine directories are made for.

    Attributes:
        layout: that is written for it. `engines`: what `quantize` is told to write for.
        unconverted: other layouts that it reads as they are.
    """

    layout: str
    engines: tuple[str, ...]
    unconverted: tuple[str, ...] = ()


class Makers:
    """Writes directories once each, below one directory."""

    def __init__(self, work: Path, reader: Reader) -> None:
        self.work, self.reader = work, reader
        for part in ("bases", "converted", "traces"):
            (work / part).mkdir(parents=True, exist_ok=True)

    def base(self, name: str) -> Path:
        """A sound drafter as the engine reads it, or with `@WAY` behind its name one of its quantized forms."""
        path = self.work / "bases" / name
        plain, _, way = name.partition("@")
        if not path.exists() and way:
            self._quantized(plain, WAYS[way], path)
        elif not path.exists():
            fixture, change = BASES[name]
            whole(
                path, change(Directory.open(self.converted(DATA / "drafters" / fixture, fixture, self.reader.layout)))
            )
        return path

    @contextmanager
    def made(self, directory: Directory) -> Iterator[Path]:
        """A directory that is there for one question."""
        path = self.work / "case"
        shutil.rmtree(path, ignore_errors=True)
        directory.write(path)
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def converted(self, source: Path, name: str, to: str, **options: Any) -> Path:
        """A drafter of a fixture's target in another layout."""
        how = "-".join([to, *map(str, options.values())]).replace(":", "-")
        path = self.work / "converted" / f"{source.parent.name}-{source.name}-{how}"
        if not path.exists():
            convert(source, path, to=to, target=str(target_path(name)), **options)
        return path

    def _quantized(self, plain: str, way: Way, path: Path) -> None:
        recipe, engines, where = way.recipe, self.reader.engines, path
        if way.changes:
            text = yaml.safe_load(shipped_directory().joinpath(f"{recipe}.yaml").read_text(encoding="utf-8"))
            file = self.work / f"{path.name}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(yaml.safe_dump({**text, **way.changes}), encoding="utf-8")
            recipe = str(file)
        if way.pack:
            where = path.with_name(f"{path.name}-unpacked")
        target = str(target_path(plain))
        if not where.exists():
            quantize(
                self.base(plain), where, recipe=recipe, engines=() if way.pack else engines, allow_a16=True,
                target=target, force=True,
            )  # fmt: skip
        if way.pack:
            convert(where, path, to=self.reader.layout, pack=way.pack, target=target)


def whole(path: Path, directory: Directory) -> Path:
    """Written beside its place and moved there, so that an interrupted run leaves nothing half made."""
    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    return directory.write(partial).replace(path)
