"""What a target did on a prompt set: token ids and the residual stream at some boundaries.

    DIR/trace.json                      target, boundaries, sampling, prompts, tables, requests
    DIR/requests/000000.safetensors …   one request each
    DIR/tables/embed_tokens.safetensors, lm_head.safetensors
    DIR/tokenizer.json                  to show text in reports, when the target has one

A request holds `token_ids` I64 [n + 1], `prompt_len` I64 [1] and `hidden_states` [n, A, W] in
the target's dtype. Row t is the residual stream at position t, one column per boundary in
ascending order; the last token never entered the target and has no row. Beyond the counted
end `depth` more tokens are kept, so that the last counted step is not clipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftconv.checkpoint import TensorRef

FORMAT = "draftconv-trace"
VERSION = 1
INDEX = "trace.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """One request as trace.json lists it.

    Attributes:
        id: unique in the trace. `cluster`: what is resampled as one, a prompt with all its turns.
        file: its name under requests/.
        prompt: prompt tokens P. `counted`: generated tokens that count, EOS included.
        tokens: SHA-256 of all its token ids as little-endian int64.
    """

    id: str
    cluster: str
    category: str
    file: str
    prompt: int
    counted: int
    tokens: str


@dataclass(frozen=True, slots=True)
class Table:
    """One of the target's tables: where it lies, and what it must hash to.

    Attributes:
        file: relative to the trace, or the path that `--link-tables` recorded.
        tensor: its name in that file. `sha256`: of the tensor's bytes.
    """

    file: str
    tensor: str
    sha256: str
    linked: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """What trace.json says besides its requests.

    Attributes:
        boundaries: ascending, 0…L. `depth`: tokens kept beyond the counted end.
        prompts: name of the suite or file, and `prompts_sha256` of the prompts as they were rendered.
        dtype: what the target computed in. `made_by`: program and version.
    """

    target: str
    revision: str | None
    layers: int
    hidden: int
    vocab: int
    boundaries: tuple[int, ...]
    depth: int
    max_tokens: int
    dtype: str
    made_by: str
    prompts: str
    prompts_sha256: str
    chat: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """An opened, complete trace; nothing but trace.json has been read."""

    directory: Path
    about: About
    entries: Sequence[Entry]
    tables: Mapping[str, Table]
    tokenizer: Path | None

    def table(self, name: str) -> TensorRef | None:
        """The target's `embed_tokens` or `lm_head`, checked against its hash; None when the trace holds none."""
        raise NotImplementedError
