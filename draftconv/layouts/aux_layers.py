"""Which layers a checkpoint says were captured, as boundaries, and by whose rule.

Layer ids are the worst silent trap of these files, so their reading stands alone: the ids
in one or both of their places, the producer's convention, the family's where a trainer
captured through an engine that counts so, and the default triple where there are none.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftconv import limits
from draftconv.drafter.boundaries import IDS, Convention, default_triple, family_convention, from_ids
from draftconv.drafter.config import Config
from draftconv.drafter.facts import AuxLayers
from draftconv.drafter.fingerprint import Fingerprint
from draftconv.drafter.targets import FAMILIES, Family
from draftconv.layouts import MARK, layouts
from draftconv.layouts.base import Layout, ReadNotes, ReadOptions

DEFAULT_COUNT = 3


@dataclass(frozen=True, slots=True)
class AuxLayerReader:
    """Reads the ids of one checkpoint; `config` is flattened, problems and reasons go to `notes`."""

    fingerprint: Fingerprint
    layout: Layout
    options: ReadOptions
    config: Config
    notes: ReadNotes

    @property
    def eagle(self) -> Config:
        """Its eagle_config; empty when absent."""
        return self.config.section("eagle_config")

    def read(self, aux: int) -> tuple[int, ...] | AuxLayers:
        """Boundaries, or what is known instead; `aux` is how many states fc reads."""
        top, nested = self.config.integers(IDS, limits.CAPTURED), self.eagle.integers(IDS, limits.CAPTURED)
        if not top and not nested:
            return self._default_boundaries(aux)
        boundaries = self._resolve_both(top, nested) if top and nested else self._translate(top or nested or ())
        if boundaries is None:
            return AuxLayers.UNKNOWN
        layers = self._target_layers()
        last = max(boundaries) if layers is None else layers
        if list(boundaries) != sorted(set(boundaries)) or boundaries[0] < 0 or boundaries[-1] > last:
            of = "" if layers is None else f" of {layers} layers"
            self.notes.problem("aux-order", f"boundaries {list(boundaries)}{of}")
        if len(boundaries) != aux:
            self.notes.problem("fc-width", f"{len(boundaries)} layer ids, fc reads {aux} states")
        return boundaries

    def _target_layers(self) -> int | None:
        target = self.options.target
        return target.layers if target else self.config.size("target_num_hidden_layers", limits.TARGET_LAYERS)

    def _default_boundaries(self, aux: int) -> tuple[int, ...] | AuxLayers:
        rule = self.layout.id_rule(self.fingerprint)
        target = self.options.target
        if not rule.implied and not self.options.aux_convention:
            self.notes.reasons["boundaries"] = f"no ids; {rule.source}"
            self.notes.problem("aux-unknown", f"config.json names no layers and {rule.source}")
            return AuxLayers.UNKNOWN
        if aux != DEFAULT_COUNT:
            self.notes.reasons["boundaries"] = f"no ids, and {aux} states are not the default triple"
            self.notes.problem("aux-default-off", f"fc reads {aux} states, the default triple is {DEFAULT_COUNT}")
            return AuxLayers.UNKNOWN
        self.notes.reasons["boundaries"] = "no ids: the default triple (2, L//2, L-3)"
        if target is None:
            return AuxLayers.DEFAULT
        triple = default_triple(target.layers)
        if list(triple) != sorted(set(triple)):
            self.notes.problem("aux-order", f"the default triple of {target.layers} layers is {list(triple)}")
        return triple

    def _resolve_both(self, top: tuple[int, ...], nested: tuple[int, ...]) -> tuple[int, ...] | None:
        """Ids in both places: the same twice, boundaries above a count by family, or one that a person has chosen."""
        if nested == top:
            return self._translate(top)
        if nested == tuple(b - 1 for b in top):
            reader, _ = _family_reader()
            self.notes.reasons["boundaries"] = f"top-level ids are boundaries, eagle_config spells them for {reader}"
            return top
        if self.options.layout:
            return self._translate(top if self.layout.ids_at == "top" else nested)
        self.notes.problem("aux-contradiction", f"top level {list(top)}, eagle_config {list(nested)}")
        return None

    def _translate(self, ids: tuple[int, ...]) -> tuple[int, ...] | None:
        convention, reason = self._convention(ids)
        layers = self._target_layers()
        if min(ids) < 0 and layers is None:
            convention, reason = None, "they count from the end of a target with unknown layers"
        self.notes.reasons["boundaries"] = reason
        if convention is None:
            self.notes.problem("aux-unknown", f"ids {list(ids)}: {reason}")
            return None
        return from_ids(ids, convention, layers)

    def _convention(self, ids: tuple[int, ...]) -> tuple[Convention | None, str]:
        """What the producer's ids mean, and why; None when only a person can tell."""
        if self.options.aux_convention:
            return self.options.aux_convention, f"--aux-convention {self.options.aux_convention}"
        rule = self.layout.id_rule(self.fingerprint)
        ours = self.config.has(MARK)  # then the ids were written by this layout's own rule
        if rule.convention == "by family" or (self.layout.captures != "itself" and not ours):
            by_family = family_convention(ids, self._family(), self._target_layers())
            if by_family is None:
                return None, "counted by the target's family they mean `before` on DeepSeek/Kimi targets, else `after`"
            if self.layout.captures == "either" and by_family != rule.convention:
                return None, f"`{by_family} the layer` if counted by the target's family, else `{rule.convention}`"
            if by_family != rule.convention:
                _, who = _family_reader()
                return by_family, f"{by_family} the layer, as {who} reads these ids for this target"
        usual = self._usual_triples(ids)
        if rule.convention:
            other: Convention = "before" if rule.convention == "after" else "after"
            if usual[other] == ids:
                self.notes.problem("aux-other-triple", f"{list(ids)}, read as `{rule.convention} the layer`")
            return rule.convention, f"{rule.convention} the layer: {rule.source}"
        for convention, triple in usual.items():
            if triple == ids:
                return (
                    convention,
                    f"{list(ids)} is the default triple in the `{convention} the layer` numbering",
                )
        return None, rule.source

    def _family(self) -> Family | None:
        if self.options.target and self.options.target.family:
            return self.options.target.family
        if model_type := self.config.text("target_model_type"):  # SpecForge and AngelSlim
            return FAMILIES.get(model_type, "llama")
        return FAMILIES.get(self.config.text("model_type") or "")

    def _usual_triples(self, ids: tuple[int, ...]) -> dict[Convention, tuple[int, ...]]:
        """The default triple in both numberings, of this target or of the one the last id implies."""
        layers = self._target_layers()
        before, after = (layers, layers) if layers else (ids[-1] + 3, ids[-1] + 4)
        return {"before": default_triple(before), "after": tuple(b - 1 for b in default_triple(after))}


def _family_reader() -> tuple[str, str]:
    """The first engine whose layout has ids by family in `eagle_config`: what it is called, and with its version."""
    nested = (item for item in layouts().values() if item.ids_at == "nested")
    rules = ((item.title, rule) for item in nested for rule in item.id_rules if rule.convention == "by family")
    return next(((title, rule.source.partition(":")[0]) for title, rule in rules), ("an engine", "an engine"))
