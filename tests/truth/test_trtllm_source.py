"""Every rule of the second reading of TensorRT-LLM cites a file, its version and a line of that version."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from truth.trtllm import page, source
from truth.trtllm.source import DIVIDED, LINEAR, SOURCES, Source
from truth.trtllm.weights import SCALES

READING = Path(source.__file__).parent
METHODS = frozenset(f"load_weights, {name}" for name in ("plain", *SCALES))
"""What weights.py cites by the name of a linear method."""


def cited() -> set[tuple[str, str]]:
    """(name of a source, symbol) of every citation that is written out."""
    found = set()
    for path in READING.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "at":
                match node.func.value, node.args:
                    case ast.Name(id=name), [ast.Constant(value=str(symbol))] if name.isupper():
                        found.add((name, symbol))
    return found


def test_every_cited_symbol_has_a_line() -> None:
    symbols = cited()
    assert len(symbols) > 30
    for name, symbol in symbols:
        found: Source = getattr(source, name)
        assert found.at(symbol) == f"{found.path} at {found.version}, line {found.lines[symbol]}, {symbol}"
    for method in METHODS:
        assert f", line {LINEAR.lines[method]}, " in LINEAR.at(method)
    assert all(found.lines.keys() == {"validate_architecture"} for found in DIVIDED.values())


def test_every_line_is_of_a_cited_symbol() -> None:
    symbols = cited() | {("LINEAR", method) for method in METHODS}
    named = {name: found for name, found in vars(source).items() if isinstance(found, Source)}
    assert {(name, symbol) for name, found in named.items() for symbol in found.lines} == symbols
    assert len(SOURCES) == len(named) + len(DIVIDED)


def test_every_line_is_positive() -> None:
    assert all(line > 0 for found in SOURCES for line in found.lines.values())


def test_a_symbol_without_a_line_is_told() -> None:
    read = Source("models/a.py", "0123abcd", {"load": 7})
    assert read.at("load") == "models/a.py at 0123abcd, line 7, load"
    with pytest.raises(KeyError, match=re.escape("save in models/a.py at 0123abcd: its line is not known")):
        read.at("save")


def test_the_page_lists_the_lines() -> None:
    text = page.TABLE.with_suffix(".md").read_text(encoding="utf-8")
    assert f"| `{LINEAR.path}` | {LINEAR.version} | {', '.join(map(str, sorted(set(LINEAR.lines.values()))))} |" in text
    assert ("`_torch/modules/rms_norm.py`", "b35ac1b6", "none") in page.sources()
