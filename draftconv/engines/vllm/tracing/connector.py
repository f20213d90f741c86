"""vLLM's hidden-state connector for a machine without a GPU; vLLM loads it by name in the engine's environment.

vLLM 0.32.0 and 0.33.0 distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py
copies on a CUDA stream into pinned memory and writes from threads. Here the cache already is
ordinary memory, so one method is replaced by a plain write, and what drawn text needs is mended
(`cpu_sampling`); everything else is vLLM's own.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
    extract_from_kv_cache,
)

from draftconv.engines.vllm.tracing.cpu_sampling import mend

mend()  # this module is loaded by the process that samples, which a server starts


class FinishedCopy:
    """Stands for the CUDA event of a copy that has ended, which is all that `get_finished` asks for."""

    def query(self) -> bool:
        return True


class CpuHiddenStatesConnector(ExampleHiddenStatesConnector):
    """Writes a finished request's rows from the cache before its blocks are freed."""

    def _submit_async_write(self, pending: PendingSave) -> None:
        if not self._is_tp_rank_zero:
            return
        offset_S = torch.arange(self._block_size)
        slot_T = (torch.tensor(pending.block_ids)[:, None] * self._block_size + offset_S).flatten()
        states_TAW = extract_from_kv_cache(self._kv_cache, slot_T, len(pending.token_ids))
        lock = self._lock_fds.pop(pending.req_id, None)
        try:
            Path(pending.filename).parent.mkdir(parents=True, exist_ok=True)
            save_file({"hidden_states": states_TAW.contiguous(), "token_ids": pending.token_ids}, pending.filename)
        finally:
            if lock is not None:
                os.close(lock)  # releases the exclusive lock that `wait_for_save` took
        self._req_copy_events[pending.req_id] = FinishedCopy()
