"""Bytes of weights that a drafter reads while it drafts: what bounds its speed where memory does.

A round is K draft steps after one step of the target. `fc` and the norms before it fuse the target's states once a
round; the layers and the head are read anew in every step; the embedding is a row per token, and maps are small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts
from draftconv.drafter.tensors import HEAD

ONCE = ("fc", "fc_norm", "input_norm")
"""Modules that run once a round."""
LOOKED_UP = ("embed_tokens", "d2t", "t2d")
"""What is looked up by row, or not at all."""


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes of weights.

    Attributes:
        once: read once a round, by every device of a tensor-parallel group: engines replicate fc (vLLM 0.32,
            model_executor/models/llama_eagle3.py: ReplicatedLinear; SGLang 0.5.23, srt/models/llama_eagle3.py:
            torch.nn.Linear).
        each: read in every draft step, split among the devices.
    """

    once: int
    each: int

    def per_step(self, depth: int) -> float:
        """The mean of a round with `depth` draft steps."""
        return self.each + self.once / depth


def step_bytes(drafter: Drafter, *, lent_head: bool) -> StepBytes:
    """What a drafter reads, as it is stored; quantized weights with their scales.

    Args:
        lent_head: the engine drafts with the target's head, in 16 bit.
    """
    stored = {name: ref.nbytes for name, ref in (*drafter.tensors.items(), *drafter.qparams.items())}
    return planned_step_bytes(stored, drafter.facts, lent_head=lent_head)


def planned_step_bytes(stored: Mapping[str, int], facts: Facts, *, lent_head: bool) -> StepBytes:
    """The same of a drafter that is not written yet.

    Args:
        stored: canonical tensor → its bytes.
    """
    head = HEAD.removesuffix(".weight")
    once = each = 0
    for name, size in stored.items():
        module = name.split(".")[0]
        if module in ONCE:
            once += size
        elif module not in LOOKED_UP and not (lent_head and module == head):
            each += size
    return StepBytes(once, each + (2 * facts.draft_vocab * facts.target_hidden if lent_head else 0))
