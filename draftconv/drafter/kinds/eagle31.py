"""EAGLE-3.1: EAGLE-3 with a norm for every captured state before `fc`, or with the normed state fed back; or both."""

from __future__ import annotations

from dataclasses import replace

from draftconv.drafter.facts import Facts
from draftconv.drafter.kinds import eagle3
from draftconv.drafter.tensor_specs import TensorSpec


def _holds(facts: Facts) -> bool:
    return facts.fusion in ("fc_norm", "both") or facts.feedback == "post-norm"


_NORMS = TensorSpec("fc_norm.{a}.weight", ("Ht",), "norm", "aux", lambda f: f.fusion in ("fc_norm", "both"))
_AT = next(at for at, row in enumerate(eagle3.ROWS) if row.name == "input_norm.weight")
ROWS = (*eagle3.ROWS[:_AT], _NORMS, *eagle3.ROWS[_AT:])
"""Tensors are written in this order."""

KIND = replace(eagle3.KIND, name="3.1", title="EAGLE-3.1", holds=_holds, rows=ROWS)
