"""vLLM without a server: one process per arm, in the Python of vLLM's own environment, asked over its pipes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from subprocess import Popen
from threading import Thread
from typing import IO

from draftconv.checkpoint import show
from draftconv.checkpoint.text import parse_object
from draftconv.drafter.config import Config
from draftconv.errors import BadCheckpoint, EngineError
from draftconv.live.answer import Answer, counted, explained
from draftconv.live.client import Asking, Served, refuse_depth, refuse_length
from draftconv.live.launch import LOG
from draftconv.live.process import engine_process, tail

WORKER = Path(__file__).with_name("vllm_worker.py")
COUNTING = "per request: outputs[0].spec_decode_metrics of vllm.LLM.generate"
PROBE = 16
"""Tokens of the request that shows whether an engine drafts and counts."""


@dataclass(frozen=True, slots=True)
class OfflineVllm:
    """vLLM in a process of ours; see `client.Client`. Requests run one after another.

    Attributes:
        asking: `timeout` is for a whole answer here.
        patience: seconds until the engine is ready.
    """

    process: Popen[bytes]
    lines: SimpleQueue[bytes]
    asking: Asking
    target: str
    drafter: str
    log: Path
    patience: float

    def served(self, prompt: Sequence[int]) -> Served:
        """See `client.Client`."""
        ready = self._line(self.patience)
        self._ask(prompt, self.asking.probe(PROBE))
        return Served(
            target=self.target,
            version=ready.text("version") or "of unknown version",
            counting=COUNTING,
            alone=True,
            room=ready.integer("room"),
            drafter=self.drafter,
        )

    def ask(self, prompt: Sequence[int]) -> Answer:
        """See `client.Client`."""
        return self._ask(prompt, self.asking)

    def _ask(self, prompt: Sequence[int], asking: Asking) -> Answer:
        request = {"prompt": list(prompt), "length": asking.length, "ignore_eos": asking.ignore_eos}
        try:
            _pipe(self.process.stdin).write(json.dumps(request).encode() + b"\n")
            _pipe(self.process.stdin).flush()
        except OSError as error:
            raise EngineError("vLLM has ended", why=tail(self.log)) from error
        reply = self._line(self.asking.timeout)
        if fault := reply.text("fault"):
            raise EngineError(f"vLLM failed: {show(fault)}", why=tail(self.log))
        try:
            tokens, counts = reply.integers("tokens"), reply.section("counts")
            if tokens is None:
                raise BadCheckpoint("an answer has no tokens")
            refuse_length(tokens, asking)
            refuse_depth("vLLM", counts.integer("num_spec_tokens"), self.asking.depth)
            found = counted(
                counts.integers("acceptance_histogram") or (),
                counts.integer("num_spec_steps") or 0,
                counts.integer("num_accepted_draft_tokens") or 0,
                self.asking.depth,
            )
        except BadCheckpoint as error:
            raise EngineError(
                f"vLLM does not answer as 0.32.0 does: {error.what}", cure="take vLLM 0.32 or later"
            ) from error
        return explained(tokens, found)

    def _line(self, patience: float) -> Config:
        try:
            line = self.lines.get(timeout=patience)
        except Empty as error:
            raise EngineError(f"vLLM did not answer within {patience:g} seconds", why=tail(self.log)) from error
        if not line:
            raise EngineError("vLLM ended before it answered", why=tail(self.log))
        try:
            return Config(parse_object(line, "the engine's line"), "the engine's line")
        except BadCheckpoint as error:
            raise EngineError(error.what, why=tail(self.log)) from error


@contextmanager
def offline(
    argv: Sequence[str],
    python: Path,
    asking: Asking,
    directory: Path,
    *,
    target: str,
    drafter: str,
    patience: float,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[OfflineVllm]:
    """vLLM with a target and a drafter, until this is left.

    Args:
        argv: arguments of `vllm serve` with `--model`, none of the HTTP server's.
        python: has vLLM; draftconv need not be there.
        directory: gets the log.

    Raises:
        EngineError: there is no such Python.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / LOG
    command = (str(python), str(WORKER), *argv)
    with engine_process(command, log=log, directory=directory, environment=environment, piped=True) as process:
        lines: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=_listen, args=(_pipe(process.stdout), lines), daemon=True).start()
        yield OfflineVllm(process, lines, asking, target, drafter, log, patience)


def _listen(pipe: IO[bytes], lines: SimpleQueue[bytes]) -> None:
    """Every line, then an empty one."""
    try:
        for line in pipe:
            lines.put(line)
    except ValueError:
        pass  # closed by us
    lines.put(b"")


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise EngineError("the engine's process has no pipe")
    return pipe
