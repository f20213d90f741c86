"""The house rules that a machine can check: which room may import which, what starts fast, how errors are worded."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import draftconv
from draftconv import errors
from draftconv.engines import ENGINES
from draftconv.layouts import layouts
from draftconv.live.profiles import profile_names
from draftconv.quantization.formats import formats
from draftconv.quantization.recipes import PER_MODULE

ROOT = Path(draftconv.__file__).parent

BASE = {"errors", "limits", "options", "checkpoint", "display", "drafter"}
MAY_IMPORT = {
    "errors": set[str](),
    "limits": {"errors"},
    "options": {"errors"},
    "plugins": {"errors"},
    "checkpoint": {"errors", "limits"},
    "display": {"limits", "checkpoint"},
    "drafter": {"errors", "limits", "checkpoint"},
    "layouts": {*BASE, "plugins"},
    "reference": BASE,
    "quantization": {*BASE, "plugins", "reference"},
    "engines": {*BASE, "plugins", "layouts", "reference", "quantization"},
    "traces": {*BASE, "engines", "reference"},
    "report": {*BASE, "layouts", "reference", "quantization"},
    "conversion": {*BASE, "layouts", "engines", "reference", "quantization", "traces", "replay"},
    "verification": {*BASE, "layouts", "engines", "quantization", "conversion"},
    "attestation": {*BASE, "conversion", "verification"},
    "replay": {*BASE, "layouts", "engines", "reference", "quantization", "traces", "report"},
    "search": {
        *BASE,
        "layouts",
        "engines",
        "reference",
        "quantization",
        "traces",
        "report",
        "replay",
        "live",
        "conversion",
        "verification",
    },
    "live": {*BASE, "layouts", "engines", "reference", "quantization", "traces", "replay", "report"},
}
MAY_IMPORT["api"] = {*MAY_IMPORT}
MAY_IMPORT["cli"] = {*MAY_IMPORT}
UPWARDS = {"layouts/__init__.py": {"engines"}}
"""The one step against the direction: what an engine reads is part of that engine, and found among the layouts."""

ARITHMETIC = {"reference", "quantization", "traces", "replay", "report"}
"""Rooms that may import torch; so may what takes states from an engine, `tracing` of its package."""

LATE = ("numpy", "huggingface_hub", "httpx2", "jinja2", "rich", "yaml", "pydantic", "transformers", "datasets",
        "matplotlib")  # fmt: skip
"""Imported inside functions only, so that --help and inspect start at once."""


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).parts[0].removesuffix(".py"), path


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module="draftconv", names=names, level=0):
                found |= {f"draftconv.{alias.name}" for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module)
    return found


@pytest.mark.parametrize(("room", "path"), [pytest.param(r, p, id=str(p.relative_to(ROOT))) for r, p in modules()])
def test_rooms_import_downwards(room: str, path: Path) -> None:
    if room not in MAY_IMPORT:
        assert room in ("__init__", "__main__")
        return
    rooms = {name.split(".")[1] for name in imported(path) if name.startswith("draftconv.")}
    assert rooms <= MAY_IMPORT[room] | {room} | UPWARDS.get(path.relative_to(ROOT).as_posix(), set())
    if room not in ARITHMETIC and "tracing" not in (*path.parts, path.stem):
        assert not any(name.split(".")[0] == "torch" for name in imported(path))


@pytest.mark.parametrize(
    "code",
    [
        "import draftconv.cli",
        "import draftconv.api.inspect, draftconv.api.convert",
        "import draftconv.quantization.recipes, draftconv.quantization.exclusions, draftconv.quantization.scheme",
    ],
)
def test_nothing_heavy_is_imported_to_start(code: str) -> None:
    listing = f"import sys; {code}; print(*sorted(name.split('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert not {*LATE, "torch"} & set(done.stdout.split())


def test_a_late_import_would_be_noticed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, numpy; print('numpy' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"


# ── names ────────────────────────────────────────────────────────────────────────────


def classes_named_twice(sources: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    """Class names that more than one class has, with the modules of each."""
    homes: dict[str, list[str]] = defaultdict(list)
    for where, source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(where)
    return {name: places for name, places in homes.items() if len(places) > 1}


def test_no_class_name_stands_for_two_things() -> None:
    sources = ((path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for _, path in modules())
    assert classes_named_twice(sources) == {}


def test_a_class_name_that_is_taken_is_noticed() -> None:
    sources = [("a.py", "class Arm: ..."), ("b.py", "def f():\n    class Arm: ...\n"), ("c.py", "class Legs: ...")]
    assert classes_named_twice(iter(sources)) == {"Arm": ["a.py", "b.py"]}


FORMER = re.compile(r"(^|_)(taps?|companions?|fates?|grids?|lineup|sniff\w*)(_|$)", re.IGNORECASE)
"""What docs/glossary.md has other words for."""


def former_words(source: str) -> set[str]:
    """Identifiers that use a word which the glossary has another one for."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
    of_matplotlib = {"grid"} if "matplotlib" in source else set()
    return {name for name in found - of_matplotlib if FORMER.search(name)}


@pytest.mark.parametrize("path", [pytest.param(p, id=str(p.relative_to(ROOT))) for _, p in modules()])
def test_code_uses_the_words_of_the_glossary(path: Path) -> None:
    assert former_words(path.read_text(encoding="utf-8")) == set()
    assert not FORMER.search(path.stem)


