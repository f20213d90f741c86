"""Run a target once and keep what it did: tokens and hidden states, for any number of replays."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import draftconv
from draftconv.checkpoint import FLOATS, SIZES, Checkpoint, TensorRef, open_checkpoint, show
from draftconv.checkpoint.files import LocalFile, is_directory
from draftconv.checkpoint.text import size
from draftconv.drafter.boundaries import default_triple
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import AuxLayers
from draftconv.drafter.targets import EMBED_NAMES, HEAD_NAMES, Target
from draftconv.errors import Undecided, UsageError, WriteError
from draftconv.layouts.drafter_reader import drafter_readers, reading_line, reading_warnings
from draftconv.options import Place, takes
from draftconv.traces.options import TRANSFORMERS, TraceOptions, TraceSize
from draftconv.traces.prompts import load_prompts
from draftconv.traces.runners import Runner, TraceJob, running
from draftconv.traces.target_prompts import ends_of, goal_of, refuse_too_long, target_files, tokenize_prompts
from draftconv.traces.trace import DTYPES, TOKENIZER, Trace, TraceInfo

__all__ = ["TraceOptions", "TraceSize", "trace"]

_TABLES: Mapping[str, tuple[str, ...]] = {"embed_tokens": EMBED_NAMES, "lm_head": HEAD_NAMES}


@takes(TraceOptions)
def trace(target: Place, prompts: Place, out: Place, options: TraceOptions) -> Trace:
    """Run a target over prompts and store its tokens and states in `out`; greedily, or as `temperature` says.

    A run that was stopped goes on where it was when called again with the same arguments;
    `device`, `url` and `batch` may differ.

    Args:
        target: a directory, a Hub id or a known name. `prompts`: a suite's name, or a .jsonl, .json or .txt file.

    Raises:
        UsageError: options that do not fit, boundaries or prompts the target does not have, transformers missing.
        Undecided: a drafter whose boundaries its files do not tell.
        BadCheckpoint: target, tokenizer or drafter cannot be read.
        Refused: the states of this model cannot be taken for sure.
        WriteError: `out` holds something else, or the file system has no room.
        EngineError: the engine is not there, does not answer, or extracts no states.
        Void: the target gave states that are short, shifted or not finite.
    """
    from draftconv.traces.conversations import capture_all, slots
    from draftconv.traces.spool import spool_size
    from draftconv.traces.writer import TraceWriter, refuse_occupied

    out = Path(out)
    _check_numbers(options)
    sampling = options.sampling
    goal = goal_of(str(target), options.revision)
    drafters = _drafters(goal, options)
    boundaries, reason = _boundaries(goal, options, drafters)
    readings = tuple(line for drafter in drafters for line in (reading_line(drafter), *reading_warnings(drafter)))
    refuse_occupied(out)
    prompt_set = load_prompts(str(prompts), options.limit)
    requests = slots(prompt_set.prompts)
    directory, checkpoint = target_files(goal)
    eos = () if options.ignore_eos else ends_of(checkpoint)
    tokenized = tokenize_prompts(
        goal,
        directory,
        prompt_set,
        eos,
        depth=options.num_speculative_tokens,
        max_tokens=options.max_tokens,
        chat=options.chat,
        trust_remote_code=options.trust_remote_code,
    )
    if options.url is None:  # a server knows its own room
        refuse_too_long(tokenized, goal)
    job = TraceJob(
        goal,
        directory,
        checkpoint,
        boundaries,
        tokenized.length,
        options.num_speculative_tokens,
        eos,
        tokenized.longest,
        out,
        sampling,
    )
    with running(job, options) as runner:
        tables = {
            name: _table(checkpoint, runner, name) for name in _TABLES if name == "embed_tokens" or options.lm_head
        }
        about = TraceInfo(
            target=checkpoint.name,
            revision=checkpoint.revision,
            layers=goal.layers,
            hidden=goal.hidden or 0,
            vocab=goal.vocab or 0,
            boundaries=boundaries,
            depth=options.num_speculative_tokens,
            max_tokens=tokenized.length,
            dtype=runner.dtype,
            made_by=f"draftconv {draftconv.__version__}, {runner.made_by}",
            prompts=tokenized.source,
            prompts_sha256=tokenized.sha256,
            chat=tokenized.dialogue.chat,
            eos=eos,
            family=goal.family,
            drafters=readings,
            sampling=sampling,
        )
        row = len(boundaries) * about.hidden * SIZES[DTYPES[about.dtype]] // 8
        sizing = TraceSize(
            boundaries=boundaries,
            reason=reason,
            drafters=readings,
            dtype=about.dtype,
            device=runner.where,
            requests=len(requests),
            tokens=tokenized.tokens,
            states=tokenized.tokens * row,
            tables=0 if options.link_tables else sum(ref.nbytes for ref in tables.values()),
        )
        together = min(options.batch, len(requests)) if options.engine == TRANSFORMERS else 0
        _check_room(out, sizing, spool_size(tokenized.longest * row, together))
        if options.announce is not None:
            options.announce(sizing)
        runner.check(max(tokenized.first, key=len))
        tokenizer = directory / TOKENIZER
        text = _contents(tokenizer) if tokenizer.is_file() else None
        with TraceWriter(out, about, requests, tables=tables, link=options.link_tables, tokenizer=text) as writer:
            return capture_all(
                writer,
                tokenized.prompts,
                tokenized.dialogue,
                runner.capturer,
                batch=options.batch,
                progress=options.progress,
            )


def _check_numbers(options: TraceOptions) -> None:
    for name, value in (
        ("batch", options.batch),
        ("num-speculative-tokens", options.num_speculative_tokens),
        ("max-tokens", options.max_tokens),
    ):
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: too small", cure="give a number from 1")
    if options.dtype is not None and options.dtype not in DTYPES:
        raise UsageError(f"--dtype {show(options.dtype)}: unknown", cure=f"one of {', '.join(DTYPES)}")


def _drafters(goal: Target, options: TraceOptions) -> list[Drafter]:
    """The drafters whose boundaries are kept."""
    if options.boundaries and options.drafters:
        raise UsageError("--boundaries and --drafter both say what to keep", cure="give one of the two")
    drafters = [options.drafters] if isinstance(options.drafters, str | Path) else options.drafters
    readings = drafter_readers(
        drafters, options.layout, options.aux_convention, accept_detected=options.accept_detected
    )
    return [reading.read(open_checkpoint(spec), goal) for reading, spec in zip(readings, drafters, strict=True)]


def _boundaries(goal: Target, options: TraceOptions, drafters: Sequence[Drafter]) -> tuple[tuple[int, ...], str]:
    """Which boundaries to keep, ascending, and why these."""
    if options.boundaries:
        boundaries, reason = set(options.boundaries), "as given"
    elif drafters:
        boundaries = {b for drafter in drafters for b in _boundaries_of(drafter)}
        reason = "as the drafter reads" if len(drafters) == 1 else "as the drafters read, together"
    else:
        boundaries, reason = set(default_triple(goal.layers)), "the triple that every engine takes by default"
    if min(boundaries) < 0 or max(boundaries) > goal.layers:
        raise UsageError(
            f"boundaries {', '.join(map(str, sorted(boundaries)))}: {goal.name} has 0 to {goal.layers}",
            cure="name the boundaries with --boundaries, or the right target with --target",
        )
    return tuple(sorted(boundaries)), reason


def _boundaries_of(drafter: Drafter) -> tuple[int, ...]:
    boundaries = drafter.facts.boundaries
    if isinstance(boundaries, AuxLayers):
        raise Undecided(
            f"which layers {show(drafter.checkpoint.name)} reads is not told by its files",
            why="a drafter is replayed on the very states that it was trained on",
            cure="say what its layer ids mean with --aux-convention before|after, or name them with --boundaries",
        )
    return boundaries


def _table(checkpoint: Checkpoint, runner: Runner, name: str) -> TensorRef:
    """The bytes of the target's own files; what the loaded model holds where they keep it in another form."""
    tied = checkpoint.config.get("tie_word_embeddings") is True
    for spelled in (*_TABLES[name], *(EMBED_NAMES if tied else ())):
        ref = checkpoint.tensors.get(spelled)
        if ref is not None and ref.dtype in FLOATS:
            return ref
    return runner.table(name)


def _contents(path: Path) -> bytes:
    """The whole of a file; BadCheckpoint where it cannot be read."""
    with LocalFile(path) as file:
        return file.read(0, file.size)


def _check_room(out: Path, sizing: TraceSize, spooled: int) -> None:
    written = sum(path.stat().st_size for path in out.rglob("*.safetensors")) if is_directory(out) else 0
    needed = sizing.states + spooled + sizing.tables - written
    free = shutil.disk_usage(out if is_directory(out) else out.parent).free
    if needed > free:
        raise WriteError(
            f"{show(out.name)} needs up to {size(needed)}, its file system has {size(free)} left",
            why="the run would stop in the middle",
            cure="free some space, choose another file system, or take fewer prompts (--limit) or --link-tables",
        )
