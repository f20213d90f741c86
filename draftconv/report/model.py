"""What a report says, as data: filled by replay or by live runs, read by the tables and pages.

Figures that follow from the records (accept lengths, intervals, rates by depth, the verdict)
are not in here: `parity.verdict.judge` makes them, and a `Comparison` holds what it said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.checkpoint.text import safe
from draftconv.display import Block, Displayed, named
from draftconv.report.extension import Earlier, ExtensionTerms, Sample
from draftconv.report.records import Record, paired, paired_by_context, run_twice
from draftconv.report.statistics import Depth, Discordance, Estimate, Pair, by_depth, estimate
from draftconv.report.verdict import EXIT_CODES, Gate, How, Outcome, ParityVerdict, judge

if TYPE_CHECKING:
    from draftconv.report.formatting import Decode


@dataclass(frozen=True, slots=True)
class JoinedSample:
    """One of the two samples that an extended report joins, with its arms as they were called then.

    Attributes:
        reference, candidate: names of its arms. `reference_content`, `candidate_content`: hashes of their weights and
            config, the same in both samples.
        requests: how many of each arm. `prompts`, `prompts_sha256`, `trace`: as in the report of this sample alone.
    """

    reference: str
    reference_content: str
    candidate: str
    candidate_content: str
    requests: int
    prompts: str
    prompts_sha256: str
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What was run, the same for all arms.

    Attributes:
        target: name, with @revision where it has one.
        prompts: the suite with its data set and commit, or the file; `prompts_sha256`: of them as they were rendered.
        trace: hash of the trace that every arm was replayed on; None in a live run.
        depth: K, drafted tokens per step.
        settings: everything else that the figures depend on, by name: dtype, device, lengths, sampling;
            in a live run also the engine with version and flags, GPU, driver.
        how: every drafter on one stored text, or by an engine that runs each of them.
        joined: of an extended report the sample that was inconclusive, and the one that was added; else empty.
        version: of draftconv. `command`: argv that makes this report again.
    """

    how: How
    target: str
    prompts: str
    prompts_sha256: str
    depth: int
    version: str
    command: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    trace: str | None = None
    joined: tuple[JoinedSample, ...] = ()


@dataclass(frozen=True, slots=True)
class SimulatedArithmetic:
    """How the quantized weights of a drafter were multiplied in a replay.

    Attributes:
        engine: whose kernel, `vllm@0.33.0:b200`; empty is as the file says.
        chosen_by: `--as`, `draftconv.json` or `the candidates`, whichever named the engine; empty where none did.
        activations: what they were rounded to before they met the weights (`16 bit` is not at all).
        executed: the kernel in words; empty where the file's own word was replayed.
        source: the engine's file that says so. `evidence`: whether that was `run`, `read` or `inferred`.
        undecided: why it is not known what is multiplied where the drafter is served; empty where it is.
        notes: conditions under which the engine does otherwise.
    """

    engine: str
    chosen_by: str
    activations: str
    executed: str = ""
    source: str = ""
    evidence: str = ""
    undecided: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArmInfo:
    """One drafter in the run.

    Attributes:
        name: unique in the run; records name it.
        layout: how it is spelled on disk.
        source: base name of a directory or repo@revision, never a path.
        quantization: in words (`none`, `INT4 weights per 128 channels, simulated`).
        content: hash of its weights and config.
        facts: what else it is, by name, in words.
        arithmetic: how a replay multiplied its quantized weights; null where it has none, and in a live run.
    """

    name: str
    source: str
    layout: str
    quantization: str
    content: str
    facts: Mapping[str, str] = field(default_factory=dict)
    arithmetic: SimulatedArithmetic | None = None

    @property
    def activations(self) -> str:
        """What activations were rounded to before they met its weights."""
        if self.arithmetic is not None:
            return self.arithmetic.activations
        return "16 bit" if self.quantization == "none" else "not told"


