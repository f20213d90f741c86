"""Casts float tensors."""

from __future__ import annotations

from draftconv.checkpoint import FLOATS
from draftconv.checkpoint.dtypes import cast_in_words
from draftconv.conversion.passes.base import Context
from draftconv.conversion.working_drafter import WorkingDrafter, cast_tensor


def run(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """Cast every float tensor; integers and masks never change.

    Raises:
        UsageError: unknown dtype.
    """
    dtype = context.options.float_dtype
    if dtype is None:
        return work
    for tensor in list(work.tensors.values()):
        if tensor.dtype in FLOATS and tensor.dtype != dtype:
            work = work.put(cast_tensor(tensor, dtype))
            work = work.declare("cast", tensor.name, cast_in_words(tensor.dtype, dtype))
    return work
