"""The exact command that serves a drafter on an engine."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from draftconv.checkpoint import show
from draftconv.checkpoint.staging import write_error, write_new
from draftconv.engines.serving import ServeCommand
from draftconv.errors import EngineError, UsageError, WriteError
from draftconv.layouts.drafter_reader import DrafterReader
from draftconv.live.profiles import Profile, find_profile
from draftconv.live.server_command import serve_as
from draftconv.options import (
    ACCEPT_DETECTED,
    AUX_CONVENTION,
    LAYOUT,
    NUM_SPECULATIVE_TOKENS,
    TENSOR_PARALLEL_SIZE,
    Option,
    Place,
    Several,
    option,
    python_only,
    several,
    takes,
)

logger = logging.getLogger(__name__)

IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores for itself, and that a program in its place would ignore too."""


DRAFTS, DEVICES = 3, 1
"""K, and devices for the target, where neither a person nor a profile says."""


def _or_profile(spec: Option, default: int) -> Option:
    return replace(spec, help=f"{spec.help}  [default: the profile's, else {default}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What a server is started with."""

    engine: str | None = option(
        None, "The engine to start; needed without --profile.", flag="--for", metavar="ENGINE[@VERSION][:HARDWARE]"
    )
    target: Place | None = option(
        None,
        "The target: a directory, a Hub id or a known name.  [default: the profile's]",
        metavar="TARGET",
        parse=str,
    )
    profile: str | None = option(
        None,
        "Take engine, hardware, target, devices, K, arguments and variables from a hardware profile; what is typed as "
        "well wins. `draftconv recipes` lists them.",
        metavar="NAME|FILE",
    )
    num_speculative_tokens: int | None = option(None, _or_profile(NUM_SPECULATIVE_TOKENS, DRAFTS))
    tensor_parallel_size: int | None = option(None, _or_profile(TENSOR_PARALLEL_SIZE, DEVICES))
    server_args: Several = option(
        (),
        "One more argument for the server, after the profile's; may be repeated.",
        flag="--server-arg",
        metavar="ARG",
    )
    engine_python: Place | None = option(
        None,
        "The Python of the engine's environment; without it programs come from the PATH.",
        metavar="PYTHON",
        file=True,
    )
    port: int | None = option(None, "Where it listens.  [default: the engine's]", least=1, most=65535)
    layout: str | None = option(None, LAYOUT)
    aux_convention: str | None = option(None, AUX_CONVENTION)
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    alone: bool = python_only(False, "the target without the drafter, otherwise started alike")
    arguments: Sequence[str] = python_only((), "of the server that somebody else adds to the command")


@takes(ServeOptions)
def serve(source: Place, options: ServeOptions) -> ServeCommand:
    """Build the server command for a drafter that this engine reads rightly.

    Args:
        source: directory or Hub id; the server is given the same.

    Raises:
        Undecided: the drafter can be read in several ways.
        CheckFailed: the engine would refuse or mis-read it, or the hardware has no kernel for its weights.
        Refused: the engine is known not to start with this target, or this drafter beside it.
        UsageError: no engine or target, unknown ones or an unknown profile, a target known by its layer count only,
            a drafter that is a file, or `server_args` ask for float32 where quantized weights have no kernel for it.
    """
    profile = find_profile(options.profile) if options.profile is not None else None
    engine, target = _chosen(options, profile)
    arguments = (*(profile.server_args if profile else ()), *several(options.server_args))
    command = _command(source, engine, target, options, profile, arguments)
    environment = {**command.environment, **(profile.environment if profile else {})}
    port = ("--port", str(options.port)) if options.port else ()
    notes = (*command.notes, *((f"profile {profile.name}: {profile.proven}",) if profile else ()))
    return replace(command, argv=(*command.argv, *arguments, *port), environment=environment, notes=notes)


def _chosen(options: ServeOptions, profile: Profile | None) -> tuple[str, str]:
    """Engine and target: what is typed, else the profile's.

    Raises:
        UsageError: neither says, or the profile is for another engine or hardware.
    """
    engine = profile.engine_for(options.engine) if profile else options.engine
    target = options.target or (profile.target if profile else None)
    if engine is None:
        raise UsageError("serve needs an engine", cure="give --for ENGINE, or --profile NAME")
    if target is None:
        beside = f"profile {profile.name} leaves it open" if profile else ""
        raise UsageError("serve needs a target", why=beside, cure="give --target a directory, a Hub id or a known name")
    return engine, str(target)


def _command(
    source: Place,
    engine: str,
    target: str,
    options: ServeOptions,
    profile: Profile | None,
    arguments: Sequence[str],
) -> ServeCommand:
    drafts, devices = options.num_speculative_tokens, options.tensor_parallel_size
    return serve_as(
        source,
        engine,
        target,
        DrafterReader(options.layout, options.aux_convention, options.accept_detected),
        drafts=drafts if drafts is not None else profile.depth if profile else DRAFTS,
        tensor_parallel=devices if devices is not None else profile.tensor_parallel if profile else DEVICES,
        alone=options.alone,
        python=None if options.engine_python is None else Path(options.engine_python),
        arguments=(*arguments, *options.arguments),
    )


def start(command: ServeCommand) -> NoReturn:
    """Become the server: its files are written into this directory, then this process is replaced.

    Raises:
        WriteError: a file is there with another content, or cannot be written. EngineError: there is no such program.
    """
    for name, text in command.files.items():
        _write(Path(name), text)
    logger.info("becoming %s", command.shell())
    environment = {**command.environment, **os.environ}
    ours = {number: signal.signal(number, signal.SIG_DFL) for number in IGNORED_BY_PYTHON}
    try:
        os.execvpe(command.argv[0], command.argv, environment)
    except OSError as error:
        for number, handler in ours.items():
            signal.signal(number, handler)
        raise EngineError(
            f"{show(command.argv[0])} cannot be started: {error.strerror}",
            cure="name the Python of the environment that has the engine with --engine-python",
        ) from error


def _write(path: Path, text: str) -> None:
    """Write a file of the server's settings, whole or not at all, unless it is there already."""
    content = text.encode()
    try:
        if not path.exists():
            write_new(path, content)
        elif path.read_bytes() != content:
            raise _another(path)
    except FileExistsError as error:
        raise _another(path) from error  # since it was looked for, or a link that leads nowhere
    except OSError as error:
        raise write_error(error, path) from error


def _another(path: Path) -> WriteError:
    return WriteError(
        f"there is another {show(path.name)} in this directory",
        why="the server would be started with its settings, or they would be lost",
        cure="move it away, or run this in another directory",
    )
