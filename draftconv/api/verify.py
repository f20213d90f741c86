"""Prove that an output is its source: every bit compared, every difference declared.

Both directories are opened afresh and read by their own layouts. A difference passes only
if it follows from the vocabulary maps of both sides, or if it is declared in a
`draftconv.json` that belongs to the output and was made from this source; a tensor that
was attached or repaired must then still have the bytes whose hash the record holds.

Quantized weights are compared by what they stand for: one that was rounded must be the nearest
that its scales allow, one that was packed anew or dequantized the same values, bit for bit. What no
rule can tell, such as the scale of activations that was measured on a trace, is held to its hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from draftconv.checkpoint import FLOATS, Cast, Copy, PlannedTensor, Rows, TensorRef, open_checkpoint
from draftconv.checkpoint.dtypes import cast_in_words
from draftconv.checkpoint.hashing import tensor_hash
from draftconv.conversion.provenance import FILE, Lineage, Provenance, read_provenance
from draftconv.conversion.quantization_record import recorded_weights
from draftconv.conversion.working_drafter import ACTIVATIONS, DEQUANTIZED, MAPS, copy_of, output_blocks
from draftconv.display import Block, Displayed, named, table
from draftconv.drafter.describe import describe_value
from draftconv.drafter.drafter import SAME_WITHOUT, Drafter
from draftconv.drafter.facts import AuxLayers, Facts
from draftconv.drafter.fused_qparams import joined_values
from draftconv.drafter.names import canonical_name
from draftconv.drafter.targets import Target, find_target
from draftconv.drafter.vocabulary import VocabMap
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.rules import EngineSpec, Status
from draftconv.errors import DraftconvError
from draftconv.layouts import layouts
from draftconv.layouts.drafter_reader import drafter_readers
from draftconv.options import (
    ACCEPT_DETECTED,
    TARGET,
    TARGET_LAYERS,
    Place,
    Several,
    aux_convention_of_each,
    layout_of_each,
    option,
    python_only,
    takes,
)
from draftconv.quantization.exclusions import WEIGHT, fused_with
from draftconv.quantization.scheme import WeightScheme

if TYPE_CHECKING:
    from draftconv.quantization.quantized_weights import QuantizedWeights

Outcome = Literal["equal", "declared", "different"]
READ: Mapping[Status, Outcome] = {
    "loads": "equal",
    "undecided": "declared",  # passes and is listed: nobody can say it without the target
    "mis-read": "different",
    "refused": "different",
}
Record = Literal["believed", "absent", "not believed", "of another source"]


@dataclass(frozen=True, slots=True)
class ComparedItem:
    """One tensor or fact, compared."""

    what: str
    outcome: Outcome
    how: str


RECORDS: Mapping[Record, str] = {
    "absent": "There is no draftconv.json, so nothing is declared.",
    "not believed": "The draftconv.json is another directory's or something was edited, so it declares nothing.",
    "of another source": "The draftconv.json names another source, so what it declares does not count.",
}
"""What follows where a record declares nothing."""


@dataclass(frozen=True, slots=True, repr=False)
class Verification(Displayed):
    """The result of `verify`."""

    tensors: tuple[ComparedItem, ...]
    facts: tuple[ComparedItem, ...]
    directory: tuple[ComparedItem, ...]
    """What readers would make of the output as a whole: its record, its files, the engines it was written for."""
    record: Record
    """Whether a draftconv.json belongs to the output and names this source; only then it declares anything."""
    output: Drafter
    source: Drafter
    engines: tuple[EngineSpec, ...] = ()
    """The engines that the output was written for."""

    @property
    def passed(self) -> bool:
        return all(row.outcome != "different" for row in self.rows)

    @property
    def rows(self) -> tuple[ComparedItem, ...]:
        """Everything that was compared."""
        return (*self.tensors, *self.facts, *self.directory)

    @property
    def result(self) -> Literal["pass", "fail"]:
        """`passed`, in a word."""
        return "pass" if self.passed else "fail"

    def brief(self) -> Iterator[str]:
        """The verdict of which output and source, what is equal, and how much else differs."""
        yield f"{self.result}: {named(self.output.checkpoint.name)} of {named(self.source.checkpoint.name)}"
        yield f"{_count_equal(self.tensors)} of {len(self.tensors)} tensors equal"
        for outcome in ("declared", "different"):
            if count := sum(row.outcome == outcome for row in self.rows):
                yield f"{count} {outcome}"

    def blocks(self) -> Iterator[Block]:
        """The verdict, how much is equal, who reads it rightly, and every difference, undeclared ones first."""
        yield f"Verified: {self.result}"
        tensors = f"{_count_equal(self.tensors)} of {len(self.tensors)} tensors equal in every bit"
        yield f"{tensors}, {_count_equal(self.facts)} of {len(self.facts)} facts equal."
        if readers := [row.what for row in self.directory if row.outcome == "equal"]:
            yield f"Read rightly by {', '.join(readers)}."
        if self.record in RECORDS:
            yield RECORDS[self.record]
        if rows := [(row.outcome, row.what, row.how) for row in self.rows if row.outcome != "equal"]:
            yield table("Differences", "", ("", "what", "how"), sorted(rows, key=lambda row: row[0] != "different"))


def _count_equal(rows: Sequence[ComparedItem]) -> int:
    return sum(row.outcome == "equal" for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How an output and its source are read."""

    target: str | None = option(None, TARGET)
    target_layers: int | None = option(None, TARGET_LAYERS)
    layout: Several = option((), layout_of_each("SOURCE"))
    aux_convention: Several = option((), aux_convention_of_each("SOURCE"))
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    progress: Callable[[int, int], None] | None = python_only(None, "called with the bytes compared so far and in all")


