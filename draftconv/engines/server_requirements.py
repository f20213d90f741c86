"""How a server is started with a drafter, and what the weights need of it: kernels, sizes that ranks share, a dtype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftconv.checkpoint import show_some
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Mla
from draftconv.engines.arithmetic import declared_scheme
from draftconv.engines.deployed import one_or_each
from draftconv.engines.deployment import deployment, stored_kernel
from draftconv.engines.dtypes import asks_float32, float32_stop
from draftconv.engines.kernels import Kernel
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import EngineSpec
from draftconv.engines.serving import ServeCommand, ServeRequest
from draftconv.engines.shapes import ShapeFault, shape_faults, uneven
from draftconv.errors import CheckFailed, Refused, UsageError
from draftconv.quantization.scheme import Scheme

if TYPE_CHECKING:
    from draftconv.quantization.format_detection import FormatMatch


@dataclass(frozen=True, slots=True)
class ServerRequirements:
    """What is to be known before a server is started.

    Attributes:
        notes: in words. `arguments`: without which it does not start.
    """

    notes: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


def start_command(
    drafter: Drafter, spec: EngineSpec, request: ServeRequest, *, arguments: Sequence[str] = (), remedy: str
) -> ServeCommand:
    """The engine's own command, with what this drafter's weights need of the server.

    Raises:
        Refused, Undecided: the captured layers must be named and have no name there.
        CheckFailed, UsageError: see `server_requirements`.
    """
    needs = (
        ServerRequirements()
        if request.alone
        else server_requirements(drafter, spec, request.tensor_parallel, arguments, remedy)
    )
    command = ENGINES[spec.name].command(request, spec)
    return replace(command, argv=(*command.argv, *needs.arguments), notes=(*command.notes, *needs.notes))


def server_requirements(
    drafter: Drafter, spec: EngineSpec, tensor_parallel: int, arguments: Sequence[str], remedy: str
) -> ServerRequirements:
    """What is multiplied, where the drafter is quantized, and what that takes.

    Args:
        arguments: of the server that somebody else adds.
        remedy: the cure where the hardware has nothing that multiplies it.

    Raises:
        CheckFailed: the hardware has no kernel for its weights.
        UsageError: `arguments` ask for float32, in which nothing multiplies them.
    """
    if drafter.facts.quantization is None:
        return ServerRequirements(_shape_notes(uneven(spec, drafter.facts, tensor_parallel)))
    from draftconv.quantization.weight_detection import find_quantized

    try:
        stored = find_quantized(drafter)
    except Refused as unread:
        return ServerRequirements(
            (f"whether there is a kernel for the drafter's weights was not looked at: {unread.what}",)
        )
    stops = {m.format.title: stop for m in stored.parts if (stop := float32_stop(spec, m.format.id)) is not None}
    for title, stop in stops.items() if asks_float32(arguments) else ():
        raise UsageError(
            f"{ENGINES[spec.name].title} does not compute in float32 beside {title} weights",
            why=f"{stop.says} [{stop.evidence}: {stop.source}]",
            cure="leave out --dtype float32, or compare the dequantized drafter: `draftconv convert --dequantize`",
        )
    dtypes = tuple(dict.fromkeys(f"not with --dtype float32: {stop.says}" for stop in stops.values()))
    if spec.hardware is None:
        return ServerRequirements((*_shape_notes(uneven(spec, drafter.facts, tensor_parallel)), *dtypes))
    kernels: dict[str, Kernel] = {}
    faults: list[ShapeFault] = []
    for match, modules in stored.parts.items():
        kernel, scheme = _kernel(drafter, match, spec, remedy)
        kernels[show_some(modules)] = kernel
        faults += shape_faults(spec, deployment(kernel, scheme), drafter.facts, modules, tensor_parallel)
    multiplied = f"the drafter's quantized weights: {one_or_each({name: k.executed for name, k in kernels.items()})}"
    notes = dict.fromkeys(note for kernel in kernels.values() for note in kernel.notes)
    needed = dict.fromkeys(kernel.arguments for kernel in kernels.values())
    return ServerRequirements(
        (multiplied, *notes, *_shape_notes(dict.fromkeys(faults)), *dtypes),
        tuple(argument for some in needed for argument in some),
    )


def _kernel(drafter: Drafter, match: FormatMatch, spec: EngineSpec, remedy: str) -> tuple[Kernel, Scheme]:
    """What multiplies weights that are stored so, and how they are declared."""
    scheme = declared_scheme(match.declared)
    mla = isinstance(drafter.facts.attention, Mla)
    try:
        return stored_kernel(spec, match.format.id, match.declared.style, scheme, mla=mla), scheme
    except Refused as error:
        raise CheckFailed(error.what, why=error.why, cure=remedy) from error


def _shape_notes(faults: Iterable[ShapeFault]) -> tuple[str, ...]:
    """Sizes that kernels or ranks do not take, in words. The target's devices are the user's choice: no refusal."""
    return tuple(
        f"{fault.module}: {fault.says}" + ("; the server does not start so" if fault.refused else "")
        for fault in faults
    )
