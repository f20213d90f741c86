"""One thread: these models are tiny, and the recorded counts come from one thread."""

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