@takes(VerifyOptions)
def verify(out: Place, against: Place, options: VerifyOptions) -> Verification:
    """Compare two drafters tensor by tensor and fact by fact.

    Args:
        out: the output. `against`: its source. What the conversion was told (target, layout, convention) is taken
            from a believed record, that a doubtful reading was accepted is not.

    Raises:
        Undecided: one of the two can be read in several ways.
        BadCheckpoint, NotADrafter: one of the two cannot be read.
    """
    goal = find_target(options.target, options.target_layers)
    source_reading, out_reading = drafter_readers(
        (against, out), options.layout, options.aux_convention, accept_detected=options.accept_detected
    )
    ours, theirs = (open_checkpoint(spec, download=True) for spec in (out, against))
    provenance = read_provenance(ours)
    lineage = provenance.since(theirs) if provenance else None
    if provenance and lineage:
        goal = goal or provenance.target
        recorded = lineage.origin.source
        layout = recorded.text("layout") if recorded.text("confidence") == "given" else None
        source_reading = replace(
            source_reading,
            layout=source_reading.layout or layout,
            aux_convention=source_reading.aux_convention or recorded.text("aux_convention"),
        )
    result, source = out_reading.read(ours, goal), source_reading.read(theirs, goal)
    declared = _Declared(provenance, lineage)
    record: Record = "absent" if FILE not in ours.sidecars else "of another source" if provenance else "not believed"
    engines = _engines_of(result, provenance)
    return Verification(
        tuple(_compare_tensors(result, source, declared, options.progress or (lambda _, __: None))),
        (*_compare_facts(result.facts, source.facts, declared), *_new_problems(result, source)),
        tuple(_check_directory(result, goal, engines, edited=not lineage and record == "not believed")),
        "believed" if lineage else record,
        result,
        source,
        engines,
    )


