"""What each weight of a drafter is fed while it replays a trace: for static activation scales, and for smoothing.

The drafter runs as it will be served: once over the context, then K - 1 steps on its own
feedback, so that inputs of deeper drafts count too. Requests are replayed one by one: in a batch
the rows that pad the shorter ones would be taken for inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from draftconv.errors import Refused
from draftconv.quantization.exclusions import WEIGHT
from draftconv.replay.replay import Arm, replay
from draftconv.traces.request import TraceRequest

ROWS = 512
"""Most rows of inputs that are kept of a module, and at least half as many where there were more.

AWQ takes the mean magnitude of every channel, and chooses among eleven strengths by a mean error over rows.
On a trained fixture the weights that it found on 128 rows or more, up to all 4032 of a trace, erred within
1 % of each other on all inputs, on 16 rows up to 4 % more; the search takes longer the more rows there are."""


@dataclass(slots=True)
class Inputs:
    """What one module was fed.

    Attributes:
        peak_I: the largest magnitude of every channel, float32.
        rows_NI: rows in the order in which they came, every `stride`th of all, float32; empty where
            none were asked for.
    """

    peak_I: Tensor
    rows_NI: Tensor
    stride: int = 1
    seen: int = field(default=0, repr=False)

    @property
    def peak(self) -> Tensor:
        """The largest magnitude of all, float32 []."""
        return self.peak_I.amax()

    def add(self, x_BI: Tensor, *, most: int) -> None:
        """Take in some rows: every `stride`th is kept, and when there are more than `most`, every other one of them."""
        self.peak_I = torch.maximum(self.peak_I, x_BI.abs().amax(0).float().cpu())
        if most:
            kept_NI = x_BI[-self.seen % self.stride :: self.stride].float().cpu()
            self.rows_NI = torch.cat((self.rows_NI, kept_NI))
            self.seen += len(x_BI)
            while len(self.rows_NI) > most:
                self.rows_NI, self.stride = self.rows_NI[::2].clone(), 2 * self.stride


def input_peaks(
    arm: Arm, requests: Iterable[TraceRequest], boundaries: Sequence[int], modules: Sequence[str], *, depth: int = 3
) -> dict[str, Tensor]:
    """The largest magnitude that each module was fed: module → float32 [].

    Args:
        boundaries: of the requests' state columns. `modules`: canonical names of Linears.

    Raises:
        Refused: nothing was fed to a module, or something that is not finite.
        UsageError: as `replay`.
    """
    module_inputs = _collect_inputs(arm, requests, boundaries, dict.fromkeys(modules, 0), depth)
    return {module: inputs.peak for module, inputs in module_inputs.items()}


def sampled_inputs(
    arm: Arm,
    requests: Iterable[TraceRequest],
    boundaries: Sequence[int],
    modules: Sequence[str],
    *,
    depth: int = 3,
    rows: int = ROWS,
) -> dict[str, Inputs]:
    """As `input_peaks`, with the peak of every channel and a sample of rows, spread evenly over the trace.

    The same trace gives the same rows.

    Args:
        rows: most rows to keep of a module.
    """
    return _collect_inputs(arm, requests, boundaries, dict.fromkeys(modules, rows), depth)


def _collect_inputs(
    arm: Arm, requests: Iterable[TraceRequest], boundaries: Sequence[int], modules: Mapping[str, int], depth: int
) -> dict[str, Inputs]:
    """What was fed to each of `modules`, which say how many rows of it to keep."""
    module_inputs: dict[str, Inputs] = {}
    for module in modules:
        width = arm.model.get_parameter(f"{module}{WEIGHT}").shape[1]
        module_inputs[module] = Inputs(torch.zeros(width), torch.empty(0, width))
    with input_hooks(
        arm.model, {module: _recorder(inputs, modules[module]) for module, inputs in module_inputs.items()}
    ):
        for request in requests:
            for _ in replay([arm], [request], boundaries, depth=depth, whole=True):
                pass
    for module, inputs in module_inputs.items():
        if not (inputs.peak.isfinite() and inputs.peak > 0):
            raise Refused(
                f"the inputs of {module} peak at {float(inputs.peak):g} on this trace",
                why="a static activation scale follows from the largest input, and must be finite and above zero",
                cure="calibrate on a trace of real text for this drafter's target",
            )
    return module_inputs


def _recorder(inputs: Inputs, most: int) -> Callable[[Tensor], None]:
    return lambda x: inputs.add(x.flatten(0, -2), most=most)


@contextmanager
def input_hooks(model: nn.Module, takers: Mapping[str, Callable[[Tensor], None]]) -> Iterator[None]:
    """Tell what each of some modules is fed, until this is left."""

    def watch(module: str, take: Callable[[Tensor], None]) -> torch.utils.hooks.RemovableHandle:
        def see(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            take(inputs[0])

        return model.get_submodule(module).register_forward_pre_hook(see)

    handles = [watch(module, take) for module, take in takers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
