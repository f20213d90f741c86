"""The rotary embedding as engines find it after transformers has parsed config.json."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts

PARTIAL = "partial_rotary_factor"
"""Trainers' own classes turn whole heads whatever this key says; it comes of a target's config that was copied."""


def handed_over(config: Config) -> Config:
    """The config with the spelling that transformers keeps: `rope_scaling` takes the place of `rope_parameters`.

    Its own base wins over the top level's; a base that only `rope_parameters` had is lost with it
    (`convert_rope_params_to_dict` of modeling_rope_utils.py, transformers 5.19).
    """
    scaling = config.section("rope_scaling").data
    if not scaling:
        return config
    others = {key: value for key, value in config.data.items() if key != "rope_scaling"}
    return Config({**others, "rope_parameters": scaling}, config.where)


def turned_in_part(built: Facts, factor: float | None) -> Facts:
    """The same facts where an engine turns only this share of each head."""
    if factor is None or factor == 1:
        return built
    return replace(built, rope=replace(built.rope, scaling=MappingProxyType({**built.rope.scaling, PARTIAL: factor})))
