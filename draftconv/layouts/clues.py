"""Observations that several layouts share."""

from __future__ import annotations

from draftconv.layouts.base import Clue

MIDLAYER = Clue("tensors are named midlayer.*", lambda e: e.prefix("midlayer."))
LAYERS_0 = Clue("tensors are named layers.0.*", lambda e: e.prefix("layers.0."))
NO_EMBEDDING = Clue("no embed_tokens", lambda e: not e.has("embed_tokens.weight"))
EMBEDDING = Clue("embed_tokens is stored", lambda e: e.has("embed_tokens.weight"))
BARE = Clue("tensor names have no prefix", lambda e: not e.names.prefixed)
NO_T2D = Clue("no t2d", lambda e: not e.has("t2d"))
BOTH_MAPS = Clue("d2t and t2d are stored", lambda e: e.has("d2t") and e.has("t2d"))


def architecture(*names: str) -> Clue:
    """architectures[0] is one of `names`."""
    return Clue(f"architectures says {' or '.join(names)}", lambda e: e.architecture in names)


def key(name: str) -> Clue:
    """The key is at the top level of config.json, even as null."""
    return Clue(f"config.json has {name}", lambda e: e.config.has(name))


def no_key(name: str) -> Clue:
    """The key is not at the top level of config.json."""
    return Clue(f"config.json has no {name}", lambda e: not e.config.has(name))


def eagle_key(name: str) -> Clue:
    """The key is in eagle_config, even as null."""
    return Clue(f"eagle_config has {name}", lambda e: e.eagle.has(name))
