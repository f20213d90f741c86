"""The HTTP client: what it sends to whom, what it sends again, and what it takes for an answer."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType

import pytest

from draftconv import limits
from draftconv.engines import http
from draftconv.engines.http import Http
from draftconv.errors import BadCheckpoint, EngineError, NotReached, UsageError
from tests.served import served

Reply = Callable[[BaseHTTPRequestHandler], object]


def answer(
    status: int = 200,
    data: bytes = b"{}",
    claimed: int | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Reply:
    """A reply, `claimed` bytes long by what its header says."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data) if claimed is None else claimed))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    return reply


def dropped(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


@dataclass
class Script:
    """A server that gives one reply after another, the last one for ever, and remembers what it was sent."""

    replies: list[Reply]
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        script = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                script.asked.append((self.command, self.path, dict(self.headers.items()), body))
                (script.replies.pop(0) if len(script.replies) > 1 else script.replies[0])(self)

            do_POST = do_GET

        return Handler


def client(url: str, attempts: int = 4) -> Http:
    return Http(url, timeout=2.0, attempts=attempts, pause=0.0)


def test_a_request_and_its_answer() -> None:
    script = Script([answer(data=b'{"said": "\xc3\xa4"}')])
    with served(script.handler()) as url:
        assert client(url).post("/ask", {"prompt": [1, 2]}).text("said") == "ä"
        assert client(f"{url}/behind/").get("/health").text("said") == "ä"
    (method, path, headers, body), (*get, _, nothing) = script.asked
    assert (method, path, json.loads(body)) == ("POST", "/ask", {"prompt": [1, 2]})
    assert (headers["Content-Type"], headers["Accept-Encoding"]) == ("application/json", "identity")
    assert (*get, nothing) == ("GET", "/behind/health", b"")


def test_the_key_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([answer()])
    with served(script.handler()) as url:
        client(url).get("/")
        monkeypatch.setenv(http.KEY, "a key")
        client(url).get("/")
    assert [headers.get("Authorization") for _, _, headers, _ in script.asked] == [None, "Bearer a key"]


@pytest.mark.parametrize("key", ["secret\n", "secret ", "secret\r\nHost: other", "secrét"])
def test_a_key_that_no_header_can_hold_is_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(http.KEY, key)
    script = Script([answer()])
    with served(script.handler()) as url, pytest.raises(UsageError, match=http.KEY) as caught:
        client(url).get("/")
    assert not script.asked
    assert "secr" not in f"{caught.value.what} {caught.value.why} {caught.value.cure}"


def test_the_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    script, proxy = Script([answer()]), Script([answer()])
    with served(script.handler()) as url, served(proxy.handler()) as other:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, other)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        client(url).get("/")
    assert (len(script.asked), len(proxy.asked)) == (1, 0)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirect_is_followed_with_the_key(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(http.KEY, "secret")
    other = Script([answer()])
    with served(other.handler()) as elsewhere:
        script = Script([answer(status, headers={"Location": f"{elsewhere}/health"})])
        with served(script.handler()) as url:
            with pytest.raises(EngineError, match=rf"refused /health \(status {status}"):
                client(url).get("/health")
            assert not client(url).answers("/health")
    assert not other.asked


@pytest.mark.parametrize("first", [dropped, answer(429), answer(500), answer(503), answer(claimed=9)])
def test_what_fails_on_the_way_is_sent_again(first: Reply) -> None:
    script = Script([first, answer()])
    with served(script.handler()) as url:
        assert client(url).send("POST", "/", {"a": 1}) == b"{}"
    assert [body for *_, body in script.asked] == [b'{"a": 1}'] * 2


@pytest.mark.parametrize("attempts", [1, 3])
def test_it_is_sent_so_often_and_no_more(attempts: int) -> None:
    script = Script([answer(500, b'{"error": {"message": "no room"}}')])
    told = r"failed 3 times \(status 500: no room\)" if attempts > 1 else r"failed \(status 500"
    with served(script.handler()) as url, pytest.raises(NotReached, match=told):
        client(url, attempts).get("/")
    assert len(script.asked) == attempts


def test_pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    script = Script([answer(500)])
    with served(script.handler()) as url, pytest.raises(NotReached):
        Http(url, timeout=2.0).get("/")
    assert [pause for pause in slept if pause >= 1] == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("status", [201, 204, 400, 401, 403, 404])
def test_another_status_is_a_refusal_at_once(status: int) -> None:
    script = Script([answer(status, b"" if status == 204 else b"{}")])
    with served(script.handler()) as url:
        with pytest.raises(EngineError, match=f"status {status}") as caught:
            client(url).get("/")
        assert not client(url).answers("/")
    assert not isinstance(caught.value, NotReached)
    assert len(script.asked) == 2


def dripping(data: bytes, pause: float) -> Reply:
    """A server whose socket is never quiet for long."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        with contextlib.suppress(OSError):  # nobody wants more of it
            for byte in data:
                time.sleep(pause)
                handler.wfile.write(bytes([byte]))

    return reply


HEAD = b"HTTP/1.0 200 OK\r\n"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (HEAD + b"\r\n" + b"{" * 100, "took more than 0.5 s"),
        (HEAD + b"X-Header: of hours\r\n" * 10, "took more than 0.5 s"),
    ],
    ids=["body", "headers"],
)
def test_a_byte_now_and_then_is_no_answer(data: bytes, fault: str) -> None:
    script = Script([dripping(data, 0.02)])
    with served(script.handler()) as url:
        assert Http(url, timeout=5.0, attempts=1).send("GET", "/") if data.startswith(HEAD + b"\r\n") else True
        began = time.monotonic()
        with pytest.raises(NotReached, match=fault):
            Http(url, timeout=0.5, attempts=1).send("GET", "/")
        assert time.monotonic() - began < 1.5


def test_an_answer_that_stops_halfway_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ENGINE_IDLE", replace(limits.ENGINE_IDLE, value=0))

    def halting(handler: BaseHTTPRequestHandler) -> None:
        answer(claimed=9)(handler)
        time.sleep(0.5)

    script = Script([halting])
    with served(script.handler()) as url, pytest.raises(NotReached, match="nothing came for 0 s"):
        Http(url, timeout=5.0, attempts=1).send("GET", "/")


@pytest.mark.parametrize("first", ["the deadline", "the client"])
def test_a_server_that_says_nothing_is_given_up(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clocks count the same seconds; whichever is first, the message is one."""
    if first == "the client":
        monkeypatch.setattr(http, "timed", lambda items, **_: items())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        quiet = Http(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2, attempts=1)
        began = time.monotonic()
        with pytest.raises(NotReached, match=r"took more than 0\.2 s"):
            quiet.get("/")
        assert not quiet.answers("/")
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}])
def test_an_answer_without_end_is_not_kept(headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ENGINE_BYTES", replace(limits.ENGINE_BYTES, value=1000))
    script = Script([answer(data=b"x" * 1000, headers=headers), answer(data=b"x" * 1001, headers=headers)])
    with served(script.handler()) as url:
        assert len(client(url).send("GET", "/")) == 1000
        with pytest.raises(EngineError, match="with more than 1000 bytes"):
            client(url).send("GET", "/")
    assert len(script.asked) == 2


def test_an_answer_is_taken_as_it_comes() -> None:
    """A few compressed bytes can become many."""
    script = Script([answer(data=b"\x1f\x8b\x08\x00", headers={"Content-Encoding": "gzip"})])
    with served(script.handler()) as url, pytest.raises(BadCheckpoint):
        client(url).get("/")


@pytest.mark.parametrize(
    "url", ["http://host:0", "http://host:65536", "http://host:-1", "http://ho\nst", "http://[::1", "//host", "host:80"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="is no address of a server"):
        Http(url)


@pytest.mark.parametrize("url", ["http://me@host", "https://me:secret@host", "http://:secret@host"])
def test_an_address_with_a_password_is_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="holds a name or a password") as caught:
        Http(url)
    assert "secret" not in caught.value.what
