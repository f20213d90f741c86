"""Accept-length parity by replay: is the candidate as good as its reference?

Everything runs in one pass over the trace: the reference, the candidates, and, where asked
for, one arm per quantized tensor (`attribute`) and one per fault (`self_test`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import draftconv
from draftconv.api.hints import hints
from draftconv.api.words import word
from draftconv.api.work import facts_json
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target
from draftconv.errors import Refused, UsageError
from draftconv.layouts.reading import read_drafter
from draftconv.parity.extension import extend
from draftconv.parity.records import Record, paired
from draftconv.parity.report import read_report
from draftconv.parity.report.model import About, Arm, Attribution, Comparison, Control, Report
from draftconv.parity.trace import Entry, Trace, open_trace, tensor_hash
from draftconv.parity.verdict import EXACT, EXIT_CODES, GATES, Gate, Kind, judge
from draftconv.quantization.exclusions import select
from draftconv.quantization.recipes import Recipe, find_recipe
from draftconv.quantization.scheme import GRIDS
from draftconv.reference.counts import Counts

if TYPE_CHECKING:
    from draftconv.parity import arms, controls, replay

DTYPES = ("float32", "bfloat16", "float16", "float64")
SELF_TEST_GATE = Gate(0.02)

TOLD = (
    "eagle", "attention", "layers", "hidden", "vocab",
    "draft_vocab", "boundaries", "rope", "fusion", "feedback",
)  # fmt: skip
"""Facts that the report states of each arm."""


@dataclass(frozen=True, slots=True)
class ParityOptions:
    """How arms are compared.

    Attributes:
        margin: accepted loss of accept length as a share; 0 asks for equal counts; None takes
            what `parity.verdict.GATES` asks of this kind of candidate.
        depth: K, drafted tokens per step.
        semantics: which engine decides whose embedding and head are used.
        dtype, device: what replay computes in, and where torch runs it.
        fake_quant: recipes; each adds a candidate: the reference as the recipe would leave it.
        attribute: measure the cost of each tensor that a candidate changed.
        self_test: replay the negative controls too.
        limit: only so many requests of the trace.
        extend: an earlier, inconclusive report; its requests count too.
        layout, aux_convention: how to read the drafters, as `inspect` has them.
        command: argv for the report.
    """

    margin: float | None = None
    depth: int = 3
    semantics: arms.Semantics = "vllm"
    dtype: str = "float32"
    device: str = "cpu"
    fake_quant: tuple[str, ...] = ()
    attribute: bool = False
    self_test: bool = False
    limit: int | None = None
    extend: Path | None = None
    layout: str | None = None
    aux_convention: str | None = None
    command: tuple[str, ...] = ()


def parity(
    reference: str | Path,
    candidates: Sequence[str | Path] = (),
    *,
    trace: str | Path,
    options: ParityOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Replay drafters on a trace and judge each candidate against the reference.

    Args:
        candidates: directories or Hub ids; `options.fake_quant` adds simulated ones.
        progress: told the tokens replayed so far and in all.

    Raises:
        UsageError: nothing to compare, or the trace lacks something that replay needs.
        BadCheckpoint, Refused, Undecided: a drafter or the trace cannot be read or computed.
    """
    options = options or ParityOptions()
    if not (candidates or options.fake_quant or options.self_test):
        raise UsageError(
            "there is no candidate to compare with the reference",
            cure="name a second drafter, or add --fake-quant RECIPE or --self-test",
        )
    earlier = read_report(options.extend) if options.extend else None
    opened = open_trace(trace)
    entries = opened.entries[: options.limit]
    found = _report(opened, entries, _arms(opened, reference, candidates, options), options, progress)
    return extended(earlier, found) if earlier else found


