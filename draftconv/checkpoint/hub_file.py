"""Byte ranges of a file on the Hub, with a token that is shown to the endpoint alone."""

from __future__ import annotations

import errno
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urljoin, urlsplit

from draftconv import limits
from draftconv.checkpoint.deadlines import Overdue, timed
from draftconv.checkpoint.files import check_range
from draftconv.checkpoint.staging import write_error
from draftconv.checkpoint.text import show
from draftconv.errors import BadCheckpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

BLOCK = 64 * 1024
KEPT_BLOCKS = 64
"""Small reads (headers, zip directories) go through blocks that are kept: 4 MB at most per file."""

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS})
"""What a download meets on this machine, not on the network."""

_URL = re.compile(r"[!-~]{1,16000}")
"""Printable ASCII without spaces, as RFC 3986 wants it; signed URLs have some 2000 characters."""

_HOST = re.compile(r"[\w-]{1,63}(?:\.[\w-]{1,63})*|[0-9a-f]*:[0-9a-f:.]{1,44}", re.ASCII)
"""A host name, or an IPv6 address without its brackets."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(?:\d+|\*)")


class HubFile:
    """A file of a repository, read by ranges; see `files.DataFile`.

    Args:
        name: base name. url: where the endpoint serves it, at a fixed commit. size: bytes.
        endpoint: the origin that `token` belongs to.
    """

    def __init__(self, name: str, url: str, size: int, endpoint: str, token: str | None) -> None:
        self.name = name
        self.size = size
        self._url = url
        self._endpoint = endpoint
        self._token = token
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        """See `DataFile.read`."""
        check_range(self, offset, length)
        buffer = bytearray(length)
        self.readinto(offset, memoryview(buffer))
        return bytes(buffer)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """See `DataFile.readinto`."""
        check_range(self, offset, buffer.nbytes)
        if buffer.nbytes > BLOCK:
            self._fetch(offset, buffer)
            return
        done = 0
        while done < buffer.nbytes:
            number, within = divmod(offset + done, BLOCK)
            piece = self._block(number)[within : within + buffer.nbytes - done]
            buffer[done : done + len(piece)] = piece
            done += len(piece)

    def __repr__(self) -> str:
        return f"HubFile({self.name!r}, {self.size} bytes)"

    def _block(self, number: int) -> bytes:
        with self._lock:
            if number not in self._blocks:
                start = number * BLOCK
                data = bytearray(min(BLOCK, self.size - start))
                self._fetch(start, memoryview(data))
                self._blocks[number] = bytes(data)
                if len(self._blocks) > KEPT_BLOCKS:
                    self._blocks.popitem(last=False)
            return self._blocks[number]

    def _fetch(self, offset: int, buffer: memoryview) -> None:
        if not buffer.nbytes:
            return
        done = 0
        with network_errors(self.name):
            for piece in timed_answer(lambda: self._pieces(offset, buffer.nbytes)):
                buffer[done : done + len(piece)] = piece
                done += len(piece)
        if done < buffer.nbytes:
            raise self._bad(f"the server sent {done} of {buffer.nbytes} bytes")

    def _pieces(self, offset: int, length: int) -> Generator[bytes, None, None]:
        """The bytes of a range as they come, and no more than its length."""
        with self._response(offset, length) as response:
            skip = self._skip(response, offset)
            for chunk in response.iter_raw():
                piece = chunk[skip : skip + length]
                skip = max(0, skip - len(chunk))
                length -= len(piece)
                yield piece
                if not length:
                    # leaving the block closes the connection: the rest of a whole file is never read
                    return

    @contextmanager
    def _response(self, offset: int, length: int) -> Iterator[Any]:
        """The answer to one range, redirects followed by hand: each hop decides whether it sees the token."""
        from huggingface_hub import get_session

        url = self._url
        for _ in range(limits.HUB_REDIRECTS.value + 1):
            with get_session().stream(
                "GET",
                url,
                headers=self._headers(url, offset, length),
                follow_redirects=False,
                timeout=limits.HUB_IDLE.value,
            ) as response:
                if response.status_code not in (301, 302, 303, 307, 308):
                    yield response
                    return
                url = self._redirected(url, response.headers)
        raise self._bad(f"the server redirected more than {limits.HUB_REDIRECTS.value} times")

    def _headers(self, url: str, offset: int, length: int) -> dict[str, str]:
        headers = {"Range": f"bytes={offset}-{offset + length - 1}", "Accept-Encoding": "identity"}
        if self._token is not None and origin(url) == origin(self._endpoint):
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _redirected(self, url: str, headers: Mapping[str, str]) -> str:
        location = headers.get("location", "")
        if not _URL.fullmatch(location):
            raise self._bad("the server redirected to something that is not a URL")
        target = _join_url(url, location)
        scheme, host, _ = origin(target)
        if scheme not in ("http", "https") or not _HOST.fullmatch(host):
            raise self._bad("the server redirected to something that is not http")
        if scheme == "http" and urlsplit(url).scheme == "https":
            raise self._bad("the server redirected from https to http")
        return target

    def _skip(self, response: Any, offset: int) -> int:
        """How many bytes of the answer come before the range."""
        status = response.status_code
        if response.headers.get("content-encoding", "identity") != "identity":
            raise self._bad("the server compressed it although asked not to")
        if status == 206:
            content_range = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
            if content_range is None or int(content_range[1]) != offset:
                raise self._bad("the server sent another range than asked for")
            return 0
        if status == 200:
            if offset > limits.HUB_SKIP.value:
                raise BadCheckpoint(
                    f"{show(self.name)} cannot be read in parts: the server ignores ranges",
                    why=f"{offset} bytes would have to be downloaded to reach the ones that are needed",
                    cure="download the repository first and pass the directory",
                )
            return offset
        raise http_error(self.name, status)

    def _bad(self, fault: str) -> BadCheckpoint:
        return BadCheckpoint(f"{show(self.name)} could not be read from the Hub: {fault}", cure="try again later")


def timed_answer(pieces: Callable[[], Generator[bytes, None, None]]) -> Iterator[bytes]:
    """An answer of the Hub as it comes, as long as it is in time; `network_errors` tells what is not."""
    return timed(pieces, total=limits.HUB_ANSWER.value, idle=limits.HUB_IDLE.value)


def _join_url(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        return ""


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port: what a token belongs to."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", "", None


def http_error(what: str, status: int) -> BadCheckpoint:
    """The Hub's refusal in words, by status."""
    match status:
        case 401 | 403:
            return BadCheckpoint(
                f"the Hub refuses access to {show(what)} (HTTP {status})",
                why="it is private, gated, or does not exist",
                cure="log in with `hf auth login`, or set HF_TOKEN, with an account that has access",
            )
        case 404:
            return BadCheckpoint(
                f"{show(what)} is not on the Hub, or is private (HTTP 404)",
                cure="check the spelling (of a local path, too) and the revision; "
                "for a private repository log in with `hf auth login`",
            )
    return BadCheckpoint(f"the Hub answered HTTP {status} for {show(what)}", cure="try again later")


