"""A package that draftconv has never heard of: a layout, a format and an engine, a module each, and its entry points.

The modules are the examples of docs/layouts.md, docs/formats.md and docs/engines.md, taken from there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.engines.stub import steps, text
from tests.served import served

DOCS = Path(__file__).parents[1] / "docs"
ENTRIES = """\
[draftconv.layouts]
toy-trainer = toy_trainer.layout:LAYOUTS

[draftconv.formats]
toy = toy_trainer.format:toy

[draftconv.engines]
toy = toy_trainer.engine:ENGINE
"""


def example(page: str) -> str:
    """The module that a page shows."""
    found = re.search(r"```python\n(\"\"\".*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def install(site: Path, entries: str = ENTRIES, name: str = "toy-trainer", **modules: str) -> Mapping[str, str]:
    """The environment of a process that has the package: its files under `site`, nothing else installed.

    Args:
        modules: their text; left out, those that the pages show.
    """
    package = site / name.replace("-", "_")
    package.mkdir(parents=True)
    modules = modules or {name: example(f"{name}s.md") for name in ("layout", "format", "engine")}
    for module, code in {"__init__": "", **modules}.items():
        (package / f"{module}.py").write_text(code)
    about = site / f"{package.name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entries)
    return os.environ | {"PYTHONPATH": str(site)}


@contextmanager
def server(drafter: str, quality: float = 0.7, depth: int = 3) -> Iterator[str]:
    """A server that speaks as the engine's client expects: /about, and texts with their counts from /write."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({"model": "llama", "version": "1.0", "draft": drafter, "steps": depth})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made = steps(asked["prompt"], asked["length"], quality, depth)
            self.reply({
                "tokens": text(asked["prompt"], asked["length"]),
                "histogram": [made.count(n) for n in range(depth + 1)],
                "steps": len(made),
                "accepted": sum(made),
            })  # fmt: skip

        def reply(self, told: object) -> None:
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with served(Handler) as url:
        yield url
