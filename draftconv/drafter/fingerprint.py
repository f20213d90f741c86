"""What there is to see of a checkpoint before anybody knows what it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from draftconv.checkpoint import Checkpoint
from draftconv.drafter.config import Config
from draftconv.drafter.names import SortedNames


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A checkpoint, and its tensors' names sorted into what they may be."""

    checkpoint: Checkpoint
    names: SortedNames

    @property
    def config(self) -> Config:
        """config.json as it stands in the file."""
        return Config(self.checkpoint.config)

    @property
    def eagle(self) -> Config:
        """Its eagle_config; empty when absent."""
        return self.config.section("eagle_config")

    @property
    def architecture(self) -> str:
        """architectures[0], or "" when absent."""
        return next(iter(self.config.texts("architectures")), "")

    def has(self, canonical: str) -> bool:
        """True when the file holds this tensor under any spelling."""
        return canonical in self.names.canonical

    def prefix(self, start: str) -> bool:
        """True when some tensor name in the file, as it stands there, starts so."""
        return any(name.startswith(start) for name in self.names.canonical.values())

    def named(self, pattern: str) -> bool:
        """True when some tensor, quantized or not, has a name like this once prefixes are gone."""
        return any(re.search(pattern, name) for name in (*self.names.canonical, *self.names.qparams))
