"""Which layers engines capture, and how they are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.drafter.boundaries import default_triple, from_ids
from draftconv.drafter.targets import FAMILY_NAMES, Target
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.sglang import aux_layers as sglang
from draftconv.engines.trtllm import aux_layers as trtllm
from draftconv.engines.vllm import aux_layers as vllm
from draftconv.errors import Refused
from tests.drafter.test_boundaries import lists
from tests.engines.views import LLAMA, LLAMA_TARGET, MINIMAX_TARGET, written


@pytest.mark.parametrize(("target", "moved"), [(LLAMA_TARGET, 0), (MINIMAX_TARGET, 1)])
def test_default_triples(target: Target, moved: int) -> None:
    """Every engine has the same, but for SGLang on one target."""
    triple = default_triple(target.layers)
    for engine, captured in (("vllm", vllm.captured_v2), ("sglang", sglang.captured)):
        found = captured(ENGINES[engine].read(written(LLAMA, engine, target), LLAMA, target, parse_engine(engine)))
        assert found == tuple(b + (moved if engine == "sglang" else 0) for b in triple)


@given(st.integers(4, 80), st.data())
def test_vllm_takes_boundaries_as_they_are(layers: int, data: st.DataObject) -> None:
    boundaries = data.draw(lists(layers))
    for family in (*FAMILY_NAMES, None):
        if boundaries[0] == 0 and family == "deepseek":
            with pytest.raises(Refused, match="crashes on boundary 0"):
                vllm.spelled(boundaries, family)
        else:
            assert vllm.spelled(boundaries, family) == tuple(boundaries)


@given(st.integers(4, 80), st.data())
def test_tensorrt_counts_the_layer_just_left(layers: int, data: st.DataObject) -> None:
    boundaries = data.draw(lists(layers))
    if boundaries[0] == 0:
        with pytest.raises(Refused, match="boundary 0"):
            trtllm.spelled(boundaries)
    else:
        assert from_ids(trtllm.spelled(boundaries), "after", layers) == tuple(boundaries)
