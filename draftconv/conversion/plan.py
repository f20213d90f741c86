"""A conversion on its way from a drafter to a plan that can be shown or written.

    read → repairs → passes → spell → check as the engine would → plan → (execute)

Everything before `execute` touches headers, config.json and the small vocabulary maps
only (and tables that an option compares or takes from elsewhere), so a dry run shows the
whole result, and a refused conversion has written nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

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
from draftconv.conversion import packing, passes
from draftconv.conversion.options import ConvertOptions
from draftconv.conversion.planned import judge, named_quantization, spell_config
from draftconv.conversion.provenance import FILE, OURS, Way, read_provenance
from draftconv.conversion.record import completed, make_record, sealed
from draftconv.conversion.repairs import repair
from draftconv.conversion.work import Change, Work, start
from draftconv.drafter.checks import VALUES, Findings
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.joined import CODES, joined_values
from draftconv.drafter.problems import KINDS, Problem
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import expected
from draftconv.engines import ENGINES, EngineSpec, Verdict, parse_engine
from draftconv.engines.kernels import usual_style
from draftconv.errors import Refused, UsageError
from draftconv.layouts import MARK, layout, layouts, writable
from draftconv.layouts.base import Layout, Writer
from draftconv.layouts.spelling import spell

if TYPE_CHECKING:
    from draftconv.conversion.quantized import Told
    from draftconv.quantization.reading import Stored

Progress = Callable[[int], None]


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
    """How the source was read where that is doubtful, and what is still worth knowing of the output."""
    not_made: tuple[str, ...]
    reads: tuple[Path, ...]
    """Local directories that the output is made from."""
    ambiguous: bool = False
    """Whether the output can be read in several ways too: a producer's own config.json that came back."""
    findings: tuple[str, ...] = ()
    """What of the source's quantized weights is not as its config.json says."""

    @property
    def changes(self) -> tuple[Change, ...]:
        return self.work.changes

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


def plan_drafter(
    drafter: Drafter,
    findings: Findings,
    target: Target | None,
    options: ConvertOptions,
    *,
    packer: Callable[[Work], Work] | None = None,
    engines: Sequence[EngineSpec] = (),
    told: Told | None = None,
    again: tuple[Stored, Collection[str]] | None = None,
) -> Conversion:
    """As `plan_conversion`, for a drafter that has been read and checked already.

    Args:
        packer: the last pass, which may quantize weights.
        engines: who has to read quantized weights; floats are for those that the layout is for.
        told: what the record and the card tell of a quantization.
        again: the quantized weights of the source, and the names of those that `packer` quantizes again.
    """
    checkpoint = drafter.checkpoint
    found = layout(options.to)
    writer = writer_of(found, options.to)
    codes = frozenset(problem.code for problem in findings.problems)
    work = start(drafter)
    joined = frozenset[str]()
    if again is not None:
        stored: Stored | None = again[0]
        work = packing.taken_apart(work, *again)
    elif (stored := _stored(drafter, options)) is not None:
        if options.dequantize:
            work = packing.dequantize(work, stored, passes.float_dtype(options.dtype))
            work = work.with_facts("its weights were dequantized", quantization=None)
        else:
            floats, packed = packing.apart(stored, options.unpack)
            packing.refuse_heads(packed)
            work = packing.dequantize(work, floats, passes.float_dtype(options.dtype))
            work = packing.without_quantized(work, packed)
            joined = _joined(drafter, packed)
            packer, engines = _repacking(packed, found, options, target, engines)
    work, repaired = repair(work, options.repairs, codes)
    # That undeclared integers are no floats is settled once they have been recognised.
    settled = repaired | {UNDECLARED_INTEGERS} if stored is not None else repaired
    _refuse_broken(findings.problems, settled, source=checkpoint.name)
    _refuse_limits(work, writer)
    provenance = read_provenance(checkpoint)
    twins = (name for name, other in layouts().items() if other.twin == found.id)
    returning = provenance.since_layout(found.id, *twins) if provenance else None
    work = _pass(work, writer, options, target, returning)
    if packer is not None:
        work = packer(work)

    names = {name: spell(name, writer.spelling, work.facts.layers) for name in work.tensors}
    spelled = spell_config(work, found, writer, target, names, returning)
    config, metadata = spelled.config, spelled.metadata
    if work.packed is not None:
        work = named_quantization(work, spelled, names, target)
    readers = engines if packer is not None else [parse_engine(name) for name in writer.serves]
    verdicts = judge(work, readers, names, spelled, target, joined)
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
        warnings=_warnings(findings, spelled.left | STILL_THERE | joined),
        not_made=findings.not_made if options.deep else _not_made(findings, tensors),
        reads=_reads(checkpoint, target, options),
        ambiguous="reading-doubtful" in spelled.left,
        findings=stored.findings if stored else (),
    )
    record = make_record(conversion, options, target, provenance, told)

    def last_files(hashes: Hashes) -> dict[str, Document]:
        whole = completed(record, planned, hashes)
        card = {"README.md": _card(whole, work, target, told)} if options.card else {}
        return {FILE: sealed(whole, planned, card), **card}

    sidecars = work.packed.sidecars if work.packed else {}
    plan = replace(conversion.plan, files={"config.json": config, **sidecars}, last_files=last_files)
    planned = replace(conversion, plan=plan)
    return planned


