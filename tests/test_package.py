"""The Python API as `import draftconv` gives it."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import draftconv
from draftconv.errors import UsageError

ROOT = Path(draftconv.__file__).parent.parent
PAGE = ROOT / "docs" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_every_name_is_there() -> None:
    for name in draftconv.__all__:
        assert callable(getattr(draftconv, name)), name


def test_parity_is_a_plain_function(capsys: pytest.CaptureFixture[str]) -> None:
    help(draftconv.parity)
    assert "candidates" in capsys.readouterr().out
    with pytest.raises(UsageError, match="no candidate"):
        draftconv.parity("a", (), trace="b")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        draftconv.quantise  # noqa: B018


def test_options_are_no_part_of_it() -> None:
    assert not [name for name in dir(draftconv) if name.endswith("Options")]
    assert not hasattr(draftconv, "ConvertOptions")


def test_help_lists_every_function() -> None:
    """In a table at the top, and each with its arguments, though none was used yet."""
    assert {*draftconv.__all__} <= {*dir(draftconv)}
    functions = [name for name in draftconv.__all__ if name != "DraftconvError"]
    listed = re.findall(r"^    ([a-z_]+)  +\S", draftconv.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == functions
    code = "import pydoc, draftconv; print(pydoc.plain(pydoc.render_doc(draftconv)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^    ([a-z_]+)\($", shown.partition("\nFUNCTIONS\n")[2], re.MULTILINE) == functions


def test_looking_costs_nothing() -> None:
    code = (
        "import sys, draftconv; dir(draftconv); print(*(name for name in sys.modules if name.startswith('draftconv.')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


# ── docs/python.md ─────────────────────────────────────────────────────────────────


class Figures(doctest.OutputChecker):
    """Accept lengths of rounded weights differ in their last digits between machines."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        want, got = (re.sub(r"\d\.\d{4}", "#", text) for text in (want, got))
        return super().check_output(want, got, optionflags)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every prompt, with the very results that stand below it."""
    pytest.importorskip("transformers")
    data = ROOT / "tests" / "data"
    shutil.copytree(data / "drafters" / "llama-eagle3.1", tmp_path / "drafter")
    shutil.copytree(data / "targets" / "llama", tmp_path / "target")
    shutil.copy(data / "prompts.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    text = "\n".join(block for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if ">>>" in block)
    example = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    assert len(example.examples) > 10
    told: list[str] = []
    assert doctest.DocTestRunner(Figures()).run(example, out=told.append).failed == 0, "".join(told)
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [
        "junit.xml", "records.jsonl", "report.html", "report.json", "report.md",
    ]  # fmt: skip


def test_what_cannot_run_could_be_called() -> None:
    """An engine is not at hand, the arguments are."""
    blocks = [block for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if ">>>" not in block]
    calls = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    assert [ast.unparse(call.func) for call in calls] == ["draftconv.slim", "draftconv.live_parity"]
    for call in calls:
        signature = inspect.signature(getattr(draftconv, ast.unparse(call.func).partition(".")[2]))
        signature.bind(*call.args, **{str(word.arg): word.value for word in call.keywords})
