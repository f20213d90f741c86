"""The bytes of checkpoints: read lazily and strictly, written by plan, whole or not at all.

    open_checkpoint(spec)  →  Checkpoint: config, sidecars, TensorRefs
    Plan of PlannedTensors →  execute.execute(plan, out)

Nothing here knows what a drafter is. Importing it loads neither numpy nor huggingface_hub, and
what only writing needs is loaded when it is first named.
"""

from typing import TYPE_CHECKING

from draftconv.checkpoint.checkpoint import Checkpoint, FileInfo, open_checkpoint
from draftconv.checkpoint.dtypes import FLOATS, SIZES, nbytes
from draftconv.checkpoint.files import DataFile, LocalFile
from draftconv.checkpoint.headers import Header, encode_header, read_header
from draftconv.checkpoint.tensors import TensorRef, as_float32, row_blocks
from draftconv.checkpoint.text import show, show_some

if TYPE_CHECKING:
    from draftconv.checkpoint.plan import (
        Cast,
        Copy,
        Literal,
        Operation,
        Plan,
        PlannedTensor,
        Rows,
        Shard,
        encode_json,
    )
    from draftconv.checkpoint.staging import refuse_same

_LATE = {
    "refuse_same": "staging",
    **dict.fromkeys(
        ("Cast", "Copy", "Literal", "Operation", "Plan", "PlannedTensor", "Rows", "Shard", "encode_json"),
        "plan",
    ),
}

__all__ = [
    "FLOATS",
    "SIZES",
    "Cast",
    "Checkpoint",
    "Copy",
    "DataFile",
    "FileInfo",
    "Header",
    "Literal",
    "LocalFile",
    "Operation",
    "Plan",
    "PlannedTensor",
    "Rows",
    "Shard",
    "TensorRef",
    "as_float32",
    "encode_header",
    "encode_json",
    "nbytes",
    "open_checkpoint",
    "read_header",
    "refuse_same",
    "row_blocks",
    "show",
    "show_some",
]


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
