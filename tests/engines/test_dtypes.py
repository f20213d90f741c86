"""Float32 beside quantized weights: what stops, where, and how a server is told."""

from __future__ import annotations

import pytest

from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.dtypes import asks_float32, float32_stop
from draftconv.quantization.recipes import FormatName


@pytest.mark.parametrize(
    ("spec", "form", "says"),
    [
        ("vllm:cpu", "compressed-pack", "dies at the first request"),
        ("vllm:b200", "compressed-pack", None),
        ("vllm", "compressed-pack", None),
        ("vllm:cpu", "gptq", "the start is refused"),
        ("vllm", "autoawq", "the start is refused"),
        ("vllm:mi325x", "quark-int4", "the start is refused"),
        ("vllm:h200", "modelopt-fp8", "the start is refused"),
        ("vllm:cpu", "compressed-int", None),
        ("vllm:cpu", "compressed-float", None),
        ("sglang:b200", "gptq", None),
    ],
)
def test_where_it_stops(spec: str, form: FormatName, says: str | None) -> None:
    stop = float32_stop(parse_engine(spec), form)
    assert (stop is None) == (says is None)
    assert stop is None or str(says) in stop.says


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("--dtype", "float32"), True),
        (("--dtype=float32",), True),
        (("--seed", "0", "--dtype", "float"), True),
        (("--dtype", "float32", "--dtype", "bfloat16"), False),
        (("--dtype", "auto"), False),
        (("--kv-cache-dtype", "float32"), False),
        (("--dtype",), False),
        ((), False),
    ],
)
def test_how_a_server_is_told(arguments: tuple[str, ...], asked: bool) -> None:
    assert asks_float32(arguments) is asked


def test_every_row_says_where_it_was_seen() -> None:
    stops = [stop for engine in ENGINES.values() for stop in engine.float32]
    assert stops
    assert all("0.32.0" in stop.source and stop.evidence in ("run", "read") for stop in stops)
