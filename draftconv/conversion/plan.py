"""A conversion on its way from a drafter to a plan that can be shown or written.

    read → what becomes of quantized weights → passes → spell → check as the engine would → plan → (execute)

Everything before `execute` touches headers, config.json and the small vocabulary maps
only (and tables that an option compares or takes from elsewhere), so a dry run shows the
whole result, and a refused conversion has written nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftconv.checkpoint import (
    FLOATS,
    Checkpoint,
    Copy,
    Document,
    Hashes,
    Plan,
    PlannedTensor,
    local_path,
)
from draftconv.checkpoint.staging import refuse_occupied, refuse_same
from draftconv.checkpoint.text import size
from draftconv.conversion.changed_drafter import change_drafter, spell_drafter
from draftconv.conversion.licenses import SourceTerms, find_terms, license_files
from draftconv.conversion.options import ConvertOptions, Progress
from draftconv.conversion.planned_output import judge, planned_checkpoint
from draftconv.conversion.provenance import FILE, OURS, read_provenance
from draftconv.conversion.pruning.tokens import KeptTokens
from draftconv.conversion.quantization_plan import QuantizationPlan
from draftconv.conversion.quantization_record import QuantizationRecord, quantization_record
from draftconv.conversion.readers import (
    LeftOut,
    for_most,
    portable_engines,
    refuse_unread_form,
    shared_layouts,
    without_kernel,
)
from draftconv.conversion.record import completed, make_record, sealed
from draftconv.conversion.repack_plan import RepackPlan
from draftconv.conversion.request import ConversionRequest
from draftconv.conversion.weight_plan import plan_weights
from draftconv.conversion.working_drafter import CONFIG_KEY, Change, WorkingDrafter, grouped
from draftconv.display import Block, Displayed, named, table
from draftconv.drafter.checks import VALUES, Findings
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts
from draftconv.drafter.fused_qparams import CODES
from draftconv.drafter.problems import KINDS, Problem
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import EMBEDDING
from draftconv.engines import ENGINES, Engine, EngineSpec, LoadVerdict, parse_engine
from draftconv.errors import Refused
from draftconv.layouts import MARK, layout
from draftconv.layouts.base import Layout, ReadOptions, Writer
from draftconv.layouts.portable import PORTABLE
from draftconv.layouts.reader import read_drafter
from draftconv.options import several


@dataclass(frozen=True, slots=True, repr=False)
class Conversion(Displayed):
    """A conversion that is decided and checked, and not yet written."""

    drafter: Drafter
    work: WorkingDrafter
    layout: Layout
    plan: Plan
    config: Mapping[str, object]
    names: Mapping[str, str]
    verdicts: tuple[LoadVerdict, ...]
    left_out: tuple[LeftOut, ...]
    """Where no engine was named: those that do not read it, and why."""
    warnings: tuple[Problem, ...]
    """How the source was read where that is doubtful, and what is still worth knowing of the output."""
    not_made: tuple[str, ...]
    reads: tuple[Path, ...]
    """Local directories that the output is made from."""
    ambiguous: bool = False
    """Whether the output can be read in several ways too: a producer's own config.json that came back."""
    findings: tuple[str, ...] = ()
    """What of the source's quantized weights is not as its config.json says."""
    quantization: QuantizationRecord | None = None
    """What the record and the card tell of a quantization."""
    pruning: KeptTokens | None = None
    certificate: Mapping[str, object] | None = None
    """What the record and the card tell of its accept length."""
    terms: tuple[SourceTerms, ...] = ()
    """What each of its sources says of its license."""

    @property
    def changes(self) -> tuple[Change, ...]:
        return self.work.changes

    def brief(self) -> Iterator[str]:
        """What became what, how large it is, how many changes were made, and who reads it how."""
        yield f"{named(self.drafter.checkpoint.name)} for {self.layout.title}"
        yield self._size()
        yield f"{len(self.changes)} change{'s' * (len(self.changes) != 1)}"
        yield from (f"{verdict.spec.name}: {verdict.status}" for verdict in self.verdicts)

    def blocks(self) -> Iterator[Block]:
        """What is written, and who reads it; then changes, config keys left out, notes and warnings."""
        files = f" in {count} files" if (count := len(self.plan.shards())) > 1 else ""
        readers = ", ".join(f"{verdict.spec} {verdict.status}" for verdict in self.verdicts)
        checked = f" ({readers})" if readers else ""
        yield f"{self._size()} for {self.layout.title}{files}{checked}"
        keys = [c.what.removeprefix(CONFIG_KEY) for c in self.changes if c.what.startswith(CONFIG_KEY)]
        others = [change for change in self.changes if not change.what.startswith(CONFIG_KEY)]
        if rows := [(group.kind, group.what, group.why) for group in grouped(others)]:
            yield table("Changes", "", ("", "what", "why"), rows)
        if keys:
            yield f"Config keys left out, kept in draftconv.json: {', '.join(keys)}."
        yield from (f"Note: {finding}." for finding in self.findings)
        for source in self.terms:
            yield from (f"Note: not taken over from {source.source}: {fault}." for fault in source.faults)
        for problem in (warning for warning in self.warnings if not warning.kind.reading):
            yield f"{problem.severity.capitalize()} {problem.code}: {problem.detail}"
        yield from (f"Warning: {left}" for left in self.left_out)
        if self.not_made:
            yield f"Not checked: {'; '.join(self.not_made)}."

    def _size(self) -> str:
        return f"{len(self.plan.tensors)} tensors, {size(self.plan.total_bytes)}"

    def write(self, out: str | Path, *, overwrite: bool = False, progress: Progress | None = None) -> None:
        """Write the directory `out`, which appears whole or not at all.

        Raises:
            UsageError: `out` overlaps something that is read.
            Refused: a value that had to be loaded is NaN or infinite, a tensor is all zeros, or a cast overflows.
            WriteError: the file system refuses.
        """
        from draftconv.checkpoint.execute import execute

        for path in self.reads:
            refuse_same(path, Path(out))
        execute(self.plan, Path(out), overwrite=overwrite, mark=OURS, progress=progress, deep=True)


