"""A headless Chromium that is asked over a pipe, by the Chrome DevTools Protocol: what a page is when it is drawn.

No dependency: messages are JSON, each ended by a zero byte (`--remote-debugging-pipe` reads descriptor 3 and writes
descriptor 4).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-default-browser-check",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--hide-scrollbars", "--force-color-profile=srgb", "--font-render-hinting=none", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60.0
"""Seconds for an answer."""

Media = Literal["light", "dark", "print"]
Message = dict[str, Any]


def find_browser() -> str | None:
    """The first browser of `PROGRAMS` on the PATH."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@dataclass
class Pipe:
    """Requests to the browser and its answers.

    Attributes:
        requests, answers: descriptors, written to and read from.
        events: what the browser said unasked, by method, since somebody last looked.
    """

    requests: int
    answers: int
    events: list[Message] = field(default_factory=list)
    _number: int = 0
    _unread: bytes = b""

    def ask(self, method: str, parameters: Mapping[str, object], session: str | None = None) -> Message:
        """The result of a method.

        Raises:
            RuntimeError: the browser refused, ended or took too long.
        """
        self._number += 1
        request: Message = {"id": self._number, "method": method, "params": dict(parameters)}
        if session:
            request["sessionId"] = session
        data = memoryview(json.dumps(request).encode() + b"\0")
        while data:
            data = data[os.write(self.requests, data) :]
        while (answer := self.read()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: Message = answer["result"]
        return result

    def wait_for(self, method: str) -> None:
        """Wait for an event, forgetting those before it."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.read())

    def read(self) -> Message:
        """The next message."""
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._unread:
            if not select.select([self.answers], [], [], max(0, end - time.monotonic()))[0]:
                raise RuntimeError(f"the browser said nothing for {PATIENCE:g} s")
            part = os.read(self.answers, 1 << 16)
            if not part:
                raise RuntimeError("the browser ended")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\0")
        message: Message = json.loads(line)
        return message


@dataclass
class Tab:
    """A page in the browser."""

    pipe: Pipe
    session: str

    def ask(self, method: str, **parameters: object) -> Message:
        return self.pipe.ask(method, parameters, self.session)

    def open(self, path: Path) -> list[str]:
        """Load a file; the addresses of everything that it made the browser ask for."""
        self.pipe.events.clear()
        self.ask("Page.navigate", url=path.absolute().as_uri())
        self.pipe.wait_for("Page.loadEventFired")
        asked = [event for event in self.pipe.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in asked]

    def show(self, width: int, media: Media, height: int = 900) -> None:
        """Draw it so many CSS pixels wide, in one colour scheme or as on paper."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if media == "dark" else "light"}
        self.ask("Emulation.setEmulatedMedia", media="print" if media == "print" else "screen", features=[scheme])

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; it must be JSON.

        Raises:
            RuntimeError: it threw.
        """
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", answer))
        return answer["result"].get("value")

    def screenshot(self, width: int, height: int | None = None) -> bytes:
        """The top of the page as a PNG, all of it without a height."""
        height = height or self.evaluate("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(answer["data"])


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Tab]:
    """A browser with one empty tab; it ends with the block.

    Args:
        profile: a new directory that it may write to.
    """
    # From 10 on, so that neither is where the other has to go.
    for_it, requests = os.pipe()
    answers, from_it = os.pipe()
    low, high = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (for_it, from_it))
    os.close(for_it)
    os.close(from_it)
    pid = os.posix_spawn(
        program,
        [program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, str(profile / "stderr.txt"), os.O_WRONLY | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_DUP2, low, 3),
            (os.POSIX_SPAWN_DUP2, high, 4),
        ],
        setpgroup=0,
    )
    os.close(low)
    os.close(high)
    pipe = Pipe(requests, answers)
    try:
        target = pipe.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        tab = Tab(pipe, pipe.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"])
        for domain in ("Page", "Network", "Runtime"):
            tab.ask(f"{domain}.enable")
        yield tab
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(requests)
        os.close(answers)
