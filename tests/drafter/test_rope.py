"""One effective rope, whichever of the spellings it came from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.drafter.config import Config
from draftconv.drafter.facts import Rope
from draftconv.drafter.rope import DEFAULT_THETA, read_rope, spell_rope
from draftconv.errors import BadCheckpoint

YARN: dict[str, Any] = {"factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
                        "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
LEGACY = {"type": "yarn", **YARN}
WANTED = Rope(50000.0, "halves", "yarn", YARN)


def rope(**config: Any) -> tuple[Rope, str, tuple[str, ...]]:
    return read_rope(Config(config), mla=False)


SPELLINGS: tuple[dict[str, Any], ...] = (
    {"rope_theta": 50000, "rope_scaling": {"type": "yarn", **YARN}},
    {"rope_theta": 50000.0, "rope_scaling": {"rope_type": "yarn", **YARN}},
    {"rope_theta": 50000.0, "rope_scaling": {"rope_type": "yarn", "type": "yarn", **YARN}},
    {"rope_parameters": {"rope_type": "yarn", "rope_theta": 50000.0, **YARN}},
    {"rope_scaling": {"type": "yarn", "rope_theta": 50000.0, **YARN}},
    {"rope_theta": 50000.0, "rope_scaling": {"type": "yarn", "rope_theta": 50000.0, **YARN}},  # ModelOpt's template
    {"rope_theta": 50000.0, "rope_scaling": {"type": "yarn", **YARN, "unused": None},
     "rope_parameters": {"rope_type": "yarn", "rope_theta": 50000.0, **YARN}},  # SpecForge mirrors
)  # fmt: skip


@pytest.mark.parametrize("config", SPELLINGS)
def test_spellings_mean_the_same(config: dict[str, Any]) -> None:
    found, reason, contradictions = rope(**config)
    assert (found, contradictions) == (WANTED, ())
    assert reason


def test_absent_means_what_everyone_assumes() -> None:
    nothing: tuple[dict[str, Any], ...] = (
        {}, {"rope_scaling": None, "rope_theta": None}, {"rope_scaling": {}, "rope_parameters": None},
    )  # fmt: skip
    for config in nothing:
        found, reason, contradictions = rope(**config)
        assert (found, contradictions) == (Rope(DEFAULT_THETA, "halves"), ())
        assert "absent" in reason


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e4}},
         ["rope_theta = 10000", "rope_parameters.rope_theta"]),
        ({"rope_scaling": LEGACY, "rope_parameters": {"rope_type": "default"}}, ["is yarn", "is default"]),
        ({"rope_scaling": LEGACY, "rope_parameters": LEGACY | {"factor": 32.0}}, ["different values"]),
        ({"rope_scaling": LEGACY, "rope_parameters": {"rope_type": "yarn", "factor": 64.0}}, ["different values"]),
        ({"rope_scaling": {"type": "yarn", "rope_type": "linear"}}, ["rope_type is linear, type is yarn"]),
    ],
)  # fmt: skip
def test_contradictions(config: dict[str, Any], words: list[str]) -> None:
    _, _, contradictions = rope(**config)
    assert len(contradictions) == 1
    assert all(word in contradictions[0] for word in words)


def test_rope_parameters_win_as_they_do_in_transformers() -> None:
    assert rope(rope_theta=1e4, rope_parameters={"rope_theta": 5e4})[0].theta == 5e4
    assert rope(rope_theta=1e4, rope_scaling={"rope_theta": 5e4})[0].theta == 1e4


def test_transformers_own_alias_is_no_contradiction() -> None:
    section = {"type": "mrope", "rope_type": "default", "mrope_section": [24, 20, 20]}
    found, _, contradictions = rope(rope_scaling=section)
    assert (found.kind, found.scaling, contradictions) == ("default", {"mrope_section": (24, 20, 20)}, ())


def test_pairs() -> None:
    for mla, config, pairs in (
        (False, {}, "halves"),
        (False, {"rope_interleave": True}, "halves"),
        (True, {}, "interleaved"),
        (True, {"rope_interleave": True}, "interleaved"),
        (True, {"rope_interleave": False}, "halves"),
    ):
        assert read_rope(Config(config), mla=mla)[0].pairs == pairs


def test_a_missing_mscale_stays_missing() -> None:
    """Engines treat a missing key differently from 1, so it must not be filled in."""
    found, _, _ = rope(rope_scaling={"type": "yarn", "factor": 32.0})
    assert found.scaling == {"factor": 32.0}


ROPES = st.builds(
    Rope,
    st.floats(1, 1e9),
    st.just("halves"),
    st.sampled_from(["yarn", "llama3", "linear", "dynamic"]),
    st.dictionaries(
        st.sampled_from(["factor", "mscale", "beta_fast", "low_freq_factor", "mrope_section", "truncate"]),
        st.one_of(st.booleans(), st.integers(-9, 9), st.floats(-9, 9), st.tuples(st.integers(0, 9), st.integers(0, 9))),
        min_size=1,
    ),
)


@given(ROPES, st.booleans())
def test_spelled_and_read_again(wanted: Rope, both: bool) -> None:
    spelled = spell_rope(wanted, both=both)
    assert "attention_factor" not in str(spelled)
    assert ("rope_parameters" in spelled) == both
    if both:  # each of the two is read alone by somebody
        for alone in (("rope_parameters",), ("rope_theta", "rope_scaling")):
            assert rope(**{key: spelled[key] for key in alone})[0] == wanted
    found, _, contradictions = rope(**spelled)
    assert (found, contradictions) == (wanted, ())


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": "50000"},
        {"rope_theta": True},
        {"rope_theta": float("inf")},
        {"rope_theta": 10**400},
        {"rope_scaling": "yarn"},
        {"rope_scaling": {"type": 3}},
        {"rope_scaling": {"type": "yarn", "factor": {"a": 1}}},
        {"rope_parameters": [1]},
        {"rope_parameters": {"rope_theta": [1]}},
        {"rope_interleave": 1},
    ],
)
def test_wrong_json_types_name_the_key(config: dict[str, Any]) -> None:
    with pytest.raises(BadCheckpoint, match=r"config\.json: rope_|config\.json: .*(type|factor)"):
        read_rope(Config(config), mla=True)
