"""A pruning that is decided: its rows, what they cover, the ladder, and when there is too little text."""

from __future__ import annotations

import json

import numpy as np
import pytest

from draftconv.conversion.pruning.head_rows import refuse_forced, refuse_vocab
from draftconv.conversion.pruning.law import predicted_loss
from draftconv.conversion.pruning.plan import AcceptedOfTrace, plan_pruning
from draftconv.errors import Refused, UsageError
from tests.conversion.pruning.made import VOCAB, domain, head, zipf

CODE, PROSE = domain("code", zipf(1, 40_000), 3.0), domain("prose", zipf(2, 40_000))


def accepted(seed: int, tokens: int = 2000) -> AcceptedOfTrace:
    written = [token for part in zipf(seed, tokens) for token in part]
    counts_V = np.bincount(written, minlength=VOCAB)
    return AcceptedOfTrace(counts_V, counts_V, 2.5, "0" * 64)


def test_what_it_tells_fits_together() -> None:
    decided = plan_pruning(head(), [CODE, PROSE], {7, 8}, 128, depth=3)
    assert len(decided.kept.ids) == decided.vocab == 128
    assert {7, 8} <= {*decided.kept.ids}
    assert decided.forced == 2
    assert [row.vocab for row in decided.ladder] == [64, 128, 256]
    (own,) = (row for row in decided.ladder if row.vocab == 128)
    assert (own.nbytes, own.missing) == (128 * 16, decided.missing)
    assert own.loss == decided.loss == predicted_loss(decided.missing, 4)  # a drafter that is always right
    assert decided.curve[-1].missing == pytest.approx(decided.missing)
    assert decided.curve[-1].tokens == CODE.tokens + PROSE.tokens
    assert decided.enough == 30 * 128
    assert decided.notes == ()


def test_the_trace_adds_its_tokens_and_judges_with_others() -> None:
    plain = plan_pruning(head(), [CODE], (), 64, depth=3)
    traced = plan_pruning(head(), [CODE], (), 64, depth=3, accepted=accepted(5, 40_000))
    of_trace = accepted(5, 40_000).judging_V
    assert of_trace[list(traced.kept.ids)].sum() > of_trace[list(plain.kept.ids)].sum()
    assert traced.accept_length == 2.5
    assert traced.missing == pytest.approx(1 - of_trace[list(traced.kept.ids)].sum() / of_trace.sum())
    assert traced.loss == predicted_loss(traced.missing, 2.5)
    little = plan_pruning(head(), [CODE], (), 64, depth=3, accepted=accepted(5, 40))
    assert len({*little.kept.ids} - {*plain.kept.ids}) <= 1  # forty tokens weigh as forty tokens


def test_text_of_another_kind_than_the_trace_is_told() -> None:
    (note,) = plan_pruning(head(), [CODE], (), 64, depth=3, accepted=accepted(9, 400)).notes
    assert note.startswith("the text is not what the target writes")
    assert plan_pruning(head(), [CODE], (), 64, depth=3, accepted=accepted(1, 400)).notes == ()


def test_tokens_that_should_stay_and_have_no_row_are_told() -> None:
    decided = plan_pruning(head(range(0, VOCAB, 2)), [CODE], {1, 2, 3}, 64, depth=3)
    assert decided.forced == 1
    assert decided.notes == ("2 of the tokens that should stay have no row in this head: 1, 3",)
    assert not any(token % 2 for token in decided.kept.ids)


def test_the_record_tells_what_was_counted_and_nothing_of_where() -> None:
    record = json.loads(
        json.dumps(plan_pruning(head(), [CODE, PROSE], (), 64, depth=3, accepted=accepted(5)).kept.record)
    )
    assert (record["rows"], record["forced"], record["trace"]) == (VOCAB, 0, f"sha256:{'0' * 64}")
    assert [row["name"] for row in record["domains"]] == ["code", "prose"]
    assert record["domains"][0]["counts"] != record["domains"][1]["counts"]
    assert record["domains"][0]["places"] == ["code.jsonl"]


def test_too_little_text_is_refused_and_says_which() -> None:
    plan_pruning(head(), [CODE], (), 128, depth=3).refuse_little_text()
    scarce = domain("scarce", zipf(3, 200))
    with pytest.raises(
        Refused, match="tokens of text are too few to choose 128 rows by; of scarce there are"
    ) as caught:
        plan_pruning(head(), [CODE, scarce], (), 128, depth=3).refuse_little_text()
    assert "each row asks for 30, 3840 in all" in caught.value.why


@pytest.mark.parametrize(
    ("vocab", "devices", "force", "fault"),
    [(512, 1, True, "nothing would be pruned"), (600, 1, False, "nothing would be pruned"),
     (65, 1, False, "--vocab 65 is no multiple of 64"), (64, 2, False, "--vocab 64 is no multiple of 128"),
     (1, 1, False, "no multiple of 64"), (64, 1, False, ""), (128, 2, False, ""), (65, 1, True, "")],
)  # fmt: skip
def test_numbers_of_rows(vocab: int, devices: int, force: bool, fault: str) -> None:
    if not fault:
        refuse_vocab(vocab, head(), devices, force=force)
        return
    with pytest.raises(UsageError) as caught:
        refuse_vocab(vocab, head(), devices, force=force)
    assert fault in caught.value.what
    assert caught.value.cure


def test_tokens_that_have_to_stay_must_fit_and_have_rows() -> None:
    refuse_forced(64, head(), set(range(64)), [3])
    with pytest.raises(UsageError, match="--vocab 64: 65 tokens have to stay") as caught:
        refuse_forced(64, head(), set(range(65)), [])
    assert "give 128 or more" in caught.value.cure
    with pytest.raises(UsageError, match="--keep: the head has no row for 1, 3"):
        refuse_forced(64, head(range(0, VOCAB, 2)), {1, 2, 3}, [1, 2, 3])
    refuse_forced(64, head(range(0, VOCAB, 2)), {1, 2, 3}, [2])  # special ones without a row are told, not refused
