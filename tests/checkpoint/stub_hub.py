"""A Hub on this machine: the few endpoints that looking, downloading and pushing need."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"
REPO = "owner/drafter"


@dataclass
class Hub:
    """What the stub serves, how it misbehaves, and what it was asked.

    Attributes:
        redirect: where weights are sent on to, `{name}` filled in; None: served here.
        served: bytes that are sent in place of the listed ones. `unhashed`: names that are listed without a hash.
        xet: whether weights are said to lie in Xet.
        ranges: False answers every range with the whole file.
        status: answer everything with this instead, and `said`. `listing`: this in place of the repository's.
        headers: added to answers that carry file contents.
        log: (method, path, authorization, range) of every request.
        sent: bytes of file contents that left the server.
        pushed: file name → contents of the commits received. `deleted`: names that they delete.
        committed: (branch, head that it follows, whether as a pull request) of each.
        commit: what a commit is answered with in place of its address.
        patience: seconds that it waits for the rest of a request; None is for ever.
        exists, private: of the repository. `created`: what it was made with. `branches`: those that there are.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    redirect: str | None = None
    served: dict[str, bytes] = field(default_factory=dict)
    unhashed: set[str] = field(default_factory=set)
    xet: bool = False
    ranges: bool = True
    status: int | None = None
    said: bytes = b"{}"
    listing: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    listed: dict[str, int] = field(default_factory=dict)
    log: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    sent: int = 0
    pushed: dict[str, bytes] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    committed: list[tuple[str, str | None, bool]] = field(default_factory=list)
    commit: bytes | None = None
    patience: float | None = None
    exists: bool = True
    private: bool = False
    created: dict[str, object] = field(default_factory=dict)
    branches: list[str] = field(default_factory=lambda: ["main"])
    url: str = ""

    @property
    def tokens(self) -> set[str | None]:
        """Every Authorization header that arrived."""
        return {authorization for _, _, authorization, _ in self.log}

    def siblings(self) -> list[dict[str, object]]:
        sizes = {name: len(data) for name, data in self.files.items()} | self.listed
        return [{"rfilename": name, "size": size, **self.hashes(name)} for name, size in sizes.items()]

    def hashes(self, name: str) -> dict[str, object]:
        return {} if name in self.unhashed else {"blobId": self.blob(name), **self.lfs(name)}

    def blob(self, name: str) -> str:
        """Git's id of a file's contents."""
        data = self.files.get(name, b"")
        return hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest()

    def knows(self, path: str) -> bool:
        """Whether a revision that a path names is there."""
        revision = path.partition("/revision/")[2]
        return not revision or revision in (*self.branches, SHA, "v1")

    def lfs(self, name: str) -> dict[str, object]:
        if not name.endswith(".safetensors") or name not in self.files:
            return {}
        sha256 = hashlib.sha256(self.files[name]).hexdigest()
        lfs = {"sha256": sha256, "oid": sha256, "size": len(self.files[name]), "pointerSize": 100}
        return {"lfs": lfs, **({"xetHash": "f" * 64} if self.xet else {})}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` on a free port of the loopback interface."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = hub.patience

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if "Content_Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def json(self, document: object) -> None:
            self.answer(200, json.dumps(document).encode(), Content_Type="application/json")

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (BrokenPipeError, ConnectionResetError, TimeoutError):
                self.close_connection = True  # the client had what it needed, or is gone

        def begin(self) -> str:
            path = urlsplit(self.path).path
            asked = (self.command, path, self.headers["Authorization"], self.headers["Range"])
            hub.log.append(asked)
            return path

        def do_GET(self) -> None:
            path = self.begin()
            if hub.status is not None:
                self.answer(hub.status, hub.said)
            elif path.startswith("/api/models/") and hub.listing is not None:
                self.answer(200, hub.listing, Content_Type="application/json")
            elif re.fullmatch(rf"/api/models/{REPO}(/revision/[^/]+)?", path) and not hub.exists:
                self.answer(404, b"{}", X_Error_Code="RepoNotFound")
            elif re.fullmatch(rf"/api/models/{REPO}(/revision/[^/]+)?", path) and not hub.knows(path):
                self.answer(404, b"{}", X_Error_Code="RevisionNotFound")
            elif re.fullmatch(rf"/api/models/{REPO}(/revision/[^/]+)?", path):
                self.json({"id": REPO, "modelId": REPO, "sha": SHA, "private": hub.private, "siblings": hub.siblings()})
            elif path.startswith(f"/api/models/{REPO}/tree/"):
                self.json(
                    [
                        {"type": "file", "path": name, "size": len(data), "oid": "0" * 40, **hub.lfs(name)}
                        for name, data in hub.files.items()
                    ]
                )
            elif (found := re.fullmatch(rf"/{REPO}/resolve/{SHA}/(.+)", path)) and unquote(found[1]) in hub.files:
                self.file(unquote(found[1]))
            elif path.startswith("/cdn/"):
                self.file(unquote(path.removeprefix("/cdn/")), follow=False)
            else:
                self.answer(404, b"{}", X_Error_Code="EntryNotFound")

        do_HEAD = do_GET

        def file(self, name: str, *, follow: bool = True) -> None:
            data = hub.served.get(name, hub.files[name])
            etag = hashlib.sha256(hub.files[name]).hexdigest()
            common = {"ETag": f'"{etag}"', "X_Repo_Commit": SHA, "Accept_Ranges": "bytes", **hub.headers}
            if follow and hub.redirect is not None and name.endswith(".safetensors"):
                common |= {"X_Linked_Size": str(len(data)), "X_Linked_ETag": f'"{etag}"'}
                self.answer(302, b"", Location=hub.redirect.format(name=name), **common)
                return
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
            if asked and hub.ranges:
                start, stop = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
                where = f"bytes {start}-{stop}/{len(data)}"
                hub.sent += stop + 1 - start if self.command == "GET" else 0
                self.answer(206, data[start : stop + 1], **{"Content_Range": where, **common})
                return
            if self.command == "HEAD":
                self.answer(200, b"", Content_Length=str(len(data)), **common)
                return
            self.send_response(200)
            for key, value in common.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            for at in range(0, len(data), 65536):
                self.wfile.write(data[at : at + 65536])
                hub.sent += len(data[at : at + 65536])

        def do_POST(self) -> None:
            path = self.begin()
            length = int(self.headers["Content-Length"] or 0)
            body = self.rfile.read(length)
            if len(body) < length:
                self.close_connection = True  # half a request is none
            elif hub.status is not None:
                self.answer(hub.status, hub.said)
            elif path == "/api/repos/create":
                hub.created = json.loads(body)
                self.json({"url": f"{hub.url}/{REPO}", "id": REPO, "name": REPO})
            elif made := re.fullmatch(rf"/api/models/{REPO}/branch/(.+)", path):
                hub.branches.append(unquote(made[1]))
                self.answer(201, b"")
            elif re.search(r"/preupload/[^/]+$", path):
                names = [file["path"] for file in json.loads(body)["files"]]
                modes = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
                self.json({"files": modes})
            elif commit := re.search(r"/commit/([^/]+)$", path):
                proposed = "create_pr=1" in urlsplit(self.path).query
                for line in map(json.loads, body.splitlines()):
                    match line["key"], line["value"]:
                        case "header", header:
                            hub.committed.append((commit[1], header.get("parentCommit"), proposed))
                        case "file", file:
                            hub.pushed[file["path"]] = base64.b64decode(file["content"])
                        case "deletedFile", file:
                            hub.deleted.append(file["path"])
                if hub.commit is not None:
                    self.answer(200, hub.commit)
                    return
                url = {"pullRequestUrl": f"{hub.url}/{REPO}/discussions/1"} if proposed else {}
                self.json({"commitUrl": f"{hub.url}/{REPO}/commit/{SHA}", "commitOid": SHA, "success": True, **url})
            else:
                self.json({})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
