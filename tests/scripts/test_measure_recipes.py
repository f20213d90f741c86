"""On which texts recipes are measured and calibrated."""

from __future__ import annotations

from measure_recipes import CALIBRATING, MODULES, OTHER_MODULES, beginnings, calibrating, held_out
from train_tiny import CORPUS, POOL


def test_nothing_is_judged_on_what_it_was_trained_or_calibrated_on() -> None:
    assert not {*MODULES} & {*OTHER_MODULES}
    assert not {*MODULES, *OTHER_MODULES} & {*CORPUS, *POOL}
    assert not {*held_out()} & {*calibrating(), *beginnings()}
    assert len({*held_out()}) == len({*calibrating()}) == CALIBRATING == 320


def test_fewer_prompts_are_spread_over_all_modules() -> None:
    assert [len(calibrating(prompts)) for prompts in (40, 160)] == [40, 160]
    assert calibrating(40)[::2] == calibrating(160)[::8] == calibrating()[::16]  # the first of each module
