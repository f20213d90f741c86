"""Stored tensors of another shape than is built: which of them torch's copy_ takes all the same."""

from __future__ import annotations

from draftconv.engines.rules import SimulatedLoad

JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
LATENT = ("q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj")
"""MLA projections that the DeepSeek loader copies by hand."""


def misfitting(load: SimulatedLoad) -> tuple[str, ...]:
    """Canonical tensors that are stored in another shape than config.json says."""
    return tuple(load.misshapen)


def copied(load: SimulatedLoad, name: str) -> bool:
    """Whether the load goes on: the shape can be broadcast, or the joined parts add up."""
    stored, planned = load.misshapen[name].shape, load.expected_tensors[name].shape
    module, _, kind = name.rpartition(".")
    stem, _, last = module.rpartition(".")
    if last in LATENT:
        return False
    for parts in JOINED:
        if last in parts and (last not in ("q_proj", "k_proj", "v_proj") or not load.mla):
            return _add_up(load, [f"{stem}.{part}.{kind}" for part in parts])
    padded = (1,) * (len(planned) - len(stored)) + tuple(stored)
    return len(padded) == len(planned) and all(a in (1, b) for a, b in zip(padded, planned, strict=True))


def _add_up(load: SimulatedLoad, names: list[str]) -> bool:
    tensors = [load.tensor(name) for name in names]
    stored = [tensor.shape for tensor in tensors if tensor is not None]
    planned = [load.expected_tensors[name].shape for name in names]
    return (
        len(stored) == len(planned)
        and all(stored)
        and {shape[1:] for shape in stored} == {planned[0][1:]}
        and sum(shape[0] for shape in stored) == sum(shape[0] for shape in planned)
    )
