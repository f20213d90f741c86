"""Upload a converted drafter to the Hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftconv.checkpoint import open_checkpoint
from draftconv.conversion.provenance import read_provenance
from draftconv.errors import CheckFailed
from draftconv.options import Place, option, python_only, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """How an output is uploaded."""

    private: bool = option(False, "Make the repository private if it does not exist yet.")
    token: str | None = python_only(None, "of the Hub; huggingface_hub's own when None")


@takes(PushOptions)
def push(directory: Place, repo: str, options: PushOptions) -> str:
    """Upload a directory that draftconv wrote, in one commit, and return the commit's URL.

    Args:
        directory: an output of draftconv. `repo`: `owner/name`; made if it does not exist.

    Raises:
        CheckFailed: the directory holds no draftconv.json, or one that does not belong to it.
        BadCheckpoint, WriteError: it cannot be read, or the Hub refuses it.
    """
    from draftconv.checkpoint.hub import push as upload

    checkpoint = open_checkpoint(directory)
    if read_provenance(checkpoint) is None:
        raise CheckFailed(
            f"{Path(directory).name} holds no draftconv.json of its own",
            why="what is published should tell what it was made from, and this was edited or not made by draftconv",
            cure="push the output of `draftconv convert`",
        )
    return upload(Path(directory), repo, options.token, private=options.private)
