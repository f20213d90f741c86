"""What a vLLM server tells without being asked for a text: its model, its version, its counters since it was started.

vLLM 0.32.0 (run): neither the drafter nor the speculative config is told over HTTP; K is how many positions the
counters have.
"""

from __future__ import annotations

from dataclasses import replace

from draftconv.engines.http import Http, first
from draftconv.engines.live import ServerTold
from draftconv.engines.vllm.client import server_version
from draftconv.engines.vllm.counters import read_counters


def look(http: Http) -> ServerTold:
    """See `Live.look`."""
    with http.understood():
        model = first(http.get("/v1/models"), "data")
        counters = read_counters(http.send("GET", "/metrics").decode(errors="replace"))
        nothing = counters and replace(counters, drafts=0, accepted=0, reached=(0,) * len(counters.reached))
        return ServerTold(
            target=model.text("root") or model.text("id") or "",
            version=server_version(http),
            drafted=len(counters.reached) if counters else None,
            room=model.integer("max_model_len"),
            counts=counters.since(nothing) if counters and nothing else None,
            settings=counters.settings if counters else {},
        )