def refuse_place(source: str | Path, out: str | Path, *, overwrite: bool = False) -> None:
    """Refuse an `out` that `Conversion.write` would refuse, before anything is downloaded or computed.

    Raises:
        UsageError: it overlaps the source. WriteError: it may not be replaced or written to.
    """
    if (path := local_path(source)) is not None:
        refuse_same(path, Path(out))
    refuse_occupied(Path(out), overwrite=overwrite, mark=OURS)


def plan_drafter(drafter: Drafter, findings: Findings, target: Target | None, request: ConversionRequest) -> Conversion:
    """Decide and check the conversion of a drafter that has been read and checked.

    Where no layout is named, it is for the engines of the request; where none of these is either, for as many as
    one directory can serve, and `Conversion.left_out` tells of the others.

    Raises:
        Refused: the drafter has problems that nobody asked to repair, the layout or its engines
            cannot express it, no engine reads it, or nobody said what to do with its quantized weights.
        UsageError: an option is missing or wrong. BadCheckpoint: quantized weights cannot be read.
    """

    def plan_for(engines: Sequence[Engine], left_out: tuple[LeftOut, ...], readers: Sequence[EngineSpec]) -> Conversion:
        """The conversion in the first layout that holds it."""
        layouts_left = [*shared_layouts(engines)]
        while True:
            out_layout, *layouts_left = layouts_left
            chosen = replace(request, options=replace(request.options, to=out_layout.id))
            try:
                return _plan(drafter, findings, target, chosen, out_layout, readers, left_out)
            except Refused:
                if not layouts_left:
                    raise

    if request.options.to is not None:
        return _plan(drafter, findings, target, request, layout(request.options.to))
    if request.engines:
        return plan_for([ENGINES[spec.name] for spec in request.engines], (), request.engines)
    unread = without_kernel(plan_weights(drafter, layout(PORTABLE), request).making, drafter.facts)
    able = [engine for engine in portable_engines() if engine.name not in {left.engine for left in unread}]
    if not able:  # a format that no engine reads has readers of its own, who are not asked
        return for_most(portable_engines(), lambda engines, _: plan_for(engines, unread, []))
    return for_most(
        able,
        lambda engines, left_out: plan_for(engines, left_out, [parse_engine(engine.name) for engine in engines]),
        unread=unread,
    )


def _plan(
    drafter: Drafter,
    findings: Findings,
    target: Target | None,
    request: ConversionRequest,
    out_layout: Layout,
    readers: Sequence[EngineSpec] | None = None,
    left_out: tuple[LeftOut, ...] = (),
) -> Conversion:
    """The conversion in one layout.

    Args:
        readers: who has to read it; None is whoever its quantized weights are made for, or else its layout.
        left_out: who does not read it, and why.
    """
    checkpoint, options = drafter.checkpoint, request.options
    provenance = read_provenance(checkpoint)
    changed = change_drafter(drafter, findings, target, request, out_layout, provenance)
    writer, weights = changed.writer, changed.weights
    work, names, spelled = spell_drafter(changed, target)
    config, metadata = spelled.config, spelled.metadata
    if readers is None:
        readers = _readers(weights.making, writer, drafter.facts)
    verdicts = judge(work, readers, names, spelled, target, weights.joined)
    work = _declare_config(work, checkpoint.config, config, moved=out_layout.flatten(config))
    known = {problem.code for problem in findings.problems}
    tensors = tuple(
        PlannedTensor(names[name], t.dtype, t.shape, t.operation) for name, t in sorted(work.tensors.items())
    )
    plan = Plan(tensors, metadata=metadata, shard_size=options.shard_size)
    terms = find_terms(checkpoint, plan.source_directories())
    conversion = Conversion(
        drafter=drafter,
        work=work,
        layout=out_layout,
        plan=plan,
        config=config,
        names=names,
        verdicts=verdicts,
        left_out=left_out,
        warnings=(
            *_warnings(
                findings, (spelled.codes | STILL_THERE | weights.joined) - _cured(work), several(options.repairs)
            ),
            *(p for p in spelled.problems if p.kind.written and p.code not in known),
        ),
        not_made=findings.not_made if options.deep else _not_made(findings, tensors),
        reads=_local_directories(checkpoint, target, options),
        ambiguous="reading-doubtful" in spelled.codes,
        findings=weights.stored.findings if weights.stored else (),
        quantization=quantization_record(request.quantizing) if request.quantizing else None,
        pruning=request.pruning,
        certificate=request.certificate,
        terms=terms,
    )
    record = make_record(conversion, options, target, provenance)

    def last_files(hashes: Hashes) -> dict[str, Document]:
        whole = completed(record, planned, hashes)
        card = {"README.md": _render_card(whole, planned, target)} if options.card else {}
        return {FILE: sealed(whole, planned, card, hashes), **card}

    sidecars = work.packed.sidecars if work.packed else {}
    files: dict[str, Document] = {"config.json": config, **sidecars, **license_files(terms)}
    plan = replace(plan, files=files, last_files=last_files)
    planned = replace(conversion, plan=plan)
    return planned


