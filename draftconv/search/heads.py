"""Heads of fewer rows: how many are tried, whether there is text enough for them, and which rows they keep.

How many rows a head has decides its bytes and who loads it, so that is known beforehand. Which rows they are is decided
when the search begins, by the text and by what the drafter had accepted on the half that it searches on: as `prune`
decides it, which makes the same bytes from the same text and trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftconv.conversion.plan import Conversion, plan_drafter
from draftconv.conversion.planned_output import planned_checkpoint
from draftconv.conversion.pruning.head_rows import BLOCK, HeadRows, refuse_forced
from draftconv.conversion.pruning.plan import AcceptedOfTrace, PruningPlan, plan_pruning
from draftconv.conversion.pruning.texts import Staying, counted_domains, tokens_to_stay
from draftconv.conversion.pruning.tokens import KeptTokens
from draftconv.conversion.request import ConversionRequest
from draftconv.drafter.checks import Findings, check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target, find_target
from draftconv.errors import Refused, UsageError
from draftconv.layouts.drafter_reader import DrafterReader
from draftconv.options import several
from draftconv.replay.drafters import target_of
from draftconv.replay.pruned import accepted_tokens, whole_arm
from draftconv.replay.settings import tokens_done
from draftconv.search.choices import AS_IT_IS, HEAD
from draftconv.search.options import SlimOptions
from draftconv.search.planning import LeftOutChoice, PlannedDrafter, Planner, Planners
from draftconv.traces.text_places import text_places
from draftconv.traces.token_counts import DomainCounts
from draftconv.traces.trace import Trace, TraceEntry

SIZES = 4
"""How many numbers of rows are tried: powers of two, from half of the rows down."""


def sizes(rows: int, step: int) -> tuple[int, ...]:
    """The numbers of rows that are tried of a head, the largest first.

    Args:
        step: what they are a multiple of.
    """
    most = (rows // 2).bit_length() - 1
    tried = ((1 << power) // step * step for power in range(most, max(most - SIZES, -1), -1))
    return tuple(dict.fromkeys(size for size in tried if size))


@dataclass(frozen=True, slots=True)
class PrunedHeads:
    """The heads of a drafter that may be tried.

    Attributes:
        drafter, findings, target: as `prune` reads them.
        domains: rows → the text that chooses them. `planners`: rows → the drafter with so many.
        left_out: numbers of rows that are not tried, and why.
    """

    drafter: Drafter
    findings: Findings
    target: Target | None
    head: HeadRows
    staying: Staying
    options: SlimOptions
    domains: Mapping[int, tuple[DomainCounts, ...]]
    planners: Mapping[int, Planner] = field(default_factory=dict)
    left_out: tuple[LeftOutChoice, ...] = ()

    @classmethod
    def open(cls, whole: Planner, trace: Trace, options: SlimOptions) -> PrunedHeads:
        """Count the text, and plan a drafter for every number of rows that there is text enough for.

        Raises:
            UsageError: counts of another tokenizer, or tokens that have to stay and cannot.
            BadPrompts, BadCheckpoint: texts or the target cannot be read. Undecided: nor can the drafter.
        """
        asked, target = options.prune(BLOCK), find_target(options.target, options.target_layers)
        drafter = asked.convert.reading.read(whole.drafter.checkpoint, target)
        head = HeadRows.of(drafter, target)
        staying = tokens_to_stay(head.vocab, target, trace, asked)
        refuse_forced(len(head.ids), head, staying.ids, asked.kept_ids)
        domains = dict[int, tuple[DomainCounts, ...]]()
        streamed = any(place.is_data_set for place in text_places(several(options.counts)))
        step = BLOCK * options.tensor_parallel_size
        for rows in sizes(len(head.ids), step):
            if streamed or not domains:  # of a data set as much is read as the rows ask for, of files everything
                counted = counted_domains(head.vocab, target, options.prune(rows))
            domains[rows] = counted
        found = cls(drafter, check_drafter(drafter, target), target, head, staying, options, domains)
        if not domains:
            few = LeftOutChoice(f"{HEAD} of fewer rows", f"it has {len(head.ids)}, and half are below {step}")
            return replace(found, left_out=(few,))
        planners = {rows: found._planner(whole, rows) for rows in domains}
        return replace(
            found,
            planners={rows: planner for rows, planner in planners.items() if isinstance(planner, Planner)},
            left_out=tuple(left for left in planners.values() if isinstance(left, LeftOutChoice)),
        )

    def _planner(self, whole: Planner, rows: int) -> Planner | LeftOutChoice:
        """A drafter with so many rows, as far as it is known before its rows are."""
        name = f"{HEAD} of {rows} rows"
        try:
            refuse_forced(rows, self.head, self.staying.ids, ())
            decided = self.plan(rows)
            decided.refuse_little_text()
            pruned = _planned(self.conversion(decided.kept), whole)
        except (Refused, UsageError) as refusal:
            return LeftOutChoice(name, f"{refusal.what}: {refusal.why}")
        planner = replace(whole, drafter=pruned, rows=rows, _plans={})
        match planner.plan(AS_IT_IS, None):
            case PlannedDrafter():
                return planner
            case refused:
                return LeftOutChoice(name, refused.why)

    def plan(self, rows: int, accepted: AcceptedOfTrace | None = None) -> PruningPlan:
        """Which rows a head of so many keeps."""
        return plan_pruning(
            self.head,
            self.domains[rows],
            self.staying.ids,
            rows,
            depth=self.options.num_speculative_tokens,
            step=BLOCK * self.options.tensor_parallel_size,
            accepted=accepted,
            notes=self.staying.notes,
        )

    def conversion(self, kept: KeptTokens) -> Conversion:
        """What `prune` would write with these rows.

        Raises:
            Refused: nobody would read it.
        """
        request = ConversionRequest(self.options.prune(len(kept.ids)).convert, pruning=kept)
        return plan_drafter(self.drafter, self.findings, self.target, request)

    def decide(self, trace: Trace, searched: Sequence[TraceEntry]) -> dict[int, PruningPlan]:
        """Rows → what a head of so many keeps, by the text and by what was accepted on the half that is searched.

        Raises:
            UsageError, BadCheckpoint, Refused: as `whole_arm` and `accepted_tokens`.
        """
        if not self.planners:
            return {}
        options, checkpoint = self.options, self.drafter.checkpoint
        drafter = options.quantize.convert.reading.read(checkpoint, target_of(trace))
        arm = whole_arm(trace, drafter, dtype=options.dtype, device=options.device)
        told = tokens_done(trace, searched, options.progress)
        seen = accepted_tokens(trace, searched, arm, depth=options.num_speculative_tokens, progress=told)
        accepted = AcceptedOfTrace(seen.tokens_V, seen.tokens_V, seen.accept_length, trace.digest)
        return {rows: self.plan(rows, accepted) for rows in self.planners}


def all_planners(whole: Planner, heads: PrunedHeads | None) -> Planners:
    """The drafter as it is, and with every number of rows that its head may have."""
    return {planner.rows: planner for planner in (whole, *(heads.planners.values() if heads else ()))}


def _planned(conversion: Conversion, whole: Planner) -> Drafter:
    """A pruned drafter before it is written: its layers as they lie in the source, its head a shape without values."""
    metadata = conversion.plan.metadata
    checkpoint = planned_checkpoint(conversion.work, conversion.names, conversion.config, metadata)
    named = replace(checkpoint, name=whole.drafter.checkpoint.name)
    return DrafterReader(None, None, accept_detected=True).read(named, whole.target)
