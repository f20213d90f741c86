"""Whose fault it is that a replay ends in NaN: of the trace, where its states are not finite, else of the drafter."""

from __future__ import annotations

from draftconv.errors import BadCheckpoint
from draftconv.traces.request import TraceRequest
from draftconv.traces.states import state_blocks

DEEP = "check its weights with `draftconv inspect --deep`, and try another --dtype"


def refuse_states(request: TraceRequest) -> None:
    """Refuse a request with states that no drafter can be fed; asked where something is wrong, as it reads all of them.

    Raises:
        BadCheckpoint: a state is NaN or infinite.
    """
    row = 0
    for states_TAW in state_blocks(request.states_TAW):
        bad_T = ~states_TAW.isfinite().flatten(1).all(dim=1)
        if bool(bad_T.any()):
            raise BadCheckpoint(
                f"the trace's request {request.id} holds states that are not finite, the first of them at token "
                f"{row + int(bad_T.nonzero()[0, 0])}",
                why="whatever is computed of them is NaN, whichever drafter is fed them",
                cure="make it again with `draftconv trace`; a target whose states overflow needs another --dtype",
            )
        row += len(states_TAW)


def logits_not_finite(name: str, request: TraceRequest) -> BadCheckpoint:
    """The error of a drafter whose logits on a request are not finite.

    Raises:
        BadCheckpoint: the states of the request are not finite themselves.
    """
    refuse_states(request)
    return BadCheckpoint(
        f"{name}: its logits are not finite on request {request.id}, whose states are",
        why="what it drafts is then up to the engine",
        cure=DEEP,
    )
