"""Speed of a server with and without its drafter, by the load generator that comes with the engine."""

from __future__ import annotations

from pathlib import Path

from draftconv.engines.live import Generator, Load, Round
from draftconv.errors import EngineError
from draftconv.live.external_tools import figure, read_result
from draftconv.report.model import Speed

CONCURRENCY = (1, 2, 4, 16, 40)
"""Requests at a time, as published cards have them."""
ROUNDS = 10
"""Requests for each that is asked at a time, as InferenceX asks; as many once before, which do not count."""


def result_name(concurrency: int) -> str:
    """The file with a result."""
    return f"speed-{concurrency}.json"


def round_of(load: Load, url: str, concurrency: int, directory: Path, hardware: str | None) -> Round:
    """What is measured at one concurrency; the result is `result_name` in a directory."""
    return Round(load, url, concurrency, ROUNDS * concurrency, directory / result_name(concurrency), hardware)


def read_speed(generator: Generator, directory: Path, drafter: str | None, concurrency: int) -> Speed:
    """What a load generator measured; those of all engines write the same names, but for the accept length.

    Raises:
        EngineError: it wrote no result, a figure is none, or requests failed.
    """
    tool, accepted = generator.tool, generator.accept_length
    result = read_result(tool, directory / result_name(concurrency))
    expected, done = ROUNDS * concurrency, int(figure(tool, result, "completed"))
    if done != expected:
        raise EngineError(
            f"{done} of {expected} requests were answered to {tool.title}",
            why="the figures are of another load than was asked for",
            cure="see speed.log of this arm; the same command measures again",
        )
    return Speed(
        drafter=drafter,
        concurrency=concurrency,
        requests=done,
        tpot_ms=figure(tool, result, "median_tpot_ms"),
        mean_tpot_ms=figure(tool, result, "mean_tpot_ms"),
        ttft_ms=figure(tool, result, "median_ttft_ms"),
        mean_ttft_ms=figure(tool, result, "mean_ttft_ms"),
        tokens_per_second=figure(tool, result, "output_throughput"),
        accept_length=figure(tool, result, accepted) if drafter is not None and result.get(accepted) else None,
    )
