"""The bytes of checkpoints: read lazily and strictly, written by plan, whole or not at all.

    open_checkpoint(spec)  →  Checkpoint: config, sidecars, TensorRefs
    Plan of PlannedTensors →  execute.execute(plan, out)

Nothing here knows what a drafter is. Importing it loads neither numpy nor huggingface_hub.
"""

from draftconv.checkpoint.casts import cast_bytes
from draftconv.checkpoint.checkpoint import (
    QUANT_FILE,
    Checkpoint,
    local_path,
    open_checkpoint,
    read_config,
    read_sidecar,
)
from draftconv.checkpoint.compare_values import first_difference, scan
from draftconv.checkpoint.dtypes import FLOATS, SIZES, nbytes
from draftconv.checkpoint.headers import encode_header
from draftconv.checkpoint.memory_file import MemoryFile
from draftconv.checkpoint.plan import (
    Cast,
    Computation,
    Computed,
    Copy,
    Document,
    Hashes,
    Literal,
    Operation,
    Plan,
    PlannedTensor,
    Rows,
)
from draftconv.checkpoint.progress import ByteCounter, Progress
from draftconv.checkpoint.tensors import TensorRef, as_float32, row_blocks
from draftconv.checkpoint.text import show, show_some

__all__ = [
    "FLOATS",
    "QUANT_FILE",
    "SIZES",
    "ByteCounter",
    "Cast",
    "Checkpoint",
    "Computation",
    "Computed",
    "Copy",
    "Document",
    "Hashes",
    "Literal",
    "MemoryFile",
    "Operation",
    "Plan",
    "PlannedTensor",
    "Progress",
    "Rows",
    "TensorRef",
    "as_float32",
    "cast_bytes",
    "encode_header",
    "first_difference",
    "local_path",
    "nbytes",
    "open_checkpoint",
    "read_config",
    "read_sidecar",
    "row_blocks",
    "scan",
    "show",
    "show_some",
]
