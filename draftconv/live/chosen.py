"""Which kernels an engine chose, by its own log: what the kernel matrix predicts, it says here or does not say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from draftconv.checkpoint.text import safe

NOT_SAID = "not said"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log that names a choice.

    Attributes:
        pattern: its groups are what was chosen, and for which scheme where it says so.
        source: the file that writes it, and how that is known.
    """

    what: str
    pattern: str
    source: str


LINES: Mapping[str, tuple[Line, ...]] = {
    "vllm": (
        Line("linear", r"Using (\w+) for (CompressedTensors\w+|Quark\w+|\w+LinearMethod)\b",
             "compressed_tensors/schemes/*.py, 0.32.0 run"),
        Line("linear", r"Using (\w+) for mixed-precision linear", "kernels/linear/__init__.py, 0.32.0 run"),
        Line("linear", r"Selected (\w+) for (\w+)", "kernels/linear/__init__.py, 0.32.0 read"),
        Line("attention", r"Using (\w+) (?:attention )?backend(?: out of|\.| \(selected)",
             "platforms/{cuda,rocm,cpu}.py, 0.32.0 read"),
        Line("prefill", r"Using (\w+) MLA prefill backend",
             "v1/attention/backends/mla/prefill/selector.py, 0.32.0 read"),
    ),
    "sglang": (
        Line("attention", r"Attention backend not explicitly specified\. Use (\w+) backend by default",
             "srt/server_args.py, read"),
        Line("attention", r"\battention_backend='(\w+)'", "srt/server_args.py, the line server_args=, read"),
        Line("draft attention", r"\bspeculative_draft_attention_backend='(\w+)'", "as above"),
    ),
    "trtllm": (
        Line("runtime", r"Using LLM with (\w+) backend", "tensorrt_llm/llmapi/llm.py, main 2026 read"),
    ),
}  # fmt: skip
"""TensorRT-LLM tells no kernel at its usual level: `not said`."""


def chosen(engine: str, log: Iterable[str]) -> tuple[str, ...]:
    """What an engine chose, in the order in which it said so, each once: `linear: MarlinLinearKernel (…)`.

    A kernel that is named with its scheme is not named without it.
    """
    found: dict[str, None] = {}
    for text in log:
        for line in LINES[engine]:
            if match := re.search(line.pattern, text):
                kernel, *scheme = match.groups()
                found[f"{line.what}: {safe(kernel)}" + (f" ({safe(scheme[0])})" if scheme else "")] = None
    return tuple(line for line in found if not any(other.startswith(f"{line} (") for other in found))


def chosen_in(engine: str, path: Path) -> str:
    """The same of a log file, as a text; `not said` where it says nothing or is not there."""
    if not path.exists():
        return NOT_SAID
    with path.open(encoding="utf-8", errors="replace") as log:
        return "; ".join(chosen(engine, log)) or NOT_SAID
