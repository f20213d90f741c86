"""Everything that a person may say of a pruning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from draftconv.conversion.options import ConvertOptions
from draftconv.errors import UsageError
from draftconv.options import (
    ACCEPT_DETECTED,
    ATTEST,
    AUX_CONVENTION,
    FROM_FORMAT,
    LAYOUT,
    NUM_SPECULATIVE_TOKENS,
    OVERWRITE,
    TARGET,
    TARGET_LAYERS,
    TENSOR_PARALLEL_SIZE,
    Option,
    Place,
    Several,
    option,
    python_only,
    several,
)
from draftconv.replay.options import REPLAY_DEVICE, REPLAY_DTYPE
from draftconv.traces.text_places import text_places

PruneProgress = Callable[[str, int, int], None]
"""Told the stage (`counting`, `replaying`, `writing`), and how much of it is done and in all."""


KEEP = Option("Tokens that stay besides special ones, e.g. 5,100-199 (repeatable).", metavar="IDS")
TRUST_REMOTE_CODE = Option("Run the Python code of the target's tokenizer.")
"""What `slim` takes too."""


def read_ids(text: str) -> tuple[int, ...]:
    """Token ids and ranges with commas between: `5,17,163584-163839`.

    Raises:
        ValueError: something else.
    """
    ids: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            low, high = int(first), int(last if dash else first)
        except ValueError:
            raise ValueError(f"{part!r} is neither a token id nor a range such as 100-199") from None
        if not 0 <= low <= high < 1 << 24:
            raise ValueError(f"{part!r} is no range of token ids")
        ids |= {*range(low, high + 1)}
    return tuple(sorted(ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOptions:
    """Everything that decides a pruned output."""

    vocab: int = option(..., "Rows of the head that stay: a multiple of 64 times the devices.", metavar="N", least=1)
    counts: Several = option(
        ...,
        "What the target writes, to choose rows by: .jsonl or .json of texts, conversations, request logs or token "
        "ids, any other file as text, or hf://datasets/OWNER/NAME. With DOMAIN=WEIGHT: before it, the share of a kind "
        "of text beside the others'. May be repeated.",
        metavar="[DOMAIN=WEIGHT:]FILE",
    )
    trace: Place | None = option(
        None,
        "What the target did, from `draftconv trace`: one half of its accepted tokens chooses too, the other half "
        "tells the accept length before and after.",
        metavar="DIR",
    )
    target: Place | None = option(None, TARGET)
    target_layers: int | None = option(None, TARGET_LAYERS)
    keep: Several = option((), KEEP)
    num_speculative_tokens: int = option(3, replace(NUM_SPECULATIVE_TOKENS, former=()))
    tensor_parallel_size: int = option(
        1,
        replace(TENSOR_PARALLEL_SIZE, former=(), help="Devices that share the head: each gets a multiple of 64 rows."),
    )
    force: bool = option(False, "Prune with too little text, with an odd number of rows, or without special tokens.")
    to: str | None = option(
        None,
        "How it is written, as `convert --to`.  [default: the portable layout, or one for most engines]",
        metavar="LAYOUT",
    )
    trust_remote_code: bool = option(False, TRUST_REMOTE_CODE)
    dtype: str = option("float32", REPLAY_DTYPE)
    device: str = option("cpu", REPLAY_DEVICE)
    hash: bool = option(False, "Record the SHA-256 of each source file that is read (a download's is always recorded).")
    card: bool = option(True, "Write no README.md.", flag="--no-card")
    layout: str | None = option(None, LAYOUT)
    aux_convention: str | None = option(None, AUX_CONVENTION)
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    from_format: str | None = option(None, FROM_FORMAT)
    overwrite: bool = option(False, OVERWRITE)
    attest: Place | None = option(None, ATTEST)
    progress: PruneProgress | None = python_only(None, "told the stage, and how much of it is done and in all")

    @property
    def convert(self) -> ConvertOptions:
        """How everything else is converted."""
        return ConvertOptions(**{name: getattr(self, name) for name in SHARED})

    @property
    def kept_ids(self) -> tuple[int, ...]:
        """What `--keep` names.

        Raises:
            UsageError: something that is no token id.
        """
        ids: set[int] = set()
        for text in several(self.keep):
            try:
                ids |= {*read_ids(text)}
            except ValueError as error:
                raise UsageError(f"--keep {error}", cure="write ids and ranges, such as 5,100-199") from error
        return tuple(sorted(ids))

    @property
    def texts(self) -> tuple[str, ...]:
        """The files and data sets that `--counts` names.

        Raises:
            UsageError: as `text_places`.
        """
        return tuple(place.place for place in text_places(several(self.counts)))


SHARED = ("to", "target", "target_layers", "from_format", "hash", "card", "layout", "aux_convention", "accept_detected",
          "overwrite", "attest")  # fmt: skip
"""What a conversion is told as it stands."""