def test_the_glossary_is_one_screen_and_linked() -> None:
    docs = ROOT.parent / "docs"
    assert len((docs / "glossary.md").read_text(encoding="utf-8").splitlines()) <= 40
    assert "/docs/glossary.md\n" in (ROOT.parent / "README.md").read_text(encoding="utf-8")


def test_a_former_word_is_noticed() -> None:
    assert former_words("def wide_taps(grid): return grid.fates") == {"wide_taps", "grid", "fates"}


# ── engines ──────────────────────────────────────────────────────────────────────────

TITLES = [re.escape(word) for engine in ENGINES.by_name.values() for word in (engine.name, engine.title)]
ENGINE = re.compile(rf"(?<![a-z])({'|'.join(TITLES)}|tensorrt.llm)", re.IGNORECASE)

OF_TRAINERS = [found for found in layouts().values() if not (found.writer and found.writer.serves)]
MAY_BE_NAMED = {
    *(word for found in OF_TRAINERS for word in (found.id, found.title, found.source)),
    *(word for found in OF_TRAINERS for rule in found.id_rules for word in (rule.producer, rule.source)),
    *(form.source for form in formats().values()),
    PER_MODULE,
    "vLLM, speculators",
}
"""Exports that trainers call after an engine, citations, and what stands in records that were written long ago."""


def engines_named(source: str) -> list[str]:
    """Engines that a module names outside of docstrings, comments and the names of hardware profiles."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    profiles = re.compile("|".join(map(re.escape, profile_names())))
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in prose:
                parts = [text]
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                parts = [name]
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                parts = [getattr(node, "module", "") or "", *(alias.name for alias in names)]
            case _:
                parts = []
        found += [part for part in parts if part not in MAY_BE_NAMED and ENGINE.search(profiles.sub("", part))]
    return found


OUTSIDE = [(room, path) for room, path in modules() if room != "engines"]


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for _, path in OUTSIDE])
def test_nothing_outside_the_engines_names_one(path: Path) -> None:
    assert engines_named(path.read_text(encoding="utf-8")) == []


def test_what_engines_share_names_none_but_the_default() -> None:
    """And whose rule it is that boundaries at the top level stand for, which is in every record."""
    beside = {path.stem: engines_named(path.read_text(encoding="utf-8")) for path in (ROOT / "engines").glob("*.py")}
    assert {name: found for name, found in beside.items() if found} == {
        "registry": ["vllm"],
        "layout": ["vllm", "vLLM 0.33.0: ids are used as they are"],
    }


@pytest.mark.parametrize(
    "source",
    [
        'engine = "vllm"',
        'raise Refused("SGLang stops on it")',
        "from draftconv.engines.trtllm import ENGINE",
        "import vllm",
        "def vllm_ids(): ...",
        "found.sglang",
        'match spec.name:\n    case "TensorRT-LLM": ...',
    ],
)
def test_an_engine_by_name_would_be_noticed(source: str) -> None:
    assert engines_named(source)
    assert not engines_named('"""As vLLM does."""\nprofile = "b200-vllm"  # of SGLang')


# ── texts ──────────────────────────────────────────────────────────────────────────


def without_encoding(source: str) -> list[int]:
    """Lines that read or write a text in whatever encoding the machine is set to."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("read_text", "write_text")
        and "encoding" not in {word.arg for word in node.keywords}
    ]


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for _, path in modules()])
def test_texts_are_utf_8_everywhere(path: Path) -> None:
    assert without_encoding(path.read_text(encoding="utf-8")) == []


def test_the_encoding_of_a_machine_would_be_noticed() -> None:
    assert without_encoding("path.write_text(text)\npath.read_text(encoding='utf-8')\npath.read_text()") == [1, 3]


# ── errors ─────────────────────────────────────────────────────────────────────────

ERRORS = {name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, Exception)}


def spoken(node: ast.expr) -> Iterator[str]:
    """The texts that an expression can be, `{}` in place of what is filled in; nothing for a name."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.BinOp(left=left, right=right):
            yield from (a + b for a in spoken(left) for b in spoken(right))
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*spoken(body), *spoken(orelse))


def messages(source: str) -> Iterator[tuple[str, str]]:
    """(`what`, `why` or `cure`; text) of every error that some source makes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
            given = [("what", argument) for argument in node.args]
            given += [(word.arg, word.value) for word in node.keywords if word.arg in ("why", "cure")]
            yield from ((part, text) for part, value in given for text in spoken(value) if text)


def misworded(source: str) -> list[str]:
    """Texts that end in a period, and a `why` or `cure` that starts like a sentence."""
    return [
        text
        for part, text in messages(source)
        if text.endswith(".") or (part != "what" and text.split(" ", 1)[0].rstrip(",:").istitle())
    ]


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for _, path in modules()])
def test_errors_are_worded_alike(path: Path) -> None:
    assert not misworded(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "call",
    [
        'Refused("it is no drafter.")',
        'Refused(f"{name} is " + "odd.", cure="")',
        'Refused("odd", why="Engines stop on it")',
        'UsageError("odd", cure="Try again" if a else "give up")',
    ],
)
def test_another_wording_would_be_noticed(call: str) -> None:
    assert misworded(f"raise {call}")
    assert not misworded('raise Refused("odd", why="vLLM stops on it", cure="TensorRT-LLM serves it")')
