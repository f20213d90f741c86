"""`scripts/mutate`: its rows apply to today's code, and it tells a fault that is noticed from one that is not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import mutate
import pytest
from mutate import Copy, MutateError, main, mutated
from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
PAGE = "# Faults\n\n<!-- measured: mutations -->\n<!-- end: mutations -->\n"

MODULE = "draftconv/sums/adding.py"
FILES: Mapping[str, str] = {
    "draftconv/__init__.py": "",
    "draftconv/sums/__init__.py": "",
    MODULE: "def add(a: int, b: int) -> int:\n    return a + b  # both of them\n",
    "tests/sums/test_adding.py": "from draftconv.sums.adding import add\n\n\n"
    "def test_sums():\n    assert add(2, 3) == 5\n",
    "docs/mutations.md": PAGE,
    "pytest.ini": "[pytest]\nmarkers =\n    slow: as everywhere\n",
}
"""A project of one room."""


def fault(old: str, new: str, breaks: str = "sums are wrong") -> Mutation:
    return Mutation("sums/adding.py", old, new, breaks)


WRONG = fault("a + b", "a - b")
HARMLESS = fault("both of them", "all of them", "nothing at all")
SLOW = fault("return a", "while True: pass\n    return a", "it takes for ever")
UNIMPORTABLE = fault("def add", "from nowhere import it\ndef add", "it cannot be imported")
MALFORMED = fault("def add(", "def add((", "it is no Python")
UNCOLLECTED = fault("def add(", "def plus(", "it has another name")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def everything(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# ── the rows ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mutation", [pytest.param(row, id=row.breaks) for row in MUTATIONS])
def test_a_row_applies_and_is_still_python(mutation: Mutation) -> None:
    source = mutated(mutation, (ROOT / mutation.file).read_text(encoding="utf-8"))
    compile(source, mutation.file, "exec")
    assert mutation.old != mutation.new
    assert all((ROOT / path).exists() for path in mutation.run)


def test_every_room_has_rows_and_its_own_tests_are_asked() -> None:
    assert len(MUTATIONS) >= 60
    rooms = {path.name for path in (ROOT / "draftconv").iterdir() if (path / "__init__.py").exists()}
    assert rooms <= {mutation.room for mutation in MUTATIONS}
    for mutation in MUTATIONS:
        home = f"tests/{mutation.room}" if mutation.room in rooms else "tests/test_"
        assert all(path.startswith(home) for path in mutation.run)


def test_no_row_stands_twice() -> None:
    assert Counter((row.module, row.old, row.new) for row in MUTATIONS).most_common(1)[0][1] == 1
    assert not any(re.search(r"[|\n]", row.breaks) for row in MUTATIONS)  # a cell of a table


# ── what becomes of a fault ────────────────────────────────────────────────────────


def test_what_is_noticed_and_what_survives(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(project)
    assert main([], project, (WRONG, HARMLESS)) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "caught    sums: sums are wrong  [tests/sums/test_adding.py::test_sums]",
        "survived  sums: nothing at all  []",
        "2 faults: 1 caught, 1 survived, 0 invalid",
    ]
    assert main([], project, (WRONG,)) == 0
    assert everything(project) == before


@pytest.mark.parametrize("row", [UNIMPORTABLE, MALFORMED, UNCOLLECTED], ids=lambda row: row.breaks)
def test_what_is_not_a_test_that_fails_is_not_noticed(
    row: Mutation, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], project, (row,)) == 1
    assert "1 faults: 0 caught, 0 survived, 1 invalid" in capsys.readouterr().out


def test_a_time_limit_is_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--limit", "10"], project, (SLOW,)) == 0
    assert "caught    sums: it takes for ever  [the time limit]" in capsys.readouterr().out


def test_a_fault_is_taken_back_before_the_next(project: Path) -> None:
    path = project / MODULE
    source = path.read_text()
    copy = Copy(project, 60)
    for row, outcome in ((WRONG, "caught"), (HARMLESS, "survived"), (WRONG, "caught")):
        assert copy.judge(row).outcome == outcome
        assert path.read_text() == source


def test_another_module_of_the_same_name_is_not_asked(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where an installed draftconv comes before the copy."""
    (project / "sitecustomize.py").write_text(
        f"import sys\nsys.path.insert(0, {str(project.parent / 'installed')!r})\nimport draftconv.sums.adding\n"
    )
    installed = project.parent / "installed" / MODULE
    installed.parent.mkdir(parents=True)
    for path in (installed, installed.parent / "__init__.py", installed.parents[1] / "__init__.py"):
        path.write_text(FILES[MODULE] if path == installed else "")
    assert main([], project, (WRONG,)) == 1
    assert "was imported in its place" in capsys.readouterr().out


