"""One pass over a trace for drafters that are looked at on their own: what each accepts from every position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draftconv.replay.batches import roots
from draftconv.replay.drawn import replay_odds
from draftconv.replay.lm_head import Head
from draftconv.replay.replay import Arm, replay
from draftconv.report.acceptance.records import AcceptanceRecord
from draftconv.traces.request import TraceRequest
from draftconv.traces.trace import Trace, TraceEntry, token_hash


def accept_records(
    trace: Trace,
    entries: Sequence[TraceEntry],
    arms: Sequence[Arm],
    *,
    depth: int,
    drawn_at: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[AcceptanceRecord]:
    """Replay drafters on requests of a trace.

    Args:
        depth: the largest K; every smaller one follows from the records.
        drawn_at: the temperature that drafts are drawn at; None where the most likely token is drafted.
        progress: told the tokens of each request that is done.

    Raises:
        UsageError, BadCheckpoint: as `replay`, `replay_odds` and `Trace.read`.
    """
    boundaries = sorted({boundary for arm in arms for boundary in arm.boundaries})
    draftable = [_draftable(arm, trace.about.vocab) for arm in arms]
    requests = (trace.read(entry, boundaries) for entry in entries)
    for request, of_arms in _replayed(arms, requests, boundaries, depth, drawn_at, progress):
        text = token_hash(request.tokens_N[: request.prompt + request.counted].tolist())
        for arm, known_V, record in zip(arms, draftable, of_arms, strict=True):
            yield replace(record, arm=arm.name, tokens=text, unmapped=_unmapped(request, known_V, depth))


def _replayed(
    arms: Sequence[Arm],
    requests: Iterable[TraceRequest],
    boundaries: Sequence[int],
    depth: int,
    drawn_at: float | None,
    progress: Callable[[int], None] | None,
) -> Iterator[tuple[TraceRequest, list[AcceptanceRecord]]]:
    """Every request with a record for each arm, which lacks what does not come from the replay."""
    if drawn_at is None:
        for request, acceptances in replay(arms, requests, boundaries, depth=depth, done=progress):
            plain = _labels(request)
            yield request, [replace(plain, accepted=tuple(each.accepted_R.tolist())) for each in acceptances]
    else:
        drawn = replay_odds(arms, requests, boundaries, depth=depth, temperature=drawn_at, done=progress)
        for request, odds in drawn:
            plain = _labels(request)
            yield request, [replace(plain, odds=tuple(map(_chances, each.tolist()))) for each in odds]


def _labels(request: TraceRequest) -> AcceptanceRecord:
    return AcceptanceRecord(
        arm="",
        id=request.id,
        cluster=request.cluster,
        category=request.category,
        language=request.language,
        prompt=request.prompt,
        counted=request.counted,
        accepted=(),
        unmapped=(),
        tokens="",
    )


def _chances(odds: Sequence[float]) -> tuple[float, ...]:
    """With the nine digits that tell a float32 from every other, up to the first that is 0."""
    ends = next((j for j, chance in enumerate(odds) if not chance), len(odds))
    return tuple(float(f"{chance:.9g}") for chance in odds[:ends])


def mapped(arms: Sequence[Arm]) -> dict[str, int]:
    """Drafters that cannot draft every token → how many they can."""
    heads = {arm.name: Head.of(arm.model) for arm in arms}
    return {name: len(head.weight_VH) for name, head in heads.items() if head.d2t_V is not None}


def _draftable(arm: Arm, vocab: int) -> Tensor | None:
    """Which of the target's tokens a drafter can draft: bool [V]; None where it can all."""
    head = Head.of(arm.model)
    if head.d2t_V is None:
        return None
    known_V = torch.zeros(vocab, dtype=torch.bool)
    ids_V = arm.model.to_target_ids(torch.arange(len(head.weight_VH), device=head.d2t_V.device)).cpu()
    known_V[ids_V[(ids_V >= 0) & (ids_V < vocab)]] = True  # a map that is misread leads outside
    return known_V


def _unmapped(request: TraceRequest, known_V: Tensor | None, depth: int) -> tuple[tuple[int, int], ...]:
    """Places and ids of tokens that no step could have had accepted, counted from the first that is ever drafted."""
    if known_V is None:
        return ()
    first, width = request.prompt + 1, roots(request) + depth - 1 if roots(request) else 0
    wanted_N = request.tokens_N[first : first + width]
    missing = (~known_V[wanted_N]).nonzero()[:, 0].tolist()
    return tuple((i, int(wanted_N[i])) for i in missing)