def _readers(making: RepackPlan | QuantizationPlan | None, writer: Writer, facts: Facts) -> Sequence[EngineSpec]:
    """Who has to read an output: the engines that its weights are packed for, or all that its layout is for.

    Raises:
        Refused: one of several that have to has no kernel for the weights.
    """
    if making is not None and making.specs:
        return making.specs
    readers = [parse_engine(name) for name in writer.serves]
    if making is None:
        return readers
    for spec in readers:
        try:
            refuse_unread_form(making, spec, facts)
        except Refused as refusal:
            raise Refused(
                f"{ENGINES[spec.name].title} would not read these quantized weights",
                why=f"{PORTABLE} promises one directory for every engine, and {refusal.why}",
                cure="leave out --to to write for the engines that do, name one of them with --to, "
                "or take --dequantize instead of --pack",
            ) from refusal
    return readers


def _render_card(record: Mapping[str, object], conversion: Conversion, target: Target | None) -> str:
    from draftconv.conversion.card import Carded, model_card

    work = conversion.work
    planned = planned_checkpoint(work, conversion.names, conversion.config, conversion.plan.metadata)
    drafter = replace(read_drafter(planned, ReadOptions(target=target)), facts=work.facts)
    return model_card(record, Carded(drafter, target, conversion.terms, work.changes, conversion.quantization))


STILL_THERE = frozenset(code for code, kind in KINDS.items() if kind.level in ("sample", "deep")) - CODES
"""Problems that are not looked for again before the output is written."""


OF_EMBEDDING = frozenset({"embedding-differs", "embedding-random"})
"""What the target's table in place of the drafter's cures."""


def _warnings(findings: Findings, left: frozenset[str], repaired: Collection[str]) -> tuple[Problem, ...]:
    """Warnings that no conversion cures, of how the source was read, and those that this one did not."""
    return tuple(
        p
        for p in findings.problems
        if p.severity != "error" and p.code not in repaired and (p.kind.reading or p.code in left)
    )


def _cured(work: WorkingDrafter) -> frozenset[str]:
    """Problems of stored values that went with the tensor that had them."""
    replaced = any(change.kind == "replaced" and change.what == EMBEDDING for change in work.changes)
    return OF_EMBEDDING if replaced else frozenset()


def _not_made(findings: Findings, tensors: tuple[PlannedTensor, ...]) -> tuple[str, ...]:
    """Checks that were not made; values are looked at only where they have to be loaded anyway."""
    copied = sum(isinstance(t.operation, Copy) and t.dtype in FLOATS for t in tensors)
    rest = tuple(check for check in findings.not_made if not check.startswith(VALUES))
    values = f"{VALUES}: {copied} tensors are copied as they are (inspect --deep reads them)"
    return (*rest, values) if copied else rest


def _local_directories(checkpoint: Checkpoint, target: Target | None, options: ConvertOptions) -> tuple[Path, ...]:
    paths = [path for _, _, path in (request.partition("=") for request in several(options.repairs)) if path]
    directories = [checkpoint.path, target.path if target else None, *map(local_path, paths)]
    return tuple(path for path in directories if path is not None)


def _declare_config(
    work: WorkingDrafter,
    source: Mapping[str, object],
    config: Mapping[str, object],
    path: str = "",
    *,
    moved: Mapping[str, object],
) -> WorkingDrafter:
    """Declare every key of the source's config, at any depth, that the output does not have.

    Args:
        moved: the output's keys wherever a reader of its layout finds them; one that only moved is still there.
    """
    for key, value in source.items():
        kept = config.get(key)
        if isinstance(value, Mapping) and (isinstance(kept, Mapping) or (key not in config and value.keys() & moved)):
            inner = kept if isinstance(kept, Mapping) else {}
            work = _declare_config(work, value, inner, f"{path}{key}.", moved=moved)
        elif key not in config and key not in moved and DTYPE_KEYS.get(key) not in moved and key != MARK:
            work = work.declare("dropped", f"{CONFIG_KEY}{path}{key}", "not a key of this layout; kept in the record")
    return work


DTYPE_KEYS = {"torch_dtype": "dtype", "dtype": "torch_dtype"}
"""Two names of one key: of transformers 4, and of 5."""
