"""What a tally adds up, by hand, on outcomes small enough to count."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from draftconv.reference.accept_length import Counts, walk
from draftconv.replay.replay import NOTHING, Acceptance
from draftconv.replay.tally import CONTEXT, STARTS, Tally, record
from draftconv.report import Diagnostics, Divergence, EveryPosition, Losses, Missed, Place
from draftconv.traces.request import TraceRequest
from draftconv.traces.trace import token_hash

# Two prompt tokens, five generated that count, two more kept: four roots, which draft for tokens from 13, 14, 15, 16.
TEXT = [10, 11, 12, 13, 14, 15, 16, 17, 18]
_ = NOTHING


def request(id: str = "a", cluster: str = "a", category: str = "x", counted: int = 5) -> TraceRequest:
    tokens_N = torch.tensor(TEXT[: 2 + counted + 2])
    return TraceRequest(id, cluster, category, 2, counted, tokens_N, torch.zeros(len(tokens_N) - 1, 1, 1))


def outcome(drafts: Sequence[Sequence[int]], nats: Sequence[float] | None = None) -> Acceptance:
    """What follows from drafts of three tokens: a draft is right while it is the text."""
    accepted = [
        next((j for j, token in enumerate(row) if token != TEXT[3 + root + j]), len(row))
        for root, row in enumerate(drafts)
    ]
    return Acceptance(
        torch.tensor(accepted, dtype=torch.int8),
        torch.tensor(drafts, dtype=torch.int32).reshape(len(drafts), 3),
        Counts.of((accepted[root] for root in walk(accepted)), 3),
        None if nats is None else torch.tensor(nats, dtype=torch.float32),
    )


REFERENCE = outcome([[13, 14, 9], [14, 15, 16], [9, _, _], [16, 9, _]])  # accepts 2, 3, 0, 1: steps at roots 0 and 3
CANDIDATE = outcome([[13, 8, _], [14, 15, 8], [15, 16, 8], [8, _, _]], [0.5, 0.25, 4.0, 1.0])  # accepts 1, 2, 2, 0
NOBODY = outcome([], [])


def tally(*rows: tuple[TraceRequest, Acceptance, Acceptance]) -> Tally:
    made = Tally(3)
    for row in rows:
        made.add(*row)
    return made


def test_the_outcomes_are_what_they_say() -> None:
    assert REFERENCE.accepted_R.tolist() == [2, 3, 0, 1]
    assert REFERENCE.starts() == [0, 3]
    assert CANDIDATE.accepted_R.tolist() == [1, 2, 2, 0]


# ── records ────────────────────────────────────────────────────────────────────────


def test_a_record_is_the_request_and_its_counts() -> None:
    found = record("drafter", request("a/1", "a", "x"), REFERENCE)
    assert (found.arm, found.id, found.cluster, found.category) == ("drafter", "a/1", "a", "x")
    assert (found.prompt, found.counted) == (2, 5)
    assert found.counts == Counts((0, 1, 1, 0))
    assert found.tokens == token_hash(TEXT[:7])  # what is kept beyond the counted end is no part of the text


def test_a_record_says_at_which_context_steps_started() -> None:
    """Roots 0 and 3 of the reference know 3 and 6 tokens, roots 0 and 2 of the candidate 3 and 5."""
    reference, candidate = (record("drafter", request(), done) for done in (REFERENCE, CANDIDATE))
    assert reference.contexts == {"2 to 3": Counts((0, 0, 1, 0)), "4 to 7": Counts((0, 1, 0, 0))}
    assert candidate.contexts == {"2 to 3": Counts((0, 1, 0, 0)), "4 to 7": Counts((0, 0, 1, 0))}
    assert record("drafter", request(counted=1), NOBODY).contexts == {}


# ── every position ─────────────────────────────────────────────────────────────────


def test_agreement_and_discordance_look_at_every_first_draft() -> None:
    found = tally((request(), REFERENCE, CANDIDATE)).diagnostics()
    assert found.agreement == 2 / 4  # 13 and 14, not 9 for 15, not 16 for 8
    assert found.discordance is not None
    assert found.discordance.positions == 4
    assert found.discordance.lost.value == 1 / 4  # root 3
    assert found.discordance.gained.value == 1 / 4  # root 2
    assert found.discordance.net.value == 0


def test_what_one_arm_loses_the_other_gains() -> None:
    """Both ways, with losses and gains that differ in number."""
    worse = outcome([[8, _, _], [8, _, _], [15, 16, 8], [8, _, _]])  # misses 13, 14 and 16, finds 15
    for arms, lost, gained in (((REFERENCE, worse), 3 / 4, 1 / 4), ((worse, REFERENCE), 1 / 4, 3 / 4)):
        found = tally((request(), *arms)).diagnostics().discordance
        assert found is not None
        assert (found.lost.value, found.gained.value, found.net.value) == (lost, gained, lost - gained)


def test_rates_are_those_of_all_positions_and_not_of_the_steps() -> None:
    found = tally((request(), REFERENCE, CANDIDATE)).diagnostics()
    assert found.every_position == (
        EveryPosition(1, 3 / 4, 3 / 4),
        EveryPosition(2, 2 / 4, 2 / 4),
        EveryPosition(3, 1 / 4, 0.0),
    )


def test_requests_add_up_and_prompts_are_one_cluster() -> None:
    found = tally(
        (request("a/1", "a"), REFERENCE, CANDIDATE),
        (request("a/2", "a"), REFERENCE, REFERENCE),
        (request("b", "b"), CANDIDATE, REFERENCE),
    )
    diagnostics = found.diagnostics()
    assert diagnostics.agreement == (2 + 4 + 2) / 12
    assert [row.cluster for row in found.discordant] == ["a", "a", "b"]
    assert diagnostics.every_position[2] == EveryPosition(3, (1 + 1 + 0) / 12, (0 + 1 + 1) / 12)


def test_other_depths() -> None:
    one = Acceptance(torch.tensor([1, 0], dtype=torch.int8), torch.tensor([[13], [9]]), Counts((1, 1)))
    made = Tally(1)
    made.add(request(counted=3), one, one)
    assert made.diagnostics().every_position == (EveryPosition(1, 0.5, 0.5),)
    assert [place.target for place in made.sums.largest] == []
    assert made.losses().places == 1


# ── divergence ─────────────────────────────────────────────────────────────────────


def test_divergence_is_told_by_nearest_rank() -> None:
    """Of four values the second is the median, the fourth the 90th and 99th percentile."""
    found = tally((request(), REFERENCE, CANDIDATE)).diagnostics()
    assert found.divergence == Divergence(4, mean=5.75 / 4, median=0.5, p90=4.0, p99=4.0, largest=4.0)


def test_divergence_of_all_requests_is_ranked_together() -> None:
    """Values 1 … 100 over 25 requests: the ranks are the values."""
    made = Tally(3)
    for i in range(25):
        nats = [1.0 + i, 26.0 + i, 51.0 + i, 76.0 + i]
        made.add(request(str(i), str(i)), REFERENCE, outcome(CANDIDATE.drafts_RK.tolist(), nats))
    assert made.diagnostics().divergence == Divergence(100, 50.5, 50.0, 90.0, 99.0, 100.0)


def test_one_value_is_every_percentile() -> None:
    one = outcome([[13, 14, 9]], [0.125])
    found = tally((request(counted=2), one, one)).diagnostics()
    assert found.divergence == Divergence(1, 0.125, 0.125, 0.125, 0.125, 0.125)


def test_heads_that_draft_other_tokens_have_none() -> None:
    assert tally((request(), REFERENCE, REFERENCE)).diagnostics().divergence is None


# ── places ─────────────────────────────────────────────────────────────────────────


def test_places_are_where_a_step_of_the_reference_starts() -> None:
    found = tally((request("a/1"), REFERENCE, CANDIDATE)).losses()
    first = Place(
        id="a/1",
        position=3,
        context=(10, 11, 12),
        target=(13, 14, 15),
        reference=(13, 14, 9),
        candidate=(13, 8),
        reference_accepted=2,
        candidate_accepted=1,
    )
    last = Place("a/1", 6, (10, 11, 12, 13, 14, 15), (16, 17, 18), (16, 9), (8,), 1, 0)
    assert found == Losses(
        places=2,
        what=STARTS,
        worse=2,
        better=0,
        lost=2,
        gained=0,
        tokens=(Missed(14, 1, 1), Missed(16, 1, 1)),
        largest=(first, last),
    )


def test_gains_are_counted_and_no_place_is_shown_for_them() -> None:
    """The other way round: CANDIDATE accepts 1 and 2 at roots 0 and 2, and REFERENCE 2 and 0."""
    found = tally((request(), CANDIDATE, REFERENCE)).losses()
    assert CANDIDATE.starts() == [0, 2]
    assert (found.places, found.worse, found.better, found.lost, found.gained) == (2, 1, 1, 2, 1)
    assert [place.position for place in found.largest] == [5]


def test_the_context_is_bounded() -> None:
    tokens_N = torch.arange(100, 100 + 80 + 5)
    long = TraceRequest("a", "a", "x", 80, 3, tokens_N, torch.zeros(84, 1, 1))
    right = [181, 182, 183]
    drafts = torch.tensor([right, right]), torch.tensor([[7, _, _], [7, _, _]])
    reference, candidate = (
        Acceptance(torch.tensor(accepted, dtype=torch.int8), rows, Counts((0, 0, 0, 1)))
        for accepted, rows in zip(([3, 0], [0, 0]), drafts, strict=True)
    )
    (place,) = tally((long, reference, candidate)).losses().largest
    assert place.position == 81
    assert place.context == tuple(range(181 - CONTEXT, 181))
    assert place.target == tuple(right)


# ── nothing to look at ─────────────────────────────────────────────────────────────


def test_a_request_of_one_token_changes_no_figure() -> None:
    with_it = tally((request("b", "b", counted=1), NOBODY, NOBODY), (request(), REFERENCE, CANDIDATE))
    without = tally((request(), REFERENCE, CANDIDATE))
    assert with_it.diagnostics() == without.diagnostics()
    assert with_it.losses() == without.losses()


@pytest.mark.parametrize("rows", [(), ((request(counted=1), NOBODY, NOBODY),)])
def test_nothing_is_no_figure(rows: tuple[tuple[TraceRequest, Acceptance, Acceptance], ...]) -> None:
    assert tally(*rows).diagnostics() == Diagnostics()
    assert tally(*rows).losses() == Losses(0, STARTS, 0, 0, 0, 0, (), ())
