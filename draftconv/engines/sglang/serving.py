"""The command that serves a drafter with SGLang."""

from __future__ import annotations

from draftconv.engines.hardware import AMD
from draftconv.engines.rules import EngineSpec
from draftconv.engines.serving import LOOPBACK, ServeCommand, ServeRequest, remote_code_note
from draftconv.engines.sglang.sources import QUANT
from draftconv.engines.target_stops import NVFP4, TargetStop

TARGETS = (
    TargetStop(NVFP4, "ModelOpt's methods are not in its list for ROCm", f"{QUANT}/__init__.py, 0.5.23", "run", AMD),
)
"""Weights of targets that it does not start with."""


def command(start: ServeRequest, _: EngineSpec) -> ServeCommand:
    argv = ["python", "-m", "sglang.launch_server", "--model-path", start.model, "--host", LOOPBACK]
    if start.model_revision:
        argv += ["--revision", start.model_revision]
    if start.tensor_parallel > 1:
        argv += ["--tp-size", str(start.tensor_parallel)]
    if start.target.remote_code:
        argv.append("--trust-remote-code")
    if (context := _shorter_context(start)) is not None:
        argv += ["--context-length", str(context)]
    if not start.alone:
        argv += ["--speculative-algorithm", "EAGLE3"]
        argv += ["--speculative-draft-model-path", start.directory]
        if start.revision:
            argv += ["--speculative-draft-model-revision", start.revision]
        argv += ["--speculative-num-steps", str(start.drafts)]
        argv += ["--speculative-eagle-topk", "1"]
        argv += ["--speculative-num-draft-tokens", str(start.drafts + 1)]
    return ServeCommand(tuple(argv), notes=tuple(_notes(start)))


def _shorter_context(start: ServeRequest) -> int | None:
    """The drafter's context where it is shorter than the target's, which stops the start (CONFIG)."""
    drafter, target = start.facts.max_positions, start.target.max_positions
    return drafter if drafter and target and drafter < target else None


def _notes(start: ServeRequest) -> list[str]:
    facts, target = start.facts, start.target
    notes = list(remote_code_note(target, "--trust-remote-code"))
    notes.append("EAGLE3, not EAGLE: with EAGLE the same files load, fc is skipped and accept length is exactly 1.00")
    if facts.quantization is None:
        notes.append(
            "if you start the target with --quantization, add --speculative-draft-model-quantization unquant: "
            "an unquantized drafter inherits that flag"
        )
    if (context := _shorter_context(start)) is not None:
        notes.append(
            f"--context-length {context} is the drafter's max_position_embeddings, for SGLang does not start with the "
            f"target's {target.max_positions}; SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 would allow it"
        )
    if facts.reduced_vocab:
        notes.append("draft ids come from d2t in the drafter; --speculative-token-map is ignored")
    return notes
