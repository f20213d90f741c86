"""The record of an output: believed with the files it was written for, and added up over several conversions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from draftconv.api.convert import convert
from draftconv.checkpoint import open_checkpoint
from draftconv.conversion.provenance import Origin, Provenance, read_provenance
from tests import tiny


def edited(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", lambda config: config.update(norm_before_residual=True)),
        ("draftconv.json", lambda record: record["changes"].clear() or record.update(warnings=["none"])),
        ("draftconv.json", lambda record: record.update(output="sha256:" + "0" * 64)),
    ],
    ids=["config.json", "the record", "its digest"],
)
def test_a_record_is_not_believed_beside_other_files(
    file: str, change: Callable[[dict[str, object]], object], tmp_path: Path
) -> None:
    convert(tiny.spell("llama", "speculators").write(tmp_path / "source"), tmp_path / "out", to="vllm")
    assert read_provenance(open_checkpoint(tmp_path / "out")) is not None
    edited(tmp_path / "out" / file, change)
    assert read_provenance(open_checkpoint(tmp_path / "out")) is None


def step(layout: str, order: list[int] | None) -> dict[str, object]:
    return {"source": {"layout": layout}, "changes": [], "lm_head_order": order}


def test_permutations_of_several_conversions_add_up() -> None:
    """Row of the first source behind each row now: the newest order looks up rows in what the one before left."""
    newest, middle, first = [1, 2, 0], [0, 2, 1], [2, 0, 1]
    earlier = [step("b", middle), step("c", None), step("d", first)]
    record = Provenance({**step("a", newest), "earlier": earlier})
    for layout, wanted in (("a", (1, 2, 0)), ("b", (2, 1, 0)), ("c", (2, 1, 0)), ("d", (1, 0, 2))):
        way = record.since_layout(layout)
        assert way is not None
        assert way.order == wanted
        rows = "xyz"
        for origin in reversed(way.steps):
            rows = "".join(rows[row] for row in origin.order) if origin.order else rows
        assert rows == "".join("xyz"[row] for row in wanted)
    assert record.since_layout("e") is None
    assert Origin(step("a", None)).order is None
