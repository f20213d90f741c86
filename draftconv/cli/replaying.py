"""What commands that replay a trace have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

STAGES = {"reading": "bytes", "replaying": "tokens"}
"""Stage of a replay → what it counts."""


def decoder(trace: Path) -> Callable[..., str] | None:
    """Token ids to text, when the trace has a tokenizer and something here can read it."""
    from draftconv.cli import output
    from draftconv.traces.trace import open_trace

    path = open_trace(trace).tokenizer
    if path is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        output.print_notes(["the report shows token ids: `pip install tokenizers` makes them text"])
        return None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower; the figures stand without it
        output.print_notes([f"the report shows token ids: {path.name} of the trace cannot be read: {error}"])
        return None
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))
