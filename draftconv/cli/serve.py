"""`draftconv serve`."""

from __future__ import annotations

import click

from draftconv.api.serve import serve
from draftconv.cli.options import format_option, reading_options

EPILOG = """\b
Examples:
  draftconv serve out --for vllm --target moonshotai/Kimi-K2.6 --tp 8
  draftconv serve out --for trtllm@1.2:b200 --target kimi-k2.6 --drafts 4
"""


@click.command(epilog=EPILOG)
@click.argument("checkpoint")
@click.option("--for", "engine", required=True, metavar="ENGINE[@VERSION][:HARDWARE]", help="The engine to start.")
@click.option("--target", required=True, metavar="TARGET", help="The target: a directory, a Hub id or a known name.")
@click.option("--drafts", type=click.IntRange(1), default=3, show_default=True, help="Tokens proposed per step.")
@click.option(
    "--tp", "tensor_parallel", type=click.IntRange(1), default=1, show_default=True, help="Devices for the target."
)
@reading_options
@format_option
def command(
    checkpoint: str,
    engine: str,
    target: str,
    drafts: int,
    tensor_parallel: int,
    layout: str | None,
    aux_convention: str | None,
    form: str,
) -> None:
    """Print the exact command that serves the drafter CHECKPOINT, and the files it reads.

    Nothing is started. A drafter that the engine would refuse or mis-read is an error (exit 1).
    """
    from draftconv.cli import output

    found = serve(
        checkpoint,
        engine,
        target,
        drafts=drafts,
        tensor_parallel=tensor_parallel,
        layout=layout,
        aux_convention=aux_convention,
    )
    match form:
        case "json":
            output.print_json({"argv": list(found.argv), "files": dict(found.files), "notes": list(found.notes)})
        case "human":
            for name, content in found.files.items():
                print(f"# {output.safe(name)}")
                print("\n".join(output.safe(line) for line in content.splitlines()))
                print()
            print(output.safe(found.shell()))
            output.print_notes(found.notes)
