"""`draftconv push`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from draftconv.api.push import PushOptions, push
from draftconv.cli.loudness import loudness_options
from draftconv.cli.options import options_of

EPILOG = """\b
Examples:
  draftconv push out me/kimi-k2.6-eagle3.1-mla
  draftconv push out me/drafter --private
"""


@click.command(epilog=EPILOG)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("repo")
@options_of(PushOptions)
@loudness_options
def command(directory: Path, repo: str, **keywords: Any) -> None:
    """Upload DIRECTORY, an output of draftconv, to the Hub repository REPO (owner/name).

    The token is huggingface_hub's own (`hf auth login` or HF_TOKEN); it goes to the Hub only.
    """
    from draftconv.cli import output

    output.write(output.safe(push(directory, repo, **keywords)))
