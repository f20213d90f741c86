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


def test_rows_are_put_in_order_for_a_reader_of_the_mask_and_back_for_another(tmp_path: Path) -> None:
    """ModelOpt's ids come by frequency, and SpecForge's reader indexes logits with the mask."""
    spelled = tiny.spell("frequency", "modelopt-layers")
    convert(spelled.write(tmp_path / "source"), tmp_path / "there", to="specforge")
    rows = sorted(range(len(tiny.FREQUENCY)), key=tiny.FREQUENCY.__getitem__)
    there, head = on_disk(tmp_path / "there"), spelled.tensors["lm_head.weight"]
    assert rows != list(range(len(rows)))
    assert there["d2t"].numpy().tolist() == [tiny.FREQUENCY[row] - i for i, row in enumerate(rows)]
    size = len(head.data) // len(rows)
    assert there["lm_head.weight"].data == b"".join(head.data[row * size : (row + 1) * size] for row in rows)
    convert(tmp_path / "there", tmp_path / "back", to="modelopt")
    back = on_disk(tmp_path / "back")
    assert {name: back[name] for name in ("d2t", "lm_head.weight")} == {
        name: spelled.tensors[name] for name in ("d2t", "lm_head.weight")
    }
