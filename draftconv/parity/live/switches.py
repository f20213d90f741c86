"""Switches with which an engine makes acceptance up, or accepts what its target would not have written.

They exist for speed tests, where the text does not matter. A parity run with one of them measures the switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from draftconv.checkpoint import show
from draftconv.errors import Void
from draftconv.reference.counts import Counts

VARIABLES: Mapping[str, str] = {
    "SGLANG_SIMULATE_ACC_LEN": "SGLang 0.5.23, srt/speculative/spec_utils.py",
    "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "TensorRT-LLM 1.3, _torch/speculative/interface.py",
}
"""Environment variables that force a number of accepted tokens, and who reads them; off when zero or below."""

ARGUMENTS: Mapping[str, str] = {
    "synthetic_acceptance": "vLLM 0.32.0, config/speculative.py: acceptance at a given rate",
    "rejection_sample_method": "vLLM 0.32.0, config/speculative.py: other rules than the standard one",
    "--speculative-accept-threshold": "SGLang 0.5.23, srt/server_args.py: below 1 it accepts less likely tokens",
    "use_relaxed_acceptance": "TensorRT-LLM 1.3, llmapi/llm_args.py: it accepts any of the likeliest tokens",
}
"""Parts of arguments or settings files that do, and who reads them."""

FEWEST_STEPS = 100
"""Steps after which equal acceptance in each is no accident."""


def refuse_switches(words: Iterable[str], environment: Mapping[str, str]) -> None:
    """Refuse to start an engine with such a switch.

    Args:
        words: arguments, and the text of the files that it reads.

    Raises:
        Void: there is one.
    """
    found = [(name, source) for name, source in VARIABLES.items() if _on(environment.get(name))]
    found += [(part, source) for word in words for part, source in ARGUMENTS.items() if part in word]
    for name, source in found:
        raise Void(
            f"{show(name)} would decide what is accepted ({source})",
            why="the run would measure the switch, not the drafter",
            cure=f"unset {name}" if name in VARIABLES else "leave it out",
        )


def _on(value: str | None) -> bool:
    try:
        return value is not None and float(value) > 0
    except ValueError:
        return bool(value)


def refuse_forced(arm: str, counts: Counts) -> None:
    """Refuse counts that no drafter has: the same number accepted in every step.

    A running server does not tell its environment, but this is what it looks like.

    Raises:
        Void: they are such.
    """
    accepted = [j for j, steps in enumerate(counts.histogram) if steps]
    if counts.steps >= FEWEST_STEPS and len(accepted) == 1 and accepted != [0]:
        raise Void(
            f"{show(arm)} accepted exactly {accepted[0]} tokens in each of {counts.steps} steps",
            why="a server that was told how many to accept does so, a drafter does not",
            cure=f"start the server without {', '.join(VARIABLES)} and synthetic acceptance",
        )
