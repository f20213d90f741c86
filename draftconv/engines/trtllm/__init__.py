"""TensorRT-LLM (PyTorch backend): what it loads, mis-reads and refuses as an EAGLE-3 drafter.

Nothing here was run: its wheels could not be imported. `1.3` stands for the main line of
2026 H2, the 1.3.0 release candidates, `1.2` for what was before 2026-01-28; `sources` has the commits. One class
serves every drafter (one-model mode); `kv_lora_rank` alone decides between MLA and GQA.
Fused projections assert that their parts exist, plain modules without tensors are skipped
silently, and captured layers come from the serve file, never from the checkpoint.
"""

from __future__ import annotations

from draftconv.drafter.kinds import eagle3, eagle31
from draftconv.drafter.tensors import EMBEDDING
from draftconv.engines.engine import UNQUANTIZED, Engine
from draftconv.engines.hardware import NVIDIA, named
from draftconv.engines.trtllm import misreadings, notes, refusals
from draftconv.engines.trtllm.kept_roles import KEPT_ROLES
from draftconv.engines.trtllm.kernels import GAPS, KERNELS
from draftconv.engines.trtllm.layout import LAYOUTS
from draftconv.engines.trtllm.live import DRAFT_METHODS, LIVE
from draftconv.engines.trtllm.loading import read
from draftconv.engines.trtllm.module_names import NAMES
from draftconv.engines.trtllm.other_kinds import OTHER_KINDS
from draftconv.engines.trtllm.problems import PROBLEMS
from draftconv.engines.trtllm.quantized_modules import LISTS, METHODS
from draftconv.engines.trtllm.serving import TARGETS, command
from draftconv.engines.trtllm.shapes import SHAPES

RULES = (*refusals.RULES, *misreadings.RULES, *notes.RULES)

ENGINE = Engine(
    name="trtllm",
    title="TensorRT-LLM",
    order=30,
    version="1.3",
    oldest="1.2",
    hardware=named(*NVIDIA),
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
    sidecar_wins=True,
    shapes=SHAPES,
    # _torch/models/modeling_speculative.py (1.3.0rc at 00679c66) builds no embedding of the drafter's own, and has
    # its own head wherever one is stored.
    replaces=frozenset({EMBEDDING}),
    layouts=LAYOUTS,
    portable=True,
    live=LIVE,
    targets=TARGETS,
    draft_methods=DRAFT_METHODS,
    problems=PROBLEMS,
    other_kinds=OTHER_KINDS,
)
