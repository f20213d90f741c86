"""What vLLM is started with."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from draftconv.engines.tracing import Extraction
from draftconv.engines.vllm.tracing.start import arguments, server, shell
from draftconv.reference.sampling import Sampling

KIMI = Extraction(
    "moonshotai/Kimi-K2.6", (2, 30, 58), 7168, Path("/shared/states"), "bfloat16", 4096, 8, remote_code=True
)


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_a_server_on_gpus() -> None:
    argv = shlex.split(shell(KIMI))
    assert argv[:3] == ["vllm", "serve", "moonshotai/Kimi-K2.6"]
    assert json.loads(option(argv, "--speculative-config")) == {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}},
    }
    assert json.loads(option(argv, "--kv-transfer-config")) == {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": "/shared/states"},
    }
    assert {"--no-enable-prefix-caching", "--no-enable-chunked-prefill", "--trust-remote-code"} <= set(argv)
    assert (option(argv, "--host"), option(argv, "--tensor-parallel-size")) == ("127.0.0.1", "8")
    assert (option(argv, "--dtype"), option(argv, "--max-model-len")) == ("bfloat16", "4096")


def test_a_server_on_a_cpu() -> None:
    argv = list(server(KIMI, 8123, cpu=True))
    assert argv[:4] == ["python", "-m", "vllm.entrypoints.openai.api_server", "--model"]
    found = json.loads(option(argv, "--kv-transfer-config"))
    assert found["kv_connector"] == "CpuHiddenStatesConnector"
    assert found["kv_connector_module_path"] == "draftconv.engines.vllm.tracing.connector"
    assert find_spec(found["kv_connector_module_path"])
    assert json.loads(option(argv, "--compilation-config")) == {"custom_ops": ["-rotary_embedding"]}
    assert option(argv, "--port") == "8123"


def test_log_probabilities_are_of_what_a_text_is_drawn_from() -> None:
    warm = replace(KIMI, sampling=Sampling(0.7))
    assert option(shlex.split(shell(warm)), "--logprobs-mode") == "processed_logprobs"
    assert arguments(warm, cpu=True)["logprobs_mode"] == "processed_logprobs"
    assert "--logprobs-mode" not in shell(KIMI)
    assert "logprobs_mode" not in arguments(KIMI, cpu=True)


@pytest.mark.parametrize("cpu", [False, True])
def test_offline_and_server_are_told_the_same(cpu: bool) -> None:
    argv, offline = list(server(KIMI, cpu=cpu)), arguments(KIMI, cpu=cpu)
    for name in ("speculative_config", "kv_transfer_config"):
        assert json.loads(option(argv, f"--{name.replace('_', '-')}")) == offline[name]
    assert offline["enable_prefix_caching"] is offline["enable_chunked_prefill"] is False
    assert (offline["model"], offline["dtype"], offline["tensor_parallel_size"]) == (KIMI.model, "bfloat16", 8)
    assert ("compilation_config" in offline) == ("--compilation-config" in argv) == cpu
