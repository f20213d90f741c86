"""Static activation scales, measured: the largest input of each weight while a drafter replays a trace.

The drafter runs as it will be served: once over the context, then K - 1 steps on its own
feedback, so that inputs of deeper drafts count too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from draftconv.errors import Refused
from draftconv.parity.replay import Arm, replay
from draftconv.parity.request import Request


def input_peaks(
    arm: Arm, requests: Iterable[Request], boundaries: Sequence[int], modules: Sequence[str], *, depth: int = 3
) -> dict[str, Tensor]:
    """The largest magnitude that each module was fed: module → float32 [].

    Args:
        boundaries: of the requests' state columns. `modules`: canonical names of Linears.

    Raises:
        Refused: nothing was fed to a module, or something that is not finite.
        UsageError: as `replay`.
    """
    peaks = {module: torch.zeros(()) for module in modules}
    with _watched(arm.model, peaks):
        for _ in replay([arm], requests, boundaries, depth=depth):
            pass
    for module, peak in peaks.items():
        if not (peak.isfinite() and peak > 0):
            raise Refused(
                f"the inputs of {module} peak at {float(peak):g} on this trace",
                why="a static activation scale follows from the largest input, and must be finite and above zero",
                cure="calibrate on a trace of real text for this drafter's target",
            )
    return peaks


@contextmanager
def _watched(model: nn.Module, peaks: dict[str, Tensor]) -> Iterator[None]:
    def watch(module: str) -> torch.utils.hooks.RemovableHandle:
        def see(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            peaks[module] = torch.maximum(peaks[module], inputs[0].abs().amax().float().cpu())

        return model.get_submodule(module).register_forward_pre_hook(see)

    handles = [watch(module) for module in peaks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
