"""An output as its readers find it: files that do not belong, a record that was edited, engines that stumble.

Who is asked follows from the layout of the output and from whoever verifies; the record of an output can name
further engines and their versions, and leave none out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from draftconv.checkpoint import Checkpoint
from draftconv.conversion.changed_drafter import spell_drafter
from draftconv.conversion.planned_output import planned_checkpoint
from draftconv.conversion.provenance import FILE, Provenance
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts
from draftconv.drafter.fused_qparams import joined_values
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.rules import EngineSpec, LoadVerdict, Status
from draftconv.errors import DraftconvError
from draftconv.layouts import layouts
from draftconv.verification.compared import ComparedItem, Outcome
from draftconv.verification.remaking import Remade

READ: Mapping[Status, Outcome] = {
    "loads": "equal",
    "undecided": "declared",  # passes and is listed: nobody can say it without the target
    "mis-read": "different",
    "refused": "different",
}


def check_directory(
    out: Drafter,
    target: Target | None,
    remade: Remade,
    provenance: Provenance | None,
    asked: Sequence[str],
    *,
    edited: bool,
) -> Iterator[ComparedItem]:
    """Faults that no tensor and no fact shows.

    Args:
        asked: engines that whoever verifies names. `edited`: whether a record is there that belongs to other files.
    """
    if edited:
        detail = "does not belong to this config.json and these tensors: one of them was changed after it was written"
        yield ComparedItem(FILE, "different", detail)
    for file in out.checkpoint.files:
        if file.unused:
            yield ComparedItem(file.name, "different", "a weights file that is not part of the output")
    must, may = judges(out, provenance, asked)
    known = frozenset(problem.code for problem in joined_values(out))

    def judge(spec: EngineSpec, checkpoint: Checkpoint = out.checkpoint, facts: Facts = out.facts) -> LoadVerdict:
        return ENGINES[spec.name].check(checkpoint, facts, target, spec, known)

    yield from (_row(judge(spec)) for spec in must)
    again = _planned(remade, target) if may else None
    for spec in may:
        verdict = judge(spec)
        row = _row(verdict)
        if row.outcome != "different":
            yield row
        elif remade.fault:
            yield ComparedItem(row.what, "claimed", f"{row.how}; only draftconv.json says that it serves others")
        elif again is not None and _broken(judge(spec, *again)) == _broken(verdict):
            yield ComparedItem(row.what, "declared", f"{row.how}; so is what the recorded steps write, --for judges it")
        else:
            yield row


def judges(
    out: Drafter, provenance: Provenance | None, asked: Sequence[str]
) -> tuple[tuple[EngineSpec, ...], tuple[EngineSpec, ...]]:
    """The engines that must read an output rightly, and those that read it as what was asked for.

    Every engine that a layout is for reads its floats, but for those that the record leaves out. Quantized weights
    are for some of them, and which, no layout says. The rest read the output no worse than what the recorded steps
    write.
    """
    if asked:
        return tuple(map(parse_engine, asked)), ()
    named = {spec.name: spec for spec in map(parse_engine, (provenance.engines if provenance else None) or ())}
    writer = layouts()[out.detection.layout].writer
    served = [named.get(spec.name, spec) for spec in map(parse_engine, writer.serves if writer else ())]
    if out.facts.quantization is None or len(served) == 1:
        left_out = provenance.left_out if provenance else ()
        must = {spec.name: spec for spec in (*served, *named.values()) if spec.name not in left_out}
        return tuple(must.values()), tuple(spec for spec in served if spec.name in left_out)
    return tuple(named.values()), tuple(spec for spec in served if spec.name not in named)


def _planned(remade: Remade, target: Target | None) -> tuple[Checkpoint, Facts] | None:
    """What the recorded steps write, as a checkpoint; None where only another target would tell."""
    if remade.last is None:
        return None
    try:
        work, names, spelled = spell_drafter(remade.last, target)
    except DraftconvError:
        return None
    return planned_checkpoint(work, names, spelled.config, spelled.metadata), work.facts


def _row(verdict: LoadVerdict) -> ComparedItem:
    line = verdict.reason
    how = f"{verdict.status}: {line.rule.says}: {line.detail} [{line.rule.code}]" if line else ""
    return ComparedItem(str(verdict.spec), READ[verdict.status], how)


def _broken(verdict: LoadVerdict) -> frozenset[str]:
    """The rules that are broken. By which tensors is told in the order of a file; they are compared elsewhere."""
    return frozenset(line.rule.code for line in verdict.lines)
