"""What trainers are asked: drafters that draftconv writes for them, and drafters that they make themselves.

The drafters are the trained fixtures, the variants of them that vLLM is asked about, and what neither has: rotary
embeddings, widths and vocabularies that some trainer cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from draftconv.drafter.facts import Facts
from draftconv.layouts.base import Refusal
from draftconv.layouts.limits import lacks
from tests import tiny
from truth.trainers.shared import BASES, Directory, some

UNSOUND = frozenset({"llama-small-vocabulary", "mla-two-layers"})
"""Bases that draftconv refuses to convert at all, whoever is to read them."""

WRITTEN: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "speculators": ("speculators",),
    "specforge": ("specforge-hf",),
    "torchspec": ("torchspec-native",),
    "modelopt": ("modelopt-layers",),
    "angelslim": ("portable",),
    "safeailab": ("portable",),
})  # fmt: skip
"""Trainer → the layouts that are written for it, or that its classes read without one of their own."""


def _rope(kind: str, **scaling: float) -> Callable[[Directory], Directory]:
    spelled = {"rope_type": kind, "type": kind, **scaling}
    return lambda d: d.set(rope_scaling=spelled, rope_parameters={**spelled, "rope_theta": d.config["rope_theta"]})


def _two_states(d: Directory) -> Directory:
    narrow = d.put("fc.weight", d.tensors["fc.weight"][:, :512])
    ids = "eagle_aux_hidden_state_layer_ids"
    return narrow.set(**{ids: [2, 4]}, num_aux_hidden_states=2).nest(**{ids: [1, 3]})


def _wide_target(d: Directory) -> Directory:
    return d.put("fc.weight", some(256, 3 * 384)).set(target_hidden_size=384)


def _theta(d: Directory) -> Directory:
    return d.set(rope_theta=500000.0, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})


def _narrow_window(d: Directory) -> Directory:
    return BASES["llama-window"][1](d).set(sliding_window=5)


def _shuffled(d: Directory) -> Directory:
    """The rows of a reduced head in another order."""
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(3))
    ids = (torch.arange(1024) + d.tensors["d2t"])[order]
    head = d.tensors["lm_head.weight"][order]
    return d.put("lm_head.weight", head).put("d2t", ids - torch.arange(1024))


def _headless(d: Directory) -> Directory:
    return d.drop("lm_head.weight")


UNMADE: Mapping[tuple[str, str], str] = MappingProxyType({
    ("modelopt", "mla-plain-q"): "its exporter asserts q_a_proj",
    ("speculators", "wide-target"): "fc is built for hidden_size, whatever target_hidden_size says",
    ("speculators", "3.1-wide"): "fc and fc_norm are built for hidden_size",
    ("torchspec", "reduced"): "its converter takes no drafter that was trained with a reduced vocabulary",
    ("torchspec", "reduced-plain-rope"): "its converter takes no drafter that was trained with a reduced vocabulary",
    ("torchspec", "mla-reduced"): "its converter takes no drafter that was trained with a reduced vocabulary",
    ("specforge", "four-aux"): "fc is built for three states",
    ("angelslim", "wide-target"): "fc is built for hidden_size",
    ("angelslim", "yarn"): "its trainer knows linear, dynamic and mrope",
    ("angelslim", "llama3-rope"): "its trainer knows linear, dynamic and mrope",
})  # fmt: skip
"""Variants that tests spell in a trainer's layout, and that its class cannot build."""

STILL: Mapping[tuple[str, str], str] = MappingProxyType({
    ("speculators", "llama-narrow-window"): "its unrolled steps attend by the window of step 0, which stands still",
})  # fmt: skip
"""Drafters that a trainer's unrolled loop computes otherwise than its first step and than every engine."""


def _turned_by_10000(facts: Facts) -> Facts:
    return replace(facts, rope=replace(facts.rope, theta=10000.0))


def _unscaled(facts: Facts) -> Facts:
    scaling = {**facts.rope.scaling, "mscale": 0.0, "mscale_all_dim": 0.0}
    return replace(facts, rope=replace(facts.rope, scaling=scaling))


TOLD: Mapping[str, Callable[[Facts], Facts]] = MappingProxyType({
    "rope-base-untrained": _turned_by_10000,
    "softmax-scale-untrained": _unscaled,
})  # fmt: skip
"""Problems that say a trainer computes something else than its config.json → what it computes."""

