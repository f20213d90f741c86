"""The target a drafter belongs to: how many layers, which id family, which tables.

`--target` is a directory with a config.json, a Hub id, or a name from
`recipes/targets.yaml`. Only its config is needed, except where an option compares or
attaches the target's own `embed_tokens` / `lm_head`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from draftconv import limits
from draftconv.checkpoint import Checkpoint, open_checkpoint, read_config, show
from draftconv.checkpoint.files import is_directory
from draftconv.drafter.config import Config
from draftconv.drafter.shipped_files import recipes
from draftconv.errors import BadCheckpoint, UsageError, did_you_mean

logger = logging.getLogger(__name__)

Family = Literal["llama", "deepseek", "gpt-oss", "minimax-m3-vl"]
FAMILY_NAMES: tuple[Family, ...] = get_args(Family)

FAMILIES: Mapping[str, Family] = {
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "deepseek_v32": "deepseek",
    "kimi_k2": "deepseek",
    "kimi_k25": "deepseek",
    "glm4_moe_lite": "deepseek",
    "gpt_oss": "gpt-oss",
    "minimax_m3_vl": "minimax-m3-vl",
}
"""Target model_type → id family; every other target counts as `llama`.

SGLang 0.5.23 `srt/models/{deepseek_v2,kimi_k25,glm4_moe_lite,gpt_oss,minimax_m3_vl}.py`
each number their captured layers in their own way; all the rest share one rule.
"""

EMBED_NAMES = ("model.embed_tokens.weight", "language_model.model.embed_tokens.weight",
               "model.language_model.embed_tokens.weight", "embed_tokens.weight")  # fmt: skip
HEAD_NAMES = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")


@dataclass(frozen=True, slots=True)
class Target:
    """What is known of the target model.

    Attributes:
        name: a known name, a Hub id, or the base name of a directory: fit to be written into an output.
        repo: what a server would be started with.
        layers: decoder layers L. `family`: which numbering rule engines use; None when
            only the layer count was given.
        path: where its files are, when they are on this machine.
        stored: how its weights are quantized, `compressed-tensors INT4` or `modelopt NVFP4`: quant_method and
            algorithm of its config; empty is not at all, or not known.
        model: the known name of the model that it is, which several checkpoints store in their own ways.
        architectures: names of its class, as its config has them.
    """

    name: str
    layers: int
    family: Family | None = None
    model_type: str = ""
    hidden: int | None = None
    vocab: int | None = None
    max_positions: int | None = None
    repo: str = ""
    remote_code: bool = False
    path: Path | None = None
    stored: str = ""
    model: str = ""
    architectures: tuple[str, ...] = ()

    @property
    def hub_id(self) -> str:
        """Where anybody can open it; empty for a directory of this machine, or where only a layer count is known."""
        return "" if self.path else self.repo

    @property
    def has_weights(self) -> bool:
        """True when its weights are at hand, not its config alone."""
        return self.path is not None and any(file.suffix in (".safetensors", ".bin") for file in self.path.iterdir())

    def open(self) -> Checkpoint:
        """Open the target's weights, for its embedding or head table.

        Raises:
            UsageError: only its config is known.
        """
        if self.path is None:
            raise UsageError(
                f"target {self.name} is known by its config only",
                why="its embed_tokens or lm_head is needed, and those are in its weights",
                cure="give --target a directory that holds the target's weights",
            )
        return open_checkpoint(self.path)


def find_target(spec: str | Path | None, layers: int | None) -> Target | None:
    """Resolve `--target` and `--target-layers`; None when neither is given.

    Raises:
        UsageError: unknown name, or the two options contradict each other.
        BadCheckpoint: the target's config.json is unreadable or lacks a layer count.
    """
    if layers is not None and layers < 1:
        raise UsageError(f"--target-layers {layers} is not a number of layers")
    limits.TARGET_LAYERS.check(layers or 0, f"--target-layers is {layers}", error=UsageError)
    if spec is None:
        return Target(f"a target with {layers} layers", layers) if layers is not None else None
    target = _resolve(str(spec))
    logger.info("target %s: %d layers, family %s", show(target.name), target.layers, target.family)
    if layers is not None and layers != target.layers:
        raise UsageError(
            f"--target {spec} has {target.layers} layers, --target-layers says {layers}",
            cure="give one of the two",
        )
    return target


def known_targets() -> dict[str, Target]:
    """The shipped table, by name."""
    import yaml

    text = recipes().joinpath("targets.yaml").read_text(encoding="utf-8")
    entries: dict[str, dict[str, object]] = yaml.safe_load(text)["targets"]
    return {name: _read_target(name, Config(entry, f"recipes/targets.yaml: {name}")) for name, entry in entries.items()}


def _resolve(spec: str) -> Target:
    path = Path(spec)
    if is_directory(path):
        return _from_config(spec, read_config(path), path)
    known = known_targets()
    if spec.lower() in known:
        return known[spec.lower()]
    if "/" in spec:
        return _from_config(spec, read_config(spec), None)
    raise UsageError(
        f"--target {spec}: no such directory, Hub id or known target",
        why=f"known targets: {', '.join(known)}",
        cure=did_you_mean(spec, known, "give a directory with a config.json"),
    )


def _read_target(name: str, entry: Config) -> Target:
    model_type = entry.text("model_type") or ""
    return Target(
        name,
        entry.integer("layers") or 0,
        FAMILIES.get(model_type, "llama"),
        model_type,
        entry.integer("hidden"),
        entry.integer("vocab"),
        entry.integer("max_positions"),
        entry.text("repo") or "",
        bool(entry.flag("remote_code")),
        stored=entry.text("stored") or "",
        model=entry.text("model") or name,
        architectures=tuple(filter(None, (entry.text("architecture"),))),
    )


def _from_config(spec: str, data: Mapping[str, object], path: Path | None) -> Target:
    outer = Config(data, f"target {spec}: config.json")
    # Multimodal targets (Kimi-K2.5/2.6) keep the language model's sizes in text_config.
    inner = outer.section("text_config")
    text = inner if inner.data else outer
    layers = text.size("num_hidden_layers", limits.TARGET_LAYERS)
    if layers is None:
        raise BadCheckpoint(
            f"{outer.where} has no num_hidden_layers",
            why="boundaries count the target's layers",
            cure="give --target-layers N instead of --target",
        )
    model_type = outer.text("model_type") or ""
    inner_type = text.text("model_type") or model_type
    return Target(
        path.resolve().name if path else spec.removeprefix("hf://"),
        layers,
        FAMILIES.get(model_type) or FAMILIES.get(inner_type) or "llama",
        model_type,
        text.size("hidden_size"),
        text.size("vocab_size"),
        text.size("max_position_embeddings"),
        spec.removeprefix("hf://"),
        outer.has("auto_map"),
        path,
        _stored_as(outer) or _stored_as(text),
        "" if path else _known_model(spec.removeprefix("hf://").partition("@")[0]),
        outer.texts("architectures"),
    )


def _known_model(repo: str) -> str:
    """The model that a repository of the shipped table holds."""
    return next((known.model for known in known_targets().values() if known.repo == repo), "")


def _stored_as(config: Config) -> str:
    """How weights are quantized, by quant_method and algorithm; empty where they are not."""
    section = config.section("quantization_config")
    groups = section.section("config_groups")
    weights = [groups.section(name).section("weights") for name in groups.data]
    kinds = {
        f"{(group.text('type') or '').upper()}{group.integer('num_bits')}"
        for group in weights
        if group.text("type") and group.integer("num_bits")
    }
    algorithm = section.text("quant_algo") or ", ".join(sorted(kinds))
    return " ".join(filter(None, (section.text("quant_method"), algorithm)))
