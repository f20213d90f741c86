"""`draftconv serve`."""

from __future__ import annotations

from pathlib import Path

import click

from draftconv.api.serve import serve
from draftconv.cli.examples import ENGINE, THIRD
from draftconv.cli.options import accept_option, format_option, reading_options

EPILOG = f"""\b
Examples:
  draftconv serve out --for {ENGINE} --target moonshotai/Kimi-K2.6 --tp 8
  draftconv serve out --for {THIRD}:b200 --target kimi-k2.6-nvfp4 --drafts 4
  draftconv serve out --for {ENGINE}:cpu --target target --port 8000 --exec
"""


@click.command(epilog=EPILOG)
@click.argument("checkpoint")
@click.option("--for", "engine", required=True, metavar="ENGINE[@VERSION][:HARDWARE]", help="The engine to start.")
@click.option("--target", required=True, metavar="TARGET", help="The target: a directory, a Hub id or a known name.")
@click.option("--drafts", type=click.IntRange(1), default=3, show_default=True, help="Tokens proposed per step.")
@click.option(
    "--tp", "tensor_parallel", type=click.IntRange(1), default=1, show_default=True, help="Devices for the target."
)
@click.option("--engine-python", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="PYTHON",
              help="The Python of the engine's environment; without it programs come from the PATH.")  # fmt: skip
@click.option("--port", type=click.IntRange(1, 65535), help="Where it listens.  [default: the engine's]")
@click.option("--exec", "run", is_flag=True, help="Start it: this process becomes the server.")
@reading_options
@accept_option
@format_option
def command(
    checkpoint: str,
    engine: str,
    target: str,
    drafts: int,
    tensor_parallel: int,
    engine_python: Path | None,
    port: int | None,
    run: bool,
    layout: str | None,
    aux_convention: str | None,
    accept_detected: bool,
    form: str,
) -> None:
    """Print the exact command that serves the drafter CHECKPOINT, and the files it reads.

    Without --exec nothing is started. With it the files are written into this directory first; one that is
    there with another content is an error. A drafter that the engine would refuse or mis-read is an error (exit 1).
    """
    from draftconv.api.serve import start
    from draftconv.cli import output

    found = serve(
        checkpoint,
        engine,
        target,
        drafts=drafts,
        tensor_parallel=tensor_parallel,
        layout=layout,
        aux_convention=aux_convention,
        accept_detected=accept_detected,
        python=engine_python,
        port=port,
    )
    if run:
        output.print_notes(found.notes)
        start(found)
    match form:
        case "json":
            output.print_json(
                {
                    "argv": list(found.argv),
                    "environment": dict(found.environment),
                    "files": dict(found.files),
                    "notes": list(found.notes),
                }
            )
        case "human":
            for name, content in found.files.items():
                lines = map(output.safe, content.splitlines())
                print("\n".join([f"cat > {output.safe(name)} <<'END'", *lines, "END"]))
            print(output.safe(found.shell()))
            output.print_notes(found.notes)
