"""Measure what recipes cost in accept length, pooled over all trained fixtures: small differences want many texts.

    scripts/recipe-loss                      print the table
    scripts/recipe-loss --write              put it into docs/recipes.md and recipes/losses.json
    scripts/recipe-loss --work DIR [...]     keep traces and counts in DIR, and take those that are there

Prompts, traces and arithmetic are those of `scripts/measure_recipes`: 320 excerpts judge, 320 of other modules
calibrate, and fewer of them where a row says so. Every fixture is simulated by every recipe on the same texts. An
excerpt counts as one cluster with what all fixtures made of it, so the interval is that of other excerpts and not of
other drafters.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from measure_recipes import CALIBRATING, PAGE, ROOT, TARGETS, calibrating, drafters_of, held_out, table, trace_of

from draftconv.api.parity import parity
from draftconv.drafter.shipped_files import recipes as shipped_directory
from draftconv.quantization.fixture_losses import FILE, FixtureLoss, fixture_losses_text
from draftconv.quantization.recipes import find_recipe
from draftconv.report.records import Record, lines, paired, read_lines
from draftconv.report.statistics import Estimate, estimate

LOSSES = ROOT / "recipes" / FILE
PART = re.compile(r"(<!-- measured: pooled -->\n).*?(<!-- end: pooled -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Row:
    """A recipe of the table.

    Attributes:
        recipe: a shipped one. `title`: what it is. `changes`: keys that stand otherwise than in its file.
        prompts: that calibrate.
    """

    recipe: str
    title: str
    changes: Mapping[str, object]
    prompts: int = CALIBRATING

    @property
    def name(self) -> str:
        """A file name, and how a person finds the row."""
        fewer = [] if self.prompts == CALIBRATING else [f"{self.prompts}-prompts"]
        return "-".join((self.recipe, *self.changes, *fewer))


EVERYTHING: Mapping[str, object] = {"exclude": ["embed", "norms", "kv_b", "a_projections"]}

ROWS = (
    Row("w4a16", "INT4 per channel, nearest", {}),
    Row("w4a16-gptq", "INT4 per channel, GPTQ", {}),
    Row("w4a16-gptq", "the same with `sequential: true`", {"sequential": True}),
    Row("w4a16-g128", "INT4 in groups of 128, nearest", {}),
    Row("w4a16-g128-gptq", "INT4 in groups of 128, GPTQ", {}),
    Row("w4a16-g128-gptq", "the same from 160 prompts", {}, prompts=160),
    Row("w4a16-g128-gptq", "from 320 with `sequential: true`", {"sequential": True}),
    Row("fp8", "FP8 per channel", {}),
    Row("fp8-all", "FP8 per channel, head and fc too", {}),
    Row("int8-all", "INT8 per channel, head and fc too", {}),
    Row("w4a16-g128-all", "INT4 in groups of 128, GPTQ; head and fc FP8", {}),
    Row("w4a16-g128-all", "the same with `sequential: true`", {"sequential": True}),
    Row("w4a16-gptq", "head and fc too, everything INT4 by GPTQ", EVERYTHING),
    Row("w4a16-g128-gptq", "the same in groups of 128", EVERYTHING),
    Row("w4a16-g128-gptq", "in groups of 128 with `sequential: true`", {**EVERYTHING, "sequential": True}),
)


def written(row: Row, work: Path) -> Path:
    """The file of a row's recipe."""
    text = yaml.safe_load(shipped_directory().joinpath(f"{row.recipe}.yaml").read_text(encoding="utf-8"))
    path = work / f"{row.name}.yaml"
    path.write_text(yaml.safe_dump(text | dict(row.changes)), encoding="utf-8")
    return path


