"""Both readings of TensorRT-LLM's loader agree on every case, and an error in either of them would be told.

Nothing of TensorRT-LLM runs here: config.json and the headers of tensors are all that is asked for.
"""

from __future__ import annotations

import ast
import json
import math
import struct
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from truth.table import Row, disagreements, load
from truth.trtllm import compare, page, reading, weights
from truth.trtllm.compare import Question, View, row
from truth.trtllm.configs import collected
from truth.trtllm.outcome import Header, Outcome, Target
from truth.trtllm.questions import everything

from draftconv.api.inspect import inspect
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.targets import find_target
from draftconv.engines import ENGINES, LoadVerdict
from tests.opening import shared

SPECS = Path(__file__).parents[2] / "scripts" / "specs"
SECOND = Path(reading.__file__).parent
READERS = ("config", "modules", "outcome", "quantized", "reading", "rope", "source", "verdict", "weights")
"""The second reading: what may know nothing of the first."""


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Question, ...]:
    return tuple(everything(tmp_path_factory.mktemp("trtllm")))


@pytest.fixture(scope="module")
def rows(questions: tuple[Question, ...]) -> tuple[Row, ...]:
    return tuple(map(row, questions))


def test_the_readings_agree(rows: tuple[Row, ...]) -> None:
    assert len(rows) > 700
    assert len({row.case for row in rows}) == len(rows)
    assert disagreements(rows) == []
    assert {row.predicted.partition(":")[0] for row in rows} >= {"loads", "mis-read", "refused"}


def test_few_cases_go_without_an_answer(rows: tuple[Row, ...]) -> None:
    assert sum(row.predicted in compare.ABSTAINED for row in rows) < len(rows) // 20


def test_the_committed_table_is_of_now(rows: tuple[Row, ...]) -> None:
    assert load(page.TABLE).rows == rows


def test_the_page_says_that_nothing_ran() -> None:
    text = page.TABLE.with_suffix(".md").read_text(encoding="utf-8")
    assert "Nothing of TensorRT-LLM was run" in text.split("\n\n")[1]
    assert page.opening(load(page.TABLE)).startswith("Nothing of TensorRT-LLM was run: two readings of its source, 20")


@pytest.mark.parametrize("name", READERS)
def test_the_second_reading_knows_nothing_of_the_first(name: str) -> None:
    tree = ast.parse((SECOND / f"{name}.py").read_text(encoding="utf-8"))
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    outside = {module for module in imported if not module.startswith("truth.trtllm.")}
    assert {module.partition(".")[0] for module in outside} <= sys.stdlib_module_names


def off(questions: tuple[Question, ...]) -> set[str]:
    return {asked.case for asked in questions if not row(asked).agrees}


def test_a_name_that_the_reading_gets_wrong_is_told(
    questions: tuple[Question, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unprefixed(tensors: Mapping[str, Header], _: int) -> reading.Weights:
        return {name: (name, header) for name, header in tensors.items()}

    monkeypatch.setattr(reading, "renamed", unprefixed)
    assert "llama-eagle3 --to trtllm" in off(questions)


def test_a_shape_that_the_reading_gets_wrong_is_told(
    questions: tuple[Question, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "copied", lambda *_: True)
    assert "llama-eagle3 --to trtllm, fc for four states" in off(questions)


def test_captured_layers_that_the_reading_gets_wrong_are_told(
    questions: tuple[Question, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def earlier(_: Target, given: tuple[int, ...] | None) -> tuple[int, ...]:
        return given or (0, 1, 2)

    monkeypatch.setattr(reading, "_captured", earlier)
    assert "llama-eagle3 --to trtllm" in off(questions)


@pytest.mark.parametrize(
    "code",
    [
        "trtllm-tied",
        "trtllm-not-excluded-fp8",
        "trtllm-rope",
        "trtllm-row-scales",
        "trtllm-config-type",
        "trtllm-shape",
    ],
)
def test_a_rule_that_draftconv_lacks_is_told(
    code: str, questions: tuple[Question, ...], rows: tuple[Row, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted = compare.first

    def lacking(*asked: Any) -> LoadVerdict:
        verdict = predicted(*asked)
        return replace(verdict, lines=tuple(line for line in verdict.lines if line.rule.code != code))

    monkeypatch.setattr(compare, "first", lacking)
    about = {row.case for row in rows if row.rules == (code,)}
    assert about
    assert off(tuple(asked for asked in questions if asked.case in about)) == about


def test_every_misreading_has_an_aspect() -> None:
    codes = {rule.code for rule in ENGINES["trtllm"].rules if rule.effect == "mis-read"}
    assert codes == compare.ASPECTS.keys()


def test_the_reading_says_why(questions: tuple[Question, ...]) -> None:
    asked = next(asked for asked in questions if asked.case == "llama-eagle3 --to trtllm, no up_proj")
    outcome, verdict = compare.second(asked.view, asked.facts, asked.target, asked.known)
    assert isinstance(outcome, Outcome)
    assert verdict.status == "refused"
    assert verdict.source.startswith("_torch/modules/linear.py at 00bbf71e")


def test_collected_configs(tmp_path: Path) -> None:
    asked = tuple(collected(shared("configs"), tmp_path))
    assert len(asked) > 100
    assert disagreements(map(row, asked)) == []


PUBLISHED = {
    "kimi-k2.5-eagle3": "kimi-k2.5-eagle3.torchspec-native",
    "kimi-k2.5-eagle3-mla": "kimi-k2.5-eagle3-mla.torchspec-native",
    "kimi-k2.6-eagle3-mla": "kimi-k2.6-eagle3-mla.torchspec-native",
    "kimi-k2.6-eagle3.1-mla": "kimi-k2.6-eagle3.1-mla.torchspec-native",
    "nvidia-kimi-k2.6-eagle3": "nvidia-kimi-k2.6-eagle3.modelopt-layers",
    "eagle3-kimik2.5-w4a8": "w4-k2.5-eagle3.hypothesis-fc-packed",
}
"""Configs below scripts/specs → the headers of the published file."""

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1}


@pytest.mark.parametrize("name", PUBLISHED)
def test_headers_of_published_drafters(name: str, tmp_path: Path) -> None:
    """In files with holes for the weights, which nothing reads."""
    tensors = json.loads(shared("specs", f"{PUBLISHED[name]}.json").read_text(encoding="utf-8"))
    config = json.loads((SPECS / f"{name}.json").read_text(encoding="utf-8"))["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for key, item in tensors.items():
        start, end = end, end + BYTES[item["dtype"]] * math.prod(item["shape"])
        header[key] = {**item, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    target = "kimi-k2.6" if "k2.6" in name else "kimi-k2.5"
    found = inspect(tmp_path, target=target)
    known = frozenset(problem.code for problem in found.problems)
    beside = find_target(target, None)
    assert beside is not None
    asked = Question(name, View.of(open_checkpoint(tmp_path)), found.drafter.facts, beside, known)
    assert disagreements([row(asked)]) == []
