"""SGLang over its native HTTP interface. Run with its server 0.5.23 on a CPU, compiled kernels stood in for.

`/generate` takes `input_ids` and answers `output_ids` with
`meta_info.spec_verify_ct` (steps), `spec_num_correct_drafts` (accepted tokens) and
`spec_correct_drafts_histogram`, which ends at the largest count seen. The step that finishes a
request counts all that it accepted. `spec_accept_length` divides output tokens by steps, so it
counts the prompt's own token, and is not read. `/server_info` holds the server's arguments, and what its
scheduler made of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from draftconv.checkpoint import show
from draftconv.drafter.config import Config
from draftconv.engines.client import RequestSettings, ServerInfo, refuse_depth, refuse_length, sampling_fields
from draftconv.engines.http import Http
from draftconv.engines.request_output import RequestOutput, counted, explained
from draftconv.errors import BadCheckpoint, EngineError, NoDrafts, OtherDrafting, Void
from draftconv.reference.accept_length import Counts

PER_REQUEST = "per request: meta_info of /generate (spec_verify_ct, spec_num_correct_drafts and their histogram)"
ALGORITHM = "EAGLE3"
PROBE = 16
"""Tokens of the request that shows whether a server drafts and counts."""
TEXT_BEYOND, CONTEXT_BEYOND = 4, 6
"""By how much a prompt and its text, and the context, are longer than the longest prompt, `max_req_input_len`."""

NEUTRAL: Mapping[str, object] = {
    "speculative_eagle_topk": 1,
    "speculative_accept_threshold_single": 1,
    "speculative_accept_threshold_acc": 1,
    "speculative_adaptive": False,
    "speculative_use_block_verification": False,
}
"""Arguments that must stand so, or be unknown to the server: chains, accepted only where the target agrees, of one
length."""


@dataclass(frozen=True, slots=True)
class SglangServer:
    """A running SGLang server; see `client.Client`."""

    http: Http
    asking: RequestSettings

    def served(self, prompt: Sequence[int]) -> ServerInfo:
        """See `client.Client`."""
        with self.http.understood():
            info = server_info(self.http)
            self._refuse_other_drafting(info)
            replace(self, asking=self.asking.probe(PROBE)).ask(prompt)
            return ServerInfo(
                target=info.text("model_path") or "",
                version=info.text("version") or "of unknown version",
                counting=PER_REQUEST,
                room=room(info),
                drafter=info.text("speculative_draft_model_path") or "",
                settings=server_settings(info),
            )

    def ask(self, prompt: Sequence[int], length: int | None = None) -> RequestOutput:
        """See `client.Client`."""
        asking = self.asking.of_length(length)
        body = {
            "input_ids": list(prompt),
            "sampling_params": {
                "max_new_tokens": asking.length,
                "ignore_eos": asking.ignore_eos,
                **sampling_fields(asking.sampling, prompt, all_tokens=-1, greedy_top_k=1, seed="sampling_seed"),
            },
        }
        with self.http.understood():
            reply = self.http.post("/generate", body)
            meta = reply.section("meta_info")
            tokens = reply.integers("output_ids")
            if tokens is None:
                raise BadCheckpoint(f"{reply.where} has no output_ids")
            if (prompt_tokens := meta.integer("prompt_tokens")) != len(prompt):
                raise Void(
                    f"the server answered a prompt of {prompt_tokens} tokens, another of {len(prompt)} was sent",
                    why="arms would be compared on different prompts",
                    cure="let nothing between draftconv and the engine rewrite requests",
                )
            refuse_length(tokens, asking)
            stopped = meta.section("finish_reason").text("type") == "stop"
            return explained(tokens, self._counts(meta, len(tokens)), hidden=int(stopped))

    def _counts(self, meta: Config, length: int) -> Counts:
        steps, accepted = meta.integer("spec_verify_ct"), meta.integer("spec_num_correct_drafts")
        histogram = meta.integers("spec_correct_drafts_histogram")
        if steps is None:
            if length <= 1:  # the prompt's own pass wrote it, and ended there
                return counted((), 0, 0, self.asking.depth)
            raise NoDrafts(
                f"the server at {show(self.http.url)} reports no drafts",
                why="every count is absent from meta_info when no verify step ran",
                cure="start it with the command that `draftconv serve` prints",
            )
        if accepted is None or histogram is None:
            raise EngineError(
                f"{meta.where} has no spec_num_correct_drafts or no spec_correct_drafts_histogram, as before mid-2026",
                why="what older servers count under other names was not proven to be the same",
                cure="take SGLang 0.5.23 or later",
            )
        return counted(histogram, steps, accepted, self.asking.depth)

    def _refuse_other_drafting(self, info: Config) -> None:
        """Refuse a server that drafts otherwise than parity measures.

        Raises:
            OtherDrafting: no EAGLE-3 drafter, trees, another depth, or acceptance that is not the target's.
        """
        if (algorithm := info.text("speculative_algorithm")) != ALGORITHM:
            raise OtherDrafting(
                f"the server's speculative_algorithm is {show(algorithm)}, not {ALGORITHM}",
                why="with EAGLE the same files load, fc is skipped and nothing is accepted",
                cure="start it with the command that `draftconv serve` prints",
            )
        for name, neutral in NEUTRAL.items():
            if info.raw(name) not in (None, neutral):
                raise OtherDrafting(
                    f"the server has {name} {show(info.raw(name))}, parity needs {show(neutral)}",
                    why="what it accepts would not be what its target writes, step by step",
                    cure="start it with the command that `draftconv serve` prints",
                )
        refuse_depth("SGLang", info.integer("speculative_num_steps"), self.asking.depth)


def server_info(http: Http) -> Config:
    """`/server_info`, under its older name where the new one is unknown.

    Raises:
        EngineError: neither is answered.
    """
    try:
        return http.get("/server_info")
    except EngineError as error:
        if "status 404" not in error.what:
            raise
        return http.get("/get_server_info")


def room(info: Config) -> int | None:
    """Tokens of the longest prompt and its text that surely fit.

    A request has to leave the context room for the drafts of a step, or is refused (run; `num_reserved_tokens` in
    srt/managers/tokenizer_manager.py). A text that the KV cache does not hold is cut without a word (read;
    `init_req_max_new_tokens` in srt/managers/scheduler.py, 0.5.23). The context is told only where it was given; it is
    no shorter than the longest prompt tells.
    """
    longest, context = info.integer("max_req_input_len"), info.integer("context_length")
    if longest is None:
        return context
    drafted = info.integer("speculative_num_draft_tokens") or 0
    return min(longest + TEXT_BEYOND, (context or longest + CONTEXT_BEYOND) - drafted)


def server_settings(info: Config) -> dict[str, str]:
    """What else the arguments say that accept length depends on."""
    names = ("attention_backend", "tp_size", "kv_cache_dtype", "quantization", "disable_radix_cache",
             "speculative_use_rejection_sampling")  # fmt: skip
    return {f"server, {name}": str(info.raw(name)) for name in names if info.raw(name) is not None}