def counts(drafter: Path, target: str, rows: Sequence[Row], work: Path) -> list[Record]:
    """The counts of one fixture under recipes that so many prompts calibrate alike, and of itself as BF16."""
    recipes = [str(written(row, work)) for row in rows]
    parsed = map(find_recipe, recipes)
    gptq = any(scheme.rounding == "gptq" for one in parsed for scheme in (one.scheme, *one.roles.values()))
    calibration = trace_of(target, calibrating(rows[0].prompts), work) if gptq else None
    judge = trace_of(target, held_out(), work)
    report = parity(drafter, [], trace=judge, margin=0.02, fake_quant=recipes, calibrate=calibration)
    reference, _, *arms = (arm.name for arm in report.arms)
    names = {reference: "BF16"} | dict(zip(arms, (row.name for row in rows), strict=True))
    return [replace(line, arm=names[line.arm]) for line in report.records if line.arm in names]


def measured(drafter: Path, target: str, work: Path) -> list[Record]:
    """The counts of one fixture under every recipe: the reference's arm is called BF16, the others by their rows.

    Rows that were measured before are taken as they are.
    """
    kept = work / f"{drafter.name}.jsonl"
    records = list(read_lines(kept.read_bytes())) if kept.exists() else []
    for prompts in sorted({row.prompts for row in ROWS}, reverse=True):
        there = {line.arm for line in records}
        if todo := [row for row in ROWS if row.prompts == prompts and row.name not in there]:
            records += [line for line in counts(drafter, target, todo, work) if line.arm not in there]
            kept.write_text("\n".join(lines(records)) + "\n", encoding="utf-8")
    return records


def pooled(row: Row, by_drafter: Mapping[str, Sequence[Record]]) -> Estimate:
    """What a recipe keeps of accept length on all fixtures together."""
    every = [replace(line, id=f"{name}: {line.id}") for name, records in by_drafter.items() for line in records]
    return estimate(paired(every, "BF16", row.name))


def rows(by_drafter: Mapping[str, Sequence[Record]]) -> Iterator[Sequence[str]]:
    """What stands in the table."""
    for row in ROWS:
        found = pooled(row, by_drafter)
        half = (found.interval.high - found.interval.low) / 2
        single = [estimate(paired(records, "BF16", row.name)).ratio for records in by_drafter.values()]
        keys = (yaml.safe_dump({key: value}, default_flow_style=None).strip() for key, value in row.changes.items())
        changed = "".join(f", `{key}`" for key in keys)
        yield (
            f"`{row.recipe}`{changed}",
            row.title,
            f"{found.ratio:.4f} ± {half:.4f}",
            f"{min(single):.3f} … {max(single):.3f}",
        )


def losses(by_drafter: Mapping[str, Sequence[Record]]) -> dict[str, FixtureLoss]:
    """The same of recipes as they are shipped, for `recipes --drafter`."""
    found = {row.recipe: pooled(row, by_drafter) for row in ROWS if row.name == row.recipe}
    counted = sum(line.counted for records in by_drafter.values() for line in records if line.arm == "BF16")
    return {
        name: FixtureLoss(part.ratio, part.interval.low, part.interval.high, part.spread, counted / part.clusters)
        for name, part in found.items()
    }


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/recipe-loss",
        description="Measure what recipes cost in accept length, pooled over the trained fixtures; some minutes.",
    )
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/recipes.md and recipes/losses.json"
    )
    parser.add_argument(
        "--work", type=Path, help="a directory for traces and counts, which are taken if they are there"
    )
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        by_drafter = {}
        for target in TARGETS:
            for drafter in drafters_of(target):
                print(f"recipe_loss: {drafter.name}", file=sys.stderr, flush=True)
                by_drafter[drafter.name] = measured(drafter, target, work)
    head = ("recipe", "what", "accept length, of BF16's", "fixtures")
    text = table(head, rows(by_drafter))
    print(text, end="")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        if not PART.search(page):
            raise SystemExit(f"{PAGE.relative_to(ROOT)} has no place for pooled losses")
        PAGE.write_text(PART.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", page), encoding="utf-8")
        LOSSES.write_text(fixture_losses_text(losses(by_drafter)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
