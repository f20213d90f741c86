"""Mends what it was asked to, `convert --repair CODE[=PATH]`, and refuses what is broken still.

One function per problem code. A repair is never made silently: each declares what it changed, and `verify` lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from draftconv.checkpoint import PlannedTensor, Rows, TensorRef, as_float32, open_checkpoint
from draftconv.conversion.passes.base import Context
from draftconv.conversion.working_drafter import WorkingDrafter, cast_tensor, literal, map_tensors
from draftconv.drafter.facts import Rope
from draftconv.drafter.names import sort_names
from draftconv.drafter.problems import Problem
from draftconv.drafter.rope import DEFAULT_THETA
from draftconv.drafter.tensors import expected
from draftconv.drafter.vocabulary import VocabMap
from draftconv.engines.problems import why
from draftconv.errors import Refused, UsageError
from draftconv.options import several

Repair = Callable[[WorkingDrafter, str | None], WorkingDrafter]


def run(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """Make the repairs asked for.

    Raises:
        UsageError: unknown code, a missing or superfluous path, or a problem that is not there.
        Refused: the repair is not possible on this drafter, or it has errors that nobody asked to mend.
    """
    problems = context.findings.problems
    codes = frozenset(problem.code for problem in problems)
    repaired: set[str] = set()
    for request in several(context.options.repairs):
        code, _, path = request.partition("=")
        if code not in REPAIRS:
            raise UsageError(
                f"--repair {code}: no such repair", why=f"repairs: {', '.join(REPAIRS)}", cure="see the problem list"
            )
        if path and code not in WITH_PATH:
            raise UsageError(f"--repair {code} takes no path", cure=f"write --repair {code}")
        if code not in codes:
            raise UsageError(
                f"--repair {code}: this drafter does not have that problem",
                why=f"it has: {', '.join(sorted(codes)) or 'none'}",
                cure="leave the option out",
            )
        work = REPAIRS[code](work, path or None)
        repaired.add(code)
    _refuse_broken(
        errors(problems, repaired, quantized=context.weights.stored is not None), work.drafter.checkpoint.name
    )
    return work


def errors(problems: Iterable[Problem], repaired: Collection[str] = (), *, quantized: bool) -> list[Problem]:
    """The problems that keep a drafter from being converted.

    Args:
        repaired: codes that were mended. `quantized`: whether undeclared integers were recognised as weights.
    """
    settled = {*repaired, UNDECLARED_INTEGERS} if quantized else repaired
    return [problem for problem in problems if problem.severity == "error" and problem.code not in settled]


def mendable(codes: Iterable[str]) -> bool:
    """Whether these problems can be mended without another file."""
    return set(codes) <= REPAIRS.keys() - WITH_PATH


def _refuse_broken(broken: list[Problem], source: str) -> None:
    if not broken:
        return
    first = broken[0]
    others = f" (and {len(broken) - 1} more: {', '.join(sorted({p.code for p in broken[1:]}))})" if broken[1:] else ""
    raise Refused(
        f"{source}: {first.kind.title} [{first.code}]: {first.detail}{others}",
        why=why(first.code),
        cure=first.kind.cure,
    )


def _absolute_d2t(work: WorkingDrafter, _: str | None) -> WorkingDrafter:
    maps = work.drafter.maps
    if maps is None:
        raise Refused("there is no d2t to repair")
    mapped = VocabMap(maps.offsets, work.facts.vocab)
    mask = work.drafter.tensors.get("t2d")
    if mask is not None and mask.read() != mapped.t2d():
        raise Refused(
            "d2t read as target ids does not agree with t2d",
            why="one of the two is damaged beyond that, and which one cannot be told",
            cure="rebuild both from the training cache",
        )
    return _remap(work, mapped, "d2t held target ids; the draft ids were subtracted")


def _rebuild_t2d(work: WorkingDrafter, _: str | None) -> WorkingDrafter:
    if work.map is None:
        raise Refused("d2t is not usable, so t2d cannot be rebuilt from it")
    return _remap(work, work.map, "t2d was rebuilt from d2t")


def _integer_d2t(work: WorkingDrafter, _: str | None) -> WorkingDrafter:
    if work.map is None:
        raise Refused(
            "d2t holds fractions or no valid map, so its integers cannot be restored",
            why="half-precision floats cannot hold large offsets",
            cure="rebuild d2t from the training cache",
        )
    stored, maps = work.drafter.tensors["d2t"], work.drafter.maps
    largest = max(map(abs, maps.offsets), default=0) if maps else 0
    mask = work.drafter.tensors.get("t2d")
    if largest > EXACT.get(stored.dtype, largest) and (mask is None or mask.read() != work.map.t2d()):
        raise Refused(
            f"d2t is {stored.dtype} and holds offsets up to {largest}, so they may have been rounded",
            why=f"beyond {EXACT[stored.dtype]} not every integer exists there, and no t2d confirms these",
            cure="rebuild d2t from the training cache",
        )
    return _remap(work, work.map, f"d2t was {stored.dtype}; every value was integral")


def _remap(work: WorkingDrafter, mapped: VocabMap, why: str) -> WorkingDrafter:
    has_t2d = "t2d" in work.tensors
    order = "ascending" if mapped.order == "full" else mapped.order
    repaired = replace(work, map=mapped).put(*map_tensors(mapped, t2d=has_t2d)).declare("repaired", "d2t", why)
    return repaired.with_facts(why, vocab_order=order)


def _rebuild_head(work: WorkingDrafter, path: str | None) -> WorkingDrafter:
    """Take lm_head rows at the target ids from the drafter before pruning."""
    if path is None:
        raise UsageError(
            "--repair head-pruned-by-offset needs the unpruned drafter",
            why="the right rows are not in this file any more",
            cure="--repair head-pruned-by-offset=PATH",
        )
    unpruned = open_checkpoint(Path(path), download=True)
    full = unpruned.tensors.get(sort_names(unpruned.tensors).canonical.get("lm_head.weight", ""))
    head = work.tensors["lm_head.weight"]
    if full is None or work.map is None or full.shape != (work.facts.vocab, *head.shape[1:]):
        raise Refused(
            f"{path} holds no lm_head of {work.facts.vocab} x {head.shape[1]}",
            why="it must be the same drafter with its full vocabulary",
            cure="give the checkpoint that --prune-vocab was run on",
        )
    _refuse_other_drafter(work, full, path)
    rows = PlannedTensor("lm_head.weight", full.dtype, head.shape, Rows(full, work.map.ids))
    return work.put(rows).declare("repaired", "lm_head.weight", f"rows taken at arange + d2t from {Path(path).name}")


def _refuse_other_drafter(work: WorkingDrafter, full: TensorRef, path: str) -> None:
    """The fault itself proves the source: every pruned row must be the full head's row at its offset."""
    pruned, offsets = work.drafter.tensors["lm_head.weight"], work.drafter.maps.offsets if work.drafter.maps else ()
    rows = range(0, len(offsets), max(1, len(offsets) // SAMPLED_ROWS))
    differing = [i for i in rows if pruned.rows(i, i + 1) != full.rows(at := offsets[i] % full.row_count, at + 1)]
    if pruned.dtype != full.dtype or differing:
        raise Refused(
            f"{path} is not the drafter that this one was pruned from",
            why=f"row {differing[0] if differing else 0} of lm_head is not its row at the offset",
            cure="give the checkpoint that --prune-vocab was run on",
        )


def _set_flag(work: WorkingDrafter, _: str | None) -> WorkingDrafter:
    return work.declare("repaired", work.facts.fusion, "the flag is written because the tensors are there")


def _drop_unexpected(work: WorkingDrafter, _: str | None) -> WorkingDrafter:
    known = expected(work.drafter.facts)
    extra = [name for name in work.tensors if name not in known]
    for name in extra:
        work = work.declare("dropped", work.drafter.names[name], "no tensor of this kind of drafter")
    return work.without(*extra)


def _plain_rope(work: WorkingDrafter, _: str | None) -> WorkingDrafter:
    rope = work.facts.rope
    return work.with_facts("ModelOpt trained with plain rope", rope=Rope(rope.theta, rope.pairs))


def _trained_base(work: WorkingDrafter, _: str | None) -> WorkingDrafter:
    return work.with_facts("AngelSlim trained with this base", rope=replace(work.facts.rope, theta=DEFAULT_THETA))


def _fold_norm(work: WorkingDrafter, _: str | None) -> WorkingDrafter:
    """w_hidden' = w_input * w_hidden / rms(w_input): exact up to a per-token scalar.

    Source of the formula: RMS_2(RMS_1(s)) = w2*w1*s / rms(w1*s), with rms(w1*s)/rms(s)
    replaced by rms(w1). `input_layernorm` itself stays: it still normalises the embedding.
    """
    import numpy as np

    names = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"
    outer, inner = (as_float32(work.drafter.tensors[name]).astype(np.float64) for name in names)
    folded = (outer * inner / np.sqrt(np.mean(outer**2))).astype(np.float32)
    dtype = work.tensors[names[1]].dtype
    tensor = cast_tensor(literal(names[1], "F32", folded.shape, folded.tobytes()), dtype)
    work = work.put(tensor).declare("repaired", names[1], "input_layernorm folded in, an approximation")
    return work.with_facts("the first normalisation is folded into hidden_norm", double_norm=False)


UNDECLARED_INTEGERS = "tensor-dtype"
"""The problem that integers without a quantization_config are."""

SAMPLED_ROWS = 256
EXACT = {"BF16": 1 << 8, "F16": 1 << 11, "F32": 1 << 24, "F64": 1 << 53}
"""Largest integer up to which a float dtype holds every one."""

WITH_PATH = frozenset({"head-pruned-by-offset"})

REPAIRS: Mapping[str, Repair] = {
    "d2t-absolute": _absolute_d2t,
    "d2t-t2d-mismatch": _rebuild_t2d,
    "d2t-dtype": _integer_d2t,
    "head-pruned-by-offset": _rebuild_head,
    "norm-without-flag": _set_flag,
    "tensor-unexpected": _drop_unexpected,
    "rope-injected": _plain_rope,
    "rope-base-untrained": _trained_base,
    "double-norm": _fold_norm,
}
