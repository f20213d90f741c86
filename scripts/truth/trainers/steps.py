"""What a drafter computes: three teacher-forced draft steps, as a trainer unrolls them and as the reference does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from draftconv.drafter.facts import Facts
from draftconv.reference.drafter import DrafterModel

STEPS = 3
ROWS = 16
"""Positions that are drafted from; the last two have no more tokens to be fed at the last step."""

KEPT = ROWS - STEPS + 1
TOLERANCE = 1e-4
"""Largest difference of a logit or of an element of a fed-back state, relative to the largest of its kind."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Captured states of 16 positions, and the token that follows each.

    Attributes:
        states_BTAW: [1, 16, captured states, width of the target].
        tokens_BT: int64 [1, 16]; row i holds the token after position i.
    """

    states_BTAW: Tensor
    tokens_BT: Tensor

    @classmethod
    def of(cls, facts: Facts) -> Inputs:
        """The same for the same sizes."""
        generator = torch.Generator().manual_seed(7)
        states = torch.randn(1, ROWS, facts.aux, facts.target_hidden, generator=generator)
        return cls(states, torch.randint(facts.vocab, (1, ROWS), generator=generator))

    @property
    def joined(self) -> Tensor:
        """States side by side, as trainers take them: [1, 16, captured states * width]."""
        return self.states_BTAW.flatten(-2)


@dataclass(frozen=True, slots=True)
class Steps:
    """What came out of each step, for the rows that have tokens for all of them.

    Attributes:
        states: what each step reads: the fused states at first, then what is fed back.
        logits: over the draft vocabulary, in the order of the target's ids.
        ids: the target's ids of the best.
    """

    states: tuple[Tensor, ...]
    logits: tuple[Tensor, ...]
    ids: tuple[Tensor, ...]

    @classmethod
    def of(cls, states: Sequence[Tensor], logits: Sequence[Tensor], d2t: Tensor | None) -> Steps:
        """From what was observed at 16 rows.

        Raises:
            ValueError: not as many steps as were asked for.
        """
        if len(states) != STEPS or len(logits) != STEPS:
            raise ValueError(f"{len(states)} states and {len(logits)} logits were seen, not {STEPS}")
        targets = torch.arange(logits[0].shape[-1]) + (0 if d2t is None else d2t)
        order = targets.argsort()
        tables = tuple(table[0, :KEPT, order].detach().float() for table in logits)
        return cls(
            tuple(state[0, :KEPT].detach().float() for state in states),
            tables,
            tuple(targets[order][table.argmax(-1)] for table in tables),
        )


def reference_steps(model: DrafterModel, inputs: Inputs) -> Steps:
    """The reference forward, every row a chain of its own."""
    states, logits, cache = [model.fuse(inputs.states_BTAW)], [], model.cache()
    for k in range(STEPS):
        z = model.step(states[k], shifted(inputs.tokens_BT, k), cache, k)
        logits.append(model.logits(z))
        states.append(model.feedback(z))
    d2t = model.d2t if model.facts.reduced_vocab else None
    return Steps.of(states[:STEPS], logits, d2t)


def shifted(tokens_BT: Tensor, k: int) -> Tensor:
    """The tokens of step k: each row's next one; rows at the end, which are not compared, get zeros."""
    return torch.cat((tokens_BT[:, k:], tokens_BT.new_zeros(tokens_BT.shape[0], k)), dim=1)


def difference(mine: Steps, theirs: Steps) -> tuple[float, str]:
    """The largest relative difference, and where it is; infinite where shapes, ids or finiteness differ."""
    worst = (0.0, "")
    for kind in ("states", "logits"):
        for k, (a, b) in enumerate(zip(getattr(mine, kind), getattr(theirs, kind), strict=True)):
            where = f"{kind.removesuffix('s') if kind == 'states' else kind} of step {k}"
            if a.shape != b.shape:
                return float("inf"), f"{where}: {tuple(a.shape)} and {tuple(b.shape)}"
            if not torch.isfinite(b).all():
                return float("inf"), f"{where}: not finite"
            worst = max(worst, (((a - b).abs().max() / a.abs().max().clamp_min(1.0)).item(), where))
    for k, (left, right) in enumerate(zip(mine.ids, theirs.ids, strict=True)):
        if worst[0] <= TOLERANCE and not torch.equal(left, right):
            return float("inf"), f"ids of step {k}"
    return worst


def compared(mine: Steps, theirs: Steps) -> tuple[str, str]:
    """`equal` or `differs`, and where and how much."""
    worst, where = difference(mine, theirs)
    if worst <= TOLERANCE:
        return "equal", ""
    return "differs", f"{where}: {worst:.2g}"


@dataclass
class Seen:
    """What went through a module: what it was given under a name, and what it returned."""

    given: list[Tensor]
    returned: list[Tensor]


@contextmanager
def watching(
    module: nn.Module, given: Callable[[tuple[Any, ...], dict[str, Any]], Tensor] | None = None
) -> Iterator[Seen]:
    """Everything that goes through a module; `given` picks a tensor from its arguments."""
    seen = Seen([], [])

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if given is not None:
            seen.given.append(given(args, kwargs))
        while isinstance(output, tuple):
            output = output[0]
        seen.returned.append(output)

    handle = module.register_forward_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()
