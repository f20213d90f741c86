"""Engines of arms: running ones, and those that are started."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from draftconv.engines import ENGINES
from draftconv.engines.client import Client
from draftconv.engines.live import Live
from draftconv.errors import DraftconvError
from draftconv.layouts.drafter_reader import DrafterReader
from draftconv.live.arms import LiveArm
from draftconv.live.capabilities import offline_of
from draftconv.live.forced_acceptance import refuse_switches
from draftconv.live.launch import Launch, address, free_port, launched
from draftconv.live.measuring_command import measuring
from draftconv.live.offline import offline, started
from draftconv.live.options import LiveOptions, in_full
from draftconv.live.run import LiveRun
from draftconv.live.server_command import serve_as
from draftconv.options import several


@contextmanager
def served_by(run: LiveRun, arm: LiveArm, directory: Path) -> Iterator[tuple[Client, str]]:
    """The engine of an arm and its address, which is empty without a server, until this is left."""
    if arm.url is not None:
        yield run.live.connect(*arm.url, run.asking), arm.url[0]
        return
    launch = run.launches[arm.number]
    if run.way == "offline":
        how = offline_of(run.spec.name)
        python = (run.options.python or Path(sys.executable)).absolute()  # it runs in another directory
        with offline(
            ENGINES[run.spec.name].title,
            how,
            started(how, launch.argv, str(python), ignore_eos=run.asking.ignore_eos),
            run.asking,
            directory,
            target=run.goal.name,
            drafter=arm.source,
            patience=run.options.start_timeout,
            environment={**launch.environment, **os.environ},
        ) as engine:
            yield engine, ""
        return
    port = free_port()
    client = run.live.connect(address(port), "--launch", run.asking)
    with launched(launch, port, directory):
        yield client, address(port)


def launch_of(source: str, reader: DrafterReader, live: Live, options: LiveOptions, *, alone: bool = False) -> Launch:
    """The server of an arm, with the command of `draftconv serve`.

    Args:
        source: the drafter. `reader`: how it is to be read. `alone`: the target without it.

    Raises:
        CheckFailed: the engine would refuse or mis-read it. Void: a switch decides what is accepted.
        UsageError: an argument asks for what its kernels do not have.
    """
    command = serve_as(
        source,
        options.engine,
        in_full(options.target),
        reader,
        drafts=options.num_speculative_tokens,
        tensor_parallel=options.tensor_parallel_size,
        alone=alone,
        arguments=several(options.server_args),
    )
    python = options.python
    launch = measuring(
        command.argv,
        command.files,
        live,
        several(options.server_args),
        patience=options.start_timeout,
        python=python,
        drafts=not alone,
    )
    environment = {**command.environment, **options.environment}
    refuse_switches((*launch.argv, *launch.files.values()), {**environment, **os.environ})
    return replace(launch, environment=environment, notes=command.notes)


def start_of(run: LiveRun, arm: LiveArm) -> str:
    """What starts the server of an arm where it is looked for; empty where draftconv cannot say."""
    try:
        launch = launch_of(arm.source, arm.reader, run.live, run.options)
    except DraftconvError:
        return ""
    port = urlsplit(arm.url[0]).port if arm.url else None
    return f"start it with: {shlex.join((launch.on(port) if port else launch).argv)}"
