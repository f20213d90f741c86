"""What a layout's reader does not know is refused with a way out, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftconv.api.convert import convert
from draftconv.errors import Refused
from tests.api.conftest import Source


@pytest.mark.parametrize(
    ("variant", "to", "told"),
    [
        ("norm-before-residual", "specforge", "cannot add the normed state as residual"),
        ("post-norm", "specforge", "always feeds back the pre-norm state"),
        ("fc-norm", "modelopt", "has no EAGLE-3.1 norms before fc"),
    ],
)
def test_what_a_layout_cannot_express(variant: str, to: str, told: str, source: Source, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=told) as caught:
        convert(source("speculators", variant), tmp_path / "out", to=to)
    assert caught.value.cure.startswith("convert to vllm")
    assert list(tmp_path.iterdir()) == []
