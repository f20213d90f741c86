"""The Python API as `import draftconv` gives it."""

from __future__ import annotations

import pytest

import draftconv
from draftconv.errors import UsageError


def test_every_name_is_there() -> None:
    for name in draftconv.__all__:
        assert callable(getattr(draftconv, name)), name


def test_parity_is_a_plain_function(capsys: pytest.CaptureFixture[str]) -> None:
    help(draftconv.parity)
    assert "candidates" in capsys.readouterr().out
    with pytest.raises(UsageError, match="no candidate"):
        draftconv.parity("a", (), trace="b")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        draftconv.quantise  # noqa: B018
