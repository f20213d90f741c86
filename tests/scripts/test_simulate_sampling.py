"""Dice and odds: greedy drafts are counted alike run by run, drawn ones on average, and a planted fault is seen."""

from __future__ import annotations

import pytest
import torch
from simulate_sampling import SamplingCell, Subject, measure, score, table, unseen_faults

from draftconv.reference.sampling import Sampling


@pytest.fixture(scope="module")
def subject() -> Subject:
    torch.set_num_threads(1)
    return Subject.of("llama-eagle3-reduced")


def test_greedy_drafts_are_counted_alike(subject: Subject) -> None:
    cell = measure(subject, Sampling(0.7, top_p=0.9), "greedy", 4)
    assert (cell.equal, cell.holds) == (4, True)
    assert cell.counted == cell.expected


@pytest.mark.slow
def test_drawn_drafts_are_expected_rightly(subject: Subject) -> None:
    cell = measure(subject, Sampling(1.0), "probabilistic", 48)
    assert abs(cell.score) < 4
    assert cell.fault is not None
    assert cell.fault < -6
    assert "| 48 |" in table([cell])


@pytest.mark.parametrize(("second", "unseen"), [(-2.0, []), (-1.0, [("drafter", 0.3)]), (3.1, [("drafter", 0.3)])])
def test_a_fault_is_seen_by_all_settings_of_a_temperature_together(
    second: float, unseen: list[tuple[str, float]]
) -> None:
    cells = [
        SamplingCell("drafter", "probabilistic", Sampling(0.3, top_p), 200, 16.0, 16.0, 0.1, fault, None)
        for top_p, fault in ((1.0, -3.1), (0.9, second))
    ]
    assert unseen_faults(cells) == unseen
    assert all(cell.holds for cell in cells)


def test_score_by_hand() -> None:
    assert score([3.0, 5.0], [1.0, 2.0]) == pytest.approx(2.5 / (0.5**0.5 / 2**0.5))
