"""The Python API as `import draftconv` gives it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import draftconv
from draftconv.errors import UsageError


def test_every_name_is_there() -> None:
    for name in draftconv.__all__:
        assert callable(getattr(draftconv, name)), name


def test_parity_is_a_command_before_and_after_its_room_was_imported() -> None:
    for first in ("", "from draftconv.parity import verdict; "):
        called = f"{first}import draftconv; draftconv.parity('a', trace='b')"
        done = subprocess.run([sys.executable, "-c", called], capture_output=True, text=True, check=False)
        assert "UsageError: there is no candidate" in done.stderr


def test_the_room_of_parity_is_still_a_module() -> None:
    room: object = importlib.import_module("draftconv.parity")
    assert room is vars(draftconv)["parity"]
    assert vars(room)["__path__"]
    with pytest.raises(UsageError, match="no candidate"):
        draftconv.parity("a", trace="b")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        draftconv.quantise  # noqa: B018
