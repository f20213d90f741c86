"""SGLang's compiled CPU kernels, stood in for by plain torch. TEST ONLY: no part of draftconv, and slow.

What SGLang 0.5.23 asks of its package `sgl_kernel` on a CPU when it serves a target with an EAGLE-3 drafter, one
candidate per position (chains), attention backend `intel_amx`. Written from what the callers hand over and read
back, which every function names. Whatever else SGLang may ask is absent, so it says so by itself.
"""

from . import attention
from .chains import (
    build_tree_kernel_efficient_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)
from .slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
)

__version__ = "0+draftconv.stand.in"
__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

attention.register()
