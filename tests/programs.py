"""Programs that stand in for others."""

from __future__ import annotations

import sys


def shebang(*options: str) -> str:
    """The first lines of a program for this Python, whose path may hold a space: `#!` takes none, a shell does."""
    words = " ".join((f'"{sys.executable}"', *options))
    return f"""#!/bin/sh\n'''exec' {words} "$0" "$@"\n' '''\n"""