@dataclass(frozen=True, slots=True)
class _Declared:
    """What the record of the output says was changed on the way from this source."""

    provenance: Provenance | None
    lineage: Lineage | None

    def find(self, kind: str, *names: str) -> str | None:
        changes = self.lineage.changes if self.lineage else ()
        return next((c.why for c in changes if c.kind == kind and c.what in names), None)

    @property
    def from_format(self) -> str | None:
        """What the conversion was told of the source's quantized weights."""
        direct = self.provenance and self.lineage and len(self.lineage.steps) == 1
        return self.provenance.from_format if self.provenance and direct else None

    def expected_hash(self, name: str) -> str | None:
        """The hash that a tensor must have which does not come from the source as it is."""
        return self.provenance.made.get(name) if self.provenance and self.lineage else None

    def changed(self, name: str, ref: TensorRef) -> bool:
        """Whether a tensor has other bytes than those that the record holds a hash of."""
        expected = self.expected_hash(name)
        return expected is not None and tensor_hash(ref) != expected

    def dequantized(self, name: str) -> bool:
        """Whether a weight was floats in the source, was quantized on the way, and is floats again."""
        return (self.find("replaced", name) or "").startswith(DEQUANTIZED)

    def rounded(self, name: str) -> WeightScheme | None:
        """How such a weight was rounded on the way; None where nobody can tell."""
        steps = [step for step in self.lineage.steps if step.quantization] if self.lineage else []
        if len(steps) != 1 or self.find("cast", name):
            return None
        quantization = steps[0].quantization
        return recorded_weights(quantization) if quantization else None

    @property
    def direct(self) -> str:
        """The name of what the output was made from."""
        return (self.provenance.history[0].source.text("name") if self.provenance else None) or "its direct source"


def _compare_tensors(
    out: Drafter, source: Drafter, declared: _Declared, progress: Callable[[int, int], None]
) -> Iterator[ComparedItem]:
    mine, theirs = _comparable_tensors(out), _comparable_tensors(source)
    total = sum(ref.nbytes for ref in theirs.values())
    done = 0
    if out.facts.quantization or source.facts.quantization:
        weights = _Weights.of(out, source, declared)
        yield from weights.faults
        yield from weights.lies
        yield from weights.activations(declared)
        for module in weights.modules:
            yield weights.compare(module, declared)
            done += sum(ref.nbytes for name, ref in theirs.items() if name in weights.parts(module))
            progress(done, total)
        covered = {name for module in weights.modules for name in weights.parts(module)}
        mine, theirs = ({n: ref for n, ref in side.items() if n not in covered} for side in (mine, theirs))
    for name, ref in theirs.items():
        if name in mine and declared.dequantized(name):
            yield _compare_dequantized(name, mine[name], source, declared)
        elif name in mine:
            yield _compare_tensor(name, mine[name], ref, out, source, declared)
        else:
            why = declared.find("dropped", name, source.names.get(name, name))
            yield ComparedItem(name, "declared" if why else "different", why or "missing from the output")
        done += ref.nbytes
        progress(done, total)
    for name, ref in mine.items():
        if name not in theirs:
            yield _compare_hash(name, ref, declared, "added") or ComparedItem(name, "different", "not in the source")
    yield from _compare_maps(out, source, declared)
    yield from _leftovers(out, source)


