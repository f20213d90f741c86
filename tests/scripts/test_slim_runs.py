"""The table of whole searches: which prompts they have, and when a certificate is called wrong."""

from __future__ import annotations

from dataclasses import replace

import slim_runs
from measure_recipes import MODULES
from slim_runs import ENGINES, JUDGED, MAX_LOSS, SEARCHED, Run

CERTIFIED = Run("llama", "vllm:b200", 80, 20.0, "layers INT8; fc INT8", 0.5, 0.001, 0.002, -0.001, 0.005)
NOTHING = Run("mla", "sglang:h200", 80, 20.0, None)


def test_every_search_has_prompts_of_its_own_and_others_judge() -> None:
    kinds = slim_runs.excerpts()
    assert [len(kind) for kind in kinds] == [SEARCHED * len(MODULES)] * len(ENGINES) + [JUDGED * len(MODULES)]
    every = [text for kind in kinds for text in kind]
    assert len({*every}) == len(every)


def test_a_certificate_is_wrong_where_other_text_loses_what_was_not_allowed() -> None:
    worse = replace(CERTIFIED, loss=MAX_LOSS)
    assert (CERTIFIED.wrong, worse.wrong, NOTHING.wrong) == (False, True, False)
    lines = slim_runs.text([CERTIFIED, worse, NOTHING]).splitlines()
    assert "| layers INT8<br>fc INT8 | 50 % | 0.10 % | 0.20 % (-0.10 to 0.50) | right |" in lines[2]
    assert lines[3].endswith("**wrong** |")
    assert "| nothing |" in lines[4]
    assert lines[-1] == "2 of 3 searches certified a drafter, 1 of them wrongly."