# ── what is not asked ──────────────────────────────────────────────────────────────


def test_tests_that_fail_without_a_fault(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = project / "tests/sums/test_adding.py"
    test.write_text(test.read_text().replace("5", "6"))
    assert main([], project, (WRONG,)) == 2
    assert "tests fail without any fault" in capsys.readouterr().err


@pytest.mark.parametrize("old", ["a * b", "a"])
def test_a_row_that_does_not_apply(old: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MutateError, match="times and not once"):
        mutated(fault(old, "b"), FILES[MODULE])
    assert main([], project, (fault(old, "b"),)) == 2
    assert "times and not once" in capsys.readouterr().err


def test_some_of_them(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "WRONG"], project, (WRONG, HARMLESS)) == 0
    assert capsys.readouterr().out == "sums          sums are wrong  (draftconv/sums/adding.py)\n"
    assert main(["--list", "--room", "sums"], project, (WRONG, HARMLESS)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["--only", "something else"], project, (WRONG,)) == 2
    with pytest.raises(SystemExit):
        main(["--room", "cellar"], project, (WRONG,))


# ── the page ───────────────────────────────────────────────────────────────────────


def test_the_result_goes_into_the_page(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "commit", lambda root: f"of {root.name}")
    assert main(["--write"], project, (WRONG, HARMLESS)) == 1
    text = (project / "docs/mutations.md").read_text()
    assert re.search(r"2 faults: 1 caught, 1 survived, 0 invalid; \d{4}-\d\d-\d\d, commit `of project`\.", text)
    assert "| sums | sums are wrong | `sums/adding.py` | `sums/test_adding.py::test_sums` |\n" in text
    assert "| sums | nothing at all | `sums/adding.py` | **survived** |\n" in text
    assert text.startswith(PAGE[: PAGE.index("<!-- end")])
    assert text.endswith("<!-- end: mutations -->\n")


def test_a_part_is_not_written(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--write", "--room", "sums"], project, (WRONG,))
    assert "--write takes the result of all faults" in capsys.readouterr().err
    (project / "docs/mutations.md").write_text("# Faults\n")
    assert main(["--write"], project, (WRONG,)) == 2
    assert "has no place for the result" in capsys.readouterr().err


def test_the_last_result_stands_in_the_page_and_none_survived() -> None:
    found = mutate.PART.search((ROOT / mutate.PAGE).read_text(encoding="utf-8"))
    assert found
    assert re.search(r"^(\d+) faults: \1 caught, 0 survived, 0 invalid; ", found[0], re.MULTILINE)


def test_a_commit_is_told_with_what_was_changed_since(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, "-C", tmp_path, *words], check=True, capture_output=True)

    git("init")
    (tmp_path / "docs").mkdir()
    (tmp_path / mutate.PAGE).write_text(PAGE)
    git("add", ".")
    git("commit", "-m", "one")
    (tmp_path / mutate.PAGE).write_text(f"{PAGE}more")  # what --write itself changes
    assert re.fullmatch("[0-9a-f]{12}", mutate.commit(tmp_path))
    (tmp_path / "new").write_text("")
    assert re.fullmatch("[0-9a-f]{12} with changes", mutate.commit(tmp_path))


# ── interrupted ────────────────────────────────────────────────────────────────────

RUN = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(SCRIPTS)!r}]
from pathlib import Path
from mutate import main
from tests.scripts.test_mutate import SLOW
sys.exit(main([], Path(sys.argv[1]), (SLOW,)))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_the_checkout_as_it_was(number: int, project: Path, tmp_path: Path) -> None:
    before = everything(project)
    spare = tmp_path / "spare"
    spare.mkdir()
    environment = {**os.environ, "TMPDIR": str(spare)}
    with subprocess.Popen(
        [sys.executable, "-c", RUN, project], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        deadline = time.monotonic() + 60
        while not any("while True" in path.read_text() for path in spare.glob(f"*/checkout/{MODULE}")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        program.send_signal(number)
        _, said = program.communicate(timeout=60)
    assert program.returncode == 130
    assert "interrupted after 0 faults" in said
    assert everything(project) == before
    assert list(spare.iterdir()) == []
