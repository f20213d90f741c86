"""`draftconv doctor`: what is printed, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Run
from tests.engines.stub import Reply, Stub, serving
from tests.live.doctor.misread import TARGETS, Patient, misreading
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded
from tests.traces.recorded import recorded as recorded

DRAFTER = str(DATA / "drafters/llama-eagle3")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def words(url: str, trace: Path | None, *more: str) -> list[str]:
    about = () if trace is None else ("--trace", str(trace))
    return ["doctor", DRAFTER, "--for", "vllm", "--url", url, "--target", str(TARGETS["llama"]), *about, *more]


def test_a_fault_on_one_screen(run: Run, recorded: Recorded) -> None:
    patient = Patient.of("llama-eagle3", recorded("llama", count=12, length=48))
    arms = patient.arms(["boundaries + 1"])
    with misreading(patient, arms["boundaries + 1"]) as stub:
        found = run(*words(stub.url, patient.trace.directory))
        told = run(*words(stub.url, patient.trace.directory, "--format", "json"))
    assert (found.exit_code, told.exit_code) == (1, 1)
    printed = " ".join(found.stdout.split())
    assert "Doctor: fault. This server reads boundaries 3, 5, 6 instead of 2, 4, 5" in printed
    assert "vllm-taps" in printed
    assert "Next: draftconv " in found.stdout
    assert len(found.stdout.splitlines()) <= 45
    assert json.loads(told.stdout)["named"] == ["boundaries + 1"]


def test_a_sound_server_needs_no_next_command(run: Run, recorded: Recorded) -> None:
    patient = Patient.of("llama-eagle3", recorded("llama", count=12, length=48))
    with misreading(patient) as stub:
        found = run(*words(stub.url, patient.trace.directory))
    assert found.exit_code == 0
    assert "Doctor: sound" in found.stdout
    assert "Next:" not in found.stdout


def test_without_a_trace(run: Run) -> None:
    with serving(Stub("vllm")) as stub:
        found = run(*words(stub.url, None, "-k", "2"))
    assert found.exit_code == 1
    assert "it drafts 3 tokens per step, not 2" in " ".join(found.stdout.split())


def test_a_void_run(run: Run, recorded: Recorded) -> None:
    patient = Patient.of("llama-eagle3", recorded("llama", count=12, length=48))

    def beside(reply: Reply) -> Reply:
        stub.made.append(1)
        return reply

    with misreading(patient, per_request=False, change=beside) as stub:
        found = run(*words(stub.url, patient.trace.directory))
    assert found.exit_code == 4


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--for", "onnx"], "unknown engine onnx"),
        (["--url", "nowhere"], "is no address of a server"),
        (["--trace", "absent"], "absent"),
    ],
)
def test_what_cannot_be_asked(run: Run, more: list[str], told: str) -> None:
    found = run(*words("http://127.0.0.1:9", None), *more)
    assert found.exit_code == 2
    assert told in " ".join(found.stderr.split())
