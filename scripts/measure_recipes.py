"""Measure what every shipped recipe does to the accept length of every trained fixture.

    scripts/measure_recipes                          print the tables
    scripts/measure_recipes --write                  put them into docs/recipes.md
    scripts/measure_recipes --write --only RECIPE    put the rows of a recipe there, and leave all others

Each target runs once over excerpts of the running Python's standard library, 64 tokens each. Every
fixture is then quantized by every recipe, to files, and all of them are replayed in one pass over that
trace. Static activation scales are measured on another trace, of other excerpts, and GPTQ rounds on it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from draftconv.api.parity import parity
from draftconv.api.quantize import QuantizeOptions, quantize
from draftconv.api.trace import TraceOptions, trace
from draftconv.drafter.shipped_files import recipes as shipped_directory
from draftconv.quantization.recipes import find_recipe, recipe_names
from draftconv.report import Report
from draftconv.traces.trace import INDEX
from tests.keywords import keywords

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests/data"
PAGE = ROOT / "docs/recipes.md"
PART = re.compile(r"(<!-- measured: accept-lengths -->\n).*?(<!-- end: accept-lengths -->)", re.DOTALL)

SERVED: Mapping[str, str] = {"w4a16-awq": "trtllm:b200", "w4a8-awq": "trtllm:b200"}
"""Recipes whose format lists modules by the names of one engine; the others are written for no engine."""

WEIGHTS_ONLY = ("nvfp4",)
"""Recipes whose activations replay does not compute: measured without them, simulated and not from a file."""

MARGIN = 0.02
TOKENS = 64

MODULES = (
    "ast", "calendar", "codecs", "configparser", "contextlib", "fractions", "ftplib", "gzip", "heapq", "imaplib",
    "pickle", "platform", "plistlib", "random", "smtplib", "socket", "tempfile", "tokenize", "traceback", "uuid",
)  # fmt: skip
"""Modules of the standard library whose sources neither the fixtures nor their targets were trained on."""

HELD_OUT, CALIBRATING = 16, 2
"""Excerpts of each module that accept lengths are measured on, and that activation scales are."""

EXCERPT = 200
"""Characters of a prompt."""


def excerpts() -> tuple[list[str], list[str]]:
    """The two kinds of prompts: evenly spread over each module, each a stretch of its own."""
    held_out, calibrating = [], []
    library = Path(sysconfig.get_paths()["stdlib"])
    for module in MODULES:
        text = (library / f"{module}.py").read_text(encoding="utf-8")
        stride = len(text) // (HELD_OUT + CALIBRATING)
        stretches = [text[at : at + EXCERPT] for at in range(0, stride * (HELD_OUT + CALIBRATING), stride)]
        held_out += stretches[CALIBRATING:]
        calibrating += stretches[:CALIBRATING]
    return held_out, calibrating


def made_traces(target: str, drafters: Sequence[Path], work: Path) -> tuple[Path, Path]:
    """The held-out trace of a target, and the one to calibrate on."""
    options = TraceOptions(drafters=tuple(drafters), dtype="float32", batch=32, max_tokens=TOKENS, ignore_eos=True)
    places = []
    for name, texts in zip(("held-out", "calibration"), excerpts(), strict=True):
        prompts, place = work / f"{name}.json", work / f"{target}-{name}"
        prompts.write_text(json.dumps(texts), encoding="utf-8")
        trace(DATA / "targets" / target, prompts, place, **keywords(options))
        places.append(place)
    return places[0], places[1]


def traces_of(target: str, drafters: Sequence[Path], work: Path) -> tuple[Path, Path]:
    """The same, taken where both are there whole."""
    places = work / f"{target}-held-out", work / f"{target}-calibration"
    return places if all((place / INDEX).exists() for place in places) else made_traces(target, drafters, work)


def without_activations(recipe: str, work: Path) -> str:
    """The path of a recipe that leaves activations alone and is otherwise the same."""
    text = yaml.safe_load(shipped_directory().joinpath(f"{recipe}.yaml").read_text(encoding="utf-8"))
    del text["activations"]
    path = work / f"{recipe}-weights.yaml"
    path.write_text(yaml.safe_dump(text), encoding="utf-8")
    return str(path)


def measured(
    drafter: Path, work: Path, held_out: Path, calibration: Path, recipes: Sequence[str]
) -> tuple[Report, list[str]]:
    """One fixture under some recipes: the report of one pass, and its rows' names in order."""
    target = str(DATA / "targets" / drafter.name.partition("-")[0])
    written = [name for name in recipes if name not in WEIGHTS_ONLY]
    simulated = [name for name in WEIGHTS_ONLY if name in recipes]
    (work / drafter.name).mkdir()
    for recipe in written:
        engines = (SERVED[recipe],) if recipe in SERVED else ()
        scheme = find_recipe(recipe).scheme
        static = scheme.inputs is not None and not scheme.inputs.dynamic
        calibrate = calibration if static or scheme.rounding == "gptq" else None
        options = QuantizeOptions(recipe=recipe, engines=engines, calibrate=calibrate, target=target)
        quantize(drafter, work / drafter.name / recipe, **keywords(options))
    report = parity(
        drafter,
        [work / drafter.name / recipe for recipe in written],
        trace=held_out,
        margin=MARGIN,
        as_engine="file",
        fake_quant=tuple(without_activations(name, work) for name in simulated),
    )
    return report, [f"`{name}`" for name in written] + [f"`{name}`, weights only" for name in simulated]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def rows(report: Report, names: Sequence[str]) -> Iterator[Sequence[str]]:
    for number, (name, comparison) in enumerate(zip(names, report.comparisons, strict=True)):
        estimate = comparison.verdict.estimate
        if estimate is None:
            raise SystemExit(f"{name} gave no interval: {comparison.verdict.outcome}")
        if number == 0:
            yield "BF16", f"{estimate.reference.value:.3f}", "", "", ""
        yield (
            name,
            f"{estimate.candidate.value:.3f}",
            f"{estimate.ratio:.3f}",
            f"{estimate.interval.low:.3f} to {estimate.interval.high:.3f}",
            comparison.verdict.outcome,
        )


