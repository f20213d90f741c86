"""`draftconv doctor`."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftconv.cli.examples import ENGINE
from draftconv.cli.options import format_option, options_of
from draftconv.live.doctor.options import DoctorOptions

STAGES = {"asking": "requests", "reading": "bytes", "replaying": "tokens"}
"""Stage → what it counts."""

EPILOG = f"""\b
Examples:
  draftconv doctor drafter --for {ENGINE} --url http://127.0.0.1:8000 --target target --trace trace
  draftconv doctor drafter --for {ENGINE} --url http://127.0.0.1:8000 --trace trace --suspect old --suspect untrained
  draftconv doctor drafter --for {ENGINE} --url http://127.0.0.1:8000 -k 3
"""


@click.command(epilog=EPILOG)
@click.argument("drafter")
@options_of(DoctorOptions)
@format_option
def command(drafter: str, fmt: str, **options: Any) -> None:
    """Say why a running server accepts less of DRAFTER than it should.

    The server is asked the prompts of a trace, greedily. DRAFTER is replayed as it was trained and under every
    mis-reading that the engine is known to have, and the one that is likeliest of the server's counts is named, with
    the rule behind it, its source, the cure and what is lost. Without --trace only what the server tells of itself is
    judged. Exit code 0 when it reads DRAFTER as it was trained, 1 when a fault is named, 3 when nothing explains what
    it counts, 4 when its counts are not to be trusted.
    """
    from draftconv.api.doctor import doctor
    from draftconv.cli import output
    from draftconv.cli.loudness import is_verbose

    with output.stages(STAGES) as progress:
        found = doctor(drafter, **options, progress=progress)
    match fmt:
        case "json":
            output.print_json(found.document())
        case "human":
            output.show([*found.blocks(), *(found.details() if is_verbose() else ())])
            if found.outcome != "sound":
                output.print_next(found.next)
    sys.exit(found.exit_code)
