"""JSON over HTTP to an engine that the user has: sent again when it failed on the way, never through a proxy.

A proxy between would rewrite or answer requests in the engine's place, so the environment's are not used.
A server that wants a key gets the one in the environment: an option would end up in reports.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from draftconv.checkpoint import show
from draftconv.checkpoint.text import parse_object
from draftconv.drafter.config import Config
from draftconv.errors import BadCheckpoint, EngineError, NotReached, UsageError

KEY = "DRAFTCONV_API_KEY"
"""Variable with the key that servers want (vLLM's and SGLang's --api-key)."""
MAX_ANSWER = 64_000_000
"""Bytes of an answer: a million token ids with their text."""


@dataclass(frozen=True, slots=True)
class Http:
    """One server.

    Attributes:
        url: its address. `option`: where the user gave it, for messages.
        engine: as whom it should answer. `cure`: what to do when it does not.
        timeout: seconds without a byte before a request counts as failed.
        attempts: how often a request that failed on the way is sent. `pause`: seconds before the second
            time, doubled each time.
    """

    url: str
    option: str = "--url"
    engine: str = "an engine"
    cure: str = "look at the server's log"
    timeout: float = 600.0
    attempts: int = 4
    pause: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no address.

        Raises:
            UsageError: neither http nor https, no host, no port number, or a password.
        """
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            secret = parts.username is not None
        except ValueError:
            usable = secret = False
        if secret:
            raise UsageError(
                f"{self.option} holds a name or a password",
                why="addresses are written into reports",
                cure=f"leave it out; a server's key belongs into the variable {KEY}",
            )
        if not usable:
            raise UsageError(
                f"{self.option} {show(self.url)} is no address of a server", cure="write http://127.0.0.1:8000"
            )

    def get(self, path: str) -> Config:
        """A JSON object.

        Raises:
            EngineError: the request failed every time or was refused. BadCheckpoint: it is no JSON object.
        """
        return Config(parse_object(self.send("GET", path), path), path)

    def post(self, path: str, body: Mapping[str, object]) -> Config:
        """The JSON object that answers a JSON object.

        Raises:
            EngineError, BadCheckpoint: as `get`.
        """
        return Config(parse_object(self.send("POST", path, body), path), path)

    def send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> bytes:
        """One request, sent again when it failed on the way or the server is overloaded.

        Raises:
            NotReached: it failed every time. EngineError: it was refused.
        """
        pause = self.pause
        for attempt in range(1, self.attempts + 1):
            try:
                status, raw = self._once(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                fault = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            else:
                if status == 200:
                    return raw
                fault = f"status {status}: {_said(raw)}"
                if status != 429 and status < 500:
                    raise EngineError(
                        f"the server at {show(self.url)} refused {path} ({fault})",
                        cure=self._cure(status),
                    )
            if attempt < self.attempts:
                time.sleep(pause)
                pause *= 2
        times = f" {self.attempts} times" if self.attempts > 1 else ""
        raise NotReached(
            f"{method} {path} at {show(self.url)} failed{times} ({fault})",
            why="what was answered so far is kept",
            cure=self.cure,
        )

    def answers(self, path: str) -> bool:
        """Whether the server answers this with status 200, now."""
        try:
            return self._once("GET", path, None)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    @contextmanager
    def understood(self) -> Iterator[None]:
        """What cannot be read in here was not said by this engine: BadCheckpoint becomes EngineError."""
        try:
            yield
        except BadCheckpoint as error:
            raise EngineError(
                f"the server at {show(self.url)} does not answer as {self.engine} does: {error.what}", cure=self.cure
            ) from error

    def _cure(self, status: int) -> str:
        if status in (401, 403):
            return f"put its key into the variable {KEY}"
        if status == 404 and self.url.rstrip("/").endswith("/v1"):
            return "leave /v1 out of the address"
        return self.cure

    def _once(self, method: str, path: str, body: Mapping[str, object] | None) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout)
        try:
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"}
            if key := os.environ.get(KEY):
                headers["Authorization"] = f"Bearer {key}"
            connection.request(method, parts.path.rstrip("/") + path, data, headers)
            reply = connection.getresponse()
            return reply.status, reply.read(MAX_ANSWER)
        finally:
            connection.close()


def first(reply: Config, key: str) -> Config:
    """The first object of a list.

    Raises:
        BadCheckpoint: there is none.
    """
    match reply.raw(key):
        case [dict(row), *_]:
            return Config(row, f"{reply.where}: {key}[0]")
        case _:
            raise BadCheckpoint(f"{reply.where} has no {key}")


def _said(raw: bytes) -> str:
    """The message of a refusal: vLLM wraps it in `error`."""
    try:
        error = Config(parse_object(raw, "the refusal")).section("error")
        return show(error.text("message") or raw.decode())
    except (BadCheckpoint, UnicodeError):
        return show(raw.decode(errors="replace"))