def merged(found: Sequence[Sequence[str]], drafter: str, page: str) -> list[Sequence[str]]:
    """Rows in their places among those that a fixture's table on the page has already."""
    section = page.partition(f"\n`{drafter}`\n")[2].partition("\n`")[0]
    there = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line[:3] in ("| `", "| B")
    ]
    new = {row[0]: row for row in found if row[0] != "BF16"}
    others = [row for row in there if row[0] not in (*new, "BF16")]
    plain = sorted([row for row in (*others, *new.values()) if "," not in row[0]], key=lambda row: row[0].strip("`"))
    return [found[0], *plain, *(row for row in (*others, *new.values()) if "," in row[0])]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/measure_recipes",
        description="Measure the accept length of every trained fixture under every shipped recipe; some minutes.",
    )
    parser.add_argument("--write", action="store_true", help="put the tables into docs/recipes.md")
    parser.add_argument("--only", action="append", choices=recipe_names(), help="measure this recipe alone")
    parser.add_argument("--work", type=Path, help="a directory for traces, which are taken if they are there")
    options = parser.parse_args(argv)
    page = PAGE.read_text(encoding="utf-8")
    targets: dict[str, list[Path]] = {}
    for drafter in sorted((DATA / "drafters").iterdir()):
        targets.setdefault(drafter.name.partition("-")[0], []).append(drafter)
    parts = []
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        for target, drafters in targets.items():
            held_out, calibration = traces_of(target, drafters, options.work or work)
            for drafter in drafters:
                print(f"measure_recipes: {drafter.name}", file=sys.stderr, flush=True)
                head = (
                    "recipe",
                    "accept length",
                    "ratio",
                    "95 % interval",
                    f"loss below {MARGIN:.0%}".replace("%", " %"),
                )
                chosen = options.only or recipe_names()
                found = list(rows(*measured(drafter, work, held_out, calibration, chosen)))
                results = table(head, merged(found, drafter.name, page) if options.only else found)
                parts.append(f"`{drafter.name}`\n\n{results}")
    text = "\n".join(parts)
    print(text, end="")
    if options.write:
        if not PART.search(page):
            raise SystemExit(f"{PAGE.relative_to(ROOT)} has no place for measured accept lengths")
        PAGE.write_text(PART.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", page), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
