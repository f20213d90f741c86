"""The smallest drafter that is still as good on an engine: searched on one half of a trace, certified on the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.conversion.plan import refuse_place
from draftconv.options import Place, takes
from draftconv.search.options import SlimOptions
from draftconv.search.result import SlimResult

if TYPE_CHECKING:
    from draftconv.search.run import Search

__all__ = ["SlimOptions", "prepare", "slim"]


@takes(SlimOptions)
def slim(source: Place, out: Place, options: SlimOptions) -> SlimResult:
    """Search for the smallest drafter that loses no more than is allowed, certify it and write it.

    Args:
        source: directory or Hub id. `out`: directory to make; it is made only where a drafter is certified.

    Raises:
        Refused: the engine does not run the drafter, or it is quantized already.
        UsageError: an option is impossible, or the trace is of another target.
        Void: what was written does not accept what was certified; nothing is left of it.
        DraftconvError: the drafter or the trace cannot be read, or the output cannot be written.
    """
    from draftconv.search.run import plan_search, run_search

    refuse_place(source, out, overwrite=options.overwrite)
    return run_search(plan_search(source, options), Path(out))


def prepare(source: Place, options: SlimOptions) -> Search:
    """Plan a search without measuring anything; raises as `slim` does."""
    from draftconv.search.run import plan_search

    return plan_search(source, options)
