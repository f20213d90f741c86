"""Which reading is named: every single fault rightly, two at once never wrongly, another arithmetic all the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from draftconv.engines.replays import Misreading
from draftconv.live.doctor.asking import CountedText
from draftconv.live.doctor.judging import FEWEST_STEPS, NEAR_ONE, Judged, judge_readings
from draftconv.live.doctor.readings import AS_TRAINED, ServerReading
from draftconv.reference.accept_length import Counts
from draftconv.replay.misreadings import MISREADINGS
from draftconv.replay.replay import Arm
from tests.live.doctor.misread import K, Patient, pooled
from tests.reference.test_fixtures import DRAFTERS
from tests.traces.recorded import Recorded
from tests.traces.recorded import recorded as recorded

WIDE = {"count": 16, "length": 64}


def patient(name: str, recorded: Recorded, dtype: str = "float32") -> Patient:
    return Patient.of(name, recorded(name.partition("-")[0], **WIDE), dtype)


def judged(counted: list[CountedText], readings: list[ServerReading]) -> Judged:
    return judge_readings(counted, readings, K, clipped=False)


def names(found: Judged) -> set[str]:
    return {reading.name for reading in found.named}


@DRAFTERS
def test_every_fault_is_named_and_a_sound_server_is_sound(name: str, recorded: Recorded) -> None:
    of = patient(name, recorded)
    readings = of.readings(of.arms())
    for reading in readings:
        counted = [CountedText(one.id, one.counted, one.counts(K)) for one in reading.records.values()]
        found = judged(counted, readings)
        if pooled(counted).accept_length <= NEAR_ONE:
            assert found.outcome == "fault"
            assert reading.name in names(found)
        else:
            assert reading.name in names(found), (reading.name, found.why)
            assert (found.outcome == "sound") == (AS_TRAINED in names(found))
            assert found.explanations[0].equal == len(counted)
    assert len(readings) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-eagle3-reduced", "mla-eagle3.1"])
def test_two_faults_at_once_are_not_called_a_third(name: str, recorded: Recorded) -> None:
    """One of the two may be named where the other changes nothing; where nothing is accepted all are named."""
    of = Patient.of(name, recorded(name.partition("-")[0], count=8, length=64))
    arms = of.arms()
    readings, wrong = of.readings(arms), []
    pairs = [pair for pair in combinations([fault for fault in arms if fault != AS_TRAINED], 2) if pair != OPPOSITE]
    both = {pair: arm for pair in pairs if (arm := twice(of, *pair))}
    for pair, arm in both.items():
        counted = of.counted(arm)
        found = judged(counted, readings)
        if not found.near_one and found.outcome != "unknown" and not names(found) & {*pair}:
            wrong.append((pair, names(found), found.explanations[0].elsewhere))
    assert len(both) > 100
    assert not wrong


OPPOSITE = ("boundaries - 1", "boundaries + 1")
"""Together they are none."""


def twice(of: Patient, one: str, other: str) -> Arm | None:
    """The drafter with both faults; None where the second means nothing after the first."""
    first = MISREADINGS[_known(one)].apply(of.subject)
    if isinstance(first, str):
        return None
    second = MISREADINGS[_known(other)].apply(replace(of.subject, arm=first))
    return second if isinstance(second, Arm) else None


def _known(name: str) -> Misreading:
    return next(known for known in MISREADINGS if known == name)


@pytest.mark.parametrize("name", ["llama-eagle3", "mla-eagle3.1"])
def test_an_engine_in_another_arithmetic(name: str, recorded: Recorded) -> None:
    """A server in bfloat16, held against replays in float32."""
    of, engine = patient(name, recorded), patient(name, recorded, "bfloat16")
    readings = of.readings(of.arms())
    arms = engine.arms()
    assert judged(engine.counted(arms.pop(AS_TRAINED)), readings).outcome == "sound"
    for fault in ("feedback norm", "boundaries - 1", "norm before residual", "final norm of ones"):
        assert fault in names(judged(engine.counted(arms[fault]), readings)), fault


# ── when nothing is named ──────────────────────────────────────────────────────────


def test_too_few_steps_name_nothing(recorded: Recorded) -> None:
    of = Patient.of("llama-eagle3", recorded(count=2))
    counted = of.counted(of.subject.arm)
    assert pooled(counted).steps < FEWEST_STEPS
    found = judged(counted, of.readings(of.arms(["feedback norm"])))
    assert (found.outcome, found.named) == ("unknown", ())
    assert "steps are too few to tell" in found.why


def test_two_readings_that_are_as_likely_are_told(recorded: Recorded) -> None:
    """Two that differ in one request, of which the server counts something between."""
    of = patient("llama-eagle3", recorded)
    right, fault = of.readings(of.arms(["feedback norm"]))
    (first, *rest) = fault.records.values()
    other = replace(first, accepted=tuple(K - count for count in first.accepted))
    between = replace(first, accepted=(*first.accepted[:32], *other.accepted[32:]))
    counted = [CountedText(one.id, one.counted, one.counts(K)) for one in (between, *rest)]
    twin = ServerReading("twin", "its twin", {**fault.records, first.id: other})
    found = judged(counted, [right, fault, twin])
    assert (found.outcome, found.named) == ("unknown", ())
    assert "two readings are about as likely" in found.why


def test_readings_that_count_the_same_are_named_together(recorded: Recorded) -> None:
    of = patient("llama-eagle3", recorded)
    readings = of.readings(of.arms(["feedback norm"]))
    twin = replace(readings[1], name="twin")
    counted = of.counted(of.arms(["feedback norm"])["feedback norm"])
    assert names(judged(counted, [*readings, twin])) == {"feedback norm", "twin"}


def test_a_drafter_that_accepts_nothing_anyway(recorded: Recorded) -> None:
    of = patient("llama-eagle3", recorded)
    arms = of.arms(["random lm_head", "final norm of ones"])
    dead = {AS_TRAINED: arms["random lm_head"], "final norm of ones": arms["final norm of ones"]}
    readings = of.readings({name: replace(arm, name=name) for name, arm in dead.items()})
    found = judged(of.counted(arms["random lm_head"]), readings)
    assert (found.outcome, found.named) == ("unknown", ())
    assert "accepts next to nothing on this text, however it is read" in found.why


def test_the_position_that_departs_first(recorded: Recorded) -> None:
    of = patient("llama-eagle3", recorded)
    right = of.readings(of.arms([]))
    arms = of.arms(["feedback norm", "final norm of ones"])
    later = judged(of.counted(arms["feedback norm"]), right)
    assert later.outcome == "unknown"
    assert later.first_departure is not None
    assert later.first_departure.j == 2
    assert later.first_departure.server < later.first_departure.sound
    sound = judged(of.counted(of.subject.arm), right)
    assert (sound.outcome, sound.first_departure) == ("sound", None)


@pytest.mark.parametrize("reach", [80, 100, 120])
def test_drafts_that_end_at_a_length(reach: int, recorded: Recorded) -> None:
    of = patient("llama-eagle3", recorded)
    readings = of.readings(of.arms(["feedback norm", "boundaries - 1"]))
    right = readings[0]
    texts = [CountedText(one.id, one.counted, Counts((0,) * (K + 1))) for one in right.records.values()]
    counted = [right.counted(text, K, clipped=False, reach=reach) for text in texts]
    found = judged(counted, readings)
    assert found.outcome == "fault"
    assert names(found) == {f"drafts end at {reach}"}
    assert found.explanations[0].equal == len(counted)


def test_steps_without_a_draft_are_explained_by_nothing(recorded: Recorded) -> None:
    of = patient("llama-eagle3", recorded)
    readings = of.readings(of.arms(["feedback norm"]))
    counted = [replace(text, bare=12) for text in of.counted(of.subject.arm)]
    assert judged(counted, readings).outcome == "unknown"


def test_a_last_step_that_is_cut_at_the_end_of_the_text(recorded: Recorded) -> None:
    of = patient("llama-eagle3", recorded)
    (right,) = of.readings(of.arms([]))
    texts = [CountedText(one.id, one.counted, Counts((0,) * (K + 1))) for one in right.records.values()]
    for text in texts:
        whole, cut = (right.counted(text, K, clipped=clipped).counts for clipped in (False, True))
        assert cut.steps == whole.steps
        assert 1 + cut.steps + cut.accepted == text.length <= 1 + whole.steps + whole.accepted <= text.length + K