@contextmanager
def without_telemetry() -> Iterator[None]:
    """Keep huggingface_hub from asking the Hub what it may tell of this machine.

    For its User-Agent 2.4.0 fetches /api/agent-harnesses (utils/_detect_agent.py), without a limit of size or time,
    keeps the answer for a day, and fails in every request where the answer was another than the Hub's.
    """
    from huggingface_hub import constants

    was = constants.HF_HUB_DISABLE_TELEMETRY
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = was


@contextmanager
def network_errors(what: str) -> Iterator[None]:
    """Turn what huggingface_hub and its HTTP client raise into BadCheckpoint (a full disk: WriteError).

    Only the kind of the error is repeated: a client's own text can hold headers and signed URLs. Nothing is asked
    beside what was wanted: see `without_telemetry`.
    """
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    # its bases are the HTTP client's own error, whichever client it is, and OSError
    unreachable = cast("tuple[type[Exception], ...]", (*HfHubHTTPError.__bases__, LocalEntryNotFoundError))
    try:
        with without_telemetry():
            yield
    except HfHubHTTPError as error:
        raise http_error(what, error.response.status_code) from error
    except HFValidationError as error:
        raise BadCheckpoint(f"{show(what)} is not a Hub id", cure="write OWNER/NAME") from error
    except OfflineModeIsEnabled as error:
        raise BadCheckpoint(
            f"{show(what)} was not asked for: HF_HUB_OFFLINE is set",
            cure="unset it, or pass a local directory",
        ) from error
    except Overdue as error:
        raise BadCheckpoint(
            f"the Hub's answer for {show(what)} was given up: {error}", cure=limits.HUB_ANSWER.cure
        ) from error
    except unreachable as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise write_error(error, Path("the Hub cache")) from error
        raise BadCheckpoint(
            f"{show(what)} could not be reached on the Hub ({type(error).__name__})",
            cure="check the network and HF_ENDPOINT, or the path if you meant a local directory",
        ) from error
