"""`draftconv serve`."""

from __future__ import annotations

from typing import Any

import click

from draftconv.api.serve import ServeOptions, serve
from draftconv.cli.examples import ENGINE, THIRD
from draftconv.cli.options import format_option, options_of

EPILOG = f"""\b
Examples:
  draftconv serve out --for {ENGINE} --target moonshotai/Kimi-K2.6 --tensor-parallel-size 8
  draftconv serve out --for {THIRD}:b200 --target kimi-k2.6-nvfp4 -k 4
  draftconv serve out --profile mi325x-vllm
  draftconv serve out --for {ENGINE}:cpu --target target --port 8000 --exec
"""


@click.command(epilog=EPILOG)
@click.argument("checkpoint")
@options_of(ServeOptions)
@click.option("--exec", "run", is_flag=True, help="Start it: this process becomes the server.")
@format_option
def command(checkpoint: str, run: bool, fmt: str, **keywords: Any) -> None:
    """Print the exact command that serves the drafter CHECKPOINT, and the files it reads.

    Without --exec nothing is started. With it the files are written into this directory first; one that is
    there with another content is an error. A drafter that the engine would refuse or mis-read is an error (exit 1);
    so is a target that it is known not to start with (exit 2).
    """
    from draftconv.api.serve import start
    from draftconv.cli import output

    serve_command = serve(checkpoint, **keywords)
    if run:
        output.print_notes(serve_command.notes)
        start(serve_command)
    match fmt:
        case "json":
            output.print_json(
                {
                    "argv": list(serve_command.argv),
                    "environment": dict(serve_command.environment),
                    "files": dict(serve_command.files),
                    "notes": list(serve_command.notes),
                }
            )
        case "human":
            for name, content in serve_command.files.items():
                lines = map(output.safe, content.splitlines())
                print("\n".join([f"cat > {output.safe(name)} <<'END'", *lines, "END"]))
            print(output.safe(serve_command.shell()))
            output.print_notes(serve_command.notes)