@dataclass(frozen=True, slots=True)
class Place:
    """One position where a step starts, and what both arms drafted there.

    Attributes:
        id: of the request. `position`: of the first drafted token in its text.
        context: token ids before it, the last few dozen. `target`: the K ids that the target wrote.
        reference, candidate: drafted ids, up to and including the first rejected one.
        reference_accepted, candidate_accepted: how many of them the target agreed with.
    """

    id: str
    position: int
    context: tuple[int, ...]
    target: tuple[int, ...]
    reference: tuple[int, ...]
    candidate: tuple[int, ...]
    reference_accepted: int
    candidate_accepted: int

    @property
    def lost(self) -> int:
        """Tokens that the candidate accepted fewer than the reference; negative where it won."""
        return self.reference_accepted - self.candidate_accepted


@dataclass(frozen=True, slots=True)
class Missed:
    """A token of the target that the candidate failed to draft where the reference did.

    Attributes:
        token: its id. `places`: where that happened. `lost`: accepted tokens that it cost.
    """

    token: int
    places: int
    lost: int


@dataclass(frozen=True, slots=True)
class Losses:
    """Where the two arms part, over all places that were looked at.

    Attributes:
        places: how many were looked at. `what`: which they are, in words.
        worse, better: places where the candidate accepted fewer, or more, than the reference.
        lost, gained: accepted tokens that these cost, or won.
        tokens: the target's tokens that cost most. `largest`: the places that cost most.
    """

    places: int
    what: str
    worse: int
    better: int
    lost: int
    gained: int
    tokens: tuple[Missed, ...]
    largest: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class EveryPosition:
    """Rates over every position, not only where a step starts; reported, never gated.

    Attributes:
        depth: j = 1…K. `reference`, `candidate`: share of all positions with at least j accepted.
    """

    depth: int
    reference: float
    candidate: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """KL(reference ‖ candidate) of the first draft's distribution over the draft vocabulary, in nats."""

    positions: int
    mean: float
    median: float
    p90: float
    p99: float
    largest: float


@dataclass(frozen=True, slots=True)
class Attribution:
    """The cost of one quantized tensor: the reference with only that tensor replaced.

    Attributes:
        tensor: canonical name. `accept_length`: with it replaced.
        change: of accept length against the reference, as a ratio - 1.
    """

    tensor: str
    accept_length: float
    change: float


