"""A Hub or an engine that answers what the files of a case say, on the loopback interface."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serving(answers: Path) -> Iterator[str]:
    """The address of a server.

    A Hub's answers are `listing` and `status`, `files/NAME`, or `everything`; an engine's are called by method and
    path, spaces in place of slashes.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = self.headers["Content-Length"] or "0"
            self.rfile.read(int(length))
            path = unquote(urlsplit(self.path).path)
            with suppress(OSError):  # the client had what it needed
                self.answer(*_found(answers, self.command, path))

        do_POST = do_HEAD = do_GET

        def answer(self, status: int, data: bytes) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
            whole = len(data)
            if asked and status == 200 and int(asked[1]) < whole:
                start, stop = int(asked[1]), min(int(asked[2]) + 1, whole)
                status, data = 206, data[start:stop]
                self.send_response(status)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{whole}")
            else:
                self.send_response(status)
            for name, value in (("Content-Length", str(len(data))), ("ETag", '"e"'), ("X-Repo-Commit", COMMIT),
                                ("Accept-Ranges", "bytes")):  # fmt: skip
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = _Silent(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Silent(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that leaves early is no fault, and stderr is what the command says."""


def _found(answers: Path, method: str, path: str) -> tuple[int, bytes]:
    """Status and body."""
    if (everything := answers / "everything").exists():
        return 200, everything.read_bytes()
    if (file := answers / f"{method}{path.replace('/', ' ')}").is_file():
        return 200, file.read_bytes()
    if re.search(r"/api/models/owner/name(/revision/.*)?$", path) and (answers / "listing").exists():
        return int((answers / "status").read_bytes()), (answers / "listing").read_bytes()
    if "/resolve/" in path and (name := path.rpartition("/")[2]) and (answers / "files" / name).is_file():
        return 200, (answers / "files" / name).read_bytes()
    return 404, b"{}"
