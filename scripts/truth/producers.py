"""The trained fixtures as each producer would have written them, by the tables of the tests.

`tests/tiny.py` spells layouts from literals of its own, not by draftconv's writers: two independent
tables have to agree before vLLM computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from draftconv.drafter.facts import Facts
from tests import tiny
from truth.drafts import DATA, FIXTURES, Directory, read

SPELLABLE = tuple(tiny.FIRST)
"""Every layout of a producer."""


def variant(name: str, layout: str) -> tiny.Variant:
    """A fixture as the tests describe drafters; SafeAILab's config says float16 whatever the tensors are."""
    drafter = read(DATA / "drafters" / name, name)
    maps = drafter.maps.map if drafter.maps else None
    return tiny.Variant(
        name,
        replace(drafter.facts, own_embedding=True),
        ids=maps.ids if maps and drafter.facts.reduced_vocab else None,
        dtype="F16" if layout == "safeailab" else "BF16",
    )


def spellings() -> Iterator[tuple[str, str]]:
    """Every fixture in every layout whose producer could have trained it."""
    for name in FIXTURES:
        for layout in SPELLABLE:
            if tiny.fits(variant(name, layout), layout):
                yield name, layout


def spelled(work: Path, name: str, layout: str) -> Path:
    """A fixture's own weights in a producer's layout."""
    path = work / "producers" / f"{name}-{layout}"
    if not path.exists():
        drafter = read(DATA / "drafters" / name, name)
        stored = Directory.open(DATA / "drafters" / name).tensors
        tensors = {
            canonical: tiny.Tensor(drafter.tensors[canonical].dtype, tuple(stored[file].shape), _bytes(stored[file]))
            for canonical, file in drafter.names.items()
        }
        tiny.spell(variant(name, layout), layout, trained=tensors).write(path)
    return path


def _bytes(tensor: object) -> bytes:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError("a tensor is needed")
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def as_trained(name: str) -> Facts:
    """What the fixture is, whatever a layout lets its file say."""
    return read(DATA / "drafters" / name, name).facts


def unlike(facts: Facts, trained: Facts) -> str:
    """Facts that decide the computation and were read otherwise than they were trained."""
    computed = (
        "attention",
        "layers",
        "boundaries",
        "rope",
        "eps",
        "fusion",
        "feedback",
        "norm_before_residual",
        "vocab_order",
    )
    return ", ".join(name for name in computed if getattr(facts, name) != getattr(trained, name))
