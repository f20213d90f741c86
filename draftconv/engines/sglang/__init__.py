"""SGLang: what it loads, mis-reads and refuses as an EAGLE-3 drafter.

Read from sglang 0.5.23 (paths below `sglang/`); behaviour marked `run` was observed with
SGLang's own loader classes on CPU. Its loaders check nothing: unknown tensors are dropped,
missing ones stay uninitialised, only shapes are compared. So most rules say `mis-read`.
"""

from __future__ import annotations

from draftconv.engines.engine import UNQUANTIZED, Engine
from draftconv.engines.hardware import GPUS, named
from draftconv.engines.sglang import misreadings, notes, refusals
from draftconv.engines.sglang.layout import LAYOUTS
from draftconv.engines.sglang.loading import read
from draftconv.engines.sglang.matching import METHODS
from draftconv.engines.sglang.modules import NAMES
from draftconv.engines.sglang.problems import PROBLEMS
from draftconv.engines.sglang.serving import command
from draftconv.engines.sglang.shapes import SHAPES

RULES = (*refusals.RULES, *misreadings.RULES, *notes.RULES)

ENGINE = Engine(
    name="sglang",
    title="SGLang",
    order=20,
    version="0.5.23",
    oldest="0.5.23",
    hardware=named(*GPUS),
    rules=RULES,
    read=read,
    command=command,
    names=NAMES,
    covers=(UNQUANTIZED, *METHODS),
    methods=METHODS,
    shapes=SHAPES,
    layouts=LAYOUTS,
    portable=True,
    problems=PROBLEMS,
)
