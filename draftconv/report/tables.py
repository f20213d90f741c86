"""The tables of a report: one source for report.md, report.html, the terminal and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftconv.display import Column, Table, table
from draftconv.reference.accept_length import Counts
from draftconv.report.formatting import (
    Decode,
    change,
    change_interval,
    gate_label,
    joined,
    length,
    named_samples,
    points,
    points_interval,
    share,
    token,
)
from draftconv.report.model import ArmInfo, Comparison, Report, Texts
from draftconv.report.statistics import Estimate, called
from draftconv.report.verdict import CATEGORY_FLOOR, CONTROL_MARGIN, category_floor, percent

NONE = "—"
"""A cell with nothing to say."""
NARROW = 16
"""Characters of a name that a column of figures has room for."""
ALL = "all"
"""The row of all requests together."""


def _figure(title: str) -> Column:
    return Column(title, figures=True)


def _arms(comparison: Comparison) -> tuple[str, str]:
    """What columns of the two drafters are called: by name, or by part where names are wider than their figures."""
    names = comparison.reference, comparison.candidate
    return names if max(map(len, names)) <= NARROW else ("reference", "candidate")


def headline(report: Report) -> Table:
    """Every drafter of the run on a line."""

    def rows() -> Iterator[Sequence[object]]:
        for name in dict.fromkeys(comparison.reference for comparison in report.comparisons):
            first = next(c.verdict.estimate for c in report.comparisons if c.reference == name)
            yield name, length(first.reference.value) if first else NONE, NONE, NONE, NONE, "reference"
        for comparison in report.comparisons:
            verdict = comparison.verdict
            if (estimate := verdict.estimate) is None:
                yield comparison.candidate, NONE, NONE, NONE, gate_label(comparison), verdict.outcome
                continue
            yield (
                comparison.candidate,
                length(estimate.candidate.value),
                change(estimate.ratio),
                change_interval(estimate.interval),
                gate_label(comparison),
                (verdict.outcome, verdict.shift) if verdict.shift and verdict.passed else verdict.outcome,
            )

    return table(
        "Accept length",
        "AL is the mean number of tokens that one step of the target yields: 1 + accepted draft tokens / verify "
        "steps, over all requests.",
        ("drafter", _figure("AL"), _figure("change"), _figure("95 % interval"), "asked for", "verdict"),
        rows(),
    )


def categories(comparison: Comparison) -> Table:
    """Accept length per category, as model cards print it."""

    def row(name: str, estimate: Estimate, note: str) -> Sequence[object]:
        return (
            name,
            estimate.clusters,
            length(estimate.reference.value),
            length(estimate.candidate.value),
            change(estimate.ratio),
            change_interval(estimate.interval),
            note,
        )

    def rows() -> Iterator[Sequence[object]]:
        verdict = comparison.verdict
        for name, estimate in verdict.categories.items():
            yield row(called(name), estimate, "thin" if name in verdict.thin else "")
        if verdict.estimate:
            yield row(ALL, verdict.estimate, "")

    reference, candidate = _arms(comparison)
    margin = comparison.verdict.gate.margin
    floor = CATEGORY_FLOOR if margin is None else category_floor(margin)
    return table(
        "By category",
        f"A thin category has too few prompts to say that it keeps {percent(floor)} of its accept length; it decides "
        "nothing.",
        (
            "benchmark",
            _figure("prompts"),
            _figure(reference),
            _figure(candidate),
            _figure("change"),
            _figure("95 % interval"),
            "",
        ),
        rows(),
    )


def contexts(comparison: Comparison) -> Table:
    """Accept length by the tokens that are known when a step starts."""
    reference, candidate = _arms(comparison)
    return table(
        "By context",
        "Steps by the tokens that are known when they start, of requests where both drafters have such a step; it "
        "decides nothing.",
        (
            _figure("tokens of context"),
            _figure("prompts"),
            _figure(reference),
            _figure(candidate),
            _figure("change"),
            _figure("95 % interval"),
        ),
        (
            (
                context,
                estimate.clusters,
                length(estimate.reference.value),
                length(estimate.candidate.value),
                change(estimate.ratio),
                change_interval(estimate.interval),
            )
            for context, estimate in comparison.contexts.items()
        ),
    )


def depths(comparison: Comparison) -> Table:
    """Acceptance of each drafted token."""

    def rows() -> Iterator[Sequence[object]]:
        for depth in comparison.depths:
            reached, then = depth.reached, depth.conditional
            yield (
                depth.depth,
                share(reached.reference.value),
                share(reached.candidate.value),
                points(reached.difference.value),
                points_interval(reached.difference.interval),
                share(then.reference.value) if then else NONE,
                share(then.candidate.value) if then else NONE,
            )

    reference, candidate = _arms(comparison)
    return table(
        "By depth",
        "Reached: the share of steps that accepted at least so many drafted tokens. Given the one before: of the "
        "steps that accepted all earlier ones, how many accepted this one too. Differences are in percentage points.",
        (
            _figure("drafted token"),
            _figure(reference),
            _figure(candidate),
            _figure("difference"),
            _figure("95 % interval"),
            _figure(f"{reference}, given the one before"),
            _figure(f"{candidate}, given the one before"),
        ),
        rows(),
    )


def missed(comparison: Comparison, decode: Decode | None) -> Table:
    """The target's tokens that cost the candidate most."""
    losses = comparison.losses
    return table(
        "Tokens that cost most",
        "What the target wrote where the reference had it right and the candidate had not.",
        ("the target wrote", _figure("id"), _figure("places"), _figure("tokens lost")),
        ((token(decode, m.token), m.token, m.places, m.lost) for m in (losses.tokens if losses else ())),
    )