@dataclass(frozen=True, slots=True)
class _Weights:
    """The weights that are quantized on one side or on both.

    Attributes:
        faults: what cannot be read; all tensors are then compared byte by byte.
    """

    out: Drafter
    source: Drafter
    mine: QuantizedWeights | None
    theirs: QuantizedWeights | None
    faults: tuple[ComparedItem, ...]

    @classmethod
    def of(cls, out: Drafter, source: Drafter, declared: _Declared) -> _Weights:
        from draftconv.quantization.quantized_weights import find_quantized

        weights: list[QuantizedWeights | None] = []
        faults = []
        for drafter, where, from_format in ((out, "the output", None), (source, "the source", declared.from_format)):
            try:
                weights.append(find_quantized(drafter, from_format) if drafter.facts.quantization else None)
            except DraftconvError as error:
                weights = [None, None]
                faults.append(ComparedItem("quantized weights", "different", f"{where} cannot be read: {error.what}"))
                break
        # Two that cannot be read may still be the same bytes.
        alike = out.facts.quantization == source.facts.quantization
        return cls(out, source, weights[0], weights[1], () if alike else tuple(faults))

    @property
    def lies(self) -> Iterator[ComparedItem]:
        """What config.json says wrongly of the output's weights, and not of the source's."""
        known = self.theirs.lies if self.theirs else ()
        for finding in self.mine.lies if self.mine else ():
            if finding not in known:
                yield ComparedItem("quantized weights", "different", finding)

    @property
    def modules(self) -> tuple[str, ...]:
        """Canonical, such as `layers.0.mlp.down_proj`."""
        return tuple(sorted({name for stored in (self.mine, self.theirs) if stored for name in stored.modules}))

    def parts(self, module: str) -> frozenset[str]:
        """The tensors of a weight on either side."""
        suffixes = {s for stored in (self.mine, self.theirs) if stored for s in stored.modules.get(module, ())}
        return frozenset(f"{module}.{suffix}" for suffix in suffixes | {WEIGHT.removeprefix(".")})

    def activations(self, declared: _Declared) -> Iterator[ComparedItem]:
        """What the inputs of weights are rounded to, when both sides say so."""
        if self.mine and self.theirs and self.mine.declared.inputs != self.theirs.declared.inputs:
            ours, theirs = (stored.declared.inputs or "16 bit" for stored in (self.mine, self.theirs))
            why = declared.find("fact", ACTIVATIONS)
            how = why or f"{ours} in the output, {theirs} in the source"
            yield ComparedItem(ACTIVATIONS, "declared" if why else "different", how)

    def compare(self, module: str, declared: _Declared) -> ComparedItem:
        from draftconv.quantization.compare_weights import compare

        name = f"{module}{WEIGHT}"
        mine, theirs = _side(self.out, self.mine, module), _side(self.source, self.theirs, module)
        if mine is None or theirs is None:
            where = "missing from the output" if mine is None else "not in the source"
            return ComparedItem(name, "different", where)
        again = declared.find("requantized", name)
        comparison = compare(module, mine, theirs, again=again is not None)
        tensors = _comparable_tensors(self.out)
        changed = sorted(n for n in self.parts(module) & tensors.keys() if declared.changed(n, tensors[n]))
        parts = ", ".join(part.removeprefix(f"{module}.") for part in changed)
        if comparison.fault:
            remark = f"; by draftconv.json its {parts} changed after it was written" if parts else ""
            return ComparedItem(name, "different", comparison.fault + remark)
        if parts:
            return ComparedItem(name, "different", f"{parts}: other bytes than draftconv.json was written for")
        if comparison.same:
            return ComparedItem(name, "equal", comparison.how)
        if again is None and declared.find("replaced", name) is None:
            return ComparedItem(name, "different", f"{comparison.how}; undeclared")
        return ComparedItem(name, "declared", comparison.how)


def _side(drafter: Drafter, stored: QuantizedWeights | None, module: str) -> QuantizedWeights | TensorRef | None:
    """Where a weight is to be had from."""
    return stored if stored and module in stored.modules else drafter.tensors.get(f"{module}{WEIGHT}")


def _comparable_tensors(drafter: Drafter) -> Mapping[str, TensorRef]:
    """Tensors to be compared one by one; the maps are compared by what they mean."""
    tensors = {**drafter.tensors, **drafter.qparams}
    return {name: ref for name, ref in tensors.items() if name not in MAPS}


def _compare_tensor(
    name: str, mine: TensorRef, ref: TensorRef, out: Drafter, source: Drafter, declared: _Declared
) -> ComparedItem:
    for kind in ("replaced", "repaired", "added"):
        if item := _compare_hash(name, mine, declared, kind):
            return item
    if mine.shape != ref.shape:
        return ComparedItem(name, "different", f"{list(mine.shape)} in the output, {list(ref.shape)} in the source")
    cast = mine.dtype != ref.dtype
    if cast and not (declared.find("cast", name) and {mine.dtype, ref.dtype} <= FLOATS):
        return ComparedItem(name, "different", f"{mine.dtype} in the output, {ref.dtype} in the source, undeclared")
    order = _row_order(name, out, source, declared)
    row = _first_unequal(mine, _expected_tensor(mine, ref, order))
    if row is not None:
        return ComparedItem(name, "different", f"first in row {row}")
    how = [cast_in_words(ref.dtype, mine.dtype)] if cast else []
    how += ["rows follow the vocabulary map"] if order else []
    return ComparedItem(name, "declared" if how else "equal", ", ".join(how) or "every bit")


