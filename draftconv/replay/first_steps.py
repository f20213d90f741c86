"""What the weights of a drafter are fed at the first draft of every position: for GPTQ, which needs many rows.

Inputs of the first draft alone calibrate as well as those of all drafts of a chain, and neither the embedding nor the
head has to be in memory for them: of a Kimi drafter that is two thirds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from draftconv.checkpoint import TensorRef
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.tensors import EMBEDDING, HEAD
from draftconv.errors import Refused
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.second_moments import SecondMoment
from draftconv.reference.devices import find_device
from draftconv.reference.layers import check_tensors
from draftconv.reference.load import forward_of, to_torch
from draftconv.replay.batches import context_rows
from draftconv.replay.calibration import Inputs, input_hooks
from draftconv.replay.load_arm import LoadSettings, fed_by, load_arm, target_ref
from draftconv.replay.not_finite import refuse_states
from draftconv.replay.replay import Arm
from draftconv.replay.target_tables import from_target
from draftconv.traces.request import TraceRequest

HELD_ROWS = 1024
"""Most rows that a way to round is judged on: between 512 and 1024 where there were more, spread evenly."""

ROWS_AT_ONCE = 1024
"""Rows in a forward pass: what waits to be added up is about as much again."""

LM_HEAD = HEAD.removesuffix(WEIGHT)


class TableRows(nn.Module):
    """An embedding whose rows are read from its file when they are asked for."""

    def __init__(self, table: TensorRef, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.table, self.dtype, self.device = table, dtype, device

    def forward(self, token_BT: Tensor) -> Tensor:
        tokens, place_BT = torch.unique(token_BT, return_inverse=True)
        rows = [to_torch(self.table.row_range(token, token + 1)) for token in tokens.tolist()]
        return torch.cat(rows).to(self.device, self.dtype)[place_BT]


def load_without_tables(name: str, drafter: Drafter, how: LoadSettings) -> Arm:
    """As `load_arm`, without the head and with an embedding that stays in its file; quantized drafters as a whole.

    Raises:
        UsageError, Undecided, Refused, BadCheckpoint: as `load_arm`.
    """
    if drafter.facts.quantization:
        return load_arm(name, drafter, how)
    device, boundaries = find_device(how.device), fed_by(name, drafter)
    dtype: torch.dtype = getattr(torch, how.dtype)
    facts = drafter.facts
    lent = EMBEDDING in from_target(facts, how.semantics)
    table = target_ref(name, EMBEDDING, how) if lent else drafter.tensors[EMBEDDING]
    with torch.device("meta"):
        model = forward_of(facts)(facts)
    left_out = (EMBEDDING, HEAD, "d2t", "t2d")
    weights = {key: ref for key, ref in drafter.tensors.items() if key not in left_out}
    wanted = {key: tensor for key, tensor in model.state_dict().items() if key not in left_out}
    loaded = {key: to_torch(ref).to(device, dtype) for key, ref in weights.items()}
    check_tensors(loaded, wanted, name)
    model.load_state_dict(loaded, strict=False, assign=True)
    model.embed_tokens = TableRows(table, dtype, device)  # type: ignore[assignment]
    return Arm(name, model.eval().requires_grad_(False), boundaries)


@torch.no_grad()
def run_first_steps(arm: Arm, request: TraceRequest, takers: Mapping[str, Callable[[Tensor], None]]) -> None:
    """The first draft of every position of a request, at once.

    Args:
        request: its states at the boundaries of the arm, in their order.
        takers: module → what is told its inputs, [..., I], as often as it is run.
    """
    model, device, dtype = arm.model, arm.model.fc.weight.device, arm.model.fc.weight.dtype
    rows = context_rows(request)
    cache = model.cache(rows)
    with input_hooks(model, {module: take for module, take in takers.items() if module != LM_HEAD}):
        for first in range(0, rows, ROWS_AT_ONCE):
            last = min(first + ROWS_AT_ONCE, rows)
            states_BTAW = request.states_TAW[first:last][None].to(device, dtype)
            token_BT = request.tokens_N[first + 1 : last + 1][None].to(device)
            z_BTH = model.step(model.fuse(states_BTAW), token_BT, cache)
            if LM_HEAD in takers:
                takers[LM_HEAD](model.norm(z_BTH))


@dataclass(slots=True)
class SeenInputs:
    """What one module was fed: the second moment of most requests, and rows of those that were held out."""

    moment: SecondMoment
    held: Inputs

    @classmethod
    def of(cls, inputs: int, device: torch.device) -> SeenInputs:
        """Nothing yet."""
        return cls(SecondMoment.of(inputs, device), Inputs(torch.zeros(inputs), torch.empty(0, inputs)))


def collect(arm: Arm, request: TraceRequest, seen: Mapping[str, SeenInputs], *, held: bool) -> None:
    """Add what a request feeds some modules.

    Args:
        held: its rows are kept and are no part of a second moment.

    Raises:
        Refused: something that is not finite. BadCheckpoint: the states of the request are not.
    """

    def taker(module: str) -> Callable[[Tensor], None]:
        def take(x: Tensor) -> None:
            x_NI = x.flatten(0, -2)
            if not bool(x_NI.isfinite().all()):
                refuse_states(request)
                raise Refused(
                    f"request {request.id} feeds {module} values that are not finite",
                    why="one of them makes the whole second moment NaN, and every weight that follows from it",
                    cure="the trace's states are finite: check the drafter with `draftconv inspect --deep`",
                )
            if held:
                seen[module].held.add(x_NI, most=HELD_ROWS)
            else:
                seen[module].moment.add(x_NI)

        return take

    run_first_steps(arm, request, {module: taker(module) for module in seen})