@dataclass(frozen=True, slots=True)
class Texts:
    """How far the texts of two live arms are the same: greedy text should not depend on the drafter.

    Attributes:
        requests: that both answered. `identical`: of them, with the same text.
        splits: first position of the text at which each of the others differs, ascending.
    """

    requests: int
    identical: int
    splits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What helps to find a loss; nothing in here decides.

    Attributes:
        agreement: share of all positions at which both arms draft the same first token.
        discordance: first drafted tokens that only one arm got right.
        every_position: acceptance by depth. `divergence`: of the first draft.
        attribution: what each tensor costs (`--attribute`).
        texts: of a live run: reference and candidate. `again`: the reference and itself.
    """

    agreement: float | None = None
    discordance: Discordance | None = None
    every_position: tuple[EveryPosition, ...] = ()
    divergence: Divergence | None = None
    attribution: tuple[Attribution, ...] = ()
    texts: Texts | None = None
    again: Texts | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """A drafter broken on purpose: parity that lets it pass is broken itself.

    Attributes:
        name: short (`d2t zeroed`). `fault`: what was done to the reference.
        accept_length: None where the fault does not apply to this drafter; `note` says why.
        caught: by the conversion gate, which wants equal counts.
        outcome: of the gate with a margin, which may well let a small fault pass.
    """

    name: str
    fault: str
    accept_length: float | None = None
    caught: bool | None = None
    outcome: Outcome | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a load generator measured of a server; reported, never gated.

    Attributes:
        drafter: name of the arm; null is the target without a drafter.
        concurrency: requests at a time. `requests`: that were answered.
        tpot_ms: time per output token after the first, median over requests. `mean_tpot_ms`: their mean.
        ttft_ms: time to the first token, median over requests. `mean_ttft_ms`: their mean.
        tokens_per_second: output of the whole server.
        accept_length: of what the load generator asked, where it tells; null for the target alone.
    """

    drafter: str | None
    concurrency: int
    requests: int
    tpot_ms: float
    mean_tpot_ms: float
    ttft_ms: float
    mean_ttft_ms: float
    tokens_per_second: float
    accept_length: float | None = None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What a benchmark measured of a server; reported, never gated.

    Attributes:
        drafter: name of the arm; null is the target without a drafter.
        task: of lm_eval. `shots`: examples before each question. `filter`: how answers are read.
        value: share of right answers. `error`: its standard error. `questions`: how many were asked.
    """

    drafter: str | None
    task: str
    shots: int
    filter: str
    value: float
    error: float
    questions: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate against the reference: names of arms, what was found, and how it came about.

    Attributes:
        reference, candidate: names of two arms.
        verdict: what `judge` makes of the records.
        again: the arm that is the reference run once more (A/A), on all requests or some.
        errors: requests that an arm failed to answer; they have no records.
        extended: whether the sample is an inconclusive earlier one and its extension.
        depths: how each drafted token fares.
        losses: where the two arms part. `diagnostics`: what helps to find out why.
        contexts: by the tokens that were known when a step started, ascending; empty where all steps have one context
            in common, or nobody said where they start. Nothing in it decides.
    """

    reference: str
    candidate: str
    verdict: ParityVerdict
    depths: tuple[Depth, ...]
    again: str | None = None
    errors: int = 0
    extended: bool = False
    losses: Losses | None = None
    diagnostics: Diagnostics = Diagnostics()
    contexts: Mapping[str, Estimate] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        records: Iterable[Record],
        reference: str,
        candidate: str,
        gate: Gate,
        *,
        how: How,
        again: str | None = None,
        errors: int = 0,
        extended: bool = False,
        losses: Losses | None = None,
        diagnostics: Diagnostics = Diagnostics(),
    ) -> Comparison:
        """Judge the candidate by what the records hold of both arms.

        Raises:
            BadReport: they do not hold the same requests of both.
            UsageError: as `judge`.
        """
        records = tuple(records)
        pairs = paired(records, reference, candidate)
        aa = None if again is None else run_twice(records, reference, again)
        verdict = judge(pairs, gate, how=how, aa=aa, errors=errors, extended=extended)
        counted = [pair for pair in pairs if pair.counted]
        depths = by_depth(counted) if counted else ()
        parts = paired_by_context(records, reference, candidate)
        contexts = {context: estimate(part) for context, part in parts.items()} if len(parts) > 1 else {}
        return cls(reference, candidate, verdict, depths, again, errors, extended, losses, diagnostics, contexts)


def _ratio(comparison: Comparison) -> str:
    """Of accept lengths, with its interval."""
    if (estimate := comparison.verdict.estimate) is None:
        return ""
    return f" {estimate.ratio:.4f} [{estimate.interval.low:.4f}, {estimate.interval.high:.4f}]"


WORST_FIRST: tuple[Outcome, ...] = ("void", "fail", "inconclusive", "pass", "equivalent")
"""Void comes before a failure: where the measurement is not to be trusted, neither is the failure."""