def _compare_dequantized(name: str, mine: TensorRef, source: Drafter, declared: _Declared) -> ComparedItem:
    """A weight that was quantized and dequantized on the way: floats on both sides, with a rounding between."""
    from draftconv.quantization.compare_weights import rounded_again

    scheme = declared.rounded(name)
    if scheme is None:
        how = "it was quantized and dequantized on the way, and draftconv.json does not tell how it was rounded"
        return ComparedItem(name, "different", f"{how}; verify it --against {declared.direct}, which it was made from")
    fused = [source.tensors[member] for member in fused_with(name, source.tensors)]
    comparison = rounded_again(mine, source.tensors[name], fused, scheme)
    return ComparedItem(name, "different" if comparison.fault else "declared", comparison.fault or comparison.how)


def _compare_hash(name: str, mine: TensorRef, declared: _Declared, kind: str) -> ComparedItem | None:
    """A tensor that does not come from the source: its bytes against the hash in the record."""
    why = declared.find(kind, name)
    if why is None:
        return None
    if tensor_hash(mine) == declared.expected_hash(name):
        return ComparedItem(name, "declared", f"{kind}: {why}")
    return ComparedItem(name, "different", f"{kind} ({why}), but not the bytes that draftconv.json was written for")


def _expected_tensor(mine: TensorRef, ref: TensorRef, order: tuple[int, ...] | None) -> PlannedTensor:
    """What the source says this tensor must be."""
    if order is not None:
        return PlannedTensor(mine.name, mine.dtype, mine.shape, Rows(ref, order, mine.dtype))
    operation = Copy(ref) if mine.dtype == ref.dtype else Cast(ref, mine.dtype)
    return PlannedTensor(mine.name, mine.dtype, mine.shape, operation)


def _row_order(name: str, out: Drafter, source: Drafter, declared: _Declared) -> tuple[int, ...] | None:
    """Which source row each lm_head row must equal, when both sides map the same tokens in another order."""
    if name != "lm_head.weight" or not out.maps or not source.maps or not out.maps.map:
        return None
    if not source.maps.map:
        # a map that had to be repaired says nothing about rows, but the record does
        order = declared.lineage.order if declared.lineage else None
        return order if order is not None and len(order) == len(out.maps.map.ids) else None
    ours, theirs = out.maps.map.ids, source.maps.map.ids
    if ours == theirs or sorted(ours) != sorted(theirs):
        return None
    row_of = {target: row for row, target in enumerate(theirs)}
    return tuple(row_of[target] for target in ours)


def _first_unequal(mine: TensorRef, expected: PlannedTensor) -> int | None:
    """First row of the output that is not what its source says."""
    size = max(1, mine.row_bytes)
    done = 0
    for theirs in output_blocks(expected):
        ours = mine.file.read(mine.offset + done, len(theirs))
        if ours != theirs:
            return next(i for i in range(done, done + len(theirs)) if ours[i - done] != theirs[i - done]) // size
        done += len(theirs)
    return None


def _compare_maps(out: Drafter, source: Drafter, declared: _Declared) -> Iterator[ComparedItem]:
    """d2t and t2d are compared by what they mean: the set of target tokens, in row order."""
    what = "d2t and t2d"
    ours = out.maps.map if out.maps else None
    theirs = source.maps.map if source.maps else None
    faults = [*(detail for _, detail in out.maps.faults), *_mask_faults(out, ours)] if out.maps else []
    if faults:
        yield from (ComparedItem(what, "different", detail) for detail in faults)
    elif not (out.facts.reduced_vocab or source.facts.reduced_vocab):
        if (ours is None) != (theirs is None):
            yield ComparedItem(what, "declared", "the identity of a full vocabulary, which changes nothing")
    elif "d2t" in out.tensors and (item := _compare_hash("d2t", out.tensors["d2t"], declared, "repaired")):
        yield item
    elif ours is None or theirs is None or sorted(ours.ids) != sorted(theirs.ids):
        yield ComparedItem(what, "different", "they reach other target tokens")
    elif ours.ids == theirs.ids:
        yield ComparedItem(what, "equal", "every draft id stands for the same token")
    else:
        yield ComparedItem(what, "declared", "the same tokens in another order, lm_head rows along with them")


