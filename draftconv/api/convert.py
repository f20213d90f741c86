"""Convert a drafter from one layout to another.

    read → repairs → passes → spell → check as the engine would → plan → (execute)

Everything before `execute` touches headers, config.json and the small vocabulary maps
only (and tables that an option compares or takes from elsewhere), so a dry run shows the
whole result, and a refused conversion has written nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import draftconv
from draftconv.api import passes
from draftconv.api.hints import hints
from draftconv.api.provenance import FILE, FORMAT, Provenance, Way, output_digest, read_provenance
from draftconv.api.repairs import repair
from draftconv.api.work import MAPS, Change, Work, content_hash, facts_json, start
from draftconv.checkpoint import (
    FLOATS,
    Checkpoint,
    Copy,
    Literal,
    MemoryFile,
    Plan,
    PlannedTensor,
    TensorRef,
    local_path,
    open_checkpoint,
)
from draftconv.checkpoint.staging import refuse_same
from draftconv.drafter.checks import VALUES, Findings, check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Taps
from draftconv.drafter.problems import KINDS, Problem
from draftconv.drafter.targets import Target, find_target
from draftconv.engines import ENGINES, Verdict, parse_engine
from draftconv.errors import Refused, UsageError
from draftconv.layouts import MARK, layout, writable
from draftconv.layouts.base import Hints, Layout, Writer, Writing
from draftconv.layouts.emit import NEUTRAL_KEYS, TORCH_DTYPES
from draftconv.layouts.reading import read_drafter
from draftconv.layouts.spelling import spell

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Everything that decides an output; the same options and input give the same bytes.

    Attributes:
        to: layout to write. `source`: layout to read as (`--from`), when detection should not decide.
        target, target_layers, aux_convention: what the file cannot tell; see `find_target`.
        embed: `keep`, `drop` (only when proven equal to the target's) or `from-target`.
        force: drop the embedding without proof.
        dtype: cast float tensors to bf16, f16 or f32.
        max_positions: max_position_embeddings to write.
        repairs: problem codes to mend, as CODE or CODE=PATH.
        shard_size: most bytes of tensors per file.
        hash: record SHA-256 of the source's weight files.
        card: write README.md.
    """

    to: str = "portable"
    source: str | None = None
    target: str | None = None
    target_layers: int | None = None
    aux_convention: str | None = None
    embed: passes.Embed = "keep"
    force: bool = False
    dtype: str | None = None
    max_positions: int | None = None
    repairs: tuple[str, ...] = ()
    shard_size: int | None = None
    hash: bool = False
    card: bool = True


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion that is decided and checked, and not yet written."""

    drafter: Drafter
    work: Work
    layout: Layout
    plan: Plan
    config: Mapping[str, object]
    names: Mapping[str, str]
    verdicts: tuple[Verdict, ...]
    warnings: tuple[Problem, ...]
    """What is still worth knowing of the output."""
    not_made: tuple[str, ...]
    reads: tuple[Path, ...]
    """Local directories that the output is made from."""

    @property
    def changes(self) -> tuple[Change, ...]:
        return self.work.changes

    def write(self, out: Path, *, overwrite: bool = False, progress: Progress | None = None) -> None:
        """Write the directory `out`, which appears whole or not at all.

        Raises:
            UsageError: `out` overlaps something that is read.
            Refused: a value that had to be loaded is NaN or infinite, a tensor is all zeros, or a cast overflows.
            WriteError: the file system refuses.
        """
        from draftconv.checkpoint.execute import execute

        for path in self.reads:
            refuse_same(path, out)
        execute(self.plan, out, overwrite=overwrite, progress=progress, deep=True)


def convert(
    source: str | Path,
    out: Path,
    options: ConvertOptions | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Convert a drafter and write it.

    Args:
        source: directory, weights file or Hub id. `out`: directory to make.
        progress: called with the number of bytes written so far.

    Raises:
        DraftconvError: see `plan_conversion`; WriteError when the output cannot be written.
    """
    conversion = prepare(source, options)
    conversion.write(out, overwrite=overwrite, progress=progress)
    return conversion


def prepare(source: str | Path, options: ConvertOptions | None = None, *, download: bool = True) -> Conversion:
    """Open a source and plan its conversion; `download` fetches the weights of a Hub repository first."""
    options = options or ConvertOptions()
    _writer(layout(options.to), options.to)
    return plan_conversion(open_checkpoint(source, download=download), options)


