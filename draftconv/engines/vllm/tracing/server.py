"""A running vLLM server, asked over HTTP.

vLLM 0.32.0 entrypoints/openai/completion/protocol.py: token ids as the prompt,
`kv_transfer_params`, `return_token_ids`. A server must be spoken to without a proxy between:
it shares a file system with whoever reads its hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.engines.client import sampling_fields
from draftconv.engines.http import Http, first
from draftconv.engines.vllm.tracing.states import StatesFile
from draftconv.errors import BadCheckpoint, EngineError, Void
from draftconv.reference.sampling import Sampling


@dataclass(frozen=True, slots=True)
class TracingServerInfo:
    """What the server says it serves.

    Attributes:
        model: the name that requests must give.
        room: tokens of prompt and answer together, None when the server does not tell.
        version: of vLLM.
    """

    model: str
    room: int | None
    version: str


@dataclass(frozen=True, slots=True)
class Server:
    """A vLLM server with the OpenAI interface.

    Attributes:
        url: of the server, without /v1. `start`: the command that starts it rightly, for messages.
        timeout: seconds that an answer may take before a request counts as failed.
        attempts: how often a request that failed on the way is sent. `pause`: seconds before the second
            time, doubled each time.
    """

    url: str
    start: str
    timeout: float = limits.ENGINE_ANSWER.value
    attempts: int = 4
    pause: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no address.

        Raises:
            UsageError: as `Http`.
        """
        self._http()

    def served(self) -> TracingServerInfo:
        """The model behind the server.

        Raises:
            EngineError: no server answers there, or not as vLLM does.
        """
        http = self._http()
        with http.understood():
            model = first(http.get("/v1/models"), "data")
            name = model.text("id")
            if name is None:
                raise BadCheckpoint(f"{model.where} has no id")
            version = http.get("/version").text("version")
            return TracingServerInfo(name, model.integer("max_model_len"), version or "of unknown version")

    def complete(
        self, served: TracingServerInfo, prompt: tuple[int, ...], length: int, sampling: Sampling | None = None
    ) -> StatesFile:
        """A text of exactly `length` tokens after a prompt, EOS ignored.

        Args:
            sampling: how it is drawn; None for greedy text.

        Raises:
            EngineError: the request failed every time, was refused, or the server extracts no states.
            Void: prompt, length or log-probabilities of the answer are not what was asked for.
        """
        body = {
            "model": served.model,
            "prompt": list(prompt),
            "max_tokens": length,
            "ignore_eos": True,
            "add_special_tokens": False,
            "return_token_ids": True,
            "kv_transfer_params": {"include_output_tokens": True},
            **sampling_fields(sampling, prompt, all_tokens=0, greedy_top_k=0),
            "min_p": 0,
            **({"logprobs": 0} if sampling else {}),  # of the token that was drawn, and no other
        }
        http = self._http()
        with http.understood():
            reply = http.post("/v1/completions", body)
            choice = first(reply, "choices")
            echoed, generated = choice.integers("prompt_token_ids"), choice.integers("token_ids")
            file = reply.section("kv_transfer_params").text("hidden_states_path")
            if echoed is None or generated is None:
                raise BadCheckpoint(f"{choice.where} has no token ids (return_token_ids)")
            logprobs = choice.section("logprobs").numbers("token_logprobs") if sampling else None
        if file is None:
            raise EngineError(
                f"the server at {show(self.url)} answers, but extracts no hidden states",
                why="/v1/completions gave no kv_transfer_params.hidden_states_path",
                cure=f"start it with: {self.start}",
            )
        check_answer(prompt, length, echoed, generated)
        if sampling and (logprobs is None or len(logprobs) != length):
            raise Void(
                f"the engine gave {len(logprobs or ())} log-probabilities for {length} tokens",
                why="how likely a drawn draft is accepted depends on each",
                cure="let nothing between draftconv and the engine rewrite answers",
            )
        return StatesFile(echoed, generated, file, logprobs)

    def complete_all(
        self, served: TracingServerInfo, prompts: Sequence[tuple[int, ...]], length: int, sampling: Sampling | None
    ) -> Iterator[StatesFile]:
        """`complete` for all prompts at once; answers in order.

        When one fails, those that were answered before it have been given out. The files of answered
        requests that nobody reads any more stay where the server wrote them.
        """
        with ThreadPoolExecutor(max(1, len(prompts))) as pool:
            futures = [pool.submit(self.complete, served, prompt, length, sampling) for prompt in prompts]
            try:
                for future in futures:
                    yield future.result()
            finally:
                for future in futures:
                    future.cancel()

    def _http(self) -> Http:
        return Http(self.url, "--url", "vLLM", f"start it with: {self.start}", self.timeout, self.attempts, self.pause)


def check_answer(prompt: tuple[int, ...], length: int, echoed: tuple[int, ...], generated: tuple[int, ...]) -> None:
    """An answer is to exactly the prompt that was sent, and of exactly the length that was asked for.

    Raises:
        Void: it is not.
    """
    if echoed != prompt:
        raise Void(
            f"the engine answered a prompt of {len(echoed)} tokens, another of {len(prompt)} was sent",
            why="the trace would be of other prompts than its index says",
            cure="let nothing between draftconv and the engine rewrite requests",
        )
    if len(generated) != length:
        raise Void(
            f"the engine generated {len(generated)} tokens, {length} were asked for with ignore_eos",
            why="the steps at the end of the text would be clipped",
            cure="raise the engine's --max-model-len, or lower --max-tokens",
        )
