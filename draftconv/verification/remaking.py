"""The source once more on its way to the output: every step of the record, made again by the passes that made it.

Nothing is written. What comes between two steps is a checkpoint in memory, whose tensors are computed when they are
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from draftconv.checkpoint import Checkpoint, Copy, Literal, MemoryFile, PlannedTensor, TensorRef, show
from draftconv.conversion.changed_drafter import ChangedDrafter, change_drafter, spell_drafter
from draftconv.conversion.planned_output import planned_checkpoint
from draftconv.conversion.provenance import FILE, Lineage, Origin, Provenance, read_provenance
from draftconv.conversion.pruning.tokens import KeptTokens
from draftconv.conversion.quantization_plan import plan_quantization
from draftconv.conversion.readers import layout_shared_by
from draftconv.conversion.request import ConversionRequest
from draftconv.conversion.working_drafter import QUANTIZED, Change, WorkingDrafter, output_blocks, start
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES
from draftconv.errors import CheckFailed, DraftconvError, UsageError
from draftconv.layouts import layout
from draftconv.layouts.base import Layout, ReadOptions
from draftconv.layouts.portable import PORTABLE
from draftconv.layouts.reader import read_drafter
from draftconv.verification.recorded_steps import Evidence, asked_options, asked_quantization


@dataclass(frozen=True, slots=True)
class Remade:
    """What the output must be.

    Attributes:
        work: the source after every step of the record; as it is where there is none, or one cannot be made again.
        changes: of all steps, the first step's first.
        last: the last step, not yet spelled.
        fault: why a step cannot be made again.
    """

    work: WorkingDrafter
    changes: tuple[Change, ...] = ()
    last: ChangedDrafter | None = None
    fault: DraftconvError | None = None

    def why(self, what: str, *kinds: str) -> str | None:
        """The newest change of something that was made again, in words."""
        return next((c.why for c in reversed(self.changes) if c.what == what and c.kind in kinds), None)


def remake(source: Drafter, lineage: Lineage | None, evidence: Evidence) -> Remade:
    """Make the steps of a record again.

    Args:
        lineage: the way from this source to the output.
    """
    try:
        return _remake(source, lineage.steps if lineage else (), evidence)
    except DraftconvError as fault:
        return Remade(start(source), fault=fault)


def _remake(source: Drafter, steps: Sequence[Origin], evidence: Evidence) -> Remade:
    """The same.

    Args:
        steps: the newest first.

    Raises:
        DraftconvError: one cannot be made again.
    """
    remade, drafter, provenance = Remade(start(source)), source, read_provenance(source.checkpoint)
    for index, step in enumerate(reversed(steps)):
        target = evidence.target if step.target is not None or _is_dropped(step) else None
        changed = _make_step(drafter, step, target, evidence, provenance, evidence.from_format if index == 0 else None)
        remade = Remade(changed.work, (*remade.changes, *changed.work.changes), changed)
        if index + 1 < len(steps):
            following = _read_again(changed, target, evidence.target)
            provenance = _provenance_of(drafter, changed.work, provenance)
            drafter = following
    return remade


def _is_dropped(step: Origin) -> bool:
    """Whether a target would prove what was dropped, also where the conversion had none."""
    return step.options is not None and step.options.text("embed") == "drop"


def _make_step(
    drafter: Drafter,
    step: Origin,
    target: Target | None,
    evidence: Evidence,
    provenance: Provenance | None,
    from_format: str | None,
) -> ChangedDrafter:
    options = asked_options(step, evidence, from_format)
    request = ConversionRequest(options)
    if step.quantization is None and any(change.why.startswith(QUANTIZED) for change in step.changes):
        raise CheckFailed(
            "draftconv.json does not tell how weights were rounded",
            why="an early version wrote it",
            cure="quantize the source again",
        )
    if step.quantization is not None:
        again = drafter.facts.quantization is not None
        asked = asked_quantization(step.quantization, evidence, from_format, again=again)
        request = plan_quantization(drafter, target, asked).request
    if step.pruned:
        request = replace(request, pruning=_kept_tokens(evidence))
    findings = check_drafter(drafter, target, level="deep" if options.deep else "sample")
    return change_drafter(drafter, findings, target, request, _layout_of(step, str(options.to)), provenance)


def _kept_tokens(evidence: Evidence) -> KeptTokens:
    """The tokens that the output has rows for: which they are, its own map tells; that the rows are theirs is compared.

    Raises:
        CheckFailed: it has no map.
    """
    if evidence.tokens is None:
        raise CheckFailed(
            "draftconv.json tells of a pruned head, and the output has no d2t that can be used",
            why="nobody could tell which rows were kept",
            cure="prune the source again",
        )
    return KeptTokens(evidence.tokens)


def _layout_of(step: Origin, name: str) -> Layout:
    """The layout that a step wrote: a portable one may be that of some engines only.

    Raises:
        UsageError: there is none of this name; the record was edited.
    """
    if name != PORTABLE or not step.shared_by:
        return layout(name)
    if unknown := {*step.shared_by} - {*ENGINES}:
        raise UsageError(f"{FILE}: no such engine: {show(min(unknown))}")
    return layout_shared_by(step.shared_by)


def _read_again(changed: ChangedDrafter, target: Target | None, reading: Target | None) -> Drafter:
    """What the next step found, read as anybody's.

    Args:
        target: that this step was told of. `reading`: that all are read with.
    """
    work, names, spelled = spell_drafter(changed, target)
    planned = planned_checkpoint(work, names, spelled.config, spelled.metadata)
    tensors = {names[name]: _computed_ref(names[name], tensor) for name, tensor in work.tensors.items()}
    return read_drafter(replace(planned, tensors=tensors), ReadOptions(target=reading))


def _computed_ref(name: str, tensor: PlannedTensor) -> TensorRef:
    match tensor.operation:
        case Copy(ref):
            return TensorRef(name, tensor.dtype, tensor.shape, ref.file, ref.offset, tensor.nbytes)
        case Literal(data):
            return TensorRef(name, tensor.dtype, tensor.shape, MemoryFile(name, data), 0, tensor.nbytes)
        case _:
            return TensorRef(name, tensor.dtype, tensor.shape, ComputedFile(name, tensor), 0, tensor.nbytes)


class ComputedFile:
    """The bytes of a planned tensor, computed at the first read and kept."""

    def __init__(self, name: str, tensor: PlannedTensor) -> None:
        self.name, self.tensor, self.size = name, tensor, tensor.nbytes

    @cached_property
    def _file(self) -> MemoryFile:
        return MemoryFile(self.name, b"".join(output_blocks(self.tensor)))

    def read(self, offset: int, length: int) -> bytes:
        """See `DataFile.read`."""
        return self._file.read(offset, length)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """See `DataFile.readinto`."""
        self._file.readinto(offset, buffer)


def _provenance_of(drafter: Drafter, work: WorkingDrafter, provenance: Provenance | None) -> Provenance:
    """What the next step knows of this one: made of what was made again, not of the record."""
    checkpoint: Checkpoint = drafter.checkpoint
    return Provenance(
        {
            "source": {
                "layout": drafter.detection.layout,
                "config": dict(checkpoint.config),
                "metadata": dict(checkpoint.metadata),
            },
            "changes": [asdict(change) for change in work.changes],
            "lm_head_order": None if work.order is None else list(work.order),
            "earlier": provenance.handed_on() if provenance else [],
        }
    )
