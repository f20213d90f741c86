"""Look at a drafter: what it is, what is wrong with it, and which engine reads it rightly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftconv.checkpoint import FLOATS, open_checkpoint, show_some
from draftconv.checkpoint.text import size
from draftconv.display import Block, Displayed, card, named, table
from draftconv.drafter.checks import Findings, check_drafter, deep_bytes
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.identity import attention, identity, in_a_line, nbytes
from draftconv.drafter.problems import Problem
from draftconv.drafter.targets import Target, find_target
from draftconv.engines import ENGINES, LoadVerdict, parse_engine
from draftconv.engines.rules import Status
from draftconv.errors import DraftconvError, UsageError
from draftconv.layouts.drafter_reader import DrafterReader
from draftconv.layouts.reader import read_drafter
from draftconv.options import (
    AUX_CONVENTION,
    LAYOUT,
    TARGET,
    TARGET_LAYERS,
    Place,
    Several,
    option,
    python_only,
    several,
    takes,
)

if TYPE_CHECKING:
    from draftconv.conversion.options import ConvertOptions


Progress = Callable[[int, int], None]
"""Told how much is done, and how much it is in all."""


@dataclass(frozen=True, slots=True)
class QuantizationSummary:
    """How quantized weights are stored.

    Attributes:
        format: its id; None when they cannot be read.
        says: in words. `findings`: what is not as usual, or why they cannot be read.
        lies: those of them that config.json says otherwise.
    """

    format: str | None
    says: str
    findings: tuple[str, ...]
    lies: tuple[str, ...]


VERDICTS: Mapping[Status, str] = {
    "loads": "loads on",
    "mis-read": "mis-read by",
    "refused": "refused by",
    "undecided": "undecided for",
}
"""How the verdict tells what engines would do."""


NOT_VERIFIED = "the weights, which were read by ranges; convert downloads them and compares every file with its hash"
"""What an inspection on the Hub does not tell."""


@dataclass(frozen=True, slots=True, repr=False)
class Inspection(Displayed):
    """Everything `inspect` found out."""

    drafter: Drafter
    target: Target | None
    problems: tuple[Problem, ...]
    not_made: tuple[str, ...]
    verdicts: tuple[LoadVerdict, ...]
    weights: QuantizationSummary | None = None
    from_format: str | None = None
    """How quantized weights were said to be stored."""

    @property
    def not_verified(self) -> str | None:
        """What of a repository's contents was not held against its listing; None of files on this machine."""
        return NOT_VERIFIED if self.drafter.checkpoint.path is None else None

    @property
    def misdeclared(self) -> bool:
        """Whether quantized weights are not as config.json says, so that no engine that goes by it reads them."""
        return any(problem.code == MISDECLARED for problem in self.problems)

    @property
    def passed(self) -> bool:
        """Whether every engine that it was judged for reads it rightly; where none was named, every one there is."""
        unread = self.misdeclared or self.drafter.readings
        return not unread and all(verdict.status == "loads" for verdict in self.verdicts)

    def brief(self) -> Iterator[str]:
        """Name, kind, attention, size, how many problems, and what every engine makes of it."""
        drafter = self.drafter
        yield named(drafter.checkpoint.name)
        yield drafter.kind.title
        yield attention(drafter.facts)
        yield size(nbytes(drafter))
        yield from self._counted()
        yield from (f"{verdict.spec.name}: {verdict.status}" for verdict in self.verdicts)

    def outcome(self) -> Iterator[str]:
        """What it is, and what each engine would do, with the main reason where that is not to load it rightly."""
        yield f"{self.drafter.checkpoint.name}: {self._described()}"
        yield self._verdict()
        for verdict in self.verdicts:
            if reason := verdict.reason:
                yield f"  {verdict.spec}: {reason.rule.says}: {reason.detail}."

    def blocks(self) -> Iterator[Block]:
        """The outcome, and the problems that ask for something to be done."""
        yield from self.outcome()
        yield from self.problems_told()

    def problems_told(self) -> Iterator[str]:
        """Errors and warnings, with their cure, what is unusual about quantized weights, and what nobody compared."""
        from draftconv.engines.problems import why

        for problem in self.problems:
            kind = problem.kind
            if kind.severity == "note":
                continue
            told = f"{kind.severity.capitalize()} {problem.code}: {kind.title}: {problem.detail}."
            because = f" Why: {why(problem.code)}." if kind.severity == "error" or kind.reading else ""
            yield f"{told}{because} Cure: {kind.cure}."
        if self.weights and self.weights.findings:
            yield f"Weights: {'; '.join(self.weights.findings)}."
        if self.not_verified:
            yield f"Not verified: {self.not_verified}."

    def details(self) -> Iterator[Block]:
        """Identity card, all problems, what was not checked, and the rules of each engine that speak of it."""
        yield card(self.drafter.checkpoint.name, self._identity())
        if self.problems:
            rows = ((p.severity, p.code, f"{p.kind.title}: {p.detail}") for p in self.problems)
            yield table("Problems", "", ("", "code", "what"), rows)
        else:
            yield "No problems found."
        if self.not_made:
            yield f"Not checked: {'; '.join(self.not_made)}."
        yield table("Engines", "", ("engine", "verdict", "rule broken"), self._engines())

    def _described(self) -> str:
        return in_a_line(self.drafter) + (f"; weights {self.weights.says}" if self.weights else "")

    def _identity(self) -> Iterator[tuple[str, str]]:
        yield from identity(self.drafter)
        if self.weights:
            yield "weights", "; ".join((self.weights.says, *self.weights.findings))
        if self.target:
            family = self.target.family or "family not given"
            yield "target", f"{self.target.name}: {self.target.layers} layers, {family}"

    def _engines(self) -> Iterator[tuple[object, ...]]:
        for verdict in self.verdicts:
            yield verdict.spec, verdict.status, ""
            for line in verdict.lines:
                cited = f"{line.rule.code}; {line.rule.source}; {line.rule.evidence}"
                yield "", line.rule.effect, (f"{line.rule.says}: {line.detail}", cited)

    def _verdict(self) -> str:
        """One line: what each engine would do, and how many problems there are."""
        parts = []
        for status, phrase in VERDICTS.items():
            if engines := [str(verdict.spec) for verdict in self.verdicts if verdict.status == status]:
                parts.append(f"{phrase} {', '.join(engines)}")
        if self.drafter.readings:
            parts.append(f"if it is read as detected ({len(self.drafter.readings)} readings fit)")
        return f"Verdict: {'; '.join((*parts, *self._counted()))}."

    def _counted(self) -> Iterator[str]:
        for severity in ("error", "warning"):
            if count := sum(problem.severity == severity for problem in self.problems):
                yield f"{count} {severity}{'s' * (count > 1)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """What a drafter is looked at for."""

    engines: Several = option(
        (),
        "Judge for this engine only (repeatable), and exit 1 if it would mis-read or refuse the drafter.",
        flag="--for",
        metavar="ENGINE[@VERSION][:HARDWARE]",
    )
    target: Place | None = option(None, TARGET)
    target_layers: int | None = option(None, TARGET_LAYERS)
    layout: str | None = option(None, LAYOUT)
    aux_convention: str | None = option(None, AUX_CONVENTION)
    from_format: str | None = option(
        None,
        "How quantized weights are stored, where config.json and tensors do not tell.",
        metavar="FORMAT[:STYLE]",
    )
    deep: bool = option(False, "Read every byte: NaN, infinities, all-zero tensors, equal tables.")
    progress: Progress | None = python_only(None, "called with the bytes that `deep` has read so far and in all")


@takes(InspectOptions)
def inspect(source: Place, options: InspectOptions) -> Inspection:
    """Read a drafter's headers, config and vocabulary maps (with `deep`, every byte) and judge it.

    Args:
        source: directory, weights file or Hub id; on the Hub a few MB are read by range.

    Raises:
        BadCheckpoint, NotADrafter, NeedsExport: it is not a readable drafter.
        UsageError: unknown engine, layout, target, convention or format, or a format of a drafter that has none.
    """
    specs = [parse_engine(text, reading=True) for text in several(options.engines) or ENGINES]
    target = find_target(options.target, options.target_layers)
    reader = DrafterReader(options.layout, options.aux_convention)
    drafter = read_drafter(open_checkpoint(source), reader.options(target))
    progress = options.progress
    total = deep_bytes(drafter, target) if options.deep and progress else 0
    findings = check_drafter(
        drafter,
        target,
        level="deep" if options.deep else "sample",
        progress=(lambda done: progress(done, total)) if progress else None,
    )
    known = frozenset(problem.code for problem in findings.problems)
    verdicts = tuple(ENGINES[spec.name].check(drafter.checkpoint, drafter.facts, target, spec, known) for spec in specs)
    weights = _summarize_weights(drafter, options.from_format)
    problems = (*findings.problems, *(Problem(MISDECLARED, lie) for lie in (weights.lies if weights else ())))
    return Inspection(drafter, target, problems, findings.not_made, verdicts, weights, options.from_format)


def _summarize_weights(drafter: Drafter, from_format: str | None) -> QuantizationSummary | None:
    if drafter.facts.quantization is None:
        if from_format:
            raise UsageError("--from-format is about quantized drafters, this one is not quantized")
        return None
    from draftconv.quantization.weight_detection import find_quantized

    try:
        stored = find_quantized(drafter, from_format)
    except UsageError:
        raise
    except DraftconvError as error:
        parts = (error.what, error.why, f"to go on, {error.cure}" if error.cure else "")
        lines = tuple(line for line in parts if line)
        return QuantizationSummary(None, "not known", lines, lines[:1])
    findings = list(stored.findings)
    if stored.unlisted:
        names = show_some(stored.unlisted)
        findings.append(f"{names} plain and not excluded by config.json: some engines take it for quantized")
    formats = ", ".join(dict.fromkeys(match.format.id for match in stored.parts))
    return QuantizationSummary(formats, stored.title, tuple(findings), stored.lies)


MISDECLARED = "weights-misdeclared"
"""The problem that makes every engine stumble, whatever its rules say of the config alone."""


def remedy(inspection: Inspection) -> ConvertOptions | None:
    """The conversion after which the engines that were asked about read the drafter rightly, if there is one.

    Those for which nothing is written are not among them (`Engine.only_named`).

    It has been planned, not only guessed: with the same target and source, `convert` will do it. Integers
    that an engine does not read are offered in another format first, and as floats where none will do.
    """
    from draftconv.conversion.options import ConvertOptions
    from draftconv.conversion.passes.repair import errors, mendable
    from draftconv.conversion.plan import plan_drafter
    from draftconv.conversion.request import ConversionRequest

    if inspection.drafter.readings:
        return None  # a person has to say first which of them is right
    quantized = inspection.drafter.facts.quantization is not None
    broken = [problem.code for problem in errors(inspection.problems, quantized=quantized)]
    written = [verdict for verdict in inspection.verdicts if not ENGINES[verdict.spec.name].only_named]
    failing = [
        verdict.spec.name for verdict in written if verdict.status != "loads" or broken or inspection.misdeclared
    ]
    if not failing or not mendable(broken):
        return None
    if quantized and (
        inspection.weights is None or inspection.weights.format is None or inspection.drafter.checkpoint.path is None
    ):
        return None  # a plan reads the weights, which on the Hub would be fetched first
    findings = Findings(inspection.problems, inspection.not_made)
    for to in dict.fromkeys([*(["portable"] if len(written) > 1 else []), *failing]):
        engines = [verdict.spec for verdict in written if to == verdict.spec.name]  # portable has its own
        for attempt in _weight_choices(inspection) if quantized else [ConvertOptions()]:
            options = replace(attempt, to=to, repairs=tuple(dict.fromkeys(broken)), card=False)
            try:
                plan_drafter(inspection.drafter, findings, inspection.target, ConversionRequest(options, engines))
            except DraftconvError:
                continue
            return options
    return None


PACKS = ("compressed-pack", "compressed-float", "gptq", "modelopt-awq", "modelopt-fp8")
"""Formats to offer, those that most engines read first."""


def _weight_choices(inspection: Inspection) -> Iterator[ConvertOptions]:
    """What to do with quantized weights, the least first."""
    from draftconv.conversion.options import ConvertOptions

    packed_fc = (
        "fc.weight" not in inspection.drafter.tensors or inspection.drafter.tensors["fc.weight"].dtype not in FLOATS
    )
    for unpack in ((), ("fc",)) if packed_fc else ((),):
        for pack in PACKS:
            yield ConvertOptions(pack=pack, unpack=unpack, from_format=inspection.from_format)
    yield ConvertOptions(dequantize=True, from_format=inspection.from_format)
