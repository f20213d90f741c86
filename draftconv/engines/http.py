"""JSON over HTTP to an engine that the user has: sent again when it failed on the way, never through a proxy.

A proxy between would rewrite or answer requests in the engine's place, so the environment's are not used.
A server that wants a key gets the one in the environment: an option would end up in reports. No redirect is
followed, so nobody else gets it.

httpx2 speaks HTTP. It sends only failed connections again, never an overloaded server's request, has no limit on
the size of an answer and repeats headers in messages: these three are decided here.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

import httpx2

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.checkpoint.deadlines import Overdue, timed
from draftconv.checkpoint.text import parse_object
from draftconv.drafter.config import Config
from draftconv.errors import BadCheckpoint, EngineError, NotReached, UsageError

logger = logging.getLogger(__name__)

KEY = "DRAFTCONV_API_KEY"
"""Variable with the key that servers want (vLLM's and SGLang's --api-key)."""


@dataclass(frozen=True, slots=True)
class Http:
    """One server.

    Attributes:
        url: its address. `option`: where the user gave it, for messages.
        engine: as whom it should answer. `cure`: what to do when it does not.
        timeout: seconds that an answer may take, to its last byte, before the request counts as failed.
        attempts: how often a request that failed on the way is sent. `pause`: seconds before the second
            time, doubled each time.
    """

    url: str
    option: str = "--url"
    engine: str = "an engine"
    cure: str = "look at the server's log"
    timeout: float = limits.ENGINE_ANSWER.value
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
            httpx2.URL(self.url)  # alone it takes "http://[" and port 99999
        except (ValueError, httpx2.InvalidURL):
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
            NotReached: it failed every time. EngineError: it was refused, or the answer is too long.
            UsageError: the key cannot be sent.
        """
        pause = self.pause
        for attempt in range(1, self.attempts + 1):
            try:
                status, raw = self._send_once(method, path, body)
            except (httpx2.HTTPError, Overdue) as error:
                fault = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            else:
                if status == 200:
                    return raw
                fault = f"status {status}: {_error_message(raw)}"
                if status != 429 and status < 500:
                    raise EngineError(
                        f"the server at {show(self.url)} refused {path} ({fault})",
                        cure=self._cure(status),
                    )
            if attempt < self.attempts:
                logger.info("%s %s at %s again in %g s: %s", method, path, show(self.url), pause, show(fault))
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
            return self._send_once("GET", path, None)[0] == 200
        except (httpx2.HTTPError, Overdue):
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

    def _send_once(self, method: str, path: str, body: Mapping[str, object] | None) -> tuple[int, bytes]:
        authorization = _authorization()
        status, raw = 0, bytearray()
        pieces = timed(
            lambda: self._pieces(method, path, body, authorization),
            total=self.timeout,
            idle=min(self.timeout, limits.ENGINE_IDLE.value),
        )
        for piece in pieces:
            if isinstance(piece, int):
                status = piece
                continue
            raw += piece
            what = f"the server at {show(self.url)} answers {path} with more than {limits.ENGINE_BYTES.value} bytes"
            limits.ENGINE_BYTES.check(len(raw), what, error=EngineError)
        return status, bytes(raw)

    def _pieces(
        self, method: str, path: str, body: Mapping[str, object] | None, authorization: Mapping[str, str]
    ) -> Generator[int | bytes, None, None]:
        """The status, and then the answer as it comes.

        Raises:
            Overdue: the client's own clock, which starts with each read, was the first to notice.
            httpx2.HTTPError: it failed on the way.
        """
        url = httpx2.URL(self.url)
        prefix = url.raw_path.partition(b"?")[0].rstrip(b"/")
        try:
            with (
                httpx2.Client(
                    verify=_ssl_context(), trust_env=False, follow_redirects=False, timeout=self.timeout
                ) as client,
                client.stream(
                    method,
                    url.copy_with(raw_path=prefix + path.encode()),
                    content=None if body is None else json.dumps(body).encode(),
                    headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **authorization},
                ) as reply,
            ):
                yield reply.status_code
                yield from reply.iter_raw()
        except httpx2.TimeoutException as error:
            raise Overdue(f"it took more than {self.timeout:g} s") from error


@cache
def _ssl_context() -> ssl.SSLContext:
    """Who an https server may be, as Python decides: an authority in SSL_CERT_FILE counts, which httpx2 alone would
    take from the environment together with its proxies. Made once, since that takes longer than a request."""
    return ssl.create_default_context()


def _authorization() -> Mapping[str, str]:
    """The header with the key; a key that none can hold would be repeated in the client's message."""
    key = os.environ.get(KEY)
    if not key:
        return {}
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise UsageError(
            f"the key in the variable {KEY} cannot be sent",
            why="it ends in a space or a line break, or holds a character that is not ASCII",
            cure="copy it again",
        )
    return {"Authorization": f"Bearer {key}"}


def first(reply: Config, key: str) -> Config:
    """The first object of a list.

    Raises:
        BadCheckpoint: there is none.
    """
    match reply.raw(key):
        case [dict(entry), *_]:
            return Config(entry, f"{reply.where}: {key}[0]")
        case _:
            raise BadCheckpoint(f"{reply.where} has no {key}")


def _error_message(raw: bytes) -> str:
    """The message of a refusal: vLLM wraps it in `error`."""
    try:
        error = Config(parse_object(raw, "the refusal")).section("error")
        return show(error.text("message") or raw.decode())
    except (BadCheckpoint, UnicodeError):
        return show(raw.decode(errors="replace"))
