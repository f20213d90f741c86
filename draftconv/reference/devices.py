"""Where torch computes: a device by name, checked before anything is loaded."""

from __future__ import annotations

import torch

from draftconv.errors import UsageError


def find_device(name: str) -> torch.device:
    """The device that `--device` names: `cpu`, `cuda`, `cuda:1`.

    Raises:
        UsageError: torch does not know it, this machine does not have it, or nothing is computed there.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1).tolist()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise UsageError(
            f"--device {name}: {why}", cure="name a device that torch has here, or leave it out"
        ) from error
    return device
