"""From canonical tensor names to a layout's own."""

from __future__ import annotations

import re

from draftconv.layouts.base import Spelling

_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


def spell(name: str, spelling: Spelling, layers: int) -> str:
    """The file name of one canonical tensor of a drafter with this many layers."""
    match = _LAYER.fullmatch(name)
    if match is None:
        return name
    index, rest = int(match[1]), match[2]
    if index and rest.startswith("input_layernorm."):
        rest = rest.replace("input_layernorm", spelling.later_norm, 1)
    first = spelling.alone if spelling.alone and layers == 1 else spelling.first
    prefix = (first if index == 0 else spelling.later).replace("{i}", str(index))
    return prefix + rest
