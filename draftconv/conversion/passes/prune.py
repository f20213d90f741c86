"""Keeps some rows of the head, and maps them to the target's tokens in ascending order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from draftconv.checkpoint import QUANT_FILE, show_some
from draftconv.conversion.passes.base import Context
from draftconv.conversion.planned_output import QUANTIZATIONS
from draftconv.conversion.pruning.head_rows import target_head
from draftconv.conversion.quantized_output import put_computed
from draftconv.conversion.repack_plan import same_integers
from draftconv.conversion.working_drafter import (
    ChangeKind,
    QuantizationFiles,
    WorkingDrafter,
    copy_of,
    permute_rows,
)
from draftconv.drafter.tensors import HEAD
from draftconv.drafter.vocabulary import VocabMap
from draftconv.errors import Refused
from draftconv.quantization.exclusions import WEIGHT

if TYPE_CHECKING:
    from draftconv.quantization.quantized_weights import QuantizedWeights

MODULE = HEAD.removesuffix(WEIGHT)


def run(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """Prune the head to the tokens that are asked for; a drafter without one gets the target's rows.

    Raises:
        Refused: it has no row for one of them, or the target's head does not fit.
        UsageError: it has no head, and the target's is not at hand.
    """
    if context.weights.kept is not None:
        work = _keep_quantized(work)
    if context.pruning is None:
        return work
    ids = context.pruning.ids
    before = work.map.ids if work.map else range(work.facts.vocab)
    row_of = {token: row for row, token in enumerate(before)}
    if lacking := [token for token in ids if token not in row_of]:
        raise Refused(
            f"the head has no row for {len(lacking)} of {len(ids)} tokens, such as {lacking[0]}",
            why="rows can be left out and not be made up",
            cure="prune the drafter that this one was made from",
        )
    rows = tuple(row_of[token] for token in ids)
    why = f"{len(ids)} of {len(before)} rows; {_describe_left_out(ids, before)}"
    work = _prune_head(work, context, rows, why)
    kind: ChangeKind = "pruned" if work.map else "added"
    work = replace(work, map=VocabMap(ids, work.facts.vocab)).without("t2d").declare(kind, "d2t", why)
    return work.with_facts("the head was pruned", draft_vocab=len(ids), vocab_order="ascending", own_head=True)


def _prune_head(work: WorkingDrafter, context: Context, rows: tuple[int, ...], why: str) -> WorkingDrafter:
    kept = context.weights.kept
    if kept is not None and MODULE in kept.modules:
        from draftconv.quantization.gather_rows import GatherRows

        computation = GatherRows(MODULE, kept, rows)
        scheme, _ = same_integers(_only_head(kept), kept.matches[MODULE].format, lossy=False)
        work = work.without(*(f"{MODULE}.{suffix}" for suffix in kept.modules[MODULE]))
        work = put_computed(work, MODULE, computation.parts(scheme), computation)
        return work.declare("pruned", HEAD, f"{why}; the same integers and scales")
    if not work.facts.own_head:
        table = copy_of(HEAD, target_head(work.drafter, context.target))
        of_target = f"the head of {context.target.name if context.target else 'the target'}"
        return work.put(permute_rows(table, rows)).declare("added", HEAD, f"{of_target}: {why}")
    return work.put(permute_rows(work.tensors[HEAD], rows)).declare("pruned", HEAD, why)


def _only_head(stored: QuantizedWeights) -> QuantizedWeights:
    return replace(
        stored,
        matches={MODULE: stored.matches[MODULE]},
        modules={MODULE: stored.modules[MODULE]},
        shapes={MODULE: stored.shapes[MODULE]},
    )


def _keep_quantized(work: WorkingDrafter) -> WorkingDrafter:
    """Quantized weights as they are stored, and the word of them as it stands."""
    drafter = work.drafter
    work = work.put(*(copy_of(name, ref) for name, ref in drafter.qparams.items()))
    config = next((said for key in QUANTIZATIONS if isinstance(said := drafter.config.get(key), Mapping)), {})
    sidecars = {name: file for name, file in drafter.checkpoint.sidecars.items() if name == QUANT_FILE}
    return replace(work, packed=QuantizationFiles(config, sidecars))


def _describe_left_out(ids: tuple[int, ...], before: range | tuple[int, ...]) -> str:
    left_out = sorted({*before} - {*ids})
    return f"left out: {show_some(left_out, 6)}"
