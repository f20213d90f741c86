"""Float tensors are rounded once to the dtype asked for; integers and masks are not touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.api.convert import convert
from draftconv.api.verify import verify
from draftconv.errors import Refused
from tests import tiny
from tests.api.conftest import Source
from tests.layouts.spelled import document, on_disk

NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@pytest.mark.parametrize("variant", ["reduced", "mixed", "f16", "f32"])
@pytest.mark.parametrize("dtype", NAMES)
def test_floats_are_rounded_and_integers_are_not_touched(variant: str, dtype: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    calm = replace(tiny.VARIANTS[variant], awkward=False)
    spelled = tiny.spell(calm, "torchspec-native")
    path = spelled.write(tmp_path / "source")
    convert(path, tmp_path / "out", to="torchspec", dtype=dtype)
    found = on_disk(tmp_path / "out")
    for name, tensor in spelled.tensors.items():
        if tensor.dtype in ("I64", "BOOL"):
            assert found[name] == tensor, name
        else:
            wanted = tiny.to_torch(tensor).to(tiny.TORCH[NAMES[dtype]])
            assert found[name].dtype == NAMES[dtype]
            assert found[name].data == wanted.contiguous().view(torch.uint8).numpy().tobytes(), name
    config = document(tmp_path / "out", "config.json")
    assert config["torch_dtype"] == tiny.NAMES[NAMES[dtype]]
    assert verify(tmp_path / "out", path).passed


def test_a_value_too_large_for_the_dtype_is_refused(source: Source, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="F16 cannot hold"):
        convert(source("torchspec-native", "llama"), tmp_path / "out", to="vllm", dtype="float16")
    assert list(tmp_path.iterdir()) == []
