"""Files of a checkpoint that people wrote for people: its model card, licenses and notices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from draftconv.checkpoint.files import DataFile
from draftconv.checkpoint.weights import Directory, is_weights

CARD = "README.md"
LICENSES = re.compile(r"(licen[cs]es?|notices?)([-_.][\w.-]{0,80})?", re.IGNORECASE | re.ASCII)
"""What files with terms are called: LICENSE, LICENSE.md, NOTICE.txt, LICENSE-MODEL."""

Texts: TypeAlias = Mapping[str, Callable[[], DataFile]]
"""File name → what opens it; BadCheckpoint when it leads elsewhere."""


def is_license(name: str) -> bool:
    """Whether a file name is that of a license or a notice."""
    return LICENSES.fullmatch(name) is not None and not is_weights(name) and not name.endswith(".json")


def texts_of(directory: Directory) -> Texts:
    """The card, licenses and notices of a directory; none is opened yet."""
    names = [name for name in directory.files if name == CARD or is_license(name)]
    return MappingProxyType({name: partial(directory.open, name) for name in names})
