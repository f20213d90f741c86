"""Local servers that answer as vLLM, SGLang and TensorRT-LLM document it, and in broken ways on request.

Text is a function of the prompt; which drafts are accepted, of the prompt and the drafter's quality:
a better drafter accepts whatever a worse one does.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from random import Random
from typing import Any, Literal

from tests.served import served

VOCAB = 2048

Reply = dict[str, Any]


def text(prompt: list[int], length: int) -> list[int]:
    """The greedy text."""
    random = Random(str(prompt))
    return [random.randrange(VOCAB) for _ in range(length)]


def steps(prompt: list[int], length: int, quality: float, depth: int) -> list[int]:
    """Accepted tokens of each step; the last counts all of its own."""
    random, made, found = Random(f"steps {prompt}"), 1, []
    while made < length:
        luck = [random.random() < quality for _ in range(8)][:depth]
        found.append(luck.index(False) if False in luck else depth)
        made += found[-1] + 1
    return found


@dataclass
class Stub:
    """One server's state.

    Attributes:
        per_request: vLLM only: answers carry counts. `born`: when its counters were created.
        cache: its cache's dtype.
        failures: what happens to the requests that come first: a status, or 0 for a closed connection.
        hang: seconds before an answer. `change`: what becomes of an answer, `info` of what it says of itself.
        lag: readings of totals that come too early. `key`: that every request must hold.
        write, accept: the greedy text after a prompt, and the steps that wrote it; None is a step without a draft.
    """

    engine: Literal["vllm", "sglang", "trtllm"]
    quality: float = 0.7
    depth: int = 3
    target: str = "llama"
    drafter: str = "drafter"
    version: str = "9.9"
    born: str = "1.0"
    per_request: bool = True
    cache: str = "auto"
    failures: list[int] = field(default_factory=list)
    hang: float = 0.0
    lag: int = 0
    key: str = ""
    write: Callable[[list[int], int], list[int]] = text
    accept: Callable[[list[int], int, float, int], Sequence[int | None]] = steps
    change: Callable[[Reply], object] = lambda reply: reply
    info: dict[str, object] = field(default_factory=dict)
    url: str = ""
    asked: list[Reply] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    drained: int = 0
    seen: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, path: str) -> object:
        """A GET's document; None is 404."""
        match self.engine, path:
            case "vllm" | "sglang" | "trtllm", "/health":
                return {}
            case "vllm" | "trtllm", "/v1/models":
                model = {"id": self.target, "root": f"/models/{self.target}", "max_model_len": 1024}
                return {"data": [{**model, **self.info}]}
            case "vllm" | "trtllm", "/version":
                return {"version": self.version}
            case "vllm", "/metrics":
                return self._counters().encode()
            case "trtllm", "/metrics":
                return self._iterations()
            case "sglang", "/server_info":
                return {
                    "model_path": f"/models/{self.target}",
                    "version": self.version,
                    "context_length": None,
                    "max_req_input_len": 1018,
                    "speculative_algorithm": "EAGLE3",
                    "speculative_draft_model_path": f"/models/{self.drafter}",
                    "speculative_num_steps": self.depth,
                    "speculative_num_draft_tokens": self.depth + 1,
                    "speculative_eagle_topk": 1,
                    "speculative_accept_threshold_single": 1.0,
                    **self.info,
                }
        return None

    def post(self, path: str, body: Reply) -> object:
        """A POST's document."""
        with self.lock:
            self.asked.append(body)
        time.sleep(self.hang)
        match self.engine, path:
            case "vllm" | "trtllm", "/v1/completions":
                prompt, length = body["prompt"], body["max_tokens"]
            case "sglang", "/generate":
                prompt, length = body["input_ids"], body["sampling_params"]["max_new_tokens"]
            case _:
                return None
        tokens = self.write(prompt, length)
        found = [one for one in self.accept(prompt, length, self.quality, self.depth) if one is not None]
        with self.lock:
            self.made += found
        histogram = [found.count(j) for j in range(self.depth + 1)]
        choice: Reply = {"index": 0, "text": "…", "token_ids": tokens}
        match self.engine:
            case "vllm":
                counts = {
                    "acceptance_histogram": histogram,
                    "num_spec_steps": len(found),
                    "num_accepted_draft_tokens": sum(found),
                    "num_spec_tokens": self.depth,
                }
                reply: Reply = {"choices": [{**choice, "prompt_token_ids": prompt}]}
                reply["metrics"] = {"speculative_decoding": counts} if self.per_request else None
            case "sglang":
                while histogram and not histogram[-1]:
                    histogram.pop()
                meta = {
                    "prompt_tokens": len(prompt),
                    "finish_reason": {"type": "length"},
                    "spec_verify_ct": len(found),
                    "spec_num_correct_drafts": sum(found),
                    "spec_correct_drafts_histogram": histogram,
                }
                reply = {"text": "…", "output_ids": tokens, "meta_info": meta}
            case _:
                reply = {"choices": [choice], "usage": {"prompt_tokens": len(prompt)}}
        return self.change(reply)

    def _behind(self) -> int:
        """Steps that a reading of totals knows of."""
        if self.lag and self.seen < len(self.made):
            self.lag -= 1
            return self.seen
        self.seen = len(self.made)
        return self.seen

    def _counters(self) -> str:
        known = self.made[: self._behind()]
        label = f'engine="0",model_name="a}} b,{self.target}"'
        lines = [
            f'vllm:cache_config_info{{block_size="128",cache_dtype="{self.cache}",enable_prefix_caching="False"}} 1.0',
            "# TYPE vllm:spec_decode_num_drafts_total counter",
            f"vllm:spec_decode_num_drafts_total{{{label}}} {len(known)}.0",
            f"vllm:spec_decode_num_drafts_created{{{label}}} {self.born}",
            f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {sum(known)}.0",
        ]
        for j in range(self.depth):
            count = sum(accepted > j for accepted in known)
            lines.append(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{j}"}} {count}.0')
        return "\n".join(lines)

    def _iterations(self) -> list[Reply]:
        known = self._behind()
        records = [
            {
                "iter": number,
                "specDecodingStats": {
                    "numDraftTokens": self.depth,
                    "numAcceptedTokens": accepted,
                    "numRequestsWithDraftTokens": 1,
                },
            }
            for number, accepted in enumerate(self.made[self.drained : known])
        ]
        self.drained = known
        return [{"iter": -1, "specDecodingStats": {"numDraftTokens": 0, "numAcceptedTokens": 0,
                 "numRequestsWithDraftTokens": 0}}, *records]  # fmt: skip


@contextmanager
def serving(stub: Stub, port: int = 0) -> Iterator[Stub]:
    """The stub on a port of the loopback interface, a free one unless it is named."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            known = not stub.key or self.headers["Authorization"] == f"Bearer {stub.key}"
            self.reply(stub.get(self.path) if known else {"error": "Unauthorized"}, 200 if known else 401)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with stub.lock:
                failure = stub.failures.pop(0) if stub.failures else None
            if failure is None:
                self.reply(stub.post(self.path, body))
            elif failure:
                self.reply({"error": {"message": "stubbed refusal"}}, failure)
            else:
                self.close_connection = True

        def reply(self, document: object, status: int = 200) -> None:
            data = document if isinstance(document, bytes) else json.dumps(document).encode()
            try:
                self.send_response(404 if document is None else status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass  # the client has given up

    with served(Handler, port) as stub.url:
        yield stub


@contextmanager
def all_serving(*stubs: Stub) -> Iterator[tuple[Stub, ...]]:
    """Several at once."""
    with ExitStack() as stack:
        yield tuple(stack.enter_context(serving(stub)) for stub in stubs)
