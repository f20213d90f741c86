"""A prediction and an observation, held against each other: the row of one checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from draftconv.api.inspect import inspect
from draftconv.checkpoint import open_checkpoint
from draftconv.engines import ENGINES, LoadVerdict, parse_engine
from truth.cases import Case
from truth.drafts import read, target_of, target_path
from truth.producers import as_trained, spelled, unlike
from truth.store import Ask
from truth.table import Part, Row
from truth.trained import Truth


@dataclass(frozen=True, slots=True)
class Loader:
    """How an engine's loader is judged.

    Attributes:
        spec: the engine that draftconv is asked about.
        observe: asks the engine itself about a directory, the name of its base and what is right: `observed` as
            `predicted` words it, and `detail`. With `run=True` where only a whole engine shows it.
        aspects: rule that speaks of a mis-read drafter → the aspect in which the built model differs.
        observing: files that decide an observation beside the engine.
        says: what must stand in a refusal where a case does not say it, as a regular expression.
        visible: a prediction without what hides behind others.
    """

    spec: str
    observe: Callable[..., dict[str, Any]]
    aspects: Mapping[str, str]
    observing: tuple[Path, ...]
    says: Callable[[LoadVerdict], str] = lambda _: ""
    visible: Callable[[str], str] = lambda prediction: prediction

    def words(self, verdict: LoadVerdict) -> str:
        """The prediction in the words of an observation."""
        return self.visible(predicted(verdict, self.aspects))


def predicted(verdict: LoadVerdict, aspects: Mapping[str, str]) -> str:
    """The verdict and, of a mis-read drafter, in which aspects.

    Args:
        aspects: rule that speaks of a mis-read drafter → the aspect in which the built model differs.
    """
    if verdict.status != "mis-read":
        return verdict.status
    named = {aspects[line.rule.code] for line in verdict.lines if line.rule.effect == "mis-read"}
    return f"mis-read: {', '.join(sorted(named))}"


def judged(
    name: str,
    verdict: LoadVerdict,
    mine: str,
    answer: Mapping[str, Any],
    says: str = "",
    rules: Iterable[str] = (),
    part: Part = "loader",
) -> Row:
    """One row of the loader.

    Args:
        mine: the prediction, as `predicted` words it. `answer`: `observed` in the same words, and `detail`.
        says: what must stand in the engine's refusal, as a regular expression.
        rules: codes that must be among the verdict's reasons. `part`: of the table.
    """
    theirs, detail = str(answer["observed"]), str(answer["detail"])
    agrees = mine == theirs
    if theirs == "refused" and says and not re.search(says, detail):
        agrees, detail = False, f"refused for another reason: {detail}"
    if missed := set(rules) - {line.rule.code for line in verdict.lines}:
        agrees, detail = False, f"{', '.join(sorted(missed))} did not speak; {detail}"
    named = tuple(dict.fromkeys((*rules, *(line.rule.code for line in verdict.lines if line.rule.effect != "note"))))
    return Row(part, name, mine, theirs, agrees, detail, named)


def judge_case(loader: Loader, case: Case, path: Path, base: Path, ask: Ask, part: Part = "loader") -> Row:
    """One checkpoint that was made from a base: what the base was trained with is what is right."""
    drafter, target = read(base, case.base), target_of(case.base)
    facts, spec = replace(drafter.facts, **case.facts), parse_engine(loader.spec)  # type: ignore[arg-type]
    verdict = ENGINES[spec.name].check(open_checkpoint(path), facts, target, spec, case.known)

    def observe() -> dict[str, Any]:
        look = partial(loader.observe, run=True) if case.run else loader.observe
        return look(path, case.base, Truth.of(drafter, facts, target))

    answer = ask(part, case.name, (path, base, facts, *loader.observing, case.run), observe)
    says = case.says or loader.says(verdict)
    return judged(case.name, verdict, loader.words(verdict), answer, says, case.rules, part)


def judge_producer(loader: Loader, name: str, layout: str, work: Path, ask: Ask) -> Row:
    """A producer's own files straight into an engine; what they say of themselves is what `inspect` reads."""
    path, target = spelled(work, name, layout), target_of(name)
    inspection = inspect(path, engines=[loader.spec], target=str(target_path(name)))
    (verdict,) = inspection.verdicts
    facts = inspection.drafter.facts

    def observe() -> dict[str, Any]:
        return loader.observe(path, name, Truth.of(inspection.drafter, facts, target))

    case = f"{name} as {layout} writes it"
    answer = ask("loader", case, (path, facts, *loader.observing), observe)
    row = judged(case, verdict, loader.words(verdict), answer, loader.says(verdict))
    trained = unlike(facts, as_trained(name))
    return row if not trained else replace(row, agrees=False, detail=f"read as something else: {trained}; {row.detail}")