def plan_conversion(checkpoint: Checkpoint, options: ConvertOptions | None = None) -> Conversion:
    """Decide and check a conversion without reading weights.

    Raises:
        Refused: the drafter has problems that nobody asked to repair, the layout or its engines
            cannot express it, or it is quantized.
        Undecided, UsageError: an option is missing or wrong.
        BadCheckpoint, NotADrafter: the source cannot be read.
    """
    options = options or ConvertOptions()
    target = find_target(options.target, options.target_layers)
    drafter = read_drafter(checkpoint, hints(options.source, options.aux_convention, target))
    return plan_drafter(drafter, check_drafter(drafter, target), target, options)


def plan_drafter(drafter: Drafter, findings: Findings, target: Target | None, options: ConvertOptions) -> Conversion:
    """As `plan_conversion`, for a drafter that has been read and checked already."""
    checkpoint = drafter.checkpoint
    found = layout(options.to)
    writer = _writer(found, options.to)
    _refuse_quantized(drafter)
    codes = frozenset(problem.code for problem in findings.problems)
    work, repaired = repair(start(drafter), options.repairs, codes)
    _refuse_broken(findings.problems, repaired, source=checkpoint.name)
    _refuse_limits(work, writer)
    provenance = read_provenance(checkpoint)
    returning = provenance.since_layout(found.id) if provenance else None
    work = _pass(work, writer, options, target, returning)

    names = {name: spell(name, writer.spelling, work.facts.layers) for name in work.tensors}
    spelled = _config(work, found, writer, target, names, returning)
    config, metadata = spelled.config, spelled.metadata
    verdicts = _judge(work, writer, names, config, metadata, target)
    work = _declare_config(work, checkpoint.config, config)
    tensors = tuple(
        PlannedTensor(names[name], t.dtype, t.shape, t.operation) for name, t in sorted(work.tensors.items())
    )
    conversion = Conversion(
        drafter=drafter,
        work=work,
        layout=found,
        plan=Plan(tensors, metadata=metadata, shard_size=options.shard_size),
        config=config,
        names=names,
        verdicts=verdicts,
        warnings=_warnings(findings, spelled.left | STILL_THERE),
        not_made=_not_made(findings, tensors),
        reads=_reads(checkpoint, target, options),
    )
    record = _record(conversion, options, target, provenance)
    card = {"README.md": _card(record, work, target)} if options.card else {}
    plan = replace(conversion.plan, json_files={"config.json": config, FILE: record}, text_files=card)
    return replace(conversion, plan=plan)


def _card(record: Mapping[str, object], work: Work, target: Target | None) -> str:
    from draftconv.api.card import model_card

    return model_card(record, work.facts, target)


def _writer(found: Layout, name: str) -> Writer:
    if found.writer is None:
        raise UsageError(
            f"{name} can be read, not written", why=f"layouts that can be written: {', '.join(writable())}"
        )
    return found.writer


STILL_THERE = frozenset(code for code, kind in KINDS.items() if kind.level in ("sample", "deep"))
"""Problems that are not looked for again before the output is written."""


def _warnings(findings: Findings, left: frozenset[str]) -> tuple[Problem, ...]:
    """What is still worth knowing of the output: warnings about the source that the conversion did not cure."""
    return tuple(p for p in findings.problems if p.severity != "error" and p.code in left)


def _not_made(findings: Findings, tensors: tuple[PlannedTensor, ...]) -> tuple[str, ...]:
    """Checks that were not made; values are looked at only where they have to be loaded anyway."""
    copied = sum(isinstance(t.operation, Copy) and t.dtype in FLOATS for t in tensors)
    rest = tuple(check for check in findings.not_made if not check.startswith(VALUES))
    values = f"{VALUES}: {copied} tensors are copied as they are (inspect --deep reads them)"
    return (*rest, values) if copied else rest


def _reads(checkpoint: Checkpoint, target: Target | None, options: ConvertOptions) -> tuple[Path, ...]:
    given = [path for _, _, path in (request.partition("=") for request in options.repairs) if path]
    found = [checkpoint.path, target.path if target else None, *map(local_path, given)]
    return tuple(path for path in found if path is not None)


# ── refusals ───────────────────────────────────────────────────────────────────────


def _refuse_quantized(drafter: Drafter) -> None:
    if drafter.facts.quantization:
        raise Refused(
            f"this drafter is quantized: {drafter.facts.quantization}",
            why="its integers are packed for one engine's loader, and renaming them would not make another load them",
            cure="convert the BF16 drafter that it was made from",
        )


def _refuse_broken(problems: tuple[Problem, ...], repaired: frozenset[str], *, source: str) -> None:
    broken = [problem for problem in problems if problem.severity == "error" and problem.code not in repaired]
    if not broken:
        return
    first = broken[0]
    others = f" (and {len(broken) - 1} more: {', '.join(sorted({p.code for p in broken[1:]}))})" if broken[1:] else ""
    raise Refused(
        f"{source}: {first.kind.title} [{first.code}]: {first.detail}{others}", why=first.kind.why, cure=first.kind.cure
    )


