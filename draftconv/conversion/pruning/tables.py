"""A pruning in tables: what the rows cover, whether there was enough text, and what other numbers would cost."""

from __future__ import annotations

from collections.abc import Iterator

from draftconv.checkpoint.text import size
from draftconv.conversion.pruning.plan import PruningPlan
from draftconv.display import Block, Column, Table, table


def blocks(decided: PruningPlan) -> Iterator[Block]:
    """All of them, and notes."""
    rows, head = len(decided.head.ids), decided.head.row_bytes
    yield (
        f"{decided.vocab} of {rows} rows of the head stay, {decided.forced} of them whatever the text says: "
        f"{size(round(rows * head))} → {size(round(decided.vocab * head))}"
    )
    yield from (f"Warning: {note}" for note in decided.notes)
    yield coverage_table(decided)
    yield curve_table(decided)
    yield _enough(decided)
    yield ladder_table(decided)


def coverage_table(decided: PruningPlan) -> Table:
    """Held-out text, domain by domain."""
    note = "Of text that chose no row: the share whose tokens can be drafted."
    figures: list[tuple[object, ...]] = [
        (d.name, f"{d.weight:g}", d.tokens, d.held, _percent(d.covered), _percent(1 - d.covered))
        for d in decided.coverage
    ]
    if decided.accept_length is not None:
        missing = _percent(decided.missing)
        figures.append(("accepted in the trace", "", "", decided.accepted, _percent(1 - decided.missing), missing))
    titles = ("weight", "tokens", "held out", "covered", "missing")
    columns = (Column("domain"), *(Column(title, figures=True) for title in titles))
    return table("Coverage", note, columns, figures)


def curve_table(decided: PruningPlan) -> Table:
    """Chosen from parts of the text."""
    columns = tuple(Column(title, figures=True) for title in ("tokens", "per row", "missing"))
    rows = ((p.tokens, f"{p.tokens / decided.vocab:.1f}", _percent(p.missing)) for p in decided.curve)
    return table(
        "Was there enough text?", "Held-out text that is missing when rows are chosen from less.", columns, rows
    )


def _enough(decided: PruningPlan) -> str:
    gains = [before.missing - after.missing for before, after in zip(decided.curve, decided.curve[1:], strict=False)]
    if not gains:
        return f"{decided.effective} tokens for {decided.vocab} rows; {decided.enough} are asked for."
    last = f"The last doubling of the text brought {100 * gains[-1]:.2f} points"
    worth = "" if decided.effective >= decided.enough else f"; {decided.enough} tokens are asked for"
    return f"{last}{worth}."


def ladder_table(decided: PruningPlan) -> Table:
    """Other numbers of rows."""
    if decided.accept_length is None:
        how = f"At most, for a drafter that is always right with K = {decided.depth}: --trace tells the real one."
    else:
        how = f"With the accept length {decided.accept_length:.3f} (K = {decided.depth}) of the trace's second half."
    columns = tuple(Column(title, figures=True) for title in ("rows", "head", "missing", "predicted loss"))
    rows = (
        (
            f"{step.vocab}{' *' * (step.vocab == decided.vocab)}",
            size(step.nbytes),
            _percent(step.missing),
            str(step.loss) if decided.accept_length else f"at most {_percent(step.loss.most)}",
        )
        for step in decided.ladder
    )
    return table("Loss of accept length by rows", how, columns, rows)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
