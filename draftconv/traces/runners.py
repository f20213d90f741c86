"""What runs the target of a trace: transformers, an engine in this process, or a running server of one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.checkpoint import Checkpoint, TensorRef, show
from draftconv.checkpoint.files import is_directory
from draftconv.drafter.config import Config
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES
from draftconv.engines.engine import Engine
from draftconv.engines.tracing import Extraction, Extractor, Tracing
from draftconv.errors import Refused, Undecided, UsageError
from draftconv.reference.sampling import Sampling
from draftconv.traces.options import TRANSFORMERS, runners

if TYPE_CHECKING:
    from draftconv.traces.conversations import Capturer
    from draftconv.traces.options import TraceOptions

_STEP = 1024


@dataclass(frozen=True, slots=True)
class TraceJob:
    """What a target is to do.

    Attributes:
        directory: where its files are. `boundaries`: ascending.
        max_tokens, depth, eos: how long texts are; see `trace.TraceInfo`.
        longest: tokens of the longest prompt and its text together, as far as it can be told beforehand.
        out: the trace's directory. `sampling`: None for greedy text.
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
    sampling: Sampling | None = None

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
def running(job: TraceJob, options: TraceOptions) -> Iterator[Runner]:
    """Load the target, or reach the server that has it; unloaded at the end.

    Raises:
        UsageError: options that do not belong to the engine. Undecided: no --dtype, and the target's config has none.
        BadCheckpoint, Refused: transformers cannot run it. EngineError: the engine cannot.
    """
    engine_tracing = _tracing(options.engine)
    _check_options(options, engine_tracing)
    if engine_tracing is not None and job.sampling is not None:
        engine_tracing[1].refuse_sampling(job.sampling)
    if engine_tracing is None:
        yield _transformers(job, options)
        return
    engine, tracing = engine_tracing
    if options.url is None:
        out = job.out.absolute()
        with (
            tempfile.TemporaryDirectory(prefix=f".{out.name}.states-", dir=out.parent) as storage,
            tracing.here(extraction := _extraction(job, options, *engine_tracing, Path(storage))) as extractor,
        ):
            yield _engine_runner(job, extraction, engine, extractor, "in this process")
    else:
        extraction = _extraction(job, options, *engine_tracing, _states_directory(options))
        extractor = tracing.served(extraction, options.url)
        yield _engine_runner(job, extraction, engine, extractor, f"at {show(options.url)}")


def _tracing(name: str) -> tuple[Engine, Tracing] | None:
    """The engine of this name and how it hands out states; None for transformers."""
    if name == TRANSFORMERS:
        return None
    engine = ENGINES.get(name)
    if engine is None or engine.tracing is None:
        fault = f"{engine.title} hands out no states that draftconv can read" if engine else "unknown"
        raise UsageError(f"--engine {show(name)}: {fault}", cure=f"one of {', '.join(runners())}")
    return engine, engine.tracing


def _check_options(options: TraceOptions, engine_tracing: tuple[Engine, Tracing] | None) -> None:
    served = options.url is not None
    misplaced = {
        "--url": served and engine_tracing is None,
        "--hidden-states-dir": options.hidden_states_dir is not None and not served,
        "--tensor-parallel-size": options.tensor_parallel_size != 1 and (engine_tracing is None or served),
        "--device": options.device is not None and engine_tracing is not None,
    }
    if wrong := [name for name, is_misplaced in misplaced.items() if is_misplaced]:
        place = "a server (--url)" if served and engine_tracing else f"--engine {options.engine}"
        raise UsageError(f"{', '.join(wrong)} has no meaning for {place}", cure="leave it out")
    if engine_tracing and options.dtype is not None and options.dtype not in engine_tracing[1].dtypes:
        raise UsageError(f"--dtype {options.dtype}: {_dtypes_line(*engine_tracing)}", cure="give one of them")
    if served and options.hidden_states_dir is None:
        raise UsageError(
            "--url needs --hidden-states-dir",
            why="the server writes hidden states to files, and only that directory is read",
            cure="give the directory that the server was started with",
        )


def _dtypes_line(engine: Engine, tracing: Tracing) -> str:
    return f"{engine.title} computes in {', '.join(tracing.dtypes)}"


# ── transformers ───────────────────────────────────────────────────────────────────


def _transformers(job: TraceJob, options: TraceOptions) -> Runner:
    from draftconv.traces.transformers_target import TransformersTarget, find_layers, load_model, transformers

    model = load_model(
        job.directory, dtype=options.dtype, device=options.device, trust_remote_code=options.trust_remote_code
    )
    layers = find_layers(model, job.target.layers)
    target = TransformersTarget(
        model, layers, job.boundaries, job.max_tokens, job.depth, job.eos, job.out, job.sampling
    )
    return Runner(
        target,
        dtype=str(target.dtype).removeprefix("torch."),
        where=str(target.device),
        made_by=f"transformers {transformers().__version__}",
        table=target.table,
        check=lambda prompt: target.check(prompt, padded=options.batch > 1),
    )


# ── engines ────────────────────────────────────────────────────────────────────────


def _engine_runner(job: TraceJob, extraction: Extraction, engine: Engine, extractor: Extractor, where: str) -> Runner:
    from draftconv.traces.engine_target import ExtractedTarget

    target = ExtractedTarget(extractor, job.max_tokens, job.depth, job.eos)
    return Runner(
        target,
        dtype=extraction.dtype,
        where=f"{engine.title} {extractor.version} {where}",
        made_by=f"{engine.name} {extractor.version}",
        table=lambda name: _refuse_table(job.checkpoint, name),
        check=target.check,
    )


def _states_directory(options: TraceOptions) -> Path:
    """Where a server writes states, as it is seen from here."""
    storage = Path(options.hidden_states_dir or "")
    if not is_directory(storage):
        raise UsageError(
            f"--hidden-states-dir {show(storage)} is no directory on this machine",
            why="the server's files must be readable here",
            cure="mount it here, or run draftconv where the server runs",
        )
    return storage.absolute()


def _extraction(job: TraceJob, options: TraceOptions, engine: Engine, tracing: Tracing, storage: Path) -> Extraction:
    return Extraction(
        model=str(job.directory),
        boundaries=job.boundaries,
        hidden=job.target.hidden or 0,
        storage=storage,
        dtype=options.dtype or _config_dtype(job.checkpoint, engine, tracing),
        room=job.room,
        tensor_parallel=options.tensor_parallel_size,
        remote_code=options.trust_remote_code,
        sampling=job.sampling,
    )


def _config_dtype(checkpoint: Checkpoint, engine: Engine, tracing: Tracing) -> str:
    """What the target's config says it computes in; multimodal ones say it in text_config."""
    outer = Config(checkpoint.config, f"target {show(checkpoint.name)}: config.json")
    for config in (outer.section("text_config"), outer):
        dtype = config.text("dtype") or config.text("torch_dtype")
        if dtype in tracing.dtypes:
            return dtype
    raise Undecided(
        f"{outer.where} does not say what {engine.title} shall compute in",
        why=f"{_dtypes_line(engine, tracing)}, and the states are checked against it",
        cure="pass --dtype",
    )


def _refuse_table(checkpoint: Checkpoint, name: str) -> TensorRef:
    raise Refused(
        f"the files of {show(checkpoint.name)} hold no unquantized {name} under a name draftconv knows",
        why="drafters that ship none are replayed with it, and an engine does not hand it out",
        cure="give the target's own repository, whose tensors have these names",
    )