PLAIN = (
    "both-fusions", "mla", "layers", "norm_before_residual", "norm_before_fc", "fc_norm", "post-norm", "qkv-bias",
    "o-bias", "qk-norm", "mlp-bias", "fc-bias", "window", "three-states",
)  # fmt: skip
UNWRITTEN: Mapping[str, tuple[Refusal, ...]] = MappingProxyType({
    "safeailab": (
        *lacks("SafeAILab EAGLE", *PLAIN),
        Refusal(lambda f: f.rope.kind != "default", "SafeAILab EAGLE knows no such rope", ""),
    ),
    "angelslim": (
        *lacks("AngelSlim", *PLAIN, "wide-states"),
        Refusal(lambda f: f.rope.theta != 10000.0, "AngelSlim trains with rope_theta 10000", ""),
        Refusal(lambda f: f.rope.kind not in ("default", "linear"), "AngelSlim knows linear, dynamic and mrope", ""),
    ),
})  # fmt: skip
"""What trainers without a layout of their own to be written in do not read of the portable one: see docs/layouts.md."""

YARN: Mapping[str, float] = {"factor": 16.0, "original_max_position_embeddings": 2048}
MORE: Mapping[str, tuple[str, Callable[[Directory], Directory]]] = MappingProxyType({
    "llama-theta": ("llama-eagle3", _theta),
    "llama-llama3-rope": ("llama-eagle3", _rope(
        "llama3", factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=1024)),
    "llama-linear-rope": ("llama-eagle3", _rope("linear", factor=4.0)),
    "llama-yarn": ("llama-eagle3", _rope(
        "yarn", **YARN, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)),
    "llama-yarn-bare": ("llama-eagle3", _rope("yarn", **YARN)),
    "llama-yarn-betas": ("llama-eagle3", _rope("yarn", **YARN, beta_fast=24.0, beta_slow=2.0)),
    "mla-yarn-bare": ("mla-eagle3", _rope("yarn", **YARN)),
    "mla-plain-rope": ("mla-eagle3", _rope("default")),
    "llama-two-states": ("llama-eagle3", _two_states),
    "llama-wide-target": ("llama-eagle3", _wide_target),
    "llama-narrow-window": ("llama-eagle3", _narrow_window),
    "llama-shuffled": ("llama-eagle3-reduced", _shuffled),
    "llama-headless": ("llama-eagle3", _headless),
    "llama-no-embedding": ("llama-eagle3", lambda d: d.drop("embed_tokens.weight")),
    "llama-fc-norm": ("llama-eagle3.1", lambda d: d.set(norm_output=False).nest(return_hidden_post_norm=False)),
})  # fmt: skip
"""As `BASES`: name → the fixture it is made from, and how."""

UNTARGETED = frozenset({"llama-wide-target"})
"""Drafters that no target of the fixtures fits; the number of its layers alone is given."""

TWICE = ("llama-eagle3", "llama-eagle3-reduced", "llama-biased")
"""Drafters that ModelOpt spells itself, so that they are taken for trained with two norms."""

LATENT_TWICE = ("mla-eagle3", "mla-four-states")
"""The same of its MLA class, for ModelOpt alone."""


@dataclass(frozen=True, slots=True)
class Written:
    """A drafter, written in a layout for a trainer.

    Attributes:
        source: in BASES or MORE, with ` of ModelOpt` behind it as ModelOpt spells it.
        lone: the target's weights are not given.
    """

    trainer: str
    layout: str
    source: str
    lone: bool = False

    @property
    def name(self) -> str:
        return f"{self.source}{', no target' if self.lone else ''} → {self.layout}"


def written(trainer: str) -> Iterator[Written]:
    """Every drafter in every layout that is meant for this trainer."""
    for layout in WRITTEN.get(trainer, ()):
        for source in (*BASES, *MORE):
            if source not in UNSOUND:
                yield Written(trainer, layout, source)
        if layout != "portable":
            yield Written(trainer, layout, "llama-no-embedding", lone=True)
        for source in (*TWICE, *LATENT_TWICE) if layout == "modelopt-layers" else TWICE:
            yield Written(trainer, layout, f"{source} of ModelOpt")


def made(layout: str) -> Iterator[tiny.Variant]:
    """Every variant that the trainer of a layout could have trained, with the last bits of its weights in order."""
    for variant in tiny.VARIANTS.values():
        if tiny.fits(variant, layout) and not tiny.doubtful(layout, variant.name):
            plain = replace(variant, awkward=False)
            yield plain if layout == "safeailab" else replace(plain, dtype="F32")  # its config says float16
