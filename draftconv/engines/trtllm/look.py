"""What a TensorRT-LLM server tells without being asked for a text: its model and its version.

Reading `/metrics` takes its records away from whoever counts them, so it is left alone.
"""

from __future__ import annotations

from draftconv.engines.http import Http, first
from draftconv.engines.live import ServerTold


def look(http: Http) -> ServerTold:
    """See `Live.look`."""
    with http.understood():
        model = first(http.get("/v1/models"), "data").text("id") or ""
        return ServerTold(target=model, version=http.get("/version").text("version") or "of unknown version")
