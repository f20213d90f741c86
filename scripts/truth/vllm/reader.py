"""What directories are made like for vLLM."""

from __future__ import annotations

from truth.drafts import Reader

READER = Reader("vllm", ("vllm:cpu",), ("portable", "speculators"))
