"""A drafter: canonical tensors (still on disk), facts, and why each fact is believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftconv.checkpoint import Checkpoint, TensorRef
from draftconv.drafter.facts import AuxLayers, Facts, Feedback, describe_boundaries
from draftconv.drafter.kinds import DrafterKind, kind_of
from draftconv.drafter.problems import Problem
from draftconv.drafter.vocabulary import MapReading

IDENTITY_MAP = "identity map of a full vocabulary"
FULL_MASK = "mask of a full vocabulary"
ZERO_BIAS = "zeros: the same as no bias"
SAME_WITHOUT = frozenset({IDENTITY_MAP, FULL_MASK, ZERO_BIAS})
"""Reasons to leave a tensor out that change nothing; every other one is a leftover of training."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Which layout a checkpoint is in, how sure that is, and the clues that say so."""

    layout: str
    confidence: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file says if it was written by one producer's rules, or by hand for one engine.

    Attributes:
        option: what chooses this reading, and its value: `--from` and a layout, or `--aux-convention` and a convention.
        final_norm: whether lm_head reads the normed state, as in every engine.
    """

    option: tuple[str, str]
    boundaries: tuple[int, ...] | AuxLayers
    feedback: Feedback
    final_norm: bool = True

    def __str__(self) -> str:
        return f"{self.option[0]} {self.option[1]}: {self.means}"

    @property
    def means(self) -> str:
        """Its facts in words."""
        without = "" if self.final_norm else ", trained without the final norm"
        return f"boundaries {describe_boundaries(self.boundaries)} and {self.feedback} feedback{without}"


@dataclass(frozen=True, slots=True)
class Drafter:
    """An opened drafter.

    Attributes:
        tensors: canonical name → bytes on disk; nothing is loaded.
        names: canonical name → name in the file.
        dropped: file name → why it is not part of the drafter (leftovers of training).
        companions: quantization tensors (scales, zero points), by canonical name.
        reasons: fact name → where its value came from.
        maps: the vocabulary map as read, when the drafter has one.
        config: config.json with nested spellings flattened (speculators).
        readings: ways to read the file that fit alike and give other facts, the one that was taken first;
            empty where there is only one.
    """

    checkpoint: Checkpoint
    detection: Detection
    facts: Facts
    tensors: Mapping[str, TensorRef]
    names: Mapping[str, str]
    config: Mapping[str, object]
    dropped: Mapping[str, str] = field(default_factory=dict)
    qparams: Mapping[str, TensorRef] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    maps: MapReading | None = None
    readings: tuple[Reading, ...] = ()

    @property
    def kind(self) -> DrafterKind:
        """What kind of drafter it is, by its facts."""
        return kind_of(self.facts)
