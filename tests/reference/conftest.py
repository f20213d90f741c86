"""One thread: these models are tiny, and the recorded counts come from one thread."""

import torch


def pytest_configure() -> None:
    torch.set_num_threads(1)
