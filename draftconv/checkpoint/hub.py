"""Repositories on the Hub: looked at by ranges, or downloaded whole and compared with what the Hub lists."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from draftconv import limits
from draftconv.checkpoint.checkpoint import Checkpoint, assemble, with_hashes
from draftconv.checkpoint.files import DataFile, LocalFile
from draftconv.checkpoint.hashing import ListedHash, hash_files
from draftconv.checkpoint.hub_file import HubFile, network_errors, timed_answer
from draftconv.checkpoint.local import HeldDirectory
from draftconv.checkpoint.memory_file import MemoryFile
from draftconv.checkpoint.text import is_plain_name, parse_object, show
from draftconv.errors import BadCheckpoint

if TYPE_CHECKING:
    from huggingface_hub import HfApi, ModelInfo

logger = logging.getLogger(__name__)

FOREIGN_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.gguf", "original/*")
"""Weights that transformers does not load where safetensors files lie beside them."""

_GIT_ID = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubDirectory:
    """The top level of a repository at one commit; see `weights.Directory`."""

    name: str
    revision: str
    files: Mapping[str, int]
    """Of the top level; name → bytes."""
    hashes: Mapping[str, ListedHash]
    """Of the whole repository, by path; only listed, see `ListedHash.check`."""
    endpoint: str
    token: str | None = field(repr=False)

    def open(self, name: str) -> HubFile:
        """A file that is read by ranges; nothing is asked for yet."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self.name, name, revision=self.revision, endpoint=self.endpoint)
        return HubFile(name, url, self.files[name], self.endpoint, self.token)

    def read(self, name: str) -> bytes:
        """The whole of a small file, as it is listed."""
        file = self.open(name)
        data = file.read(0, file.size)
        self.check(name, MemoryFile(name, data))
        return data

    def check(self, name: str, file: DataFile) -> str:
        """SHA-256 of what `file` holds; BadCheckpoint when it is not what is listed under this name."""
        return self.hashes[name].check(file, self.name)


def open_hub(repo: str, revision: str | None = None, token: str | None = None) -> Checkpoint:
    """Read config and headers of a repository; its weights stay there.

    Raises:
        BadCheckpoint: missing, private, unreachable, or not a checkpoint.
    """
    directory = hub_directory(repo, revision, token)
    return assemble(directory, revision=directory.revision)


def fetch_hub(repo: str, revision: str | None = None, token: str | None = None) -> Checkpoint:
    """Download config, sidecars, weights, card and licenses into the Hub cache and open them there.

    The result has the repository's name and commit, the path of the cached files, and the hashes of what lies there.

    Raises:
        BadCheckpoint: see `open_hub`; or a file in the cache is not the one that the Hub lists.
    """
    listing = hub_directory(repo, revision, token)
    remote = assemble(listing, revision=listing.revision)
    names = [
        info.name
        for info in remote.files
        if info.is_read or (info.name in remote.texts and info.size <= limits.LICENSE.value)
    ]
    logger.info("downloading %d files of %s at %s", len(names), show(repo), remote.revision)
    directory = HeldDirectory(_download(repo, listing.revision, names, token))
    hashes = hash_files(names, directory.open, listing.check)
    local = assemble(directory, path=directory.path)
    return replace(
        local,
        name=remote.name,
        revision=remote.revision,
        files=with_hashes(remote.files, hashes),
        texts={**remote.texts, **local.texts},  # what is too long stays there
    )


def fetch_model(
    repo: str, revision: str | None = None, token: str | None = None, *, weights: bool = True
) -> tuple[Path, str]:
    """Download what it takes to run a model into the Hub cache: its directory there, and the commit.

    Weights come as safetensors where the repository has them; copies in other formats are left out.
    Without `weights` none come, and what is left is what it takes to tokenize. Every file is compared with the listing.

    Raises:
        BadCheckpoint: the repository cannot be reached, or a file in the cache is not the one that the Hub lists.
    """
    listing = hub_directory(repo, revision, token)
    plain = any(name.endswith(".safetensors") for name in listing.files)
    others = [*(FOREIGN_WEIGHTS if plain else FOREIGN_WEIGHTS[1:])]
    if not weights:
        others = [*FOREIGN_WEIGHTS, "*.safetensors"]
    names = [name for name in listing.hashes if not any(fnmatch(name, pattern) for pattern in others)]
    logger.info("downloading %s at %s %s", show(repo), listing.revision, "whole" if weights else "without weights")
    path = _download(repo, listing.revision, names, token)
    hash_files(names, lambda name: LocalFile(path / name), listing.check)
    return path, listing.revision