def exit_code(report: Report) -> int:
    """0 if every candidate passed and every control was caught, else what the worst of them asks for.

    Void comes before a failure: where the measurement is not to be trusted, neither is the failure.
    """
    codes = {comparison.verdict.exit_code for comparison in report.comparisons}
    if any(control.caught is False for control in report.controls):
        codes.add(EXIT_CODES["fail"])
    if any(control.outcome == "void" for control in report.controls):
        codes.add(EXIT_CODES["void"])
    return next((code for code in _WORST_FIRST if code in codes), 0)


_WORST_FIRST = tuple(EXIT_CODES[outcome] for outcome in ("void", "fail", "inconclusive"))


# ── arms ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Side:
    """A drafter in the run: what the report says of it, what is replayed, and what is asked of it.

    Attributes:
        parts: tensor name → the reference with only that tensor as it is here.
    """

    about: Arm
    arm: replay.Arm
    gate: Gate = EXACT
    parts: Mapping[str, replay.Arm] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Arms:
    """Everything that is replayed in one pass; see the module's text."""

    reference: _Side
    candidates: tuple[_Side, ...]
    again: replay.Arm
    twin: replay.Arm | None
    broken: tuple[tuple[controls.Fault, replay.Arm | str], ...]

    def others(self) -> list[replay.Arm]:
        """Arms of which only counts are wanted."""
        parts = [part for side in self.candidates for part in side.parts.values()]
        broken = [arm for _, arm in self.broken if not isinstance(arm, str)]
        return [self.again, *parts, *([self.twin] if self.twin else []), *broken]


def _arms(trace: Trace, reference: str | Path, candidates: Sequence[str | Path], options: ParityOptions) -> _Arms:
    import torch

    from draftconv.parity.arms import Loading, load_arm
    from draftconv.quantization.simulate import simulate, stored_dtypes

    how = Loading(trace, options.semantics, getattr(torch, options.dtype), options.device)
    drafters = [_read(spec, trace, options) for spec in (reference, *candidates)]
    names = _names([drafter.checkpoint.name for drafter in drafters])
    first = load_arm(names[0], drafters[0], how)
    sides = [_Side(_about(names[0], drafters[0]), first)]
    for name, drafter in zip(names[1:], drafters[1:], strict=True):
        arm = load_arm(name, drafter, how, like=first.model)
        parts = _replaced(first, arm) if options.attribute else {}
        sides.append(_Side(_about(name, drafter), arm, _gate("conversion", options), parts))
    for recipe in map(find_recipe, options.fake_quant):
        stored = stored_dtypes(drafters[0])
        arm = replace(first, name=f"{names[0]} as {recipe.name}", model=simulate(first.model, recipe, stored=stored))
        parts = {}
        if options.attribute:
            for tensor in select(recipe, drafters[0].facts).quantized:
                model = simulate(first.model, recipe, only=[tensor], stored=stored)
                parts[tensor] = replace(first, name=f"{arm.name}: {tensor}", model=model)
        about = replace(sides[0].about, name=arm.name, quantization=f"simulated {recipe.name}: {recipe.scheme}")
        sides.append(_Side(about, arm, _gate(_kind(recipe), options), parts))
    twin, broken = _controls(first, trace) if options.self_test else (None, ())
    again = replace(first, name=f"{first.name} again")
    return _Arms(sides[0], tuple(sides[1:]), again, twin, broken)


def _read(spec: str | Path, trace: Trace, options: ParityOptions) -> Drafter:
    about = trace.about
    target = Target(about.target, about.layers, hidden=about.hidden, vocab=about.vocab)
    checkpoint = open_checkpoint(spec, download=True)
    return read_drafter(checkpoint, hints(options.layout, options.aux_convention, target))


