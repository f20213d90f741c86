"""The rows that a drafter drafts with, and which numbers of them can stay."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from draftconv.checkpoint import FLOATS, TensorRef, show_some
from draftconv.drafter.checks import target_table
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import HEAD_NAMES, Target
from draftconv.drafter.tensors import HEAD
from draftconv.errors import Refused, UsageError

BLOCK = 64
"""Rows that every device of a head gets a multiple of: engines pad a vocabulary to it (vLLM 0.32.0
model_executor/layers/vocab_parallel_embedding.py and SGLang 0.5.23 srt/layers/vocab_parallel_embedding.py:
DEFAULT_VOCAB_PADDING_SIZE = 64)."""


@dataclass(frozen=True, slots=True)
class HeadRows:
    """The rows that a drafter drafts with before it is pruned.

    Attributes:
        ids: the target's tokens, ascending. `row_bytes`: of a row as it is stored, scales and all.
        table: the target's head, where the drafter has none of its own.
    """

    ids: tuple[int, ...]
    vocab: int
    row_bytes: float
    table: TensorRef | None = None

    @classmethod
    def of(cls, drafter: Drafter, target: Target | None) -> HeadRows:
        """The rows of a drafter's head, or of the target's.

        Raises:
            Refused: its vocabulary map is not usable. UsageError: it has no head, and nobody gives the target's.
        """
        facts = drafter.facts
        if facts.reduced_vocab and (drafter.maps is None or drafter.maps.map is None):
            raise Refused(
                f"{drafter.checkpoint.name} has a reduced vocabulary, and its map is missing or not usable",
                why="nobody could tell which token each row of its head stands for",
                cure="`draftconv inspect` says what is wrong with d2t, `draftconv convert --repair` mends it",
            )
        ids = drafter.maps.map.ids if facts.reduced_vocab and drafter.maps and drafter.maps.map else range(facts.vocab)
        table = None if facts.own_head else target_head(drafter, target)
        stored = [table] if table else [r for n, r in _every(drafter) if n.startswith(HEAD.removesuffix("weight"))]
        return cls(tuple(sorted(ids)), facts.vocab, sum(ref.nbytes for ref in stored) / len(ids), table)


def _every(drafter: Drafter) -> Iterator[tuple[str, TensorRef]]:
    yield from {**drafter.tensors, **drafter.qparams}.items()


def target_head(drafter: Drafter, target: Target | None) -> TensorRef:
    """The target's head, for a drafter that has none of its own: [V, H], floats.

    Raises:
        UsageError: the target's weights are not at hand. Refused: its head does not fit.
    """
    facts = drafter.facts
    if target is None or not target.has_weights:
        raise UsageError(
            f"{drafter.checkpoint.name} has no lm_head of its own",
            why="it drafts with the target's, and the rows that stay have to come from there",
            cure="give the target's weights: --target DIRECTORY",
        )
    table = target_table(target, HEAD_NAMES)
    if table is None or table.shape != (facts.vocab, facts.hidden) or table.dtype not in FLOATS:
        raise Refused(
            f"{target.name} has no lm_head of {facts.vocab} x {facts.hidden} floats",
            why=f"found {table.dtype} {list(table.shape)}" if table else "found none",
            cure="give the target that the drafter was trained for",
        )
    return table


def refuse_vocab(vocab: int, head: HeadRows, devices: int, *, force: bool) -> None:
    """Refuse a number of rows before anything is counted.

    Raises:
        UsageError: it is not below the rows that there are, or no multiple of 64 for every device.
    """
    if vocab >= (there := len(head.ids)):
        fewer = max(BLOCK, there // 4 // BLOCK * BLOCK)
        raise UsageError(
            f"--vocab {vocab}: the head has {there} rows, so nothing would be pruned",
            cure=f"give fewer, such as {fewer}" if fewer < there else "give fewer, and --force",
        )
    step = BLOCK * devices
    if vocab % step and not force:
        low = vocab // step * step
        near = f"{low} or {low + step}" if low else f"{step}"
        shared = f" on {devices} devices" if devices > 1 else ""
        raise UsageError(
            f"--vocab {vocab} is no multiple of {step}",
            why=f"engines pad a head{shared} to one, so that the rows between are read for nothing",
            cure=f"give {near}, or --force",
        )


def refuse_forced(vocab: int, head: HeadRows, forced: Collection[int], asked: Sequence[int]) -> None:
    """Refuse tokens that cannot stay.

    Args:
        asked: those of `forced` that a person names.

    Raises:
        UsageError: they are more than the rows, or a named one has no row.
    """
    rows = {*head.ids}
    if lacking := [token for token in asked if token not in rows]:
        raise UsageError(
            f"--keep: the head has no row for {show_some(lacking)}",
            why=f"the target has {head.vocab} tokens, and the head rows for {len(rows)} of them",
            cure="name tokens that the drafter can draft",
        )
    if (count := len({*forced} & rows)) > vocab:
        raise UsageError(
            f"--vocab {vocab}: {count} tokens have to stay",
            why="special tokens and those of the chat template are in every answer, and --keep adds more",
            cure=f"give {-(-count // BLOCK) * BLOCK} or more, with room for what is said",
        )
