"""The same sources as for the commands, and no waiting for the disk."""

from __future__ import annotations

import pytest
import torch

from tests.api.conftest import no_waiting as no_waiting
from tests.api.conftest import source as source
from tests.quantized import written as written
from tests.traces.recorded import recorded as recorded


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
