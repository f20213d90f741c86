"""vLLM over HTTP: counts per request from 0.32 on, else the server's counters around one request at a time.

vLLM 0.32.0: `--per-request-spec-decode-metrics summary` puts the counts of a request into
`metrics.speculative_decoding` of its completion (entrypoints/generate/base/protocol.py,
v1/metrics/stats.py); `/metrics` has `vllm:spec_decode_num_drafts_total` and its kin in every
version (v1/spec_decode/metrics.py). Both count a step's accepted tokens before the text is cut.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.drafter.config import Config
from draftconv.engines.client import RequestSettings, ServerInfo, refuse_depth, refuse_length, sampling_fields
from draftconv.engines.http import Http, first
from draftconv.engines.request_output import OTHERS, RequestOutput, counted, explained
from draftconv.engines.vllm.counters import Counters, read_counters
from draftconv.errors import BadCheckpoint, EngineError, NoDrafts, Void
from draftconv.reference.accept_length import Counts

PER_REQUEST = "per request: metrics.speculative_decoding of each completion"
TOTALS = "one request at a time: difference of the spec_decode counters of /metrics"
UNKNOWN = "of unknown version"
PROBE = 16
"""Tokens of the request that shows whether a server drafts and counts."""
REST = 1.0
"""Seconds without a count after which nothing is under way any more."""
_POLL = 0.02


def server_version(http: Http) -> str:
    """What `/version` says; a router between may not know it.

    Raises:
        EngineError: it fails otherwise.
    """
    try:
        return http.get("/version").text("version") or UNKNOWN
    except EngineError as error:
        if "status 404" not in error.what:
            raise
        return UNKNOWN


@dataclass(slots=True)
class VllmServer:
    """A running vLLM server; see `client.Client`."""

    http: Http
    asking: RequestSettings
    settling: float = limits.COUNTERS.value
    rest: float = REST
    model: str = field(default="", init=False)
    totals: bool = field(default=False, init=False)
    seen: Counters | None = field(default=None, init=False)
    unsettled: bool = field(default=False, init=False)

    def served(self, prompt: Sequence[int]) -> ServerInfo:
        """See `client.Client`."""
        with self.http.understood():
            model = first(self.http.get("/v1/models"), "data")
            self.model = model.text("id") or ""
            version = server_version(self.http)
            before = self._counters()
            reply = self._complete(prompt, self.asking.probe(PROBE))
            depth = _per_request(reply).integer("num_spec_tokens")
            self.totals = depth is None
            if self.totals:
                depth = self._drafted(before, len(self._tokens(reply)))
            refuse_depth("vLLM", depth, self.asking.depth)
            if not self.totals:
                self._request_output(reply)
                self.seen = self._counters()
            return ServerInfo(
                target=model.text("root") or self.model,
                version=version,
                counting=TOTALS if self.totals else PER_REQUEST,
                alone=self.totals,
                room=model.integer("max_model_len"),
                born=self.seen.born if self.seen else "",
                settings=self.seen.settings if self.seen else {},
            )

    def ask(self, prompt: Sequence[int], length: int | None = None) -> RequestOutput:
        """See `client.Client`."""
        asking = self.asking.of_length(length)
        with self.http.understood():
            if not self.totals:
                return self._request_output(self._complete(prompt, asking))
            if self.unsettled:  # a request that failed on the way may still be under way
                self._wait_until_quiet()
            before = self._checked_counters()
            if self.seen and before.since(self.seen).steps:
                self.seen = before
                raise Void("the server drafted between two requests", why="its counts are totals", cure=OTHERS)
            self.unsettled = True
            tokens = self._tokens(self._complete(prompt, asking))
            output = explained(tokens, self._settled(before, len(tokens)))
            self.unsettled = False
            return output

    def _wait_until_quiet(self) -> None:
        deadline = time.monotonic() + self.settling
        before = self._checked_counters()
        while True:
            time.sleep(self.rest)
            self.seen = self._checked_counters()
            if self.seen == before:
                return
            if time.monotonic() > deadline:
                raise Void("the server drafts though nothing was asked of it", cure=OTHERS)
            before = self.seen

    def _checked_counters(self) -> Counters:
        """The counters now. One that was started again is asked no more: it may hold another drafter.

        Raises:
            Void: it was.
        """
        now = self._counters()
        if now is None:
            raise Void("the server has no counters any more", why="its counts are totals", cure=OTHERS)
        if self.seen:
            now.since(self.seen)
        return now

    def _complete(self, prompt: Sequence[int], asking: RequestSettings) -> Config:
        """A completion, its prompt and length checked."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": asking.length,
            "ignore_eos": asking.ignore_eos,
            "add_special_tokens": False,
            "return_token_ids": True,
            **sampling_fields(asking.sampling, prompt, all_tokens=0, greedy_top_k=0),
            "min_p": 0,
        }
        reply = self.http.post("/v1/completions", body)
        prompt_ids = first(reply, "choices").integers("prompt_token_ids")
        if prompt_ids != tuple(prompt):
            raise Void(
                f"the server answered another prompt than the {len(prompt)} tokens that were sent",
                why="arms would be compared on different prompts",
                cure="let nothing between draftconv and the engine rewrite requests",
            )
        refuse_length(self._tokens(reply), asking)
        return reply

    def _tokens(self, reply: Config) -> tuple[int, ...]:
        choice = first(reply, "choices")
        tokens = choice.integers("token_ids")
        if tokens is None:
            raise BadCheckpoint(f"{choice.where} has no token_ids (return_token_ids)")
        return tokens

    def _request_output(self, reply: Config) -> RequestOutput:
        stats = _per_request(reply)
        histogram = stats.integers("acceptance_histogram")
        steps, accepted = stats.integer("num_spec_steps"), stats.integer("num_accepted_draft_tokens")
        if histogram is None or steps is None or accepted is None:
            raise BadCheckpoint(f"{reply.where} has no metrics.speculative_decoding with histogram, steps and tokens")
        return explained(self._tokens(reply), counted(histogram, steps, accepted, self.asking.depth))

    def _settled(self, before: Counters, length: int) -> Counts:
        """The counters' difference, once it accounts for a text: they follow the answer."""
        deadline = time.monotonic() + self.settling
        while True:
            now = self._counters() or before
            counts = now.since(before)
            self.seen = now
            if 1 + counts.steps + counts.accepted >= length or time.monotonic() > deadline:
                return counts
            time.sleep(_POLL)

    def _counters(self) -> Counters | None:
        try:
            return read_counters(self.http.send("GET", "/metrics").decode(errors="replace"))
        except EngineError:
            if self.totals:
                raise
            return None  # a server may keep its metrics to itself when answers carry the counts

    def _drafted(self, before: Counters | None, length: int) -> int:
        """K, from counters that moved with a text.

        Raises:
            NoDrafts: there are none, or they did not move.
        """
        counts = self._settled(before, length) if before else None
        if counts is None or not counts.steps:
            raise NoDrafts(
                f"the server at {show(self.http.url)} reports no drafts",
                why="it has no drafter, or neither counts per request nor /metrics",
                cure="start it with the command that `draftconv serve` prints and "
                "--per-request-spec-decode-metrics summary",
            )
        return counts.depth


def _per_request(reply: Config) -> Config:
    metrics = reply.raw("metrics")
    inner = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    return Config(inner if isinstance(inner, dict) else {}, f"{reply.where}: metrics.speculative_decoding")
