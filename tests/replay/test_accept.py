"""One pass at the largest K tells every smaller one, and what a vocabulary map lacks."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from safetensors.torch import load_file

from draftconv.api.accept import accept
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.facts import AuxLayers
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.replay.accept import accept_records, mapped
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.replay.replay import Arm, replay
from draftconv.report.acceptance.records import AcceptanceRecord
from draftconv.traces.trace import Trace, open_trace, token_hash
from tests.reference.test_fixtures import DATA, DRAFTERS
from tests.traces.recorded import DEPTH, Recorded, described
from tests.traces.recorded import recorded as recorded

REDUCED = "llama-eagle3-reduced"


def loaded(name: str, trace: Trace) -> Arm:
    target = described(name.partition("-")[0])
    drafter = read_drafter(open_checkpoint(DATA / "drafters" / name), ReadOptions(target=target))
    assert not isinstance(drafter.facts.boundaries, AuxLayers)
    return load_arm(name, drafter, LoadSettings(trace.table))


def once(name: str, trace: Trace, depth: int = DEPTH) -> list[AcceptanceRecord]:
    return list(accept_records(trace, trace.entries, [loaded(name, trace)], depth=depth))


@DRAFTERS
def test_one_pass_has_the_counts_of_a_replay_at_every_k(name: str, recorded: Recorded) -> None:
    path = recorded(name.partition("-")[0])
    trace = open_trace(path)
    arm, made = loaded(name, trace), once(name, trace)
    lengths = accept(DATA / "drafters" / name, trace=path).drafters[0].lengths
    for depth in range(1, DEPTH + 1):
        texts = (trace.read(entry, arm.boundaries) for entry in trace.entries)
        alone = [found.counts for _, (found,) in replay([arm], texts, arm.boundaries, depth=depth)]
        assert [one.counts(depth) for one in made] == alone
        measured = lengths[depth - 1]
        assert measured.steps == sum(counts.steps for counts in alone)
        assert measured.accepted == sum(counts.accepted for counts in alone)
    assert len({part.length.value for part in lengths}) == DEPTH


def test_several_drafters_in_one_pass_are_those_of_their_own(recorded: Recorded) -> None:
    trace = open_trace(recorded())
    arms = [loaded(name, trace) for name in ("llama-eagle3", REDUCED)]
    both = list(accept_records(trace, trace.entries, arms, depth=DEPTH))
    for name in ("llama-eagle3", REDUCED):
        assert [asdict(one) for one in both if one.arm == name] == [asdict(one) for one in once(name, trace)]


@pytest.mark.parametrize("depth", [1, DEPTH, DEPTH + 1])
def test_unmapped_tokens_are_those_of_a_slow_search(depth: int, recorded: Recorded) -> None:
    trace = open_trace(recorded())
    offsets = load_file(DATA / "drafters" / REDUCED / "model.safetensors")["d2t"].tolist()
    known = {draft + offset for draft, offset in enumerate(offsets)}
    assert len(known) == len(offsets) < trace.about.vocab
    some = 0
    for one, entry in zip(once(REDUCED, trace, depth), trace.entries, strict=True):
        tokens = trace.read(entry, trace.about.boundaries).tokens_N.tolist()
        asked = range(entry.prompt + 1, entry.prompt + 1 + (entry.counted - 1) + depth - 1)
        slow = [(place - entry.prompt - 1, tokens[place]) for place in asked if tokens[place] not in known]
        assert list(one.unmapped) == slow
        assert one.tokens == token_hash(tokens[: entry.prompt + entry.counted])
        assert (one.id, one.cluster, one.category, one.prompt, one.counted) == (
            entry.id, entry.cluster, entry.category, entry.prompt, entry.counted
        )  # fmt: skip
        some += len(slow)
    assert some


def test_only_a_reduced_vocabulary_is_mapped(recorded: Recorded) -> None:
    trace = open_trace(recorded())
    assert mapped([loaded("llama-eagle3", trace), loaded(REDUCED, trace)]) == {REDUCED: 1024}
    assert {one.unmapped for one in once("llama-eagle3", trace)} == {()}


def test_nothing_is_accepted_that_the_map_lacks(recorded: Recorded) -> None:
    """A drafter never beats the perfect one that has its map."""
    trace = open_trace(recorded())
    for one in once(REDUCED, trace):
        missing = {i for i, _ in one.unmapped}
        for root, count in enumerate(one.accepted):
            assert not missing & {*range(root, root + count)}
