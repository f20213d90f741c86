"""TensorRT-LLM over HTTP. Not run on the engine: held to its documented answers by stub servers.

TensorRT-LLM 1.3 (read): completions carry no counts. `GET /metrics` gives and forgets the
records of the last 1000 iterations (`enable_iter_perf_stats`), each with
`specDecodingStats.{numDraftTokens,numAcceptedTokens,numRequestsWithDraftTokens}`. With one request at
a time these are its steps, in order. Whether the last one is reported as it was accepted or as
it was cut is not told, so it is cut here, for every arm: A = T - 1 - D. Drafted tokens leave token 0 out and
may be those of the next step (_torch/pyexecutor/py_executor.py; inferred), so a step may accept more than it
reports as drafted. Before PR 13405 (2026-04) `return_perf_metrics` started a collector that took most records
away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.checkpoint.text import parse_json
from draftconv.drafter.config import Config
from draftconv.engines.client import RequestSettings, ServerInfo, refuse_depth, refuse_length, sampling_fields
from draftconv.engines.http import Http, first
from draftconv.engines.request_output import OTHERS, RequestOutput, clipped
from draftconv.errors import BadCheckpoint, NoDrafts, UsageError, Void

TOTALS = "one request at a time: records of /metrics, the last step clipped (A = T - 1 - D)"
BUFFER = 1000
"""Iterations that a server remembers between two readings."""
PROBE = 16
"""Tokens of the request that shows whether a server drafts and counts."""
REST = 1.0
"""Seconds without a record after which nothing is under way any more."""
_POLL = 0.02


@dataclass(frozen=True, slots=True)
class DraftIteration:
    """An iteration with drafts of one request."""

    drafted: int
    accepted: int


@dataclass(slots=True)
class TrtllmServer:
    """A running TensorRT-LLM server; see `client.Client`.

    Raises:
        UsageError: texts that end where they end, or are longer than the server's memory of iterations.
    """

    http: Http
    asking: RequestSettings
    settling: float = limits.COUNTERS.value
    rest: float = REST
    model: str = field(default="", init=False)
    unsettled: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if not self.asking.ignore_eos:
            raise UsageError(
                "--natural-stop cannot be measured on TensorRT-LLM",
                why="accepted tokens are found from the length of the text, which must not be cut by its end",
                cure="leave it out",
            )
        if self.asking.length > BUFFER:
            raise UsageError(
                f"--max-tokens {self.asking.length}: TensorRT-LLM remembers {BUFFER} iterations",
                why="the first steps of a longer text would be forgotten before they are read",
                cure=f"give {BUFFER} or less",
            )

    def served(self, prompt: Sequence[int]) -> ServerInfo:
        """See `client.Client`."""
        with self.http.understood():
            self.model = first(self.http.get("/v1/models"), "data").text("id") or ""
            version = self.http.get("/version").text("version") or "of unknown version"
            self._generate(prompt, self.asking.probe(PROBE))
            return ServerInfo(target=self.model, version=version, counting=TOTALS, alone=True, clipped=True)

    def ask(self, prompt: Sequence[int], length: int | None = None) -> RequestOutput:
        """See `client.Client`."""
        with self.http.understood():
            tokens, steps = self._generate(prompt, self.asking.of_length(length))
            return clipped(tokens, [step.accepted for step in steps], self.asking.depth)

    def _generate(self, prompt: Sequence[int], asking: RequestSettings) -> tuple[tuple[int, ...], list[DraftIteration]]:
        """A text and the steps that made it."""
        if self.unsettled:  # of requests before ours, or of one that failed on the way
            self._drained_until_quiet()
        elif self._drained():
            raise Void("the server drafted between two requests", why="its records name no request", cure=OTHERS)
        self.unsettled = True
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": asking.length,
            "ignore_eos": asking.ignore_eos,
            "add_special_tokens": False,
            "detokenize": False,  # or the answer holds text in place of token ids
            **sampling_fields(asking.sampling, prompt, all_tokens=0, greedy_top_k=1),
        }
        reply = self.http.post("/v1/completions", body)
        choice = first(reply, "choices")
        tokens = choice.integers("token_ids")
        if tokens is None:
            raise BadCheckpoint(f"{choice.where} has no token_ids (detokenize: false)")
        if (prompt_tokens := reply.section("usage").integer("prompt_tokens")) != len(prompt):
            raise Void(
                f"the server answered a prompt of {prompt_tokens} tokens, another of {len(prompt)} was sent",
                why="arms would be compared on different prompts",
                cure="let nothing between draftconv and the engine rewrite requests",
            )
        refuse_length(tokens, asking)
        steps = self._settled(len(tokens))
        deepest = max((max(step.drafted, step.accepted) for step in steps), default=None)
        refuse_depth("TensorRT-LLM", deepest, asking.depth)
        self.unsettled = False
        return tokens, steps

    def _settled(self, length: int) -> list[DraftIteration]:
        """The steps of the last request, once they account for its text: records follow the answer."""
        deadline = time.monotonic() + self.settling
        steps: list[DraftIteration] = []
        generated = 1
        while generated < length and time.monotonic() < deadline:
            steps += self._drained()
            generated = 1 + len(steps) + sum(step.accepted for step in steps)
            time.sleep(_POLL)
        if length > 1 and not steps:
            raise NoDrafts(
                f"the server at {show(self.http.url)} reports no drafts",
                why="it has no drafter, or its settings lack enable_iter_perf_stats: true",
                cure="start it with the command and the file that `draftconv serve` prints",
            )
        if generated < length:
            raise Void(
                f"{len(steps)} records account for {generated} of {length} tokens",
                why="records are given once, and something else reads /metrics; before PR 13405 TensorRT-LLM did so "
                "itself with return_perf_metrics: true",
                cure="leave return_perf_metrics out of its settings, and let nothing else read /metrics",
            )
        return steps + self._drained()  # one more would be another client's, and is refused

    def _drained_until_quiet(self) -> None:
        deadline = time.monotonic() + self.settling
        time.sleep(self.rest)
        while self._drained():
            if time.monotonic() > deadline:
                raise Void("the server drafts though nothing was asked of it", cure=OTHERS)
            time.sleep(self.rest)

    def _drained(self) -> list[DraftIteration]:
        """The iterations with drafts since the last reading."""
        records = parse_json(self.http.send("GET", "/metrics"), "/metrics")
        if not isinstance(records, list):
            raise BadCheckpoint("/metrics is no list of iterations")
        return list(_steps(records))


def _steps(records: Sequence[object]) -> Iterator[DraftIteration]:
    for number, record in enumerate(records):
        stats = record.get("specDecodingStats") if isinstance(record, Mapping) else None
        if not isinstance(stats, dict):
            continue
        fields = Config(stats, f"/metrics: [{number}].specDecodingStats")
        drafted, accepted = fields.integer("numDraftTokens"), fields.integer("numAcceptedTokens")
        requests = fields.integer("numRequestsWithDraftTokens")
        if drafted is None or accepted is None or requests is None:
            raise BadCheckpoint(f"{fields.where} lacks drafted tokens, accepted tokens or requests")
        if drafted == 0:
            continue
        if requests != 1:
            raise Void(f"an iteration drafted for {requests} requests", why="its counts are totals", cure=OTHERS)
        if accepted < 0:
            raise Void(f"an iteration accepted {accepted} tokens", cure=OTHERS)
        yield DraftIteration(drafted, accepted)
