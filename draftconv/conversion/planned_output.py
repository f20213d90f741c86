"""The output before it exists: its config.json, and how it would be read back and served.

A conversion is judged by the same reader, checks and engine rules as any directory that
somebody hands in, so a layout that would lose a fact refuses instead of writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from draftconv.checkpoint import FLOATS, Checkpoint, Copy, Literal, MemoryFile, PlannedTensor, TensorRef
from draftconv.conversion.provenance import Lineage
from draftconv.conversion.working_drafter import MAPS, WorkingDrafter, main_dtype
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.config import Config
from draftconv.drafter.facts import AuxLayers
from draftconv.drafter.problems import Problem
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES, EngineSpec, LoadVerdict
from draftconv.engines.rules import BrokenRule
from draftconv.errors import Refused, Undecided
from draftconv.layouts import MARK
from draftconv.layouts.alternatives import elsewhere
from draftconv.layouts.base import Layout, ReadOptions, Writer, Writing
from draftconv.layouts.config_json import NEUTRAL_KEYS, TORCH_DTYPES
from draftconv.layouts.reader import read_drafter

QUANTIZATION = "quantization_config"
QUANTIZATIONS = (QUANTIZATION, "compression_config")
"""Where a config may say that weights are quantized."""


@dataclass(frozen=True, slots=True)
class PlannedConfig:
    """The config of an output, the metadata of its weights, and the problems it still has."""

    config: dict[str, object]
    metadata: Mapping[str, str]
    problems: tuple[Problem, ...]

    @property
    def codes(self) -> frozenset[str]:
        return frozenset(problem.code for problem in self.problems)


def spell_config(
    work: WorkingDrafter,
    layout: Layout,
    writer: Writer,
    target: Target | None,
    names: Mapping[str, str],
    returning: Lineage | None,
    verifier: str | None = None,
) -> PlannedConfig:
    """The layout's config.json and metadata; the recorded original ones where they still say the same."""
    if returning is not None and not _is_quantized(work, returning) and not _is_cast_since(work, returning):
        original = cast(dict[str, object], _without_code(returning.origin.config))
        metadata = {key: str(value) for key, value in returning.origin.source.section("metadata").data.items()}
        if verifier is None and (left := _remaining(work, names, original, metadata, target)) is not None:
            return PlannedConfig(original, metadata, left)
    boundaries = work.facts.boundaries
    writing = Writing(
        facts=work.facts,
        boundaries=None if isinstance(boundaries, AuxLayers) else boundaries,
        target=target,
        kept={key: work.drafter.config[key] for key in NEUTRAL_KEYS if _is_plain(work.drafter.config.get(key))},
        dtype=TORCH_DTYPES[main_dtype(work)],
        verifier=verifier or _own_verifier(work),
    )
    config = _spell_with(writer, writing) | {MARK: layout.id}
    if work.packed is not None:
        config[QUANTIZATION] = dict(work.packed.config)
    left = _remaining(work, names, config, writer.metadata, target)
    if left is None:
        raise Refused(
            f"the {layout.title} spelling of this drafter does not read back as the same drafter",
            why="a fact would be lost; this is a fault of draftconv",
            cure="please report it with the output of `draftconv inspect --format json`",
        )
    return PlannedConfig(config, writer.metadata, left)


def _own_verifier(work: WorkingDrafter) -> str:
    """What the source calls its target."""
    return Config(work.drafter.config).section("speculators_config").section("verifier").text("name_or_path") or ""


def _spell_with(writer: Writer, writing: Writing) -> dict[str, object]:
    """The layout's config.json; what it has no word for is refused with the layouts that have one."""
    try:
        return writer.config(writing)
    except Refused as error:
        cure = error.cure or elsewhere(writer, writing.facts, writing.target)
        raise Refused(error.what, why=error.why, cure=cure) from error


def _is_plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, list) and all(map(_is_plain, value)))


def _is_quantized(work: WorkingDrafter, returning: Lineage) -> bool:
    """Whether weights are quantized now, or were then: their word is never taken from a record."""
    return work.packed is not None or any(key in returning.origin.config for key in QUANTIZATIONS)


