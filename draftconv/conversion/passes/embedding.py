"""Keeps, drops or attaches embed_tokens."""

from __future__ import annotations

from typing import Literal

from draftconv.conversion.passes.base import Context
from draftconv.conversion.working_drafter import WorkingDrafter, copy_of
from draftconv.drafter.checks import table_difference, target_table
from draftconv.drafter.targets import EMBED_NAMES, Target
from draftconv.errors import Refused, UsageError

EMBEDDING = "embed_tokens.weight"
UNFILLED = "its trainer's class leaves a missing table as memory had it, or all zeros, or does not open the drafter"


def run(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """As asked; a layout whose reader has no other table gets the target's, one that never stores it loses it.

    Raises:
        Refused: dropping a table that is not, or cannot be, the target's, or that the layout must have;
            attaching one of another width, or to a layout that never stores it; a table is missing and the
            target's is not at hand.
        UsageError: the target's weights are needed and not given.
    """
    match context.writer.spelling.embedding:
        case "always":
            return _require_table(work, context)
        case "never":
            return _leave_out(_apply_policy(work, context), context)
        case _:
            return _apply_policy(work, context)


def _apply_policy(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    match context.options.embed:
        case "keep":
            return work
        case "drop":
            return _drop(work, context)
        case "from-target":
            return _attach(work, context.target)


def _require_table(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """For layouts that must store the embedding: their reader fills a missing one with nothing, silently."""
    policy, target = context.options.embed, context.target
    if policy == "drop":
        raise Refused(
            "this layout must store embed_tokens, so it cannot be dropped",
            why=UNFILLED,
            cure="leave out --embed drop",
        )
    if policy == "keep" and EMBEDDING in work.tensors:
        return work
    if policy == "keep" and (target is None or not target.has_weights):
        raise Refused(
            "this layout must store embed_tokens, and the drafter has none of its own",
            why=UNFILLED,
            cure="give the target's weights, whose table it uses: --target DIRECTORY",
        )
    return _attach(work, target)


def _drop(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    target = context.target
    mine = work.drafter.tensors.get(EMBEDDING)
    if mine is None:
        return work
    if work.facts.target_hidden != work.facts.hidden:
        raise Refused(
            "embed_tokens cannot be dropped: the target's table is not as wide as the drafter",
            why=f"drafter {work.facts.hidden}, target {work.facts.target_hidden}",
            cure="use --embed keep",
        )
    if context.options.force:
        why = "dropped without proof (--force)"
    elif target is None or not target.has_weights:
        raise UsageError(
            "--embed drop needs the target's weights, to prove that both tables are equal",
            why="engines then use the target's table; a different one of the drafter would be lost",
            cure="give --target DIRECTORY, or --force to drop it unproven",
        )
    elif difference := table_difference(mine, target_table(target, EMBED_NAMES)):
        raise Refused(
            "embed_tokens is not the target's, so it is not dropped",
            why=difference,
            cure="use --embed keep, for engines that serve the drafter's own table, or --force",
        )
    else:
        why = f"bit-equal to the table of {target.name}"
    return _remove(work, why)


def _remove(work: WorkingDrafter, why: str) -> WorkingDrafter:
    return work.without(EMBEDDING).declare("dropped", EMBEDDING, why).with_facts(why, own_embedding=False)


def _attach(work: WorkingDrafter, target: Target | None) -> WorkingDrafter:
    if target is None:
        raise UsageError("--embed from-target needs --target", cure="give --target DIRECTORY")
    table = target_table(target, EMBED_NAMES)
    if table is None or table.shape != (work.facts.vocab, work.facts.hidden):
        raise Refused(
            f"{target.name} has no embed_tokens of {work.facts.vocab} x {work.facts.hidden}",
            why=f"found {list(table.shape) if table else 'none'}",
            cure="use --embed keep" if EMBEDDING in work.tensors else "give the target that it was trained for",
        )
    kind: Literal["added", "replaced"] = "replaced" if work.facts.own_embedding else "added"
    why = f"the table of {target.name}"
    return work.put(copy_of(EMBEDDING, table)).declare(kind, EMBEDDING, why).with_facts(why, own_embedding=True)


def _leave_out(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """For layouts that never store the embedding: proven equal where the target's weights are at hand."""
    target = context.target
    if EMBEDDING not in work.tensors:
        return work
    if context.options.embed == "from-target":
        raise Refused(
            "this layout never stores embed_tokens, so the target's table has no place in it",
            why="its trainer and the engines take the target's own",
            cure="leave out --embed from-target",
        )
    if target is not None and target.has_weights and target_table(target, EMBED_NAMES) is not None:
        return _drop(work, context)
    return _remove(work, "this layout never stores it; its trainer and the engines take the target's (not compared)")
