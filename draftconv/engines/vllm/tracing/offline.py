"""vLLM in this process: the target is loaded, asked and unloaded by the trace itself."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from draftconv.checkpoint import show
from draftconv.engines.tracing import Extraction
from draftconv.engines.vllm.tracing.server import check_answer
from draftconv.engines.vllm.tracing.start import arguments, shell
from draftconv.engines.vllm.tracing.states import StatesFile
from draftconv.errors import EngineError, Void
from draftconv.reference.sampling import Sampling

SETTLING_STEPS = 4
"""An engine inside this process writes the files of the requests that finish last only at a further step
(vLLM 0.32.0: the connector's metadata travels with the next schedule); in processes of its own it goes on."""


class _Logprob(Protocol):
    logprob: float


class _Completion(Protocol):
    token_ids: Sequence[int]
    logprobs: Sequence[Mapping[int, _Logprob]] | None


class _Output(Protocol):
    """The part of `vllm.RequestOutput` that is read."""

    prompt_token_ids: Sequence[int] | None
    outputs: Sequence[_Completion]
    kv_transfer_params: Mapping[str, object] | None


class OfflineTarget:
    """A target loaded by vLLM, its states extracted.

    Raises:
        EngineError: vLLM is not installed here, or cannot load the target so.
    """

    def __init__(self, extraction: Extraction) -> None:
        served = f"--url and --hidden-states-dir DIR of a server started with: {_shell(extraction)}"
        if importlib.util.find_spec("vllm") is None:
            raise EngineError(
                "vLLM is not installed in this environment",
                why="--engine vllm without --url loads the target in this process",
                cure=f"run draftconv in vLLM's environment, or give {served}",
            )
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout carries data
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        import vllm
        from vllm import envs
        from vllm.platforms import current_platform

        self.version: str = vllm.__version__
        self._in_process = not envs.VLLM_ENABLE_V1_MULTIPROCESSING
        try:
            self._llm = vllm.LLM(**arguments(extraction, cpu=current_platform.is_cpu()), skip_tokenizer_init=True)
        except Exception as error:  # vLLM raises whatever its configs, workers and kernels raise
            raise EngineError(
                f"vLLM cannot load {show(extraction.model)}: {type(error).__name__}: {show(error)}",
                why="its log above says more",
                cure=f"a server takes more options: give {served}",
            ) from error
        self._sampling = vllm.SamplingParams

    def complete(
        self, prompts: Sequence[tuple[int, ...]], length: int, sampling: Sampling | None
    ) -> Iterator[StatesFile]:
        """A text of exactly `length` tokens after each prompt, EOS ignored; in order.

        Args:
            sampling: how it is drawn; None for greedy text.

        Raises:
            EngineError: the engine failed, or wrote no states. Void: an answer is not what was asked for.
        """
        asked = [
            self._sampling(
                **_drawn(sampling, prompt),
                max_tokens=length,
                ignore_eos=True,
                detokenize=False,
                extra_args={"kv_transfer_params": {"include_output_tokens": True}},
            )
            for prompt in prompts
        ]
        outputs = cast(
            Sequence[_Output],
            self._llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], asked, use_tqdm=False),
        )
        if self._in_process:
            for _ in range(SETTLING_STEPS):
                self._llm.llm_engine.step()
        for prompt, output in zip(prompts, outputs, strict=True):
            generated = tuple(output.outputs[0].token_ids)
            check_answer(prompt, length, tuple(output.prompt_token_ids or ()), generated)
            file = (output.kv_transfer_params or {}).get("hidden_states_path")
            if not isinstance(file, str):
                raise EngineError("vLLM gave no hidden_states_path", cure="update vLLM to 0.32.0 or later")
            yield StatesFile(prompt, generated, file, _logprobs(output.outputs[0]) if sampling else None)

    def close(self) -> None:
        """Give the target's memory back."""
        self._llm.llm_engine.engine_core.shutdown()


def _drawn(sampling: Sampling | None, prompt: Sequence[int]) -> dict[str, Any]:
    """How a request is drawn, and that log p of each token is wanted."""
    if sampling is None:
        return {"temperature": 0}
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed_of(prompt),
        "logprobs": 0,  # of the token that was drawn, and no other
    }


def _logprobs(completion: _Completion) -> tuple[float, ...]:
    """log p of every generated token.

    Raises:
        Void: not one for each.
    """
    rows, tokens = completion.logprobs or (), completion.token_ids
    if len(rows) != len(tokens) or any(token not in row for token, row in zip(tokens, rows, strict=True)):
        raise Void(
            f"vLLM gave log-probabilities of {len(rows)} tokens, {len(tokens)} were generated",
            why="how likely a drawn draft is accepted depends on each",
        )
    return tuple(row[token].logprob for token, row in zip(tokens, rows, strict=True))


def _shell(extraction: Extraction) -> str:
    """What would start a server instead, with a directory of the user's choice."""
    return shell(replace(extraction, storage=Path("DIR")))