def _download(repo: str, revision: str, names: Sequence[str], token: str | None) -> Path:
    """These files and no others, in the Hub cache; what lies there already is not sent again."""
    from huggingface_hub import snapshot_download

    with network_errors(repo):
        path = snapshot_download(
            repo,
            revision=revision,
            allow_patterns=[glob.escape(name) for name in names],
            token=token,
            endpoint=endpoint(),
        )
    return Path(path)


def endpoint() -> str:
    """The Hub to talk to: HF_ENDPOINT as it is now, else huggingface_hub's default."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def api(token: str | None) -> HfApi:
    """The Hub's own client, of the endpoint as it is now."""
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint(), token=token)


def repository_info(repo: str, revision: str | None, token: str | None) -> ModelInfo:
    """What the Hub says of a repository at one commit, with every field of the type that it should have.

    Raises:
        BadCheckpoint: it says something else, as a login page does. Whatever the client raises: see `network_errors`.
    """
    from huggingface_hub import ModelInfo

    raw = _listing(repo, revision, token)
    try:
        info: ModelInfo = ModelInfo(**parse_object(raw, "the list"))  # type: ignore[no-untyped-call]
    except (BadCheckpoint, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise _no_listing(repo) from error  # the client takes the answer apart without a look at its types
    if not (isinstance(info.sha, str) and _GIT_ID.fullmatch(info.sha)):
        raise _no_listing(repo)
    for sibling in info.siblings or ():
        lfs = sibling.lfs
        sized = sibling.size is None or (type(sibling.size) is int and sibling.size >= 0)
        hashed = lfs is None or (isinstance(lfs.sha256, str) and re.fullmatch("[0-9a-f]{64}", lfs.sha256))
        named = sibling.blob_id is None or (isinstance(sibling.blob_id, str) and _GIT_ID.fullmatch(sibling.blob_id))
        if not (isinstance(sibling.rfilename, str) and sized and hashed and named):
            raise _no_listing(repo)
    return info


def _listing(repo: str, revision: str | None, token: str | None) -> bytes:
    """The Hub's list of a repository's files, as `HfApi.model_info` asks for it, but not more than the limit of it."""
    from huggingface_hub import get_session
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        hf_raise_for_status,
        validate_repo_id,
    )

    validate_repo_id(repo)
    url = f"{endpoint()}/api/models/{repo}" + (f"/revision/{quote(revision, safe='')}" if revision else "")
    headers = {**build_hf_headers(token=token), "Accept-Encoding": "identity"}

    def pieces() -> Generator[bytes, None, None]:
        with get_session().stream(
            "GET", url, params={"blobs": True}, headers=headers, timeout=limits.HUB_IDLE.value
        ) as response:
            if response.status_code != 200:
                # what else is said of a refusal may be of any length and type, and the client would read it
                codes = {name: value for name, value in response.headers.items() if name.lower() == "x-error-code"}
                refusal = type(response)(response.status_code, headers=codes, json={}, request=response.request)
                hf_raise_for_status(refusal)
                raise _no_listing(repo)  # a redirection, or nothing at all
            yield from response.iter_raw()

    raw = bytearray()
    for piece in timed_answer(pieces):
        raw += piece
        limits.HUB_LISTING.check(len(raw), f"the list of files of {show(repo)} has more than {len(raw) - 1} bytes")
    return bytes(raw)


def _no_listing(repo: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"what answered for {show(repo)} is no Hub: it lists no repository",
        why=f"{show(endpoint())} may be a login page, a proxy or a mirror of something else",
        cure="open that address in a browser, or check HF_ENDPOINT",
    )


def hub_directory(repo: str, revision: str | None = None, token: str | None = None) -> HubDirectory:
    """List the top level of a repository; nothing of its files crosses the network."""
    from huggingface_hub import get_token

    with network_errors(repo):
        info = repository_info(repo, revision, token)
    files: dict[str, int] = {}
    hashes: dict[str, ListedHash] = {}
    for sibling in info.siblings or ():
        # a listing comes from strangers too: only plain names are ever used, and of the top level where we read
        name = sibling.rfilename
        if sibling.size is None or not all(map(is_plain_name, name.split("/"))):
            continue
        hashes[name] = ListedHash(sibling.lfs.sha256 if sibling.lfs else None, sibling.blob_id)
        if is_plain_name(name):
            files[name] = sibling.size
    return HubDirectory(repo, str(info.sha), files, hashes, endpoint(), token or get_token())
