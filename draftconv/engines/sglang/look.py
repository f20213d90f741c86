"""What an SGLang server tells without being asked for a text: its arguments; counts come with answers only."""

from __future__ import annotations

from draftconv.engines.http import Http
from draftconv.engines.live import ServerTold
from draftconv.engines.sglang.client import room, server_info, server_settings


def look(http: Http) -> ServerTold:
    """See `Live.look`."""
    with http.understood():
        info = server_info(http)
        return ServerTold(
            target=info.text("model_path") or "",
            version=info.text("version") or "of unknown version",
            drafter=info.text("speculative_draft_model_path") or "",
            method=info.text("speculative_algorithm") or "",
            drafted=info.integer("speculative_num_steps"),
            room=room(info),
            settings=server_settings(info),
        )
