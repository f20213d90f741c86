"""An inconclusive report and the run that extends it, as one report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from draftconv.errors import UsageError
from draftconv.report.extension import extend, refuse_settled
from draftconv.report.formatting import drafter, joined
from draftconv.report.model import ArmInfo, Comparison, JoinedSample, Report, RunInfo


def refuse_unextendable(earlier: Report, candidates: int) -> None:
    """Refuse what `extended` would refuse, before anything is replayed.

    Raises:
        UsageError: it has another number of candidates than one, or is settled, or was extended.
    """
    if len(earlier.comparisons) != 1 or candidates != 1:
        raise UsageError(
            f"the report has {len(earlier.comparisons)} candidates, this run {candidates}",
            why="an extension is about one candidate",
            cure="name the one candidate of the report",
        )
    refuse_settled(earlier.earlier(earlier.comparisons[0]))


def announce_extension(
    earlier: Report, reference: ArmInfo, candidate: ArmInfo, announce: Callable[[str], None] | None
) -> None:
    """Tell what is extended by which drafters, before anything is measured.

    Raises:
        UsageError: one of the two is another drafter than in the report, whatever its name.
    """
    (comparison,) = earlier.comparisons
    for role, name, now in (
        ("reference", comparison.reference, reference),
        ("candidate", comparison.candidate, candidate),
    ):
        if (was := earlier.arm(name)).content != now.content:
            alike = ", under the same name" if was.name == now.name else ""
            raise UsageError(
                f"the {role} of the report is {drafter(was.name, was.content)}, "
                f"this run's is {drafter(now.name, now.content)}{alike}",
                why="counts of two drafters would be judged as those of one",
                cure="name the drafters of the report, or run parity without --extend",
            )
    if announce:
        announce(f"the report that is extended: {joined(_sample(earlier))}")
        arms = f"reference {drafter(reference.name, reference.content)}"
        announce(f"added to it: {arms}, candidate {drafter(candidate.name, candidate.content)}")


def _sample(report: Report) -> JoinedSample:
    (comparison,), about = report.comparisons, report.about
    reference, candidate = report.arm(comparison.reference), report.arm(comparison.candidate)
    return JoinedSample(
        reference=reference.name,
        reference_content=reference.content,
        candidate=candidate.name,
        candidate_content=candidate.content,
        requests=len(report.pairs(comparison)),
        prompts=about.prompts,
        prompts_sha256=about.prompts_sha256,
        trace=about.trace,
    )


def extended(earlier: Report, new: Report) -> Report:
    """Judge the requests of an earlier, inconclusive report and of a new one together.

    `parity.extension` has the rules. Places and diagnostics are those of the new requests.

    Raises:
        UsageError: the two cannot be one sample.
    """
    refuse_unextendable(earlier, len(new.comparisons))
    (old,), (now,) = earlier.comparisons, new.comparisons
    sample = extend(earlier.earlier(old), new.sample(now))
    _same_settings(earlier.about, new.about)
    names = {old.reference: now.reference, old.candidate: now.candidate}
    if old.again and now.again:
        names[old.again] = now.again
    before = (replace(line, arm=names[line.arm]) for line in earlier.records if line.arm in names)
    records = (*before, *new.records)
    comparison = Comparison.of(
        records,
        now.reference,
        now.candidate,
        now.verdict.gate,
        how=now.verdict.how,
        again=now.again,
        errors=sample.errors,
        extended=True,
        losses=now.losses,
        diagnostics=now.diagnostics,
    )
    return replace(new, about=_join_infos(earlier, new), records=records, comparisons=(comparison,))


def _same_settings(old: RunInfo, new: RunInfo) -> None:
    for name in sorted((old.settings.keys() | new.settings.keys()) - {"requests"}):
        was, now = (about.settings.get(name, "not told") for about in (old, new))
        if was != now:
            raise UsageError(
                f"the report has {name}: {was}; this run has {now}",
                why="an extension adds prompts and changes nothing else",
                cure="repeat the options of the report, and of its trace",
            )


def _join_infos(earlier: Report, added: Report) -> RunInfo:
    old, new = earlier.about, added.about

    def both(first: str | None, second: str | None) -> str:
        return hashlib.sha256(f"{first} {second}".encode()).hexdigest()

    return replace(
        new,
        prompts=f"{old.prompts} + {new.prompts}",
        prompts_sha256=both(old.prompts_sha256, new.prompts_sha256),
        settings={**new.settings, "requests": f"{old.settings['requests']} + {new.settings['requests']}"},
        trace=both(old.trace, new.trace) if old.trace or new.trace else None,
        joined=(_sample(earlier), _sample(added)),
    )
