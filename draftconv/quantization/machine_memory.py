"""How much memory a process may use here: what the machine has, or less where something holds it to less.

Source: Linux Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst; read. A container sees its own group at
the top, whatever /proc/self/cgroup calls it; elsewhere the process's own group and every one above it hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
"""Where Linux shows control groups."""

OWN = Path("/proc/self/cgroup")
"""Where it says which of them this process is in: `0::PATH` of version 2, `N:memory:PATH` of version 1."""

STATM = Path("/proc/self/statm")
"""Pages that this process has of its address space, then those that are in memory."""


def machine_memory(device: str) -> int | None:
    """Bytes that a process may use at most on a device; None where nobody tells.

    Of a CPU the least of what the machine has, its control groups allow and `ulimit -v` leaves.
    """
    if device != "cpu":
        import torch

        return torch.cuda.get_device_properties(device).total_memory if device.startswith("cuda") else None
    pages, size = (os.sysconf(name) if name in os.sysconf_names else 0 for name in ("SC_PHYS_PAGES", "SC_PAGE_SIZE"))
    return min((found for found in (pages * size, *_group_limits(), *_address_space(size)) if found > 0), default=None)


def _group_limits() -> Iterator[int]:
    """What control groups allow; 0 of those without a limit, or more than any machine has."""
    paths = {"": PurePosixPath("/"), "memory": PurePosixPath("/")}
    for line in _text(OWN).splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") > 1 else ("", "none", "")
        if not controllers or "memory" in controllers.split(","):
            paths["memory" if controllers else ""] = PurePosixPath("/" if ".." in path else path)
    for controller, file in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        own = paths[controller]
        for group in (own, *own.parents):
            yield _number(GROUPS / controller / group.relative_to("/") / file)


def _address_space(page: int) -> Iterator[int]:
    """What `ulimit -v` leaves: it counts addresses, of which Python and torch take more than they use."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return
    counts = [int(count) * page for count in _text(STATM).split()[:2]]
    taken, resident = counts if len(counts) == 2 else (0, 0)
    yield max(1, soft - taken + resident)


def _number(path: Path) -> int:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else 0  # there is none, or it says `max`


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
