"""Measure what every shipped recipe does to the accept length of every trained fixture.

    scripts/measure_recipes                          print the tables
    scripts/measure_recipes --write                  put them into docs/recipes.md
    scripts/measure_recipes --write --only RECIPE    put the rows of a recipe there, and leave all others

Each target runs once over excerpts of the running Python's standard library, 64 tokens each. Every
fixture is then quantized by every recipe, to files, and all of them are replayed in one pass over that
trace. Static activation scales are measured on another trace, of other excerpts, and GPTQ rounds on a longer one, of
other modules.
"""

from __future__ import annotations

import argparse
import hashlib
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

TARGETS = ("llama", "mla")
"""Of the fixtures, each of which is named after its own."""

MARGIN = 0.02
TOKENS = 64

MODULES = (
    "ast", "calendar", "codecs", "configparser", "contextlib", "fractions", "ftplib", "gzip", "heapq", "imaplib",
    "pickle", "platform", "plistlib", "random", "smtplib", "socket", "tempfile", "tokenize", "traceback", "uuid",
)  # fmt: skip
"""Modules of the standard library whose sources neither the fixtures nor their targets were trained on."""

OTHER_MODULES = (
    "_pyio", "base64", "bdb", "compileall", "csv", "dis", "gettext", "locale", "mimetypes", "modulefinder",
    "os", "pdb", "pickletools", "pkgutil", "pprint", "selectors", "socketserver", "ssl", "turtle", "weakref",
)  # fmt: skip
"""More of the same kind: GPTQ rounds on excerpts of them."""

BEGINNING, PER_MODULE = 2, 16
"""Excerpts at the beginning of each of `MODULES`, for static scales, and those behind them, which judge."""

EXCERPT = 200
"""Characters of a prompt."""

CALIBRATING = PER_MODULE * len(OTHER_MODULES)
"""Prompts that GPTQ rounds on."""


def stretches(module: str, count: int) -> list[str]:
    """The beginnings of so many equal parts of a module."""
    text = (Path(sysconfig.get_paths()["stdlib"]) / f"{module}.py").read_text(encoding="utf-8")
    part = len(text) // count
    return [text[at : at + EXCERPT] for at in range(0, part * count, part)]


def held_out() -> list[str]:
    """The prompts that accept lengths are measured on."""
    return [text for module in MODULES for text in stretches(module, BEGINNING + PER_MODULE)[BEGINNING:]]


def beginnings() -> list[str]:
    """The prompts that static scales are measured on."""
    return [text for module in MODULES for text in stretches(module, BEGINNING + PER_MODULE)[:BEGINNING]]


def calibrating(prompts: int = CALIBRATING) -> list[str]:
    """The prompts that GPTQ rounds on: so many, spread over all modules alike."""
    return [text for module in OTHER_MODULES for text in stretches(module, prompts // len(OTHER_MODULES))]


def drafters_of(target: str) -> tuple[Path, ...]:
    """The fixtures that draft for a target."""
    return tuple(sorted((DATA / "drafters").glob(f"{target}-*")))


def trace_of(target: str, prompts: Sequence[str], work: Path) -> Path:
    """The trace of a target on some prompts, for all of its fixtures; taken where it is there whole."""
    text = json.dumps(prompts)
    name = f"{target}-{len(prompts)}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    place = work / name
    if not (place / INDEX).exists():
        work.mkdir(parents=True, exist_ok=True)
        written = work / f"{name}.json"
        written.write_text(text, encoding="utf-8")
        drafters = drafters_of(target)
        options = TraceOptions(drafters=drafters, dtype="float32", batch=32, max_tokens=TOKENS, ignore_eos=True)
        trace(DATA / "targets" / target, written, place, **keywords(options))
    return place


def without_activations(recipe: str, work: Path) -> str:
    """The path of a recipe that leaves activations alone and is otherwise the same."""
    text = yaml.safe_load(shipped_directory().joinpath(f"{recipe}.yaml").read_text(encoding="utf-8"))
    del text["activations"]
    path = work / f"{recipe}-weights.yaml"
    path.write_text(yaml.safe_dump(text), encoding="utf-8")
    return str(path)


def measured(drafter: Path, target: str, work: Path, traces: Path, recipes: Sequence[str]) -> tuple[Report, list[str]]:
    """One fixture under some recipes: the report of one pass, and its rows' names in order."""
    written = [name for name in recipes if name not in WEIGHTS_ONLY]
    simulated = [name for name in WEIGHTS_ONLY if name in recipes]
    (work / drafter.name).mkdir()
    for recipe in written:
        engines = (SERVED[recipe],) if recipe in SERVED else ()
        scheme = find_recipe(recipe).scheme
        static = scheme.inputs is not None and not scheme.inputs.dynamic
        prompts = calibrating() if scheme.rounding == "gptq" else beginnings() if static else []
        options = QuantizeOptions(
            recipe=recipe,
            engines=engines,
            calibrate=trace_of(target, prompts, traces) if prompts else None,
            target=str(DATA / "targets" / target),
        )
        quantize(drafter, work / drafter.name / recipe, **keywords(options))
    report = parity(
        drafter,
        [work / drafter.name / recipe for recipe in written],
        trace=trace_of(target, held_out(), traces),
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
    parts = []
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        for target in TARGETS:
            for drafter in drafters_of(target):
                print(f"measure_recipes: {drafter.name}", file=sys.stderr, flush=True)
                head = (
                    "recipe",
                    "accept length",
                    "ratio",
                    "95 % interval",
                    f"loss below {MARGIN:.0%}".replace("%", " %"),
                )
                chosen = options.only or recipe_names()
                found = list(rows(*measured(drafter, target, work, options.work or work, chosen)))
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
