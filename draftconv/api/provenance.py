"""`draftconv.json`: what an output was made from, how, and everything that changed.

The file carries no time, host or absolute path: the same input and options give the same
bytes. `matches` ties it to the directory it lies in, so that a copied or edited one is
not believed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from draftconv.api.work import Change
from draftconv.checkpoint import Checkpoint, PlannedTensor, TensorRef
from draftconv.drafter.config import Config

FILE = "draftconv.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """One source in an output's history: what it was, and what was changed on the way from it."""

    data: Mapping[str, object]

    @property
    def source(self) -> Config:
        return Config(self.data, FILE).section("source")

    @property
    def changes(self) -> tuple[Change, ...]:
        rows = cast(Sequence[Mapping[str, str]], self.data["changes"])
        return tuple(Change(row["kind"], row["what"], row["why"]) for row in rows)  # type: ignore[arg-type]

    @property
    def order(self) -> tuple[int, ...] | None:
        """Source row of each row of lm_head, when they were permuted."""
        return Config(self.data, FILE).integers("lm_head_order")


@dataclass(frozen=True, slots=True)
class Provenance:
    """A `draftconv.json` that belongs to the directory it was found in."""

    data: Mapping[str, object]

    @property
    def history(self) -> tuple[Origin, ...]:
        """The direct source first, then what that was made from, and so on."""
        earlier = cast(Sequence[Mapping[str, object]], self.data.get("earlier") or [])
        return (Origin(self.data), *(Origin(row) for row in earlier))

    @property
    def changes(self) -> tuple[Change, ...]:
        """Every change on the way from the oldest source."""
        return tuple(change for origin in self.history for change in origin.changes)

    @property
    def source(self) -> Config:
        return self.history[0].source

    def origin(self, layout: str) -> Origin | None:
        """The newest source that was in this layout."""
        return next((o for o in self.history if o.source.text("layout") == layout), None)

    def handed_on(self) -> list[dict[str, object]]:
        """The history as the `earlier` of a next conversion."""
        keys = ("source", "changes", "lm_head_order")
        return [{key: origin.data.get(key) for key in keys} for origin in self.history]


def read_provenance(checkpoint: Checkpoint) -> Provenance | None:
    """The provenance of a directory, or None when there is none or it belongs to another."""
    data = checkpoint.sidecars.get(FILE)
    if data is None or data.get("format") != FORMAT or not isinstance(data.get("changes"), list):
        return None
    digest = output_digest(checkpoint.tensors, checkpoint.config)
    return Provenance(data) if data.get("output") == digest else None


def output_digest(tensors: Mapping[str, PlannedTensor | TensorRef], config: Mapping[str, object]) -> str:
    """SHA-256 over config.json and the names, dtypes and shapes of all tensors."""
    rows = sorted([name, tensor.dtype, list(tensor.shape)] for name, tensor in tensors.items())
    text = json.dumps([rows, config], sort_keys=True, ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