def _refuse_limits(work: Work, writer: Writer) -> None:
    for limit in writer.refuses:
        if limit.holds(work.facts):
            raise Refused(limit.what, why=limit.why, cure=limit.cure)


# ── passes ─────────────────────────────────────────────────────────────────────────


def _pass(work: Work, writer: Writer, options: ConvertOptions, target: Target | None, returning: Way | None) -> Work:
    work = passes.embedding(work, options.embed, target, force=options.force)
    work = passes.leave_embedding(work, writer.spelling, options.embed)
    work = passes.vocabulary(work, writer.spelling, returning.order if returning else None)
    work = passes.o_bias(work, writer.spelling)
    work = passes.dtype(work, options.dtype)
    return passes.positions(work, options.max_positions, target)


@dataclass(frozen=True, slots=True)
class _Spelled:
    """The config of an output, the metadata of its weights, and the codes of the problems it still has."""

    config: dict[str, object]
    metadata: Mapping[str, str]
    left: frozenset[str]


def _config(
    work: Work, found: Layout, writer: Writer, target: Target | None, names: Mapping[str, str], returning: Way | None
) -> _Spelled:
    """The layout's config.json and metadata; the recorded original ones where they still say the same."""
    if returning is not None and not _cast_since(work, returning):
        original = cast(dict[str, object], _without_code(returning.origin.config))
        metadata = {key: str(value) for key, value in returning.origin.source.section("metadata").data.items()}
        if (left := _problems_left(work, names, original, metadata, target)) is not None:
            return _Spelled(original, metadata, left)
    boundaries = work.facts.boundaries
    writing = Writing(
        facts=work.facts,
        boundaries=None if isinstance(boundaries, Taps) else boundaries,
        target=target,
        kept={key: work.drafter.config[key] for key in NEUTRAL_KEYS if _is_plain(work.drafter.config.get(key))},
        dtype=TORCH_DTYPES[passes.main_dtype(work)],
    )
    config = writer.config(writing) | {MARK: found.id}
    left = _problems_left(work, names, config, writer.metadata, target)
    if left is None:
        raise Refused(
            f"the {found.title} spelling of this drafter does not read back as the same drafter",
            why="a fact would be lost; this is a fault of draftconv",
            cure="please report it with the output of `draftconv inspect --format json`",
        )
    return _Spelled(config, writer.metadata, left)


def _is_plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, list) and all(map(_is_plain, value)))


def _cast_since(work: Work, returning: Way) -> bool:
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


def _problems_left(
    work: Work, names: Mapping[str, str], config: Mapping[str, object], metadata: Mapping[str, str],
    target: Target | None,
) -> frozenset[str] | None:  # fmt: skip
    """Problems of the planned directory, read as anybody's; None when one is an error or a fact has changed."""
    read = read_drafter(planned_checkpoint(work, names, config, metadata), Hints(target=target))
    findings = check_drafter(read, target, level="maps")
    if read.facts != work.facts or any(problem.severity == "error" for problem in findings.problems):
        return None
    return frozenset(problem.code for problem in findings.problems)


def planned_checkpoint(
    work: Work, names: Mapping[str, str], config: Mapping[str, object], metadata: Mapping[str, str]
) -> Checkpoint:
    """The output as a checkpoint, before it exists; computed tensors have their bytes, cast ones a header only."""
    tensors = {names[name]: _planned_ref(names[name], tensor) for name, tensor in work.tensors.items()}
    return Checkpoint("planned", None, config, "", tensors, metadata, {}, ())


def _planned_ref(name: str, tensor: PlannedTensor) -> TensorRef:
    match tensor.operation:
        case Copy(ref):
            file, offset = ref.file, ref.offset
        case Literal(data):
            file, offset = MemoryFile(name, data), 0
        case _:
            file, offset = MemoryFile(name, b"\1" * min(tensor.nbytes, 1 << 16)), 0
    return TensorRef(name, tensor.dtype, tensor.shape, file, offset, tensor.nbytes)