def _card(record: Mapping[str, object], work: Work, target: Target | None, told: Told | None) -> str:
    from draftconv.conversion.card import model_card

    return model_card(record, work.facts, target, told)


def writer_of(found: Layout, name: str) -> Writer:
    if found.writer is None:
        raise UsageError(
            f"{name} can be read, not written", why=f"layouts that can be written: {', '.join(writable())}"
        )
    return found.writer


STILL_THERE = frozenset(code for code, kind in KINDS.items() if kind.level in ("sample", "deep")) - CODES
"""Problems that are not looked for again before the output is written."""


def _warnings(findings: Findings, left: frozenset[str]) -> tuple[Problem, ...]:
    """Warnings that no conversion cures, of how the source was read, and those that this one did not."""
    return tuple(p for p in findings.problems if p.severity != "error" and (p.kind.reading or p.code in left))


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


def _stored(drafter: Drafter, options: ConvertOptions) -> Stored | None:
    """The quantized weights of the source; None for one that has none.

    Raises:
        Refused: they are there and nobody said what to do with them, or no format that is known.
        UsageError: an option is about quantized weights and there are none, or two contradict each other.
    """
    asked = [f"--{name}" for name in ("dequantize", "pack") if getattr(options, name)]
    if options.unpack and not options.pack:
        raise UsageError("--unpack belongs to --pack", cure="use --dequantize to write floats only")
    if drafter.facts.quantization is None:
        if asked:
            raise UsageError(f"{asked[0]} is about quantized drafters, this one is not quantized")
        if options.from_format:
            raise UsageError("--from-format is about quantized drafters, this one is not quantized")
        return None
    if not asked:
        raise Refused(
            f"this drafter is quantized: {drafter.facts.quantization}",
            why="its integers are packed for one engine's loader, and renaming them would not make another load them",
            cure="add --pack compressed-pack to write the same integers for vLLM, or --dequantize to write floats",
        )
    if len(asked) > 1:
        raise UsageError("--dequantize and --pack contradict each other", cure="give one of the two")
    from draftconv.quantization.reading import find_stored

    return find_stored(drafter, options.from_format)


def _repacking(
    stored: Stored, found: Layout, options: ConvertOptions, target: Target | None, engines: Sequence[EngineSpec]
) -> tuple[Callable[[Work], Work], Sequence[EngineSpec]]:
    """The last pass of a repack, and who has to read what comes of it.

    Raises:
        UsageError: no such format or style. Refused: it cannot hold the integers.
    """
    from draftconv.quantization.formats import find_format

    form, style = find_format(str(options.pack))
    specs = engines or ([parse_engine(found.id)] if found.id in ENGINES else [])
    style = style or next((usual_style(spec.name, form.id) for spec in specs), None)
    scheme, rounded = packing.same_integers(stored, form, lossy=options.allow_lossy)

    def pack(work: Work) -> Work:
        quantized = [f"{module}.weight" for module in stored.modules]
        kept = [name for name in expected(work.facts) if name.endswith(".weight") and name not in quantized]
        ignore, listed = packing.spelled(form.id, work.facts, kept, quantized, specs, target)
        return packing.repack(work, stored, packing.Form(form, style, scheme, ignore, listed, rounded))

    return pack, specs


def _joined(drafter: Drafter, packed: Stored) -> frozenset[str]:
    """Problems of the values beside joined weights that stay when these are repacked."""
    kept = {name: ref for name, ref in drafter.companions.items() if name.rpartition(".")[0] in packed.modules}
    return frozenset(problem.code for problem in joined_values(replace(drafter, companions=kept)))


UNDECLARED_INTEGERS = "tensor-dtype"
"""The problem that integers without a quantization_config are."""


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
    work = passes.embedding(work, writer.spelling, options.embed, target, force=options.force)
    work = passes.leave_embedding(work, writer.spelling, options.embed, target, force=options.force)
    work = passes.vocabulary(work, writer.spelling, returning.order if returning else None)
    work = passes.o_bias(work, writer.spelling)
    work = passes.dtype(work, options.dtype)
    return passes.positions(work, options.max_positions, target)


def _declare_config(work: Work, source: Mapping[str, object], config: Mapping[str, object], path: str = "") -> Work:
    """Declare every key of the source's config, at any depth, that the output does not have."""
    for key, value in source.items():
        kept = config.get(key)
        if key not in config and key != MARK:
            work = work.declare("dropped", f"config.json: {path}{key}", "not a key of this layout; kept in the record")
        elif isinstance(value, Mapping) and isinstance(kept, Mapping):
            work = _declare_config(work, value, kept, f"{path}{key}.")
    return work
