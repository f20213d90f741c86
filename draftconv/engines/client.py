"""What is asked of an engine that counts, however it is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

from draftconv import limits
from draftconv.engines.request_output import RequestOutput
from draftconv.errors import EngineError, OtherDrafting
from draftconv.reference.sampling import Sampling

PENALTIES: Mapping[str, object] = MappingProxyType(
    {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
)
"""What a request leaves out may come from the target's generation_config.json, whose repetition_penalty would change
greedy text too."""


def sampling_fields(
    sampling: Sampling | None, prompt: Sequence[int], *, all_tokens: int, greedy_top_k: int, seed: str = "seed"
) -> dict[str, object]:
    """All that shapes the choice of a token, as it is asked for over HTTP.

    Args:
        all_tokens: the engine's top_k that keeps every token. `greedy_top_k`: the one that greedy text is asked with.
        seed: what it calls the seed of a request.
    """
    if sampling is None:
        return {"temperature": 0, "top_p": 1, "top_k": greedy_top_k, **PENALTIES}
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or all_tokens,
        seed: sampling.seed_of(prompt),
        **PENALTIES,
    }


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """How every arm is asked.

    Attributes:
        depth: K, drafted tokens per step. `length`: generated tokens at most.
        ignore_eos: write all of `length`, whatever the target says.
        timeout: seconds that an answer may take before a request counts as failed.
        sampling: how the text is drawn, the seed of each request its own; None for greedy text.
    """

    depth: int
    length: int
    ignore_eos: bool = True
    timeout: float = limits.ENGINE_ANSWER.value
    sampling: Sampling | None = None

    def probe(self, length: int) -> RequestSettings:
        """A short request that shows whether an engine drafts, which a text that ends at once would not."""
        return replace(self, length=min(length, self.length), ignore_eos=True)

    def of_length(self, length: int | None) -> RequestSettings:
        """The same for texts of another length; None is the length that it has."""
        return self if length is None else replace(self, length=length)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What an engine says of itself.

    Attributes:
        target: what it was given as its model. `version`: of the engine.
        counting: how its counts are collected, in words; the same for every arm.
        alone: its counts are totals, so requests are asked one at a time.
        clipped: the last step of a text counts up to its end, as `request_output.clipped` has it.
        room: tokens that prompt and text may have together; None where it does not tell.
        drafter: what it was given as its drafter, where it tells.
        born: changes when it is started again, where it tells.
        settings: what else the report should say, by name.
    """

    target: str
    version: str
    counting: str
    alone: bool = False
    clipped: bool = False
    room: int | None = None
    drafter: str = ""
    born: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


class Client(Protocol):
    """An engine that serves one arm."""

    def served(self, prompt: Sequence[int]) -> ServerInfo:
        """What it is, once it has shown on a prompt that it drafts and counts.

        Raises:
            EngineError: it does not answer, or not as this engine does, or drafts otherwise than asked.
            Void: what it counts is not to be trusted.
        """

    def ask(self, prompt: Sequence[int], length: int | None = None) -> RequestOutput:
        """The text after a prompt, greedy or drawn as `RequestSettings` says, with the counts of this request alone;
        from several threads at once unless `ServerInfo.alone`.

        Args:
            length: of the text, where it is another than all others'.

        Raises:
            EngineError: it failed. Void: its answer or its counts are not to be trusted.
        """


def refuse_depth(engine: str, drafted: int | None, requested: int) -> None:
    """Refuse an engine that drafts another number of tokens than was asked for.

    Raises:
        OtherDrafting: it does.
    """
    if drafted is not None and drafted != requested:
        raise OtherDrafting(
            f"{engine} drafts {drafted} tokens per step, --num-speculative-tokens asks for {requested}",
            why="accept lengths at different depths cannot be compared",
            cure=f"start it with {requested}, or give --num-speculative-tokens {drafted}",
            drafted=drafted,
        )


def refuse_length(tokens: Sequence[int], asking: RequestSettings) -> None:
    """Refuse a text that is longer than was asked for, or shorter although its end was to be ignored.

    Raises:
        EngineError: it is.
    """
    if len(tokens) > asking.length or (asking.ignore_eos and len(tokens) != asking.length):
        raise EngineError(
            f"the engine generated {len(tokens)} tokens, {asking.length} were asked for"
            + (" with ignore_eos" if asking.ignore_eos else ""),
            why="the steps at the end of the text would be clipped",
            cure="raise the longest text that the server allows, or lower --max-tokens",
        )