def _judge(
    work: Work, writer: Writer, names: Mapping[str, str], config: Mapping[str, object], metadata: Mapping[str, str],
    target: Target | None,
) -> tuple[Verdict, ...]:  # fmt: skip
    """What the engines this layout is for will make of it.

    Raises:
        Refused: one of them would refuse or mis-read it, or cannot be judged without --target.
    """
    planned = planned_checkpoint(work, names, config, metadata)
    verdicts: list[Verdict] = []
    for name in writer.serves:
        spec = parse_engine(name)
        verdict = ENGINES[name].check(planned, work.facts, target, spec)
        if verdict.status != "loads":
            line = next(line for line in verdict.lines if line.rule.effect == verdict.status)
            raise Refused(
                f"{ENGINES[name].title} would not serve this drafter as it was trained ({verdict.status})",
                why=f"{line.rule.says}: {line.detail} [{line.rule.code}; {line.rule.source}]",
                cure="give --target" if verdict.status == "undecided" else f"see `draftconv inspect --for {name}`",
            )
        verdicts.append(verdict)
    return tuple(verdicts)


# ── record ─────────────────────────────────────────────────────────────────────────


def _declare_config(work: Work, source: Mapping[str, object], config: Mapping[str, object], path: str = "") -> Work:
    """Declare every key of the source's config, at any depth, that the output does not have."""
    for key, value in source.items():
        kept = config.get(key)
        if key not in config and key != MARK:
            work = work.declare("dropped", f"config.json: {path}{key}", "not a key of this layout; kept in the record")
        elif isinstance(value, Mapping) and isinstance(kept, Mapping):
            work = _declare_config(work, value, kept, f"{path}{key}.")
    return work


def _record(
    conversion: Conversion, options: ConvertOptions, target: Target | None, provenance: Provenance | None
) -> dict[str, object]:
    drafter, work, found = conversion.drafter, conversion.work, conversion.layout
    checkpoint, tensors = drafter.checkpoint, conversion.plan.tensors
    chosen = {key: value for key, value in asdict(options).items() if value not in (None, ()) and key != "target"}
    renamed: dict[str, list[str]] = {}
    for name in sorted(drafter.names.keys() & conversion.names.keys()):
        renamed.setdefault(drafter.names[name], []).append(conversion.names[name])
    record: dict[str, object] = {
        "draftconv": draftconv.__version__,
        "format": FORMAT,
        "layout": found.id,
        "source": {
            "name": checkpoint.name,
            "revision": checkpoint.revision,
            "layout": drafter.detection.layout,
            "confidence": drafter.detection.confidence,
            "reasons": list(drafter.detection.reasons),
            "aux_convention": options.aux_convention,
            "files": _files(checkpoint, hashed=options.hash),
            "metadata": dict(checkpoint.metadata),
            "config": dict(checkpoint.config),
        },
        "target": {"name": target.name, "layers": target.layers, "family": target.family, "hidden": target.hidden}
        if target
        else None,
        "options": {key: _base_names(value) for key, value in chosen.items()},
        "facts": facts_json(work.facts),
        "reasons": dict(drafter.reasons),
        "renamed": {old: ", ".join(new) for old, new in sorted(renamed.items()) if [old] != new},
        "changes": [asdict(change) for change in work.changes],
        "made": _made(work, provenance),
        "lm_head_order": list(work.order) if work.order is not None else None,
        "earlier": provenance.handed_on() if provenance else [],
        "warnings": [{"code": p.code, "detail": p.detail} for p in conversion.warnings],
        "not_checked": list(conversion.not_made),
    }
    return record | {"output": output_digest({tensor.name: tensor for tensor in tensors}, conversion.config, record)}


def _made(work: Work, provenance: Provenance | None) -> dict[str, str]:
    """Hashes of the tensors that `verify` cannot compute from the source: attached, repaired, added."""
    declared = {change.what for change in work.changes if change.kind in ("added", "replaced", "repaired")}
    earlier = provenance.made if provenance else {}
    made = {}
    for name, tensor in sorted(work.tensors.items()):
        if name in earlier and isinstance(tensor.operation, Copy) and name not in declared:
            made[name] = earlier[name]
        elif name in declared or name in earlier:
            made[name] = content_hash(tensor)
    return made


def _files(checkpoint: Checkpoint, *, hashed: bool) -> list[dict[str, object]]:
    from draftconv.checkpoint.hashing import sha256

    rows: list[dict[str, object]] = []
    used = {ref.file.name: ref.file for ref in checkpoint.tensors.values()}
    for info in checkpoint.files:
        row: dict[str, object] = {"name": info.name, "size": info.size}
        if info.sha256:
            row["sha256"] = info.sha256
        elif hashed and info.name in used:
            row["sha256"] = sha256(used[info.name])
        rows.append(row)
    return rows


def _base_names(value: object) -> object:
    """Paths in options by base name only: outputs must not tell where they were made."""
    if isinstance(value, (tuple, list)):
        return [f"{code}={Path(path).name}" if path else code for code, _, path in (v.partition("=") for v in value)]
    return value