def _names(names: Sequence[str]) -> list[str]:
    """The same names, each said once: a second `out` becomes `out (2)`."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return unique


def _replaced(reference: replay.Arm, candidate: replay.Arm) -> dict[str, replay.Arm]:
    """The reference with one tensor of the candidate, for every tensor that differs.

    Raises:
        Refused: the two are not the same drafter but for their weights.
    """
    import torch

    if reference.model.facts != candidate.model.facts:
        raise Refused(
            f"{candidate.name} computes something else than {reference.name} ",
            why="the cost of one tensor can only be told between drafters that differ in weights alone",
            cure="leave out --attribute; `draftconv diff` shows how they differ",
        )
    mine, theirs = reference.model.state_dict(), candidate.model.state_dict()
    return {
        name: replace(
            reference, name=f"{candidate.name}: {name}", model=reference.model.changed(tensors={name: theirs[name]})
        )
        for name in mine
        if not torch.equal(mine[name], theirs[name])
    }


def _controls(arm: replay.Arm, trace: Trace) -> tuple[replay.Arm, tuple[tuple[controls.Fault, replay.Arm | str], ...]]:
    from draftconv.parity.controls import FAULTS, subject

    of = subject(arm, trace.about.boundaries)
    broken = tuple((fault, fault.apply(of)) for fault in FAULTS)
    named = tuple(
        (fault, made if isinstance(made, str) else replace(made, name=f"{arm.name}: {fault.name}"))
        for fault, made in broken
    )
    return replace(of.with_codes({}), name=f"{arm.name} in INT4"), named


def _kind(recipe: Recipe) -> Kind:
    return "4-bit" if GRIDS[recipe.scheme.weights.grid].bits == 4 else "8-bit"


def _gate(kind: Kind, options: ParityOptions) -> Gate:
    match options.margin:
        case None:
            return GATES[kind, "replay"]
        case 0:
            return EXACT
        case margin:
            return Gate(margin)


# ── extension ──────────────────────────────────────────────────────────────────────


def extended(earlier: Report, new: Report) -> Report:
    """Judge the requests of an earlier, inconclusive report and of a new one together.

    `parity.extension` has the rules. Places and diagnostics are those of the new requests.

    Raises:
        UsageError: the two cannot be one sample.
    """
    if len(earlier.comparisons) != 1 or len(new.comparisons) != 1:
        raise UsageError(
            f"the report has {len(earlier.comparisons)} candidates, this run {len(new.comparisons)}",
            why="an extension is about one candidate",
            cure="name the one candidate of the report",
        )
    (old,), (now,) = earlier.comparisons, new.comparisons
    sample = extend(earlier.earlier(old), new.sample(now))
    names = {old.reference: now.reference, old.candidate: now.candidate}
    if old.again and now.again:
        names[old.again] = now.again
    before = (replace(line, arm=names[line.arm]) for line in earlier.records if line.arm in names)
    records = (*before, *new.records)
    comparison = Comparison.of(
        records,
        now.reference,
        now.candidate,
        now.verdict.gate,
        how=now.verdict.how,
        again=now.again,
        errors=sample.errors,
        extended=True,
        losses=now.losses,
        diagnostics=now.diagnostics,
    )
    return replace(new, about=_joined(earlier.about, new.about), records=records, comparisons=(comparison,))


def _joined(old: About, new: About) -> About:
    def both(first: str | None, second: str | None) -> str:
        return hashlib.sha256(f"{first} {second}".encode()).hexdigest()

    return replace(
        new,
        prompts=f"{old.prompts} + {new.prompts}",
        prompts_sha256=both(old.prompts_sha256, new.prompts_sha256),
        trace=both(old.trace, new.trace),
    )


# ── the report ─────────────────────────────────────────────────────────────────────


def _report(
    trace: Trace,
    entries: Sequence[Entry],
    arms: _Arms,
    options: ParityOptions,
    progress: Callable[[int, int], None] | None,
) -> Report:
    from draftconv.parity.run import run

    total, done = sum(entry.prompt + entry.counted + trace.about.depth for entry in entries), 0

    def report(tokens: int) -> None:
        nonlocal done
        done += tokens
        if progress:
            progress(done, total)

    reference = arms.reference.arm
    found = run(
        trace, entries, reference, [side.arm for side in arms.candidates], arms.others(),
        depth=options.depth, progress=report,
    )  # fmt: skip
    comparisons = tuple(
        Comparison.of(
            found.records,
            reference.name,
            side.arm.name,
            side.gate,
            how="replay",
            again=arms.again.name,
            losses=found.tallies[side.arm.name].losses(),
            diagnostics=replace(
                found.tallies[side.arm.name].diagnostics(),
                attribution=_attribution(found.records, reference, side),
            ),
        )
        for side in arms.candidates
    )
    told = (
        arms.reference.about,
        replace(arms.reference.about, name=arms.again.name),
        *(s.about for s in arms.candidates),
    )
    names = {arm.name for arm in told}
    return Report(
        about=_run_about(trace, entries, options),
        arms=told,
        records=tuple(line for line in found.records if line.arm in names),
        comparisons=comparisons,
        controls=tuple(_control(found.records, reference, arms.twin, *row) for row in arms.broken),
    )


def _attribution(records: Sequence[Record], reference: replay.Arm, side: _Side) -> tuple[Attribution, ...]:
    """The costliest tensor first."""
    of_all = _accept_length(records, reference.name)
    rows = [
        Attribution(tensor, length, length / of_all - 1)
        for tensor, arm in side.parts.items()
        for length in [_accept_length(records, arm.name)]
    ]
    return tuple(sorted(rows, key=lambda row: (row.change, row.tensor)))


def _control(
    records: Sequence[Record],
    reference: replay.Arm,
    twin: replay.Arm | None,
    fault: controls.Fault,
    arm: replay.Arm | str,
) -> Control:
    if isinstance(arm, str):
        return Control(fault.name, fault.says, note=arm)
    base = twin if fault.base == "int4" and twin else reference
    pairs = paired(records, base.name, arm.name)
    verdict = judge(pairs, SELF_TEST_GATE, how="replay")
    against = f"against {base.name}" if base is twin else ""
    return Control(
        fault.name,
        fault.says,
        accept_length=_accept_length(records, arm.name),
        caught=not all(pair.equal for pair in pairs),
        outcome=verdict.outcome,
        note=verdict.reasons[0] if verdict.outcome == "void" else against,
    )


def _accept_length(records: Sequence[Record], arm: str) -> float:
    return Counts.pooled(line.counts for line in records if line.arm == arm).accept_length


def _about(name: str, drafter: Drafter) -> Arm:
    facts = drafter.facts
    revision = drafter.checkpoint.revision
    return Arm(
        name=name,
        source=drafter.checkpoint.name + (f"@{revision}" if revision else ""),
        layout=drafter.detection.layout,
        quantization=facts.quantization or "none",
        content=_content(drafter),
        facts={fact: word(getattr(facts, fact)) for fact in TOLD},
    )


def _content(drafter: Drafter) -> str:
    """SHA-256 over facts and canonical tensors: the same for every layout of the same drafter."""
    digest = hashlib.sha256(json.dumps(facts_json(drafter.facts), sort_keys=True, default=list).encode())
    for name, ref in sorted(drafter.tensors.items()):
        digest.update(f"{name} {ref.dtype} {list(ref.shape)} {tensor_hash(ref)}\n".encode())
    return digest.hexdigest()


def _run_about(trace: Trace, entries: Sequence[Entry], options: ParityOptions) -> About:
    about = trace.about
    hashed = hashlib.sha256("".join(entry.tokens + entry.states for entry in entries).encode())
    return About(
        how="replay",
        target=about.target + (f"@{about.revision}" if about.revision else ""),
        prompts=about.prompts,
        prompts_sha256=about.prompts_sha256,
        depth=options.depth,
        version=draftconv.__version__,
        command=options.command,
        settings={
            "requests": str(len(entries)),
            "tokens": f"at most {about.max_tokens} per request",
            "sampling": "greedy",
            "target": f"{about.dtype}, {about.made_by}",
            "replay": f"{options.dtype} on {options.device}",
            "tables": f"as {options.semantics} takes them",
        },
        trace=hashed.hexdigest(),
    )
