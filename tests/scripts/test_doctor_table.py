"""The table of servers that are made wrong: what it holds, and a few of them for real."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import doctor_table
import pytest
from doctor_table import CASES, SAMPLE, Case, Clinic, DoctorRow

from draftconv.api.doctor import Diagnosis
from draftconv.engines import parse_engine
from draftconv.engines.replays import Misreading
from draftconv.live.doctor.diagnosis import ToldFault, ToldKind


def test_servers_are_wrong_in_twelve_ways_and_more() -> None:
    expected = [case.expects for case in CASES]
    assert expected.count("sound") >= 2
    assert sum(case.says.startswith("two faults") for case in CASES) >= 2
    known = {*get_args(Misreading), *get_args(ToldKind), "drafts end at", *(case.serves for case in CASES)}
    named = {one for one in expected if one not in ("sound", "unknown", "refused")}
    assert named <= known
    assert len(named) >= 12
    assert {CASES[number].expects for number in SAMPLE} >= {"sound"}


def test_a_wrong_diagnosis_is_seen() -> None:
    bare = Diagnosis(parse_engine("vllm"), "d", {}, ())
    told = Diagnosis(parse_engine("vllm"), "d", {}, (), told=(ToldFault("depth", "it drafts 2", "no"),))
    for expects, found, right in [
        ("unknown", bare, True),
        ("sound", bare, False),
        ("depth", told, True),
        ("boundaries - 1", told, False),
        ("refused", None, True),
        ("sound", None, False),
    ]:
        assert DoctorRow(Case("x", "llama-eagle3", expects), found, "", 0.0).right == right


def test_rows_become_a_table() -> None:
    row = DoctorRow(Case("x", "llama-eagle3", "refused"), None, "", 0.0)
    assert doctor_table.table([row.cells]).splitlines()[-1] == "| llama-eagle3 | x | refused |  |  |  | yes |"


@pytest.mark.slow
@pytest.mark.skipif(not doctor_table.ENGINE.exists(), reason="no engine environment; scripts/engine-env makes one")
def test_a_few_real_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("VLLM_CPU_KVCACHE_SPACE", "1"), ("OMP_NUM_THREADS", "1"), ("HF_HUB_OFFLINE", "1")):
        monkeypatch.setenv(name, os.environ.get(name, value))
    clinic = Clinic(tmp_path, requests=8)
    rows = [clinic.row(number) for number in SAMPLE]
    assert [row.said for row in rows if not row.right] == []
