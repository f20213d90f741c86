"""SGLang: what it loads, mis-reads and refuses as an EAGLE-3 drafter.

Read from sglang 0.5.23 (paths below `sglang/`); behaviour marked `run` was observed with
SGLang's own loader classes on CPU. Its loaders check nothing: unknown tensors are dropped,
missing ones stay uninitialised, only shapes are compared. So most rules say `mis-read`.
"""

from __future__ import annotations

from draftconv.drafter.kinds import eagle3, eagle31
from draftconv.drafter.tensors import EMBEDDING
from draftconv.engines.engine import UNQUANTIZED, Engine
from draftconv.engines.hardware import GPUS, named
from draftconv.engines.sglang import misreadings, notes, refusals
from draftconv.engines.sglang.kept_roles import KEPT_ROLES
from draftconv.engines.sglang.kernels import GAPS, KERNELS
from draftconv.engines.sglang.layout import LAYOUTS
from draftconv.engines.sglang.live import DRAFT_METHODS, LIVE
from draftconv.engines.sglang.loading import read
from draftconv.engines.sglang.module_names import NAMES
from draftconv.engines.sglang.other_kinds import OTHER_KINDS
from draftconv.engines.sglang.problems import PROBLEMS
from draftconv.engines.sglang.quantized_modules import LISTS, METHODS
from draftconv.engines.sglang.serving import TARGETS, command
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
    kinds=(eagle3.KIND, eagle31.KIND),
    covers=(UNQUANTIZED, *METHODS),
    methods=METHODS,
    lists=LISTS,
    kernels=KERNELS,
    kept_roles=KEPT_ROLES,
    gaps=GAPS,
    shapes=SHAPES,
    # `set_embed` of srt/models/{llama,kimi_k25}_eagle3.py is called with the target's embedding. The head goes with
    # it only where draft_vocab_size is null; draftconv never writes that, and rule sglang-head reports it.
    replaces=frozenset({EMBEDDING}),
    layouts=LAYOUTS,
    portable=True,
    live=LIVE,
    targets=TARGETS,
    draft_methods=DRAFT_METHODS,
    problems=PROBLEMS,
    other_kinds=OTHER_KINDS,
)
