"""What layer ids of every layout mean."""

from __future__ import annotations

from draftconv.drafter.boundaries import default_triple, from_ids
from draftconv.layouts import layouts

# producer → (ids for boundaries 2, 30, 58 of a 61-layer target, whether no ids mean that triple)
ROWS = {
    "safeailab": ([2, 30, 58], True),
    "specforge": ([1, 29, 57], True),
    "torchspec": ([1, 29, 57], True),
    "torchspec-vllm": ([2, 30, 58], True),
    "torchspec-vllm-unshifted": ([1, 29, 57], True),
    "modelopt": ([1, 29, 57], True),
    "modelopt-megatron": ([1, 29, 57], True),
    "speculators": ([2, 30, 58], True),
    "angelslim": ([1, 29, 57], True),
    "automodel": ([1, 29, 57], True),
    "quark": ([1, 29, 57], False),
    "vllm": ([2, 30, 58], True),
    "sglang": (None, True),
    "trtllm": (None, True),
    "generic": (None, True),
}


def test_every_producer_has_its_row_and_source() -> None:
    rules = {rule.producer: rule for layout in layouts().values() for rule in layout.id_rules}
    assert {rule for layout in layouts().values() for rule in layout.id_rules} == set(rules.values())
    assert set(ROWS) == set(rules)
    for name, (ids, implied) in ROWS.items():
        rule = rules[name]
        assert (rule.convention in (None, "by family"), rule.implied) == (ids is None, implied), name
        assert len(rule.source) > 10
        if ids is not None and rule.convention in ("before", "after"):
            assert from_ids(ids, rule.convention, 61) == default_triple(61) == (2, 30, 58)