@dataclass(frozen=True, slots=True, repr=False)
class Report(Displayed):
    """One run: several candidates can share the reference and the target side.

    Attributes:
        arms: the reference first. `controls`: of this run (`--self-test`).
        speed, accuracy: of a live run (`--also-speed`, `--accuracy`).
    """

    about: RunInfo
    arms: tuple[ArmInfo, ...]
    records: tuple[Record, ...]
    comparisons: tuple[Comparison, ...]
    controls: tuple[Control, ...] = ()
    speed: tuple[Speed, ...] = ()
    accuracy: tuple[Accuracy, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst of the comparisons; a control that was missed is a failure, one that is void makes all void."""
        outcomes = {comparison.verdict.outcome for comparison in self.comparisons}
        outcomes |= {"fail" for control in self.controls if control.caught is False}
        outcomes |= {"void" for control in self.controls if control.outcome == "void"}
        return next((outcome for outcome in WORST_FIRST if outcome in outcomes), "pass")

    @property
    def passed(self) -> bool:
        """Whether every candidate passed and every control was caught: the command would end with 0."""
        return EXIT_CODES[self.outcome] == 0

    def save(self, out: str | Path, *, decode: Decode | None = None, overwrite: bool = False) -> None:
        """Write report.html, report.md, report.json, records.jsonl and junit.xml into the directory `out`.

        Args:
            decode: token ids to text, for the pages; they show ids without it.
            overwrite: replace a directory that holds a report and nothing else.

        Raises:
            UsageError, WriteError: `out` may not be replaced or written to.
            BadReport: the report contradicts itself.
        """
        from draftconv.report.write import write_report

        write_report(self, Path(out), decode=decode, overwrite=overwrite)

    def brief(self) -> Iterator[str]:
        """The outcome, and the ratio of accept lengths that it rests on; of several candidates, every outcome."""
        match self.comparisons:
            case ():
                yield self.outcome
            case (only,):
                margin = only.verdict.gate.margin
                names = f"{named(only.candidate)}{_ratio(only)} of {named(only.reference)}"
                yield f"{self.outcome}: candidate {names}"
                yield "equal counts" if margin is None else f"margin {margin:g}"
            case several:
                outcomes = ", ".join(
                    f"{named(comparison.candidate)} {comparison.verdict.outcome}" for comparison in several
                )
                yield f"{self.outcome}: {len(several)} candidates of {named(several[0].reference)}: {outcomes}"
        if self.controls:
            noticed = sum(control.caught is True for control in self.controls)
            decided = sum(control.caught is not None for control in self.controls)
            yield f"{noticed} of {decided} broken drafters noticed"

    def blocks(self) -> Iterator[Block]:
        """Headline, costs of tensors, controls, speed and accuracy; then every verdict in a sentence, and what was
        multiplied."""
        from draftconv.report import formatting, tables

        if self.comparisons:
            yield tables.headline(self)
        for comparison in self.comparisons:
            if comparison.diagnostics.attribution:
                table = tables.attribution(comparison)
                yield replace(table, title=safe(f"{table.title} of {comparison.candidate}"))
            if comparison.contexts and comparison.verdict.gate.margin is not None:
                table = tables.contexts(comparison)
                yield replace(table, title=safe(f"{table.title}, {comparison.candidate}"))
        if self.controls:
            yield tables.controls(self)
        yield from (table for table in (tables.speed(self), tables.accuracy(self)) if table.rows)
        for comparison in self.comparisons:
            yield formatting.sentence(comparison)
            yield from (f"  {line}" for line in formatting.verdict_details(comparison))
        yield from (f"{name}: {formatting.joined(sample)}" for name, sample in formatting.named_samples(self.about))
        if self.controls:
            yield formatting.controls(self)
        yield from formatting.arithmetics(self)

    def arm(self, name: str) -> ArmInfo:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def pairs(self, comparison: Comparison) -> tuple[Pair, ...]:
        """The requests of a comparison, both arms of each.

        Raises:
            BadReport: the records do not hold the same requests of both.
        """
        return paired(self.records, comparison.reference, comparison.candidate)

    def identical(self, comparison: Comparison) -> int:
        """Requests of which both arms' texts are the same."""
        arms = (comparison.reference, comparison.candidate)
        texts = Counter((record.id, record.tokens) for record in self.records if record.arm in arms)
        return sum(times == 2 for times in texts.values())

    def sample(self, comparison: Comparison) -> Sample:
        """What the verdict of a comparison was computed from.

        Raises:
            BadReport: as `pairs`.
        """
        reference, candidate, again = comparison.reference, comparison.candidate, comparison.again
        verdict, about = comparison.verdict, self.about
        return Sample(
            ExtensionTerms(
                reference=self.arm(reference).content,
                candidate=self.arm(candidate).content,
                activations=f"{self.arm(reference).activations} against {self.arm(candidate).activations}",
                target=about.target,
                depth=about.depth,
                gate=verdict.gate,
                how=verdict.how,
            ),
            self.pairs(comparison),
            {record.id: record.tokens for record in self.records if record.arm == reference},
            None if again is None else run_twice(self.records, reference, again),
            comparison.errors,
        )

    def earlier(self, comparison: Comparison) -> Earlier:
        """A comparison as the one that is to be extended."""
        return Earlier(self.sample(comparison), comparison.verdict.outcome, comparison.extended)
