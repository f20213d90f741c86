"""The engines that can be asked: how each is made ready, and what its parts are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from truth.drafts import Makers, Reader
from truth.store import Ask, Store
from truth.table import Part, Row

PartRows = Callable[[Part, Makers, Store, Ask, bool], Iterator[Row]]
"""The rows of a part: the whole of it, or (False) what every test run asks."""


@dataclass(frozen=True, slots=True)
class Judge:
    """One engine.

    Attributes:
        name: as on the command line. `reader`: what directories are made like. `title`: of the
            table, with `{version}`. `parts`: in the order in which they are asked.
        asking: the file that holds how it is asked; other contents, other answers.
        start: makes the engine ready and returns its version.
        fixed: names of the cases of `EXACT` parts that every test run asks again; None: all of them.
    """

    name: str
    title: str
    reader: Reader
    parts: tuple[Part, ...]
    asking: Path
    start: Callable[[], str]
    rows: PartRows
    fixed: Callable[[], frozenset[tuple[Part, str]]] | None = None


JUDGES: Mapping[str, str] = {"vllm": "truth.vllm.judge", "sglang": "truth.sglang.judge"}
"""Name of an engine, the module that holds its `JUDGE`: imported when it is asked, in its own environment."""


def find_judge(name: str) -> Judge:
    module: Any = import_module(JUDGES[name])
    judge: Judge = module.JUDGE
    return judge
