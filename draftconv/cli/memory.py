"""Too little memory, which Python, torch and the system each tell in their own way: one line, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from draftconv.errors import OutOfMemory

SAID = (
    "std::bad_alloc", "can't allocate memory", "Cannot allocate memory", "failed to map segment", "not enough memory",
    "out of memory",
)  # fmt: skip
"""How libraries say it: C++, torch's DefaultCPUAllocator on Linux, the loader, the allocator on Windows, CUDA."""


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """What to say where there was too little memory; None of any other fault."""
    match error:
        case MemoryError():
            pass
        case OSError(errno=errno.ENOMEM):
            pass
        case RuntimeError() | ImportError() if any(said in str(error) for said in SAID):
            pass
        case _:
            return None
    device = "the device" if "CUDA" in str(error) else "this process"
    return OutOfMemory(
        f"out of memory: {device} could not get more",
        why="; ".join([*getattr(error, "__notes__", ()), "nothing half written was left behind"]),
        cure="end other programs, raise the limit of the container or of `ulimit -v`, or run it on a machine with more",
    )


@contextmanager
def taking(what: str, memory: int) -> Iterator[None]:
    """Remember what something takes, to be told where there is too little.

    Args:
        memory: bytes at its peak, as the plan has it.
    """
    from draftconv.checkpoint.text import size

    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        error.add_note(f"{what} takes about {size(memory)}")
        raise
