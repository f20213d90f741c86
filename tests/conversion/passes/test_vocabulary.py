"""The maps of an output are those that its reader indexes, whatever the producer stored."""

from __future__ import annotations

from pathlib import Path

from draftconv.api.convert import convert
from draftconv.api.verify import verify
from tests import tiny
from tests.layouts.spelled import on_disk


def test_int32_offsets_become_int64_and_say_so(tmp_path: Path) -> None:
    spelled = tiny.spell("reduced", "torchspec-native")
    spelled.put("d2t", tiny.integers(spelled.tensors["d2t"].numpy(), "I32"))
    conversion = convert(spelled.write(tmp_path / "source"), tmp_path / "out", to="vllm")
    assert on_disk(tmp_path / "out")["d2t"] == tiny.build(tiny.VARIANTS["reduced"])["d2t"]
    assert ("cast", "d2t") in {(change.kind, change.what) for change in conversion.changes}
    assert verify(tmp_path / "out", tmp_path / "source").passed