def diagnostics(comparison: Comparison) -> Table:
    """First drafted tokens at every position, and how far the distributions are apart."""

    def rows() -> Iterator[Sequence[object]]:
        figures = comparison.diagnostics
        if figures.agreement is not None:
            yield "both draft the same first token", share(figures.agreement), ""
        if rate := figures.discordance:
            for what, measured in (
                ("only the reference is right", rate.lost),
                ("only the candidate is right", rate.gained),
            ):
                yield what, share(measured.value), f"{share(measured.interval.low)} to {share(measured.interval.high)}"
            yield "net loss", f"{points(rate.net.value)} points", points_interval(rate.net.interval)
        if kl := figures.divergence:
            for what, value in (
                ("KL of the first draft, mean", kl.mean),
                ("KL, median", kl.median),
                ("KL, 90th percentile", kl.p90),
                ("KL, 99th percentile", kl.p99),
                ("KL, largest", kl.largest),
            ):
                yield what, f"{value:.4g} nats", ""

    return table(
        "At every position",
        "Over all positions of the text, not only those where a step starts. These figures help to find a loss; "
        "they decide nothing, because steps start where earlier drafts failed.",
        ("what", _figure("figure"), _figure("95 % interval")),
        rows(),
    )


def every_position(comparison: Comparison) -> Table:
    """Rates by depth over every position."""
    reference, candidate = _arms(comparison)
    return table(
        "Acceptance from every position",
        "As by depth, but from every position of the text.",
        (
            _figure("drafted token"),
            _figure(reference),
            _figure(candidate),
            _figure("difference"),
        ),
        (
            (row.depth, share(row.reference), share(row.candidate), points(row.candidate - row.reference))
            for row in comparison.diagnostics.every_position
        ),
    )


def attribution(comparison: Comparison) -> Table:
    """What each quantized tensor costs."""
    return table(
        "Cost of each tensor",
        "The reference with only this tensor replaced by the candidate's.",
        ("tensor", _figure("AL"), _figure("change")),
        ((row.tensor, length(row.accept_length), change(1 + row.change)) for row in comparison.diagnostics.attribution),
    )


def controls(report: Report) -> Table:
    """Drafters broken on purpose, and which gate notices."""

    def rows() -> Iterator[Sequence[object]]:
        if report.controls:
            whole = Counts.pooled(line.counts for line in report.records if line.arm == report.arms[0].name)
            yield NONE, "nothing", length(whole.accept_length), NONE, NONE, report.arms[0].name
        for control in report.controls:
            yield (
                control.name,
                control.fault,
                NONE if control.accept_length is None else length(control.accept_length),
                {True: "caught", False: "MISSED", None: "not applicable"}[control.caught],
                control.outcome or NONE,
                control.note,
            )

    return table(
        "Negative controls",
        f"The reference, broken on purpose. The exact gate must catch each of them; one that allows a loss of "
        f"{percent(CONTROL_MARGIN)} may let a small fault pass.",
        ("control", "what was done", _figure("AL"), "exact gate", f"{percent(CONTROL_MARGIN)} gate", ""),
        rows(),
    )


ALONE = "no drafter"
"""The target by itself, in the tables of speed and accuracy."""


