"""`draftconv push`."""

from __future__ import annotations

from pathlib import Path

import click

from draftconv.api.push import push

EPILOG = """\b
Examples:
  draftconv push out me/kimi-k2.6-eagle3.1-mla
  draftconv push out me/drafter --private
"""


@click.command(epilog=EPILOG)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("repo")
@click.option("--private", is_flag=True, help="Make the repository private if it does not exist yet.")
def command(directory: Path, repo: str, private: bool) -> None:
    """Upload DIRECTORY, an output of draftconv, to the Hub repository REPO (owner/name).

    The token is huggingface_hub's own (`hf auth login` or HF_TOKEN); it goes to the Hub only.
    """
    from draftconv.cli import output

    print(output.safe(push(directory, repo, private=private)))
