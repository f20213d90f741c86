"""Uploading to a repository on the Hub: what stands there now, and one commit that adds and deletes files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.checkpoint.hub import api, repository_info
from draftconv.checkpoint.hub_file import network_errors
from draftconv.checkpoint.staging import FileDigest
from draftconv.checkpoint.text import show, size
from draftconv.errors import BadCheckpoint, CheckFailed

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

FRESH = frozenset({".gitattributes"})
"""What the Hub itself puts into a new repository."""


@dataclass(frozen=True, slots=True)
class BranchHead:
    """What stands at the head of a branch.

    Attributes:
        commit: its id; None where the branch is yet to be made. `private`: of the repository.
        files: name → git's blob id (of a file outside LFS its contents decide it).
    """

    private: bool
    commit: str | None
    files: Mapping[str, str]

    @property
    def strange(self) -> set[str]:
        """What somebody has put there; nothing in a fresh repository."""
        return self.files.keys() - FRESH


def find_head(repo: str, revision: str | None, token: str | None) -> BranchHead | None:
    """The head of a branch (None: the main one); None where the repository is yet to be made.

    Raises:
        BadCheckpoint: the Hub refuses access or cannot be reached.
    """
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    with network_errors(repo):
        try:
            info = repository_info(repo, revision, token)
        except RevisionNotFoundError:
            return BranchHead(bool(repository_info(repo, None, token).private), None, {})
        except RepositoryNotFoundError:
            return None
    files = {sibling.rfilename: sibling.blob_id or "" for sibling in info.siblings or ()}
    return BranchHead(bool(info.private), info.sha, files)


@dataclass(frozen=True, slots=True)
class Upload:
    """One commit to be made.

    Attributes:
        files: name in the repository → the file (or the bytes) that is uploaded under it, and what it must be.
        deleted: names that go in the same commit. `head`: what the commit follows; None makes the repository.
        revision: the branch; None is the main one. `pull_request`: propose it instead of making it.
    """

    repo: str
    files: Mapping[str, tuple[Path | bytes, FileDigest]]
    deleted: Sequence[str]
    head: BranchHead | None
    revision: str | None
    pull_request: bool
    token: str | None = field(repr=False)

    def run(self, *, private: bool, message: str = "Upload drafter") -> str:
        """Make the commit and return its URL, or the pull request's.

        Args:
            private: of a repository that is yet to be made.

        Raises:
            CheckFailed: a file was changed while it was read.
            BadCheckpoint: the Hub refuses, cannot be reached, or somebody else has committed in the meantime.
        """
        from huggingface_hub import CommitOperationDelete
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError

        hub = api(self.token)
        added = [_addition(name, content, digest) for name, (content, digest) in self.files.items()]
        with network_errors(self.repo):
            repo, commit = self.repo, self.head.commit if self.head else None
            if self.head is None:
                repo = hub.create_repo(repo, private=private).repo_id
            if self.revision is not None and commit is None and not self.pull_request:
                hub.create_branch(repo, branch=self.revision)
            try:
                made = hub.create_commit(
                    repo,
                    [*added, *(CommitOperationDelete(name) for name in self.deleted)],
                    commit_message=message,
                    revision=self.revision,
                    create_pr=self.pull_request,
                    parent_commit=commit,
                )
                return str(made.pr_url or made.commit_url)
            except (HfHubHTTPError, HFValidationError):
                raise
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                # the client takes answers apart without a look at their types
                raise BadCheckpoint(
                    f"what {show(repo)} answered to the upload is no answer of a Hub",
                    why="whether the commit was made is not known",
                    cure="look at the repository, and check HF_ENDPOINT",
                ) from error


def _unreadable(name: str, error: OSError) -> BadCheckpoint:
    return BadCheckpoint(
        f"{show(name)} cannot be read: {error.strerror or error}",
        why="nothing was committed",
        cure="check the file system, then push again",
    )


def _addition(name: str, content: Path | bytes, digest: FileDigest) -> CommitOperationAdd:
    """A file to be added; the client hashes it as it reads it, and the Hub holds what is sent against that."""
    from huggingface_hub import CommitOperationAdd

    try:
        added = CommitOperationAdd(name, content)
        found = added.upload_info.sha256.hex()
    except OSError as error:
        raise _unreadable(name, error) from error
    if found != digest.sha256:
        raise CheckFailed(
            f"{show(name)} was changed while it was read ({size(added.upload_info.size)} now)",
            why="what is uploaded would not be what was checked",
            cure="push again once nobody writes to the directory",
        )
    return added