def speed(report: Report) -> Table:
    """How fast the servers were, as published cards print it."""
    alone = {row.concurrency: row for row in report.speed if row.drafter is None}

    def rows() -> Iterator[Sequence[object]]:
        for row in report.speed:
            plain = alone.get(row.concurrency)
            gain = f"{plain.tpot_ms / row.tpot_ms:.2f} x" if plain and plain is not row and row.tpot_ms else NONE
            yield (
                row.concurrency,
                row.drafter or ALONE,
                f"{row.tpot_ms:.2f}",
                f"{row.ttft_ms:.1f}",
                f"{row.tokens_per_second:.1f}",
                gain,
            )

    return table(
        "Speed",
        "Medians of the engine's own load generator. Prompts are random token ids, as in published tables; what "
        "follows them often repeats itself and is accepted more readily than real text. Nothing here decides.",
        (
            _figure("requests at a time"),
            "drafter",
            _figure("TPOT, ms"),
            _figure("TTFT, ms"),
            _figure("output tokens/s"),
            _figure("TPOT gain"),
        ),
        rows(),
    )


def accuracy(report: Report) -> Table:
    """Whether answers are as right with a drafter as without."""
    return table(
        "Accuracy",
        "By lm_eval. With greedy text a drafter changes nothing but ties, so differences beyond the standard error "
        "are a fault of the engine.",
        ("task", "drafter", "answer read by", _figure("right"), _figure("standard error"), _figure("questions")),
        (
            (
                f"{row.task}, {row.shots} examples",
                row.drafter or ALONE,
                row.filter,
                share(row.value),
                share(row.error),
                row.questions,
            )
            for row in report.accuracy
        ),
    )


def arms(report: Report) -> Table:
    """What each drafter is."""
    again = {comparison.again for comparison in report.comparisons}
    return drafters([arm for arm in report.arms if arm.name not in again])


def drafters(arms: Sequence[ArmInfo]) -> Table:
    """A column of facts for each of some drafters."""
    names = dict.fromkeys(name for arm in arms for name in arm.facts)

    def rows() -> Iterator[Sequence[object]]:
        yield "source", *(arm.source for arm in arms)
        yield "layout", *(arm.layout for arm in arms)
        yield "quantization", *(arm.quantization for arm in arms)
        yield "content", *(arm.content for arm in arms)
        for name in names:
            yield name, *(arm.facts.get(name, NONE) for arm in arms)

    return table("Drafters", "", ("", *(arm.name for arm in arms)), rows())


def settings(report: Report) -> Table:
    """What all drafters share."""
    about = report.about

    def rows() -> Iterator[Sequence[object]]:
        yield "method", HOW[about.how]
        yield "target", about.target
        yield "prompts", about.prompts
        yield "prompts, sha256", about.prompts_sha256
        if about.trace is not None:
            yield "trace", about.trace
        yield from ((name, joined(sample)) for name, sample in named_samples(about))
        yield "drafted tokens per step", about.depth
        yield from about.settings.items()
        yield "draftconv", about.version

    return table("Shared by all", "", ("", ""), rows())


def sample(report: Report, comparison: Comparison) -> Table:
    """How much was looked at."""

    def rows() -> Iterator[Sequence[object]]:
        pairs = report.pairs(comparison)
        verdict = comparison.verdict
        yield "requests", len(pairs)
        yield "prompts", len({pair.cluster for pair in pairs})
        yield "verify steps of the reference", sum(pair.reference.steps for pair in pairs)
        yield "verify steps of the candidate", sum(pair.candidate.steps for pair in pairs)
        figures = comparison.diagnostics
        yield "identical texts", f"{report.identical(comparison)} of {len(pairs)}"
        if figures.texts and figures.texts.splits:
            yield "first difference of the others", splits(figures.texts)
        yield "failed requests", comparison.errors
        if verdict.aa:
            yield "reference against itself", f"{change(verdict.aa.ratio)} ({change_interval(verdict.aa.interval)})"
        elif report.about.how == "replay":
            yield "reference against itself", "not run: its counts are a baseline's"
        if figures.again:
            yield (
                "identical texts of the reference and itself",
                f"{figures.again.identical} of {figures.again.requests}",
            )
            if figures.again.splits:
                yield "first difference of the others", splits(figures.again)
        if comparison.extended:
            yield "extended", "once; a second extension is refused"

    return table("Sample", "", ("", _figure("")), rows())


def splits(texts: Texts) -> str:
    """Where texts part, in tokens."""
    median = texts.splits[(len(texts.splits) - 1) // 2]
    return f"token {texts.splits[0]} at the earliest, {median} in the median"


HOW = {
    "replay": "replay: every drafter reads the same stored text and states of the target",
    "live": "live: an engine serves the target with each drafter in turn",
}
