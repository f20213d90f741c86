"""A local server that answers as vLLM 0.32.0 does when it extracts hidden states, and in broken ways on request."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.served import served

WIDTH, BOUNDARIES, VOCAB = 6, (2, 4, 5), 50

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""What becomes of a file's tensors before they are written."""


def text(prompt: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The stub's greedy text: any function of the prompt."""
    return tuple((sum(prompt) + 7 * i) % VOCAB for i in range(length))


def states(tokens: tuple[int, ...]) -> Tensor:
    """Rows for all tokens but the last: [n, A, W], never zero, each a function of position and token."""
    row_T = torch.tensor([1 + i + token / VOCAB for i, token in enumerate(tokens[:-1])])
    scale_AW = torch.arange(1, len(BOUNDARIES) * WIDTH + 1).reshape(len(BOUNDARIES), WIDTH)
    return (row_T[:, None, None] * scale_AW).bfloat16()


def write(path: Path, tokens: tuple[int, ...], change: Change = lambda tensors: tensors) -> None:
    """A file as the connector writes it, its lock file beside it."""
    tensors = {"hidden_states": states(tokens), "token_ids": torch.tensor(tokens[:-1])}
    path.with_name(f"{path.name}.lock").touch()
    save_file({name: tensor.contiguous() for name, tensor in change(tensors).items()}, path)


@dataclass
class Stub:
    """The stub's state: what it was asked and how it misbehaves.

    Attributes:
        failures: requests that are dropped or refused first: a status, or 0 for a closed connection.
        answer: changes a completion before it is sent. `change`: the tensors before they are written.
        raw: log-probabilities are of raw logits, as where a server was not told otherwise.
    """

    storage: Path
    url: str = ""
    failures: list[int] = field(default_factory=list)
    answer: Callable[[dict[str, Any]], object] = lambda reply: reply
    change: Change = lambda tensors: tensors
    raw: bool = False
    models: object = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def complete(self, body: dict[str, Any]) -> object:
        with self.lock:
            self.asked.append(body)
            number = len(self.asked)
        prompt = tuple(body["prompt"])
        generated = text(prompt, body["max_tokens"])
        path = self.storage / f"cmpl-{number}.safetensors"
        write(path, (*prompt, *generated), self.change)
        told = None if "logprobs" not in body else {"token_logprobs": self.logprobs(body)}
        return self.answer(
            {
                "model": body["model"],
                "choices": [
                    {
                        "index": 0,
                        "text": "…",
                        "finish_reason": "length",
                        "prompt_token_ids": list(prompt),
                        "token_ids": list(generated),
                        "logprobs": told,
                    }
                ],
                "kv_transfer_params": {"hidden_states_path": str(path)},
            }
        )

    def logprobs(self, body: dict[str, Any]) -> list[float]:
        """Of the text's tokens; where there is no other choice 0, or of one of two equal ones, unless they are raw."""
        alone = body["top_k"] == 1 and not self.raw
        return [-math.log(1 + i % 2) if alone else logprob(i) for i in range(body["max_tokens"])]


def logprob(i: int) -> float:
    """Of the i-th token of any drawn text."""
    return -(i % 4) / 8


@contextmanager
def serving(storage: Path) -> Iterator[Stub]:
    """A stub on a free port of the loopback interface."""
    stub = Stub(storage)
    stub.models = {"data": [{"id": "tiny", "max_model_len": 64}]}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.reply({"/v1/models": stub.models, "/version": {"version": "0.32.0"}}.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.reply(stub.complete(body) if self.path == "/v1/completions" else None)

        def reply(self, document: object) -> None:
            with stub.lock:
                failure = stub.failures.pop(0) if stub.failures else None
            if failure == 0:
                self.close_connection = True
                return
            status = failure or (200 if document is not None else 404)
            refusal = {"error": {"message": "stubbed refusal"}}
            data = (
                document if isinstance(document, bytes) else json.dumps(document if status == 200 else refusal).encode()
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with served(Handler) as stub.url:
        yield stub
