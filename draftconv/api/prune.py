"""Prune a drafter's head to the tokens that its target really writes.

rows that there are → tokens that have to stay → counts → (replay of one half of a trace) → which rows stay, what they
cover and what the law predicts → (replay of the other half) → plan, checked as the engine would → (write)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.attestation.provenance import attest_conversion
from draftconv.attestation.statement import refuse_statement
from draftconv.checkpoint import Checkpoint, open_checkpoint
from draftconv.conversion.plan import Conversion, plan_drafter, refuse_place
from draftconv.conversion.pruning.head_rows import BLOCK, HeadRows, refuse_forced, refuse_vocab
from draftconv.conversion.pruning.options import PruneOptions, PruneProgress
from draftconv.conversion.pruning.plan import AcceptedOfTrace, PruningPlan, plan_pruning
from draftconv.conversion.pruning.texts import counted_domains, tokens_to_stay
from draftconv.conversion.pruning.tokens import KeptTokens
from draftconv.conversion.request import ConversionRequest
from draftconv.display import Block, Displayed, named
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.targets import find_target
from draftconv.options import Place, takes
from draftconv.traces.halves import split_halves
from draftconv.traces.trace import Trace, open_trace

if TYPE_CHECKING:
    from draftconv.conversion.options import Progress
    from draftconv.replay.pruned import HalvedReplay
    from draftconv.report.statistics import Estimate

__all__ = ["PruneOptions", "Pruning", "prepare", "prune", "refuse_place"]


@dataclass(frozen=True, slots=True, repr=False)
class Pruning(Displayed):
    """A pruning that is decided and checked.

    Attributes:
        decided: which rows stay, what they cover, and what the law predicts.
        replayed: on the half of the trace that chose nothing; None without a trace.
    """

    decided: PruningPlan
    conversion: Conversion
    replayed: Estimate | None = None

    def write(self, out: str | Path, *, overwrite: bool = False, progress: Progress | None = None) -> None:
        """Write the directory `out`, which appears whole or not at all; see `Conversion.write`."""
        self.conversion.write(out, overwrite=overwrite, progress=progress)

    def brief(self) -> Iterator[str]:
        """The rows that stay, what they cover of held-out text, and what that costs."""
        decided = self.decided
        yield named(self.conversion.drafter.checkpoint.name)
        yield f"{decided.vocab} of {len(decided.head.ids)} rows"
        yield from (f"{domain.name} {100 * domain.covered:.2f} % covered" for domain in decided.coverage)
        if self.replayed is None:
            yield f"loss at most {100 * decided.loss.most:.2f} %"
        else:
            yield f"loss {100 * (1 - self.replayed.ratio):.2f} % on the trace"

    def blocks(self) -> Iterator[Block]:
        """What is to be known before it is written: coverage, learning curve, predicted losses, replay."""
        from draftconv.conversion.pruning import tables

        yield from tables.blocks(self.decided)
        if self.replayed is not None:
            yield self._measured(self.replayed)

    def _measured(self, replayed: Estimate) -> str:
        before, after, loss = replayed.reference.value, replayed.candidate.value, 100 * (1 - replayed.ratio)
        low, high = (100 * (1 - end) for end in (replayed.interval.high, replayed.interval.low))
        return (
            f"Replayed on {replayed.clusters} conversations that chose nothing: accept length {before:.3f} → "
            f"{after:.3f}, loss {loss:.2f} % ({low:.2f} % to {high:.2f} %); predicted {self.decided.loss}."
        )


@takes(PruneOptions)
def prune(source: Place, out: Place, options: PruneOptions) -> Pruning:
    """Prune the head of a drafter and write it.

    Args:
        source: directory, weights file or Hub id. `out`: directory to make.

    Raises:
        DraftconvError: see `prepare`; WriteError when the output cannot be written.
    """
    refuse_place(source, out, overwrite=options.overwrite)
    refuse_statement(options.attest, out)
    pruning = prepare(source, options)
    write(pruning, out, options, options.progress)
    return pruning


def write(pruning: Pruning, out: Place, options: PruneOptions, progress: PruneProgress | None = None) -> None:
    """Write a pruning that is decided, and the statement that is asked for.

    Raises:
        WriteError: it cannot be written.
    """
    total = pruning.conversion.plan.total_bytes
    told = None if progress is None else lambda done: progress("writing", done, total)
    pruning.write(out, overwrite=options.overwrite, progress=told)
    attest_conversion(pruning.conversion, options, Path(out))


def prepare(source: Place, options: PruneOptions, *, download: bool = True) -> Pruning:
    """Decide and check a pruning without writing anything.

    Raises:
        Refused: too little text for so many rows, the source has problems that nobody asked to repair, or no engine
            would read what would be written.
        UsageError: a number of rows that cannot be, tokens that have to stay and cannot, counts of another tokenizer,
            a trace of another target, or nothing to choose by.
        BadPrompts, BadCheckpoint: texts, trace, target or drafter cannot be read.
        Undecided: the source can be read in several ways.
    """
    target = find_target(options.target, options.target_layers)
    trace = None if options.trace is None else open_trace(options.trace)
    opened = open_checkpoint(source, download=download or trace is not None, hashed=options.hash and download)
    drafter = options.convert.reading.read(opened, target)
    doubts: tuple[str, ...] = ()
    if trace is not None:
        from draftconv.replay.drafters import embedding_doubts, refuse_other_trace, target_of

        fed = drafter if target else options.convert.reading.read(opened, target_of(trace))
        refuse_other_trace(fed, trace, target)
        doubts = embedding_doubts(drafter.checkpoint.name, drafter, trace)
    head = HeadRows.of(drafter, target)
    refuse_vocab(options.vocab, head, options.tensor_parallel_size, force=options.force)
    staying = tokens_to_stay(head.vocab, target, trace, options)
    refuse_forced(options.vocab, head, staying.ids, options.kept_ids)
    findings = check_drafter(drafter, target)

    def planned(kept: KeptTokens) -> Conversion:
        return plan_drafter(drafter, findings, target, ConversionRequest(options.convert, pruning=kept))

    planned(KeptTokens(head.ids[: options.vocab]))  # what nobody reads is refused before anything is counted
    halved = None if trace is None else _halved(trace, opened, options)
    decided = plan_pruning(
        head,
        counted_domains(head.vocab, target, options),
        staying.ids,
        options.vocab,
        depth=options.num_speculative_tokens,
        step=BLOCK * options.tensor_parallel_size,
        accepted=None if halved is None else _accepted(halved),
        notes=(*staying.notes, *doubts),
    )
    if not options.force:
        decided.refuse_little_text()
    conversion = planned(decided.kept)
    return Pruning(decided, conversion, None if halved is None else halved.pruned(decided.kept.ids))


def _halved(trace: Trace, opened: Checkpoint, options: PruneOptions) -> HalvedReplay:
    """The whole drafter, loaded to be replayed on both halves of a trace."""
    from draftconv.replay.drafters import target_of
    from draftconv.replay.pruned import HalvedReplay, whole_arm
    from draftconv.replay.settings import refuse_depth

    refuse_depth(options.num_speculative_tokens, trace)
    halves, tell = split_halves(trace.entries), options.progress
    arm = whole_arm(
        trace, options.convert.reading.read(opened, target_of(trace)), dtype=options.dtype, device=options.device
    )
    progress = None if tell is None else partial(tell, "replaying")
    return HalvedReplay(trace, arm, halves, options.num_speculative_tokens, progress)


def _accepted(halved: HalvedReplay) -> AcceptedOfTrace:
    choosing, judging = halved.choosing, halved.judging
    return AcceptedOfTrace(choosing.tokens_V, judging.tokens_V, judging.accept_length, halved.trace.digest)
