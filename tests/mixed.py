"""Recipes whose roles have schemes of their own, and drafters quantized by them."""

from __future__ import annotations

from pathlib import Path

INT4 = """\
weights: {dtype: int4, granularity: group, group: 32, scale_rule: mse, scale_dtype: weight}
"""
FP8 = """\
    weights: {dtype: fp8, granularity: channel, scale_rule: max/448, scale_dtype: F32}
    activations: {dtype: fp8, granularity: token, scale: dynamic}
"""
INT8 = """\
    weights: {dtype: int8, granularity: channel, scale_rule: max/127, scale_dtype: F32}
    activations: {dtype: int8, granularity: token, scale: dynamic}
"""
EXCLUDED = "exclude: [embed, norms, kv_b, a_projections{}]\n"


def recipe(place: Path, main: str = INT4, *, exclude: str = "", **roles: str) -> str:
    """A recipe file in which each of `roles` has a scheme of its own; roles that are not given are for `exclude`."""
    parts = "".join(f"  {role}:\n{part}" for role, part in roles.items())
    text = f"about: mixed\n{main}{EXCLUDED.format(exclude)}" + (f"roles:\n{parts}" if parts else "")
    path = place / f"{'-'.join(('mixed', *roles))}.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)
