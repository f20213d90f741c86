"""The command and the file that serve a drafter with TensorRT-LLM."""

from __future__ import annotations

from draftconv.drafter.boundaries import default_triple
from draftconv.drafter.facts import AuxLayers, Gqa
from draftconv.drafter.kinds import eagle31, kind_of
from draftconv.engines.rules import EngineSpec
from draftconv.engines.serving import (
    LOOPBACK,
    ServeCommand,
    ServeRequest,
    Yaml,
    remote_code_note,
    yaml_text,
)
from draftconv.engines.target_stops import INT4, NVFP4, TargetStop
from draftconv.engines.trtllm.aux_layers import spelled
from draftconv.engines.trtllm.sources import LINEAR, MODEL_CONFIG
from draftconv.errors import Undecided, UsageError

SERVE_FILE = "serve.yaml"
TARGETS = (
    TargetStop(INT4, "its reader raises for INT4 of compressed-tensors", MODEL_CONFIG, "read"),
    TargetStop(NVFP4, "NVFP4 needs Blackwell", LINEAR, "read", ("sm90",)),
)
"""Weights of targets that it does not start with."""


def command(start: ServeRequest, spec: EngineSpec) -> ServeCommand:
    _refuse_revisions(start)
    old = spec.before(1, 3)
    settings: dict[str, Yaml] = {
        **({} if start.alone else {"speculative_config": _speculative(start, old)}),
        "enable_iter_perf_stats": True,  # acceptance statistics on /metrics
    }
    argv = ["trtllm-serve", start.model, "--host", LOOPBACK, "--backend", "pytorch"]
    argv += ["--tp_size", str(start.tensor_parallel)]
    if start.target.remote_code:
        argv.append("--trust_remote_code")
    argv += ["--extra_llm_api_options" if old else "--config", SERVE_FILE]
    return ServeCommand(tuple(argv), {SERVE_FILE: yaml_text(settings)}, tuple(_notes(start, spec)))


def _refuse_revisions(start: ServeRequest) -> None:
    """Raises UsageError for a revision on the Hub: speculative_config has no key for one."""
    drafter = None if start.alone else start.revision
    for repository, revision in ((start.model, start.model_revision), (start.directory, drafter)):
        if revision is not None:
            raise UsageError(
                f"TensorRT-LLM cannot be told revision {revision} of {repository}",
                why="it would take what is newest on the Hub",
                cure=f"name the directory that this writes: hf download {repository} --revision {revision} "
                "--local-dir DIR",
            )


def _speculative(start: ServeRequest, old: bool) -> dict[str, Yaml]:
    speculative: dict[str, Yaml] = {
        "decoding_type": "Eagle" if old else "Eagle3",
        "max_draft_len": start.drafts,
        "speculative_model_dir": start.directory,
    }
    layers = _layers_to_capture(start)
    if layers is not None:
        speculative["eagle3_layers_to_capture"] = layers
    return speculative


def _layers_to_capture(start: ServeRequest) -> tuple[int, ...] | None:
    """`eagle3_layers_to_capture`; None when the default triple is what was trained.

    Raises:
        Undecided: the drafter's layers are unknown. Refused: there is no number for one.
    """
    match start.facts.boundaries:
        case AuxLayers.DEFAULT:
            return None
        case AuxLayers.UNKNOWN:
            raise Undecided(
                "which layers this drafter was trained on is unknown",
                why="TensorRT-LLM is told them in its serve file, and a wrong one costs accept length silently",
                cure="give --aux-convention before|after, or --from LAYOUT",
            )
        case boundaries:
            if boundaries == default_triple(start.target.layers):
                return None
            return spelled(boundaries)


def _notes(start: ServeRequest, spec: EngineSpec) -> list[str]:
    facts, target = start.facts, start.target
    notes = list(remote_code_note(target, "--trust_remote_code"))
    if kind_of(facts) is eagle31.KIND:
        notes.append("EAGLE-3.1 needs a TensorRT-LLM of 2026-06 or later, the 1.3 line (PR 14988)")
    if isinstance(facts.attention, Gqa) and target.family == "deepseek":
        notes.append("a Llama-style drafter beside an MLA target is not proven here: an MLA drafter is the safe pair")
    if facts.boundaries is AuxLayers.DEFAULT:
        notes.append("no eagle3_layers_to_capture: the drafter was trained on the default triple")
    if spec.before(1, 3):
        notes.append("names must be midlayer.*: `draftconv convert --to trtllm` writes them")
    return notes
