"""Was a table ever trained? Numbers drawn independently have no directions, and rows of them the same length.

Three statistics of sampled rows X [n, H], each zero in the mean and one in its spread where all entries are drawn
independently from one distribution, whatever it is (its fourth moment is measured):

    row lengths     variance of |row|², against what the fourth moment gives
    common column   sum of squared column means
    row similarity  mean squared inner product of two rows

Training moves all three far away: frequent tokens get other lengths, all rows get a common part, and tokens of one
kind point the same way. A table counts as random where all three are within `LIMIT`. What was measured stands in
docs/inspect.md; `tests/drafter/test_random_table.py` measures it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftconv.checkpoint import FLOATS, ByteCounter, TensorRef, as_float32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROWS = 1024
"""Rows that are looked at, evenly spaced: of 160,000 x 7168 in BF16 that took two seconds and 130 MB."""

LEAST_ROWS, LEAST_COLUMNS = 512, 64
"""Smaller tables are not judged."""

LIMIT = 8.0
"""In standard deviations: the largest of 8800 tables that were drawn was 4.6, the least of 10 trained ones 480."""


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """How far a table is from numbers drawn independently, in standard deviations of such numbers."""

    rows: int
    row_lengths: float
    common_column: float
    row_similarity: float
    deviation: float
    """Root mean square of the entries, in their own unit."""

    @property
    def farthest(self) -> float:
        return max(abs(self.row_lengths), abs(self.common_column), abs(self.row_similarity))

    @property
    def random(self) -> bool:
        """Whether it looks drawn."""
        return self.farthest <= LIMIT


def judged(ref: TensorRef) -> bool:
    """Whether a table is of floats, and large enough for its statistics to tell."""
    return ref.dtype in FLOATS and len(ref.shape) == 2 and ref.shape[0] >= LEAST_ROWS and ref.shape[1] >= LEAST_COLUMNS


def sampled_bytes(ref: TensorRef) -> int:
    """Bytes that `table_statistics` reads of a table."""
    return min(ref.row_count, ROWS) * ref.row_bytes


def table_statistics(ref: TensorRef, tally: ByteCounter | None = None) -> TableStatistics | None:
    """Statistics of a float table [V, H] that is `judged`; None where too many of its rows are zero or not finite.

    Those rows (padding) are left out.

    Args:
        tally: told the bytes of all sampled rows.
    """
    import numpy as np

    tally = tally or ByteCounter()
    count = min(ref.row_count, ROWS)
    rows = np.empty((count, ref.shape[1]), dtype=np.float32)
    for at in range(count):
        row = at * (ref.row_count - 1) // (count - 1)
        rows[at] = as_float32(ref, row, row + 1)
    tally.add(sampled_bytes(ref))
    kept = rows[np.isfinite(rows).all(axis=1) & rows.any(axis=1)]
    return _statistics(kept) if len(kept) >= LEAST_ROWS else None


def _statistics(rows: NDArray[np.float32]) -> TableStatistics:
    import numpy as np

    n, width = rows.shape
    deviation = float(np.sqrt(np.square(rows, dtype=np.float64).mean()))
    unit = rows / np.float32(deviation)  # entries of mean square 1, so that sums below need no scale
    lengths = np.square(unit, dtype=np.float64).sum(axis=1)
    excess = max(float((unit.astype(np.float64) ** 4).mean()) - 1, np.finfo(np.float64).tiny)  # variance of a square
    columns = unit.sum(axis=0, dtype=np.float64) ** 2 / n
    products = np.square((unit @ unit.T).astype(np.float64))
    pairs = n * (n - 1) / 2
    similarity = (products.sum() - np.trace(products)) / 2 / pairs / width
    return TableStatistics(
        rows=n,
        row_lengths=float((lengths.var() / (width * excess) - 1) * np.sqrt(n / 2)),
        common_column=float((columns.mean() - 1) * np.sqrt(width / 2)),
        row_similarity=float((similarity - 1) * np.sqrt(pairs / 2)),
        deviation=deviation,
    )