def _is_cast_since(work: WorkingDrafter, returning: Lineage) -> bool:
    """Whether dtypes changed on the way, which config.json names and the facts do not hold."""
    return any(change.kind == "cast" and change.what not in MAPS for change in (*work.changes, *returning.changes))


def _without_code(value: object) -> object:
    """A recorded config without `auto_map` at any depth: it is never written, wherever it came from."""
    match value:
        case Mapping():
            return {key: _without_code(item) for key, item in value.items() if key != "auto_map"}
        case list():
            return [_without_code(item) for item in value]
        case _:
            return value


def _remaining(
    work: WorkingDrafter, names: Mapping[str, str], config: Mapping[str, object], metadata: Mapping[str, str],
    target: Target | None,
) -> tuple[Problem, ...] | None:  # fmt: skip
    """Problems of the planned directory, read as anybody's; None when one is an error or a fact has changed."""
    reread = read_drafter(planned_checkpoint(work, names, config, metadata), ReadOptions(target=target))
    findings = check_drafter(reread, target, level="maps")
    same = replace(reread.facts, quantization=None) == replace(work.facts, quantization=None)
    if not same or any(problem.severity == "error" for problem in findings.problems):
        return None
    return findings.problems


def planned_checkpoint(
    work: WorkingDrafter, names: Mapping[str, str], config: Mapping[str, object], metadata: Mapping[str, str]
) -> Checkpoint:
    """The output as a checkpoint, before it exists; computed tensors have their bytes, cast ones a header only."""
    tensors = {names[name]: _planned_ref(names[name], tensor) for name, tensor in work.tensors.items()}
    sidecars = work.packed.sidecars if work.packed else {}
    return Checkpoint("planned", None, config, "", tensors, metadata, sidecars, ())


def _planned_ref(name: str, tensor: PlannedTensor) -> TensorRef:
    match tensor.operation:
        case Copy(ref):
            file, offset = ref.file, ref.offset
        case Literal(data):
            file, offset = MemoryFile(name, data), 0
        case _:
            file, offset = MemoryFile(name, b"\1" * min(tensor.nbytes, 1 << 16)), 0
    return TensorRef(name, tensor.dtype, tensor.shape, file, offset, tensor.nbytes)


def named_quantization(
    work: WorkingDrafter, spelled: PlannedConfig, names: Mapping[str, str], target: Target | None
) -> WorkingDrafter:
    """The work with the name that a reader will have for its quantization."""
    planned = planned_checkpoint(work, names, spelled.config, spelled.metadata)
    quantization = read_drafter(planned, ReadOptions(target=target)).facts.quantization
    return work.with_facts("as its config.json and tensors say", quantization=quantization)


def judge(
    work: WorkingDrafter,
    specs: Sequence[EngineSpec],
    names: Mapping[str, str],
    spelled: PlannedConfig,
    target: Target | None,
    known: frozenset[str] = frozenset(),
) -> tuple[LoadVerdict, ...]:
    """What these engines will make of it.

    Args:
        known: problems of stored values that it will have, which no header shows.

    Raises:
        Refused: one of them would refuse or mis-read it, or no rule speaks of it.
        Undecided: one of them cannot be judged without --target.
    """
    planned = planned_checkpoint(work, names, spelled.config, spelled.metadata)
    verdicts: list[LoadVerdict] = []
    for spec in specs:
        engine = ENGINES[spec.name]
        verdict = engine.check(planned, work.facts, target, spec, known)
        if line := verdict.reason:
            told_by_target = verdict.status == "undecided" and target is None and line.rule in verdict.rules
            raise (Undecided if told_by_target else Refused)(
                f"{engine.title} would not serve this drafter as it was trained ({verdict.status})",
                why=f"{line.rule.says}: {line.detail} [{line.rule.code}; {line.rule.source}]",
                cure=_cure(work, verdict, line),
            )
        verdicts.append(verdict)
    return tuple(verdicts)


FC = "fc.weight"


def _cure(work: WorkingDrafter, verdict: LoadVerdict, line: BrokenRule) -> str:
    if verdict.status == "undecided" and line.rule in verdict.rules:
        return "give --target"
    packed = FC not in work.tensors or work.tensors[FC].dtype not in FLOATS
    if packed and FC in line.detail:
        return "add --unpack fc, which writes fc as floats"
    return f"see `draftconv inspect --for {verdict.spec}`"
