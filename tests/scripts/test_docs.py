"""`scripts/docs`: what it refuses in a page."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    loader = SourceFileLoader("docs_script", str(ROOT / "scripts/docs"))
    spec = spec_from_loader("docs_script", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("draftconv parity A B --trace T --margin 0.02", []),
        ("draftconv parity A B --traces T", ["draftconv parity --traces"]),
        ("draftconv trace --target T \\\n    --lm-heads", ["draftconv trace --lm-heads"]),
        ("draftconv trace --raw --chat", []),
        ("`draftconv verify OUT`, and `--anything`", []),
        ("draftconv is no command of --its own", []),
    ],
)
def test_options_that_do_not_exist(docs: ModuleType, text: str, found: list[str]) -> None:
    assert list(docs.unknown_options(text)) == found


@pytest.mark.parametrize("name", ["scripts/demo", "action.yml", "docs/ci.md", "docs/parity.md"])
def test_what_is_run_and_copied_has_options_that_exist(docs: ModuleType, name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "draftconv parity" in text
    assert list(docs.unknown_options(text)) == []


def test_every_recipe_was_measured_on_every_fixture(docs: ModuleType) -> None:
    page = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    assert list(docs.unmeasured(page)) == []
    without = "\n".join(line for line in page.splitlines() if not line.startswith("| `mxfp4` | 1."))
    assert list(docs.unmeasured(without)) != []
    assert all(cell.startswith("mxfp4 on ") for cell in docs.unmeasured(without))
    assert "w4a8 on mla-eagle3" in list(docs.unmeasured(page.replace("`mla-eagle3`", "`mla-eagle4`")))
    assert len(list(docs.unmeasured(page.replace(" to 1.", " to 0.")))) > 5
    assert len(list(docs.unmeasured(""))) == 5 * len(docs.recipe_names())


def test_controls_and_semantics_are_those_of_the_code(docs: ModuleType) -> None:
    assert docs.control_table().count("\n") == 2 + len(docs.FAULTS)
    assert "| `sglang` | the target's | the drafter's own, else the target's |" in docs.semantics_table()


def test_workflows_give_the_action_what_it_takes() -> None:
    page = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    inputs = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]
    shown = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])["jobs"]["parity"]["steps"]
    ours = yaml.safe_load((ROOT / ".github/workflows/parity.yml").read_text(encoding="utf-8"))["jobs"]["parity"][
        "steps"
    ]
    others = [yaml.safe_load(block.partition("```")[0]) for block in page.split("```yaml\n")[2:]]
    for steps in (shown, ours, *(block for block in others if isinstance(block, list))):
        (gate,) = (step for step in steps if step.get("name") == "Parity")
        assert gate["uses"] in ("./", "draftconv/draftconv@COMMIT")
        assert {*gate["with"]} <= {*inputs}
        assert {name for name, given in inputs.items() if given.get("required")} <= {*gate["with"]}
