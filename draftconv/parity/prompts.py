"""Prompts: what a target is asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation.

    Attributes:
        id: unique in its suite or file; all turns together are one cluster.
        turns: what the user says, turn by turn; empty when `tokens` is given.
        tokens: token ids of a single turn, taken as they are: no chat template, no tokenizer.
    """

    id: str
    category: str
    turns: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
