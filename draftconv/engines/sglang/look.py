"""What an SGLang server tells without being asked for a text: its arguments; counts come with answers only."""

from __future__ import annotations

from draftconv.checkpoint import show
from draftconv.engines.http import Http
from draftconv.engines.live import ServerTold
from draftconv.engines.sglang.client import ALGORITHM, room, server_info, server_settings


def look(http: Http) -> ServerTold:
    """See `Live.look`."""
    with http.understood():
        info = server_info(http)
        algorithm = info.text("speculative_algorithm")
        return ServerTold(
            target=info.text("model_path") or "",
            version=info.text("version") or "of unknown version",
            drafter=info.text("speculative_draft_model_path") or "",
            wrong="" if algorithm == ALGORITHM else f"its speculative_algorithm is {show(algorithm)}, not {ALGORITHM}",
            drafted=info.integer("speculative_num_steps"),
            room=room(info),
            settings=server_settings(info),
        )
