"""From a server's address to a diagnosis; the servers are stubs, scripts/doctor-table has real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftconv.api.doctor import Diagnosis, doctor
from draftconv.api.quantize import quantize
from draftconv.errors import EngineError, UsageError, Void
from draftconv.live.requests import RetryPolicy
from draftconv.replay.replay import Arm
from tests.engines.stub import Stub, serving, text
from tests.live.doctor.misread import TARGETS, Patient, misreading
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded
from tests.traces.recorded import recorded as recorded

DRAFTER = DATA / "drafters/llama-eagle3"
AT_ONCE = RetryPolicy(attempts=2, pause=0.0)
WIDE = {"count": 12, "length": 48}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def traced(recorded: Recorded) -> Path:
    return recorded("llama", **WIDE)


@pytest.fixture
def patient(traced: Path) -> Iterator[Patient]:
    yield Patient.of("llama-eagle3", traced)


def examined(stub: Stub, trace: Path | None, **more: Any) -> Diagnosis:
    options = {"engine": stub.engine, "url": stub.url, "target": str(TARGETS["llama"]), "timeout": 10}
    return doctor(DRAFTER, **{**options, "trace": trace, "patience": AT_ONCE, **more})


def arm(patient: Patient, name: Any) -> Arm:
    return patient.arms([name])[name]


def lines(found: Diagnosis) -> str:
    return "\n".join(block for block in (*found.blocks(), *found.details()) if isinstance(block, str))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_sound_server_of_every_engine(engine: str, patient: Patient, traced: Path) -> None:
    with misreading(patient, engine=engine, drafter="llama-eagle3") as stub:
        found = examined(stub, traced)
    assert (found.outcome, found.exit_code, found.named) == ("sound", 0, ())
    assert found.heard is not None
    assert found.heard.judged.sound.equal == 12
    assert "12 of 12 requests match exactly" in lines(found)
    assert str(found.spec).startswith(f"{engine}@9.9")  # the version that it told


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_fault_is_named_with_its_rule(engine: str, patient: Patient, traced: Path) -> None:
    with misreading(patient, arm(patient, "feedback norm"), engine=engine) as stub:
        found = examined(stub, traced)
    assert (found.outcome, found.exit_code) == ("fault", 1)
    assert [reading.name for reading in found.named] == ["feedback norm"]
    assert f"{engine}-norm-output" in [rule.code for rule in found.rules]
    heard = found.heard
    assert heard is not None
    assert heard.should > heard.judged.server.accept_length
    told = lines(found)
    assert "norm_output is read as the opposite. 12 of 12 requests match exactly" in told
    assert "is lost (" in told


def test_boundaries_are_named_by_number(patient: Patient, traced: Path) -> None:
    with misreading(patient, arm(patient, "boundaries + 1")) as stub:
        found = examined(stub, traced)
    assert (
        "This server reads boundaries 3, 5, 6 instead of 2, 4, 5: every state is captured one layer too late"
        in lines(found)
    )


def test_totals_tell_the_same(patient: Patient, traced: Path) -> None:
    """An older server has counters only, and is asked one request at a time."""
    with misreading(patient, arm(patient, "boundaries - 1"), per_request=False, lag=2) as stub:
        found = examined(stub, traced)
    assert [reading.name for reading in found.named] == ["boundaries - 1"]


def test_counters_that_move_without_us_void_it(patient: Patient, traced: Path) -> None:
    def beside(reply: Any) -> Any:
        stub.made.append(1)
        return reply

    with misreading(patient, per_request=False, change=beside) as stub, pytest.raises(Void) as caught:
        examined(stub, traced)
    assert caught.value.exit_code == 4


def test_a_suspect_is_named(patient: Patient, traced: Path) -> None:
    other = Patient.of("llama-eagle3.1", traced)
    with misreading(patient, other.subject.arm) as stub:
        assert examined(stub, traced).outcome == "unknown"
        found = examined(stub, traced, suspect=DATA / "drafters/llama-eagle3.1")
    assert [reading.name for reading in found.named] == ["llama-eagle3.1"]


def test_nothing_is_accepted(patient: Patient, traced: Path) -> None:
    """At an accept length of 1 every cause that comes to it is named."""
    with misreading(patient, accept=lambda _, length, __, ___: [0] * (length - 1)) as stub:
        found = examined(stub, traced)
    assert found.outcome == "fault"
    assert "random lm_head" in [reading.name for reading in found.named]
    assert "Next to nothing is accepted, so causes cannot be told apart" in lines(found)


def test_nothing_known_explains_it(patient: Patient, traced: Path) -> None:
    """What departs first, and what that means."""
    first = patient.records({patient.subject.arm.name: patient.subject.arm})[patient.subject.arm.name]
    weaker = {id: replace(one, accepted=tuple(min(count, 1) for count in one.accepted)) for id, one in first.items()}
    ids = {tuple(patient.trace.tokens(e)[: e.prompt]): e.id for e in patient.trace.entries}

    def accept(prompt: list[int], length: int, _: float, __: int) -> list[int]:
        accepted, found, root = weaker[ids[tuple(prompt)]].accepted, [], 0
        while root < length - 1:
            found.append(accepted[root])
            root += accepted[root] + 1
        return found

    with misreading(patient, accept=accept) as stub:
        found = examined(stub, traced)
    assert (found.outcome, found.exit_code) == ("unknown", 3)
    assert "Draft 2 departs first. The first draft is right and a later one departs" in lines(found)


def test_a_drafter_that_rounds_activations(patient: Patient, traced: Path, tmp_path: Path) -> None:
    """Its mis-readings are replayed with its weights alone; its own rounding costs little."""
    out, target = tmp_path / "small", TARGETS["llama"]
    quantize(DRAFTER, out, recipe="w4a8", engines=("vllm:cpu",), target=str(target))
    with misreading(patient, arm(patient, "feedback norm")) as stub:
        found = doctor(out, engine="vllm:cpu", url=stub.url, target=str(target), trace=traced, timeout=10)
    assert found.heard is not None
    explanations = found.heard.judged.explanations
    assert [reading.name for reading in explanations[0].readings] == ["feedback norm"]
    assert sum(len(one.readings) for one in explanations) > 10


# ── what the server says itself ────────────────────────────────────────────────────


def test_fewer_drafted_tokens_are_told_and_the_rest_is_judged(patient: Patient, traced: Path) -> None:
    with misreading(patient, depth=2) as stub:
        found = examined(stub, traced, num_speculative_tokens=3)
        assert examined(stub, traced).outcome == "sound"
    assert [fault.kind for fault in found.told] == ["depth"]
    assert found.heard is not None
    assert found.heard.judged.outcome == "sound"
    assert found.heard.should > found.heard.judged.server.accept_length
    assert found.exit_code == 1


def test_a_server_without_a_drafter(patient: Patient, traced: Path) -> None:
    with misreading(patient, accept=lambda *_: []) as stub:
        found = examined(stub, traced)
    assert [fault.kind for fault in found.told] == ["drafts"]
    assert (found.heard, found.exit_code) == (None, 1)


def test_another_method(patient: Patient, traced: Path) -> None:
    with misreading(patient, engine="sglang", info={"speculative_algorithm": "EAGLE"}) as stub:
        found = examined(stub, traced)
        looked = examined(stub, None)
    assert [fault.kind for fault in found.told] == ["method"]
    assert "EAGLE, not EAGLE3" in lines(found)
    assert "method" in [fault.kind for fault in looked.told]


def test_too_little_room(patient: Patient, traced: Path) -> None:
    """Requests are cut to what fits, and judged as far as they go."""
    with misreading(patient, info={"max_model_len": 100}) as stub:
        found = examined(stub, traced)
    assert [fault.kind for fault in found.told] == ["context"]
    assert found.heard is not None
    assert {one.length for one in found.heard.asked.counted} == {30}
    assert found.heard.judged.outcome == "sound"
    assert len(found.heard.asked.cut) == 12


def test_drafts_that_end_somewhere(patient: Patient, traced: Path) -> None:
    with misreading(patient, reach=90) as stub:
        found = examined(stub, traced)
    assert "drafts end at 90" in [reading.name for reading in found.named]


# ── texts and traces that do not fit ───────────────────────────────────────────────


def test_texts_that_depart_are_counted_as_far_as_they_agree(patient: Patient, traced: Path) -> None:
    texts = {
        tuple(patient.trace.tokens(e)[: e.prompt]): patient.trace.tokens(e)[e.prompt :] for e in patient.trace.entries
    }
    departing = [*texts][:4]

    def write(prompt: list[int], length: int) -> list[int]:
        made = list(texts[tuple(prompt)][:length])
        if tuple(prompt) in departing and length > 30:
            made[30] = (made[30] + 1) % 2048
        return made

    with misreading(patient, write=write) as stub:
        found = examined(stub, traced)
    assert found.heard is not None
    asked = found.heard.asked
    assert [*asked.departed.values()] == [30] * 4
    assert sorted(one.length for one in asked.counted) == [27] * 4 + [48] * 8
    assert found.outcome == "sound"
    assert "4 of 12 texts depart from the trace, the first after 30 tokens: 4 are counted up to there" in lines(found)


def test_other_texts_than_the_traces(patient: Patient, traced: Path) -> None:
    with misreading(patient, write=text) as stub:
        found = examined(stub, traced)
    assert (found.outcome, found.heard, found.exit_code) == ("unknown", None, 3)
    assert "None of 12 texts is the trace's: 12 depart within" in lines(found)


def test_a_trace_of_another_target(recorded: Recorded) -> None:
    with (
        serving(Stub("vllm")) as stub,
        pytest.raises(UsageError, match="the trace is of llama with tokens in its vocabulary: 4096"),
    ):
        doctor(DATA / "drafters/llama-eagle3", engine="vllm", url=stub.url, target=str(DATA / "targets/llama"),
               trace=foreign(recorded))  # fmt: skip
    assert not stub.asked


def foreign(recorded: Recorded) -> Path:
    """The same trace, of a target with another vocabulary."""
    import shutil

    path = recorded("llama", count=2)
    copy = path.with_name(f"{path.name}-foreign")
    if not copy.exists():
        shutil.copytree(path, copy)
        document = json.loads((copy / "trace.json").read_text())
        document["vocab"] = 4096
        (copy / "trace.json").write_text(json.dumps(document))
    return copy


def test_a_server_that_is_not_the_engine(patient: Patient, traced: Path) -> None:
    with misreading(patient, engine="sglang") as stub, pytest.raises(EngineError):
        examined(stub, traced, engine="vllm")


def test_no_server() -> None:
    with pytest.raises(EngineError, match="failed"):
        doctor(DRAFTER, engine="vllm", url="http://127.0.0.1:9", patience=AT_ONCE)


# ── without a trace ────────────────────────────────────────────────────────────────


def test_without_a_trace_the_curve_is_told_and_nothing_named(patient: Patient, traced: Path) -> None:
    with misreading(patient) as stub:
        examined(stub, traced)
        asked = len(stub.asked)
        found = examined(stub, None)
        assert len(stub.asked) == asked
        deeper = examined(stub, None, num_speculative_tokens=5)
    assert (found.outcome, found.exit_code) == ("unknown", 3)
    assert found.totals is not None
    assert found.totals.steps == len(stub.made)
    assert "Without --trace nothing tells what it should accept" in lines(found)
    assert [fault.says for fault in deeper.told] == ["it drafts 3 tokens per step, not 5"]


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_what_tells_no_totals(engine: str, patient: Patient) -> None:
    with misreading(patient, engine=engine, drafter="llama-eagle3") as stub:
        found = examined(stub, None)
    assert (found.outcome, found.totals, found.told) == ("unknown", None, ())
    assert "It tells no counts either" in lines(found)


def test_another_drafter_by_its_name(patient: Patient) -> None:
    with misreading(patient, engine="sglang", drafter="old") as stub:
        found = examined(stub, None)
    assert [fault.kind for fault in found.told] == ["drafter"]


# ── what is given out ──────────────────────────────────────────────────────────────


def test_the_document_is_plain_and_complete(patient: Patient, traced: Path) -> None:
    with misreading(patient, arm(patient, "feedback norm")) as stub:
        found = examined(stub, traced)
    document = json.loads(json.dumps(found.document()))
    assert {*document} == {
        "exit_code", "outcome", "engine", "drafter", "server", "told", "named", "cure", "rules",
        "broken", "why", "totals", "heard", "next",
    }  # fmt: skip
    assert (document["outcome"], document["named"]) == ("fault", ["feedback norm"])
    assert document["heard"]["readings"][0]["equal"] == 12
    assert document["heard"]["first_departure"] == 2
    assert document["next"][:2] in (["draftconv", "convert"], ["draftconv", "serve"])


def test_a_directory_that_breaks_a_rule_itself_is_to_be_converted(patient: Patient, traced: Path) -> None:
    with misreading(patient, engine="sglang", drafter="llama-eagle3") as stub:
        found = examined(stub, traced)
    codes = [line.rule.code for line in found.broken]
    assert bool(codes) == (found.next[1] == "convert")
