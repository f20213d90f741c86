"""The passes between reading and writing: embedding, vocabulary, biases, dtype, positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from draftconv.checkpoint import FLOATS
from draftconv.conversion.work import Work, cast_tensor, copy_of, map_tensors, permute_rows, zeros
from draftconv.drafter.checks import table_difference, target_table
from draftconv.drafter.facts import Gqa
from draftconv.drafter.targets import EMBED_NAMES, Target
from draftconv.drafter.vocabulary import VocabMap
from draftconv.errors import Refused, UsageError
from draftconv.layouts.base import Spelling

Embed = Literal["keep", "drop", "from-target"]
DTYPES = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
EMBEDDING = "embed_tokens.weight"
UNFILLED = "its trainer's class leaves a missing table as memory had it, or all zeros, and says nothing"


def embedding(work: Work, spelling: Spelling, policy: Embed, target: Target | None, *, force: bool) -> Work:
    """Keep, drop or attach embed_tokens; a layout whose reader has no other table gets the target's.

    Raises:
        Refused: dropping a table that is not, or cannot be, the target's, or that the layout must have;
            attaching one of another width; a table is missing and the target's is not at hand.
        UsageError: the target's weights are needed and not given.
    """
    if spelling.embedding == "always":
        return _own_embedding(work, policy, target)
    match policy:
        case "keep":
            return work
        case "drop":
            return _drop_embedding(work, target, force=force)
        case "from-target":
            return _attach_embedding(work, target)


def _own_embedding(work: Work, policy: Embed, target: Target | None) -> Work:
    """For layouts that must store the embedding: their reader fills a missing one with nothing, silently."""
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
    return _attach_embedding(work, target)


def _drop_embedding(work: Work, target: Target | None, *, force: bool) -> Work:
    mine = work.drafter.tensors.get(EMBEDDING)
    if mine is None:
        return work
    if work.facts.target_hidden != work.facts.hidden:
        raise Refused(
            "embed_tokens cannot be dropped: the target's table is not as wide as the drafter",
            why=f"drafter {work.facts.hidden}, target {work.facts.target_hidden}",
            cure="use --embed keep",
        )
    if force:
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
            cure="use --embed keep (vLLM serves the drafter's own table), or --force",
        )
    else:
        why = f"bit-equal to the table of {target.name}"
    return _without_embedding(work, why)


def _without_embedding(work: Work, why: str) -> Work:
    return work.without(EMBEDDING).declare("dropped", EMBEDDING, why).with_facts(why, own_embedding=False)


def _attach_embedding(work: Work, target: Target | None) -> Work:
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


def leave_embedding(work: Work, spelling: Spelling, policy: Embed, target: Target | None, *, force: bool) -> Work:
    """For layouts that never store the embedding: proven equal where the target's weights are at hand.

    Raises:
        Refused: the target's table was asked for and has no place, or it differs from the drafter's.
    """
    if spelling.embedding != "never" or EMBEDDING not in work.tensors:
        return work
    if policy == "from-target":
        raise Refused(
            "this layout never stores embed_tokens, so the target's table has no place in it",
            why="its trainer and the engines take the target's own",
            cure="leave out --embed from-target",
        )
    if target is not None and target.has_weights and target_table(target, EMBED_NAMES) is not None:
        return _drop_embedding(work, target, force=force)
    return _without_embedding(
        work, "this layout never stores it; its trainer and the engines take the target's (not compared)"
    )


def vocabulary(work: Work, spelling: Spelling, recorded: tuple[int, ...] | None) -> Work:
    """Bring the vocabulary maps into the form that the layout's reader indexes.

    `recorded` is the lm_head order of an earlier conversion, undone when this one returns
    to the layout it came from.
    """
    mapped = work.map
    if mapped is None:
        return _identity(work, spelling)
    rows = range(len(mapped.ids))
    if recorded is not None and spelling.order == "any" and len(recorded) == len(rows):
        inverse = tuple(sorted(rows, key=recorded.__getitem__))
        work, mapped = _permute(work, mapped, inverse, "back to the order recorded in draftconv.json")
    elif spelling.order == "ascending" and mapped.order == "unordered":
        _, order = mapped.ascending()
        work, mapped = _permute(work, mapped, order, "this layout's loader needs ascending target ids")
    if spelling.t2d and "t2d" not in work.tensors:
        work = work.declare("added", "t2d", "rebuilt from d2t")
    if not spelling.t2d and "t2d" in work.tensors:
        work = work.without("t2d").declare("dropped", "t2d", "follows from d2t; no engine reads it")
    for tensor in map_tensors(mapped, t2d=spelling.t2d):
        # Written anew even if nothing moved: some producers store int32.
        stored = work.tensors.get(tensor.name)
        if stored is not None and stored.dtype != tensor.dtype:
            work = work.declare("cast", tensor.name, f"{stored.dtype} → {tensor.dtype}, every value exact")
        work = work.put(tensor)
    return work


def _identity(work: Work, spelling: Spelling) -> Work:
    if spelling.maps != "always" or work.facts.reduced_vocab:
        return work
    identity = VocabMap(tuple(range(work.facts.vocab)), work.facts.vocab)
    work = work.put(*map_tensors(identity, t2d=spelling.t2d))
    return work.declare("added", "d2t and t2d", "the identity, which this layout always stores")


def _permute(work: Work, mapped: VocabMap, order: tuple[int, ...], why: str) -> tuple[Work, VocabMap]:
    """Draft id i becomes what draft id `order[i]` was: rows of lm_head and the map together."""
    moved = VocabMap(tuple(mapped.ids[row] for row in order), mapped.vocab)
    if head := work.tensors.get("lm_head.weight"):
        work = work.put(permute_rows(head, order))
    work = replace(work, map=moved, order=order).declare("permuted", "lm_head.weight", why)
    return work.with_facts(why, vocab_order="ascending" if moved.order == "full" else moved.order), moved


def o_bias(work: Work, spelling: Spelling) -> Work:
    """Add a zero o_proj.bias where one flag builds the biases of q, k, v and o together."""
    attention = work.facts.attention
    if not spelling.o_bias or not isinstance(attention, Gqa) or not attention.qkv_bias or attention.o_bias:
        return work
    for layer in range(work.facts.layers):
        stem = f"layers.{layer}.self_attn"
        packed = f"{stem}.o_proj.weight" not in work.tensors
        dtype = work.tensors[f"{stem}.q_proj.bias" if packed else f"{stem}.o_proj.weight"].dtype
        work = work.put(zeros(f"{stem}.o_proj.bias", dtype, (work.facts.hidden,)))
        work = work.declare("added", f"{stem}.o_proj.bias", "zeros: attention_bias builds it, and it would be garbage")
    return work


def dtype(work: Work, name: str | None) -> Work:
    """Cast every float tensor; integers and masks never change.

    Raises:
        UsageError: unknown dtype.
    """
    wanted = float_dtype(name)
    if wanted is None:
        return work
    for tensor in list(work.tensors.values()):
        if tensor.dtype in FLOATS and tensor.dtype != wanted:
            work = work.put(cast_tensor(tensor, wanted))
            work = work.declare("cast", tensor.name, f"{tensor.dtype} → {wanted}, rounded to nearest even")
    return work


def float_dtype(name: str | None) -> str | None:
    """The dtype of `--dtype`, as safetensors spells it.

    Raises:
        UsageError: unknown dtype.
    """
    if name is not None and name not in DTYPES:
        raise UsageError(f"--dtype {name}: unknown", why=f"known: {', '.join(DTYPES)}")
    return None if name is None else DTYPES[name]


def positions(work: Work, asked: int | None, target: Target | None) -> Work:
    """Set max_position_embeddings as asked, or raise it to the target's."""
    have = work.facts.max_positions
    if asked is not None:
        return work.with_facts("--max-positions", max_positions=asked)
    if target and target.max_positions and (have is None or have < target.max_positions):
        return work.with_facts(f"raised to that of {target.name}", max_positions=target.max_positions)
    return work


def main_dtype(work: Work) -> str:
    """The dtype that holds most float bytes."""
    sizes: dict[str, int] = {}
    for tensor in work.tensors.values():
        if tensor.dtype in FLOATS:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=sizes.__getitem__)
