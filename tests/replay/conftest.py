"""One thread: these models are tiny, and many threads only get in each other's way."""

from __future__ import annotations

import torch

from tests.traces.recorded import recorded as recorded


def pytest_configure() -> None:
    torch.set_num_threads(1)
