"""What runs the target of a trace: transformers in this process, vLLM in this process, or a running vLLM server."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.checkpoint import Checkpoint, TensorRef, show
from draftconv.drafter.config import Config
from draftconv.drafter.targets import Target
from draftconv.errors import Refused, Undecided, UsageError
from draftconv.traces.vllm.start import VLLM_DTYPES, Extraction

if TYPE_CHECKING:
    from draftconv.traces.options import TraceOptions
    from draftconv.traces.turns import Capturer
    from draftconv.traces.vllm.states import Answer

ENGINES = ("transformers", "vllm")

_STEP = 1024


@dataclass(frozen=True, slots=True)
class Job:
    """What a target is to do.

    Attributes:
        directory: where its files are. `boundaries`: ascending.
        max_tokens, depth, eos: how long texts are; see `trace.About`.
        longest: tokens of the longest prompt and its text together, as far as it can be told beforehand.
        out: the trace's directory.
    """

    target: Target
    directory: Path
    checkpoint: Checkpoint
    boundaries: tuple[int, ...]
    max_tokens: int
    depth: int
    eos: tuple[int, ...]
    longest: int
    out: Path

    @property
    def room(self) -> int:
        """Tokens that an engine must hold per request; chat templates may add some to later turns."""
        room = (self.longest // _STEP + 2) * _STEP
        return min(room, self.target.max_positions or room)


@dataclass(frozen=True, slots=True)
class Runner:
    """A target that is ready to run.

    Attributes:
        dtype: what its states come in, a name of `trace.DTYPES`.
        where, made_by: device or server, for a person; program and version, for the trace.
        table: the target's `embed_tokens` or `lm_head` where its files hold them in another form.
        check: shows on a prompt that the states can be had, before a trace is begun.
    """

    capturer: Capturer
    dtype: str
    where: str
    made_by: str
    table: Callable[[str], TensorRef]
    check: Callable[[Sequence[int]], None]


@contextmanager
def running(job: Job, options: TraceOptions) -> Iterator[Runner]:
    """Load the target, or reach the server that has it; unloaded at the end.

    Raises:
        UsageError: options that do not belong to the engine. Undecided: no --dtype, and the target's config has none.
        BadCheckpoint, Refused: transformers cannot run it. EngineError: vLLM cannot.
    """
    _check_options(options)
    if options.engine == "transformers":
        yield _transformers(job, options)
    elif options.url is None:
        with _offline(job, options) as runner:
            yield runner
    else:
        yield _served(job, options, options.url)


def _check_options(options: TraceOptions) -> None:
    if options.engine not in ENGINES:
        raise UsageError(f"--engine {show(options.engine)}: unknown", cure=f"one of {', '.join(ENGINES)}")
    vllm, served = options.engine == "vllm", options.url is not None
    misplaced = {
        "--url": served and not vllm,
        "--hidden-states-dir": options.hidden_states_dir is not None and not served,
        "--tensor-parallel": options.tensor_parallel != 1 and not (vllm and not served),
        "--device": options.device is not None and vllm,
    }
    if wrong := [name for name, is_misplaced in misplaced.items() if is_misplaced]:
        engine = "a server (--url)" if served and vllm else f"--engine {options.engine}"
        raise UsageError(f"{', '.join(wrong)} has no meaning for {engine}", cure="leave it out")
    if vllm and options.dtype is not None and options.dtype not in VLLM_DTYPES:
        raise UsageError(f"--dtype {options.dtype}: vLLM computes in {', '.join(VLLM_DTYPES)}", cure="give one of them")
    if served and options.hidden_states_dir is None:
        raise UsageError(
            "--url needs --hidden-states-dir",
            why="the server writes hidden states to files, and only that directory is read",
            cure="give the directory that the server was started with (shared_storage_path)",
        )


# ── transformers ───────────────────────────────────────────────────────────────────


def _transformers(job: Job, options: TraceOptions) -> Runner:
    from draftconv.traces.capture import TransformersTarget, find_layers, load_model, transformers

    model = load_model(
        job.directory, dtype=options.dtype, device=options.device, trust_remote_code=options.trust_remote_code
    )
    layers = find_layers(model, job.target.layers)
    target = TransformersTarget(model, layers, job.boundaries, job.max_tokens, job.depth, job.eos)
    return Runner(
        target,
        dtype=str(target.dtype).removeprefix("torch."),
        where=str(target.device),
        made_by=f"transformers {transformers().__version__}",
        table=target.table,
        check=lambda prompt: target.check(prompt, padded=options.batch > 1),
    )


# ── vLLM ───────────────────────────────────────────────────────────────────────────


@contextmanager
def _offline(job: Job, options: TraceOptions) -> Iterator[Runner]:
    from draftconv.traces.vllm.offline import Engine

    beside = job.out.absolute()
    with tempfile.TemporaryDirectory(prefix=f".{beside.name}.states-", dir=beside.parent) as storage:
        extraction = _extraction(job, options, Path(storage))
        engine = Engine(extraction)
        try:
            yield _vllm(job, extraction, engine.complete, engine.version, "in this process", job.room)
        finally:
            engine.close()


def _served(job: Job, options: TraceOptions, url: str) -> Runner:
    from draftconv.traces.vllm.server import Server

    storage = options.hidden_states_dir or Path()
    if not storage.is_dir():
        raise UsageError(
            f"--hidden-states-dir {show(storage)} is no directory on this machine",
            why="the server's files must be readable here",
            cure="mount it here, or run draftconv where the server runs",
        )
    extraction = _extraction(job, options, storage.absolute())
    server = Server(url, extraction.shell())
    served = server.served()

    def complete(prompts: Sequence[tuple[int, ...]], length: int) -> Iterator[Answer]:
        return server.complete_all(served, prompts, length)

    return _vllm(job, extraction, complete, served.version, f"at {show(url)}", served.room)


def _vllm(
    job: Job,
    extraction: Extraction,
    complete: Callable[[Sequence[tuple[int, ...]], int], Iterator[Answer]],
    version: str,
    where: str,
    room: int | None,
) -> Runner:
    from draftconv.traces.vllm.capture import VllmTarget
    from draftconv.traces.vllm.states import Wanted

    wanted = Wanted(job.boundaries, job.target.hidden or 0, extraction.dtype, extraction.shell())
    target = VllmTarget(complete, wanted, extraction.storage, room, job.max_tokens, job.depth, job.eos)
    return Runner(
        target,
        dtype=extraction.dtype,
        where=f"vLLM {version} {where}",
        made_by=f"vllm {version}",
        table=lambda name: _no_table(job.checkpoint, name),
        check=target.check,
    )


def _extraction(job: Job, options: TraceOptions, storage: Path) -> Extraction:
    return Extraction(
        model=str(job.directory),
        boundaries=job.boundaries,
        storage=storage,
        dtype=options.dtype or _own_dtype(job.checkpoint),
        room=job.room,
        tensor_parallel=options.tensor_parallel,
        remote_code=options.trust_remote_code,
    )


def _own_dtype(checkpoint: Checkpoint) -> str:
    """What the target's config says it computes in; multimodal ones say it in text_config."""
    outer = Config(checkpoint.config, f"target {show(checkpoint.name)}: config.json")
    for config in (outer.section("text_config"), outer):
        found = config.text("dtype") or config.text("torch_dtype")
        if found in VLLM_DTYPES:
            return found
    raise Undecided(
        f"{outer.where} does not say what vLLM shall compute in",
        why=f"vLLM computes in {', '.join(VLLM_DTYPES)}, and the states are checked against it",
        cure="pass --dtype",
    )


def _no_table(checkpoint: Checkpoint, name: str) -> TensorRef:
    raise Refused(
        f"the files of {show(checkpoint.name)} hold no unquantized {name} under a name draftconv knows",
        why="drafters that ship none are replayed with it, and an engine does not hand it out",
        cure="give the target's own repository, whose tensors have these names",
    )
