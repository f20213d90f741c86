"""`draftconv push`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from draftconv.api.push import PushOptions, prepare
from draftconv.cli.loudness import loudness_options
from draftconv.cli.options import options_of

EPILOG = """\b
Examples:
  draftconv push out me/kimi-k2.6-eagle3.1-mla
  draftconv push out me/drafter --public
  draftconv push out team/drafter --create-pr --dry-run
  draftconv push out me/drafter --report report
"""


@click.command(epilog=EPILOG)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("repo")
@options_of(PushOptions)
@click.option("--dry-run", is_flag=True, help="Say what would be uploaded, and upload nothing.")
@loudness_options
def command(directory: Path, repo: str, *, dry_run: bool, **keywords: Any) -> None:
    """Upload DIRECTORY, an output of draftconv, to the Hub repository REPO (owner/name).

    The files that its draftconv.json names go, as they were written (the card may have been edited), in one commit;
    whatever else lies there stays. With --report the card that is uploaded tells accept length. A repository that
    does not exist is made, private unless --public is given. The token is huggingface_hub's own (`hf auth login` or
    HF_TOKEN); it goes to the Hub only.
    """
    from draftconv.cli import output

    decided = prepare(directory, repo, PushOptions(**keywords))
    *listed, amount = decided.blocks()
    output.show(listed)
    output.write(output.safe(amount if dry_run else decided.run().url))
