"""Invented counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftconv.conversion.pruning.head_rows import HeadRows
from draftconv.traces.token_counts import PARTS, DomainCounts

VOCAB = 512


def zipf(seed: int, tokens: int, vocab: int = VOCAB, conversations: int = 80) -> list[list[int]]:
    """Conversations of tokens that are the rarer the higher their rank; which rank a token has depends on the seed."""
    random = np.random.default_rng(seed)
    share = 1 / np.arange(1, vocab + 1)
    ids = random.permutation(vocab)
    drawn = ids[random.choice(vocab, tokens, p=share / share.sum())]
    return [part.tolist() for part in np.array_split(drawn, conversations)]


def domain(name: str, conversations: Sequence[Sequence[int]], weight: float = 1.0, vocab: int = VOCAB) -> DomainCounts:
    """Counted as `count_tokens` does, plainly."""
    counts = np.zeros((PARTS + 1, vocab), np.int64)
    chosen = 0
    for number, tokens in enumerate(conversations):
        if number % 10 == 1:
            part = PARTS
        else:
            part, chosen = chosen % PARTS, chosen + 1
        for token in tokens:
            counts[part, token] += 1
    return DomainCounts(name, weight, (f"{name}.jsonl",), counts[:PARTS], counts[PARTS], len(conversations))


def head(rows: Sequence[int] | None = None, vocab: int = VOCAB) -> HeadRows:
    return HeadRows(tuple(range(vocab) if rows is None else rows), vocab, row_bytes=16)
