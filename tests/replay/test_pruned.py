"""A pruned head, replayed: as the whole drafter where its rows are wanted, and never right about the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftconv.drafter.targets import find_target
from draftconv.errors import UsageError
from draftconv.replay.pruned import accepted_tokens, compared, pruned_arm, whole_arm
from draftconv.replay.replay import Arm
from draftconv.traces.trace import Trace, open_trace
from tests import opening, tiny
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded


def loaded(name: str, trace: Trace) -> Arm:
    torch.set_num_threads(1)
    target = find_target(str(DATA / "targets" / name.partition("-")[0]), None)
    return whole_arm(trace, opening.read(DATA / "drafters" / name, target=target), dtype="float32", device="cpu")


@pytest.mark.parametrize("name", ["llama-eagle3-reduced", "mla-eagle3.1"])
def test_accepted_tokens_are_those_of_the_counted_steps(name: str, recorded: Recorded) -> None:
    trace = open_trace(recorded(name.partition("-")[0], count=4))
    found = accepted_tokens(trace, trace.entries, loaded(name, trace), depth=3)
    assert int(found.tokens_V.sum()) == sum(request.counts.accepted for request in found.requests) > 0
    assert len(found.tokens_V) == trace.about.vocab
    assert found.accept_length > 1
    assert [request.id for request in found.requests] == [entry.id for entry in trace.entries]


@pytest.mark.parametrize("name", ["llama-eagle3", "llama-eagle3-reduced", "mla-eagle3.1"])
def test_rows_that_nobody_asked_for_cost_nothing(name: str, recorded: Recorded) -> None:
    """With every token that the whole drafter ever drafts, the pruned one drafts the same."""
    trace = open_trace(recorded(name.partition("-")[0], count=4))
    arm = loaded(name, trace)
    whole = accepted_tokens(trace, trace.entries, arm, depth=3)
    head = arm.model.to_target_ids(torch.arange(arm.model.facts.draft_vocab)).tolist()
    everything = pruned_arm(arm, sorted(head)[:-1] if len(head) == trace.about.vocab else sorted(head))
    assert everything.model.fc.weight.data_ptr() == arm.model.fc.weight.data_ptr()
    again = accepted_tokens(trace, trace.entries, everything, depth=3)
    assert again.tokens_V[:-1].tolist() == whole.tokens_V[:-1].tolist()
    estimate = compared(whole, again)
    assert estimate.ratio == pytest.approx(1, abs=1e-3)


def test_missing_tokens_are_never_accepted_and_lower_the_accept_length(recorded: Recorded) -> None:
    trace = open_trace(recorded("llama", count=4))
    arm = loaded("llama-eagle3", trace)
    whole = accepted_tokens(trace, trace.entries, arm, depth=3)
    frequent = int(whole.tokens_V.argmax())
    kept = [token for token in range(trace.about.vocab) if token != frequent]
    pruned = accepted_tokens(trace, trace.entries, pruned_arm(arm, kept, "without"), depth=3)
    assert whole.tokens_V[frequent] > 0
    assert pruned.tokens_V[frequent] == 0
    assert compared(whole, pruned).ratio < 1


def test_what_has_no_row_is_named(recorded: Recorded) -> None:
    trace = open_trace(recorded("llama", count=4))
    arm = loaded("llama-eagle3-reduced", trace)
    ids = arm.model.to_target_ids(torch.arange(arm.model.facts.draft_vocab)).tolist()
    lacking = next(token for token in range(trace.about.vocab) if token not in ids)
    with pytest.raises(UsageError, match=f"llama-eagle3-reduced has no row for token {lacking}"):
        pruned_arm(arm, [*ids[:3], lacking])


def test_a_drafter_of_another_target_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    trace = open_trace(recorded("llama", count=4))
    drafter = opening.read(tiny.spell("llama", "torchspec-native").write(tmp_path / "drafter"))
    with pytest.raises(UsageError, match="is made for a vocabulary of 160, llama has 2048"):
        whole_arm(trace, drafter, dtype="float32", device="cpu")
