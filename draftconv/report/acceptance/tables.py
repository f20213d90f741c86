"""The tables of single drafters: one source for accept.md, accept.html, the terminal and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from draftconv.display import Block, Column, Table, table
from draftconv.drafter.describe import join_words
from draftconv.report.acceptance.measure import AcceptLength
from draftconv.report.acceptance.model import LEAST_STEPS, AcceptanceReport, Coverage, DrafterSummary
from draftconv.report.acceptance.speed import EVIDENCE, NEAR, SpeedAtDepth, SpeedUnderLoad
from draftconv.report.formatting import Decode, arithmetic, change, length, share, token
from draftconv.report.intervals import Interval, Measured
from draftconv.report.statistics import called
from draftconv.report.tables import NONE
from draftconv.report.verdict import percent

INTERVAL = Column("95 % interval", figures=True)


def _figure(title: str) -> Column:
    return Column(title, figures=True)


def interval(measured: Measured) -> str:
    """The interval of an accept length."""
    return _between(measured.interval)


def _between(limits: Interval) -> str:
    return f"{length(limits.low)} to {length(limits.high)}"


def _shares(measured: Measured | None) -> tuple[str, str]:
    """A rate, and its interval."""
    if measured is None:
        return NONE, NONE
    return share(measured.value), f"{share(measured.interval.low)} to {share(measured.interval.high)}"


def headline(report: AcceptanceReport) -> Table:
    """Every drafter on a line."""

    def rows() -> Iterator[Sequence[object]]:
        for drafter in report.drafters:
            whole = drafter.whole
            figures = (NONE,) * 4 if whole is None else _lengths(whole)
            yield drafter.arm, *figures, *(() if report.min_al is None else (drafter.outcome,))

    asked = () if report.min_al is None else (f"more than {report.min_al:g}",)
    return table(
        "Accept length",
        f"AL is the mean number of tokens that one step of the target yields, with {report.about.depth} drafted "
        "tokens per step: 1 + accepted draft tokens / verify steps, over all requests.",
        ("drafter", _figure("AL"), INTERVAL, _figure("prompts"), _figure("steps"), *asked),
        rows(),
    )


def _lengths(measured: AcceptLength) -> tuple[object, ...]:
    return length(measured.length.value), interval(measured.length), measured.prompts, f"{measured.steps:.0f}"


def by_depth(report: AcceptanceReport, drafter: DrafterSummary) -> Table:
    """AL for every K, and how each drafted token fares at the K of the report."""
    whole = drafter.whole

    def rows() -> Iterator[Sequence[object]]:
        for k, measured in enumerate(drafter.lengths, 1):
            rates: tuple[str, ...] = (NONE,) * 3
            if whole is not None and k <= len(whole.reached):
                rates = (*_shares(whole.reached[k - 1]), _shares(whole.conditional[k - 1])[0])
            yield k, length(measured.length.value), interval(measured.length), *rates

    return table(
        "By drafted tokens",
        f"AL with 1, 2 … drafted tokens per step (K), all from one replay. Of steps with {report.about.depth}: how "
        "many accepted that many tokens or more, and how many of those that accepted all before it.",
        (
            _figure("K"),
            _figure("AL"),
            INTERVAL,
            _figure("accepted"),
            INTERVAL,
            _figure("given those before"),
        ),
        rows(),
    )


KINDS = {"category": "categories", "language": "languages", "tokens of context": "contexts"}


def by_text(drafter: DrafterSummary) -> Table:
    """AL per category, language and length of context; a kind that all steps have in common has no rows."""

    def rows() -> Iterator[Sequence[object]]:
        for kind, name in KINDS.items():
            slices: Mapping[str, AcceptLength] = getattr(drafter, name)
            for label, measured in slices.items() if len(slices) > 1 else ():
                yield called(label), kind, *_lengths(measured)

    return table(
        "By text",
        "Context: the tokens that are known when a step starts. A prompt can have steps in several rows of it.",
        ("", "", _figure("AL"), INTERVAL, _figure("prompts"), _figure("steps")),
        rows(),
    )


def coverage(drafter: DrafterSummary) -> str | None:
    """What its vocabulary map leaves out, in a sentence."""
    if drafter.whole is None or (covered := drafter.coverage) is None:
        return None
    perfect = covered.perfect.length
    return (
        f"{drafter.arm} can draft {covered.rows} tokens: {share(covered.undraftable / covered.tokens)} of the "
        f"target's ({covered.undraftable} of {covered.tokens}) are none of them. A perfect drafter with that map "
        f"would have an accept length of {length(perfect.value)} ({interval(perfect)})."
    )


def costly(covered: Coverage, decode: Decode | None) -> Table:
    """The tokens that a map lacks and that cost most."""
    return table(
        "Tokens that its map lacks",
        "Lost: drafted tokens that a perfect drafter with that map loses by it.",
        ("the target wrote", _figure("id"), _figure("places"), _figure("tokens lost")),
        ((token(decode, row.token), row.token, row.places, row.lost) for row in covered.costly),
    )


def by_load(drafter: DrafterSummary) -> Table:
    """The best K under every load."""

    def rows() -> Iterator[Sequence[object]]:
        for speed in drafter.speeds:
            yield speed.cost.concurrency, *_rates(speed.at(speed.best)), EVIDENCE[speed.cost.evidence]

    return table(
        "Speed, the best K",
        f"Tokens per second of one request; the gain is over no drafter, and K pays from the break-even AL on. {TIMES}",
        (_figure("requests at a time"), *RATES, "what drafting costs"),
        rows(),
    )


def speed_by_depth(speed: SpeedUnderLoad) -> Table:
    """Every K under one load."""
    return table(
        f"Speed, {speed.cost.concurrency} at a time",
        f"What drafting costs: {speed.cost.source} ({EVIDENCE[speed.cost.evidence]}). {TIMES}",
        RATES,
        (_rates(row) for row in speed.depths),
    )


RATES = (
    _figure("K"),
    _figure("step, ms"),
    _figure("tokens/s"),
    INTERVAL,
    _figure("gain"),
    _figure("break-even AL"),
)
TIMES = "Intervals are of the accept length alone: times are taken as they were told."


def _rates(row: SpeedAtDepth) -> tuple[object, ...]:
    low, high = row.rate.interval.low, row.rate.interval.high
    return (
        row.depth,
        f"{row.step:.3f}",
        f"{row.rate.value:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{row.gain.value:.2f} x",
        length(row.break_even),
    )


def fastest(name: str, speed: SpeedUnderLoad) -> str:
    """Which K pays under a load, and what a smaller drafter would bring, in sentences."""
    best, at = speed.at(speed.best), speed.cost.concurrency
    source = f" (an estimate, the least that drafting can take: {speed.cost.source})"
    told = source if speed.cost.evidence == "estimate" else ""
    near = f"; K = {join_words([str(k) for k in speed.near], 'and')} within {percent(NEAR)} of it" if speed.near else ""
    pays = (
        f"K = {speed.best} is the fastest: {best.rate.value:.1f} tokens/s, {best.gain.value:.2f} x as without a "
        f"drafter{told}{near}"
        if speed.pays
        else f"no K pays: the best, {speed.best}, gives {best.gain.value:.2f} x the speed without a drafter{told}, "
        f"and would break even with an accept length of {length(best.break_even)}"
    )
    smaller = speed.smaller
    return (
        f"{name}, {at} at a time: {pays}. If drafting took half the time: K = {smaller.depth}, "
        f"{smaller.rate.value:.1f} tokens/s ({change(smaller.rate.value / best.rate.value)}); such a drafter may lose "
        f"{share(speed.spare)} of its accept length before it is slower with K = {speed.best}."
    )


def prompts(drafter: DrafterSummary) -> Table:
    """The prompts at both ends."""

    def rows() -> Iterator[Sequence[object]]:
        for end, some in (("worst", drafter.worst), ("best", drafter.best)):
            for row in some:
                yield row.id, end, called(row.category), length(row.length), f"{row.steps:.0f}"

    return table(
        "Prompts at both ends",
        f"Of those with {LEAST_STEPS} steps or more.",
        ("prompt", "", "category", _figure("AL"), _figure("steps")),
        rows(),
    )


def settings(report: AcceptanceReport) -> Table:
    """What all drafters share."""
    about = report.about

    def rows() -> Iterator[Sequence[object]]:
        yield "target", about.target
        yield "prompts", about.prompts
        yield "prompts, sha256", about.prompts_sha256
        yield "trace", about.trace or NONE
        yield "drafted tokens per step", about.depth
        yield from about.settings.items()
        yield "draftconv", about.version

    return table("Shared by all", "", ("", ""), rows())


def sentences(report: AcceptanceReport, drafter: DrafterSummary) -> Iterator[str]:
    """What is said of a drafter in words: the gate, its map, what was multiplied."""
    if drafter.reasons:
        yield f"{drafter.arm}: {'; '.join(drafter.reasons)}."
    if (line := coverage(drafter)) is not None:
        yield line
    if (told := report.arm(drafter.arm).arithmetic) is not None:
        yield arithmetic(drafter.arm, told)
    for speed in drafter.speeds:
        yield fastest(drafter.arm, speed)


def blocks(report: AcceptanceReport, drafter: DrafterSummary) -> Iterator[Block]:
    """What a terminal shows of one drafter; of several, each table under its name."""
    for block in (by_depth(report, drafter), by_text(drafter), *speeds(drafter)):
        if block.rows:
            yield _under(report, drafter, block)
    yield from sentences(report, drafter)


def speeds(drafter: DrafterSummary) -> tuple[Table, ...]:
    """Every K of a single load, the best K of several."""
    match drafter.speeds:
        case (speed,):
            return (speed_by_depth(speed),)
        case _:
            return (by_load(drafter),)


def details(report: AcceptanceReport, drafter: DrafterSummary, decode: Decode | None) -> Iterator[Table]:
    """What lies behind it."""
    tables = [prompts(drafter)] + ([costly(drafter.coverage, decode)] if drafter.coverage else [])
    if len(drafter.speeds) > 1:
        tables += map(speed_by_depth, drafter.speeds)
    yield from (_under(report, drafter, block) for block in tables if block.rows)


def _under(report: AcceptanceReport, drafter: DrafterSummary, block: Table) -> Table:
    if len(report.drafters) == 1:
        return block
    return table(f"{block.title}: {drafter.arm}", block.note, block.columns, block.rows)
