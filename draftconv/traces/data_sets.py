"""Data sets of the Hub: which commit a name is now, their rows, and every way in which they cannot be had.

`datasets` (extra `suites`) reads the rows; code in a data set is never run.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from draftconv.checkpoint import show
from draftconv.checkpoint.hub import endpoint
from draftconv.checkpoint.hub_file import without_telemetry
from draftconv.errors import BadPrompts

Row = Mapping[str, object]

READERS = ("datasets", "pyarrow")
"""Packages whose own exceptions mean that a data set could not be read."""


def datasets() -> ModuleType:
    """The package, imported when rows are asked for.

    Raises:
        BadPrompts: it is not installed.
    """
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise BadPrompts(
            "the package `datasets`, which reads data sets from the Hub, is not installed",
            cure="`pip install 'draftconv[suites]'`, or give a file",
        ) from error


def refuse_namesake(name: str) -> None:
    """Refuse a data set while there is a directory of its name here.

    Raises:
        BadPrompts: there is one.
    """
    if Path(name).exists():
        raise BadPrompts(
            f"there is a directory {name} here",
            why="`datasets` would read it in place of the data set on the Hub",
            cure="run this in another directory",
        )


def commit_of(name: str, revision: str | None) -> str:
    """The commit that `revision` is now: what is loaded and what is recorded are the same.

    Raises:
        BadPrompts: what answers is no Hub. What the client raises: see `hub_errors`.
    """
    from huggingface_hub import HfApi

    try:
        with without_telemetry():
            commit = HfApi(endpoint=endpoint()).dataset_info(name, revision=revision).sha
    except (TypeError, LookupError, AttributeError, OverflowError) as error:
        raise _no_hub(name) from error  # the client takes the answer apart without a look at its types
    if not isinstance(commit, str):
        raise _no_hub(name)
    return commit


def _no_hub(name: str) -> BadPrompts:
    return BadPrompts(
        f"what answered for the data set {name} is no Hub",
        why=f"{endpoint()} may be a login page, a proxy or a mirror of something else",
        cure=f"open that address in a browser, or check HF_ENDPOINT; or {LOCAL}",
    )


LOCAL = "give its texts as a .jsonl file"


def rows_of(name: str, config: str | None, split: str, commit: str, *, stream: bool) -> Iterable[Row]:
    """The rows of one config and split; with `stream` only those that are looked at are fetched, and none is kept.

    Raises:
        BadPrompts: `datasets` is not installed. What that package raises: see `hub_errors`.
    """
    rows: Iterable[Row] = datasets().load_dataset(name, config, split=split, revision=commit, streaming=stream)
    return rows


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Turn what huggingface_hub and datasets (4.4 to 5.2) raise into BadPrompts.

    Of a network error only the kind is repeated: a client's own text can hold headers and signed URLs.
    """
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    what = f"the data set {name}"
    log_in = f"accept its terms on the Hub and log in with `hf auth login`; or {LOCAL}"
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise BadPrompts(f"{what} was not asked for: HF_HUB_OFFLINE is set", cure=f"unset it; or {LOCAL}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        refused = status in (401, 403, 404)
        raise BadPrompts(
            f"the Hub answered HTTP {status} for {what}",
            why="it is gated or private, or it is gone" if refused else "",
            cure=log_in if refused else f"try again later; or {LOCAL}",
        ) from error
    except (ValueError, RuntimeError) as error:  # an unknown config or split; a data set that is a script
        raise BadPrompts(f"{what} is not as draftconv expects: {show(error)}", cure=LOCAL) from error
    except Exception as error:
        kind = type(error)
        if kind.__name__ == "DatasetNotFoundError":
            raise BadPrompts(f"the Hub refuses {what}", why="it is gated or private", cure=log_in) from error
        # the bases are the HTTP client's own error, whichever client it is, and OSError
        if not isinstance(error, HfHubHTTPError.__bases__) and kind.__module__.partition(".")[0] not in READERS:
            raise
        raise BadPrompts(
            f"{what} could not be read from the Hub ({kind.__name__})",
            cure=f"check the network and the free space; or {LOCAL}",
        ) from error
