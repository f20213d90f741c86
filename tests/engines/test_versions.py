"""A version that is older than every rule is not said to load anything."""

from __future__ import annotations

import pytest

from draftconv.engines import ENGINES, parse_engine
from tests.engines.views import LLAMA, LLAMA_TARGET, written


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("vllm", "loads"),
        ("vllm@0.33", "loads"),
        ("vllm@0.11", "loads"),
        ("vllm@0.5", "undecided"),
        ("sglang", "loads"),
        ("sglang@0.5", "loads"),
        ("sglang@0.5.6", "undecided"),
        ("sglang@0.1", "undecided"),
        ("trtllm@1", "loads"),
        ("trtllm@1.1", "undecided"),
    ],
)
def test_before_the_oldest_rule_nothing_is_known(text: str, status: str) -> None:
    spec = parse_engine(text)
    view = written(LLAMA, spec.name, LLAMA_TARGET)
    assert ENGINES[spec.name].check(view, LLAMA, LLAMA_TARGET, spec).status == status
