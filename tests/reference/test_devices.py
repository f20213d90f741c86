"""Devices by name: what torch can compute on, and a clear error for everything else."""

from __future__ import annotations

import pytest
import torch

from draftconv.errors import UsageError
from draftconv.reference.devices import find_device


def test_the_cpu_is_always_there() -> None:
    assert find_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["nowhere", "meta", "cuda:99", "mps:99", ""])
def test_what_is_not_there_is_one_line(name: str) -> None:
    with pytest.raises(UsageError, match=f"--device {name}: ") as error:
        find_device(name)
    assert len(error.value.what) < 250
    assert "\n" not in error.value.what
