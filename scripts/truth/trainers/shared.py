"""All that is taken from the rest of the truth package: trained drafters and variants of them, and tidy messages."""

from truth.drafts import BASES, DATA, FIXTURES, Change, Directory, Makers, read, some, target_of, target_path, whole
from truth.table import plain
from truth.vllm.reader import READER

__all__ = [
    "BASES", "DATA", "FIXTURES", "READER", "Change", "Directory", "Makers", "plain", "read", "some", "target_of",
    "target_path", "whole",
]  # fmt: skip
