"""What weights are fed: peaks of channels, and a sample of rows that does not depend on how they came."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from draftconv.replay.calibration import Inputs, input_peaks, sampled_inputs
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.replay.replay import Arm, replay
from draftconv.traces.request import TraceRequest
from draftconv.traces.trace import open_trace
from tests import quantized
from tests.traces.recorded import Recorded
from tests.traces.recorded import recorded as recorded

LLAMA = "llama-eagle3"
DOWN, UP = "layers.0.mlp.down_proj", "layers.0.mlp.up_proj"


def empty() -> Inputs:
    return Inputs(torch.zeros(2), torch.empty(0, 2))


def numbered(rows: int) -> Tensor:
    return torch.arange(rows, dtype=torch.float32)[:, None].repeat(1, 2)


def taken(blocks: Sequence[int], most: int) -> Inputs:
    inputs = empty()
    for block in numbered(sum(blocks)).split(list(blocks)):
        inputs.add(block, most=most)
    return inputs


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(2, 16))
def test_a_sample_is_spread_evenly_however_rows_come(blocks: list[int], most: int) -> None:
    seen, found = sum(blocks), taken(blocks, most)
    assert found.rows_NI[:, 0].tolist() == list(range(0, seen, found.stride))
    assert len(found.rows_NI) <= most
    assert len(found.rows_NI) >= min(seen, most // 2)
    assert torch.equal(found.rows_NI, taken([seen], most).rows_NI)
    assert found.peak_I.tolist() == [seen - 1] * 2


def test_a_stride_that_forgot_its_place_would_be_noticed() -> None:
    inputs = empty()
    for block in numbered(10).split(5):
        inputs.seen = 0  # begins anew with every block
        inputs.add(block, most=4)
    assert inputs.rows_NI[:, 0].tolist() != list(range(0, 10, inputs.stride))


def test_peaks_need_no_rows() -> None:
    inputs = empty()
    inputs.add(torch.tensor([[1.0, -5.0], [-2.0, 3.0]], dtype=torch.bfloat16), most=0)
    assert inputs.peak_I.tolist() == [2.0, 5.0]
    assert float(inputs.peak) == 5.0
    assert len(inputs.rows_NI) == 0


def arm_and_requests(recorded: Recorded, **how: object) -> tuple[Arm, list[TraceRequest]]:
    trace = open_trace(recorded("llama", **how))
    arm = load_arm("arm", quantized.read(quantized.source(LLAMA), LLAMA), LoadSettings(trace.table))
    return arm, [trace.read(entry, arm.boundaries) for entry in trace.entries]


def test_what_a_weight_is_fed_in_a_replay(recorded: Recorded) -> None:
    arm, requests = arm_and_requests(recorded, count=2, length=8)
    found = sampled_inputs(arm, requests, arm.boundaries, [UP, DOWN], rows=32)
    everything = sampled_inputs(arm, requests, arm.boundaries, [UP, DOWN], rows=1 << 20)
    peaks = input_peaks(arm, requests, arm.boundaries, [UP, DOWN])
    for module in (UP, DOWN):
        rows_NI = everything[module].rows_NI
        assert torch.equal(found[module].peak_I, rows_NI.abs().amax(0))
        assert torch.equal(found[module].rows_NI, rows_NI[:: found[module].stride])
        assert 16 <= len(found[module].rows_NI) <= 32 < len(rows_NI)
        assert peaks[module] == rows_NI.abs().max()
    up, down = (everything[module].rows_NI for module in (UP, DOWN))
    mlp = arm.model.get_submodule("layers.0.mlp")
    gate = torch.nn.functional.linear(up, arm.model.get_parameter("layers.0.mlp.gate_proj.weight"))
    wanted = torch.nn.functional.silu(gate) * torch.nn.functional.linear(up, mlp.get_parameter("up_proj.weight"))
    assert torch.allclose(down, wanted, atol=1e-5)


def test_rows_that_pad_a_batch_are_no_inputs(recorded: Recorded) -> None:
    arm, (long, other) = arm_and_requests(recorded, count=2, length=8)
    short = TraceRequest(other.id, "", "", other.prompt, 2, other.tokens_N, other.states_TAW)
    alone = [sampled_inputs(arm, [request], arm.boundaries, [UP], rows=1 << 20)[UP] for request in (long, short)]
    together = sampled_inputs(arm, [long, short], arm.boundaries, [UP], rows=1 << 20)[UP]
    assert together.seen == sum(inputs.seen for inputs in alone)

    watched = Inputs(torch.zeros(256), torch.empty(0, 256))
    handle = arm.model.get_submodule(UP).register_forward_pre_hook(
        lambda _, x: watched.add(x[0].flatten(0, -2), most=1 << 20)
    )
    list(replay([arm], [long, short], arm.boundaries, depth=3, whole=True))
    handle.remove()
    assert watched.seen > together.seen