def _mask_faults(out: Drafter, mapped: VocabMap | None) -> Iterator[str]:
    """A t2d whose bytes are not those of d2t's mask, also where every reader would take it so."""
    for name, ref in out.checkpoint.tensors.items():
        if canonical_name(name) == "t2d" and ref.dtype == "BOOL" and mapped and ref.read() != mapped.t2d():
            yield f"{name} is not the mask of d2t, byte for byte"


def _leftovers(out: Drafter, source: Drafter) -> Iterator[ComparedItem]:
    """Tensors that are no part of the drafter: dropped ones are listed, the output may have no new ones."""
    for name, why in source.dropped.items():
        yield ComparedItem(name, "declared", f"not part of the drafter: {why}")
    for name, why in out.dropped.items():
        mine, theirs = (drafter.checkpoint.tensors.get(name) for drafter in (out, source))
        if mine is not None and why not in SAME_WITHOUT and not _same_bytes(mine, theirs):
            yield ComparedItem(name, "different", "a leftover that the source does not have")


def _same_bytes(mine: TensorRef, theirs: TensorRef | None) -> bool:
    if theirs is None or (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
        return False
    return _first_unequal(mine, copy_of(theirs.name, theirs)) is None


def _compare_facts(out: Facts, source: Facts, declared: _Declared) -> Iterator[ComparedItem]:
    for item in fields(Facts):
        ours, theirs = getattr(out, item.name), getattr(source, item.name)
        if ours == theirs:
            yield ComparedItem(item.name, "equal", "")
        elif why := declared.find("fact", item.name) or _implied_by(item.name, ours, theirs):
            yield ComparedItem(item.name, "declared", why)
        else:
            how = f"{describe_value(ours)} in the output, {describe_value(theirs)} in the source"
            hint = (
                "; give --target to compare them"
                if isinstance(ours, AuxLayers) or isinstance(theirs, AuxLayers)
                else ""
            )
            yield ComparedItem(item.name, "different", how + hint)


def _new_problems(out: Drafter, source: Drafter) -> Iterator[ComparedItem]:
    """Errors of the output that its source does not have: facts may agree while readers would not."""
    known = {problem.code for problem in source.problems}
    for problem in out.problems:
        if problem.severity == "error" and problem.code not in known:
            yield ComparedItem(problem.code, "different", f"{problem.kind.title}: {problem.detail}")


def _engines_of(out: Drafter, provenance: Provenance | None) -> tuple[EngineSpec, ...]:
    """The engines that the output was written for: by its record, without one by its layout."""
    if provenance and (engines := provenance.engines) is not None:
        return tuple(map(parse_engine, engines))
    writer = layouts()[out.detection.layout].writer
    return tuple(map(parse_engine, writer.serves if writer else ()))


def _check_directory(
    out: Drafter, target: Target | None, judges: Iterable[EngineSpec], *, edited: bool
) -> Iterator[ComparedItem]:
    """Faults that no tensor and no fact shows: a changed record or config, a stray file, an engine that stumbles."""
    if edited:
        detail = "does not belong to this config.json and these tensors: one of them was changed after it was written"
        yield ComparedItem(FILE, "different", detail)
    for file in out.checkpoint.files:
        if file.unused:
            yield ComparedItem(file.name, "different", "a weights file that is not part of the output")
    known = frozenset(problem.code for problem in joined_values(out))
    for spec in judges:
        verdict = ENGINES[spec.name].check(out.checkpoint, out.facts, target, spec, known)
        line = verdict.reason
        how = f"{verdict.status}: {line.rule.says}: {line.detail} [{line.rule.code}]" if line else ""
        yield ComparedItem(str(verdict.spec), READ[verdict.status], how)


def _implied_by(name: str, ours: object, theirs: object) -> str | None:
    """Differences that need no declaration."""
    match name, ours, theirs:
        case "vocab_order", "ascending" | "unordered", "ascending" | "unordered":
            return "the rows of lm_head and its map were permuted together"
    return None
