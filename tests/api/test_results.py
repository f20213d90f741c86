"""What every function returns, at a prompt and in a notebook, and that `.passed` is what the command ends with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import draftconv
from draftconv.api.inspect import MISDECLARED
from draftconv.api.quantize import QuantizeOptions, prepare
from draftconv.cli import cli
from draftconv.display import LONGEST, Displayed
from draftconv.drafter.problems import Problem
from draftconv.engines import ENGINES
from draftconv.traces.trace import open_trace
from tests import tiny
from tests.api.test_readings import alike as alike
from tests.test_display import Parsed
from tests.traces.recorded import DATA, Recorded

STAR, TARGET = DATA / "drafters/llama-eagle3.1", DATA / "targets/llama"
PLAIN = DATA / "drafters/llama-eagle3"


def command(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], prog_name="draftconv")


def texts(found: Displayed) -> list[tuple[str, str]]:
    """What a notebook shows, element by element."""
    return Parsed(found._repr_html_()).texts[1:]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    draftconv.convert(STAR, tmp_path / "out", to="vllm", target=str(TARGET))
    return tmp_path / "out"


# ── lines and notebooks ────────────────────────────────────────────────────────────


def test_an_inspection() -> None:
    found = draftconv.inspect(STAR, target=str(TARGET), engines=("vllm", "sglang"))
    assert repr(found) == "Inspection('llama-eagle3.1', EAGLE-3.1, GQA, 3.74 MB, vllm: loads, sglang: loads)"
    told = texts(found)
    loads = ", ".join(str(verdict.spec) for verdict in found.verdicts)
    assert [text.split(":")[0] for _, text in told[:2]] == ["llama-eagle3.1", "Verdict"]
    assert told[1:4] == [("p", f"Verdict: loads on {loads}."), ("caption", "llama-eagle3.1"), ("td", "layout")]
    assert ("p", "No problems found.") not in told  # a note for whoever trains it further with an older TorchSpec
    assert "No problems found." in [text for _, text in texts(draftconv.inspect(PLAIN, target=str(TARGET)))]
    assert [text for tag, text in told if tag == "th"][-3:] == ["engine", "verdict", "rule broken"]


def test_an_inspection_with_problems(tmp_path: Path) -> None:
    spelled = tiny.spell("reduced", "torchspec-native")
    spelled.put("d2t", tiny.integers([1000] * len(tiny.ASCENDING)))
    found = draftconv.inspect(spelled.write(tmp_path / "broken"), engines="vllm")
    assert ", 1 error, " in repr(found)
    assert ("td", "d2t-range") in texts(found)
    line = found.verdicts[0].lines[0]
    cited = f"{line.rule.says}: {line.detail}\n{line.rule.code}; {line.rule.source}; {line.rule.evidence}"
    assert ("td", cited) in texts(found)
    assert not found.passed


def test_a_conversion(tmp_path: Path) -> None:
    found = draftconv.convert(STAR, tmp_path / "out", to="vllm", target=str(TARGET))
    assert repr(found) == "Conversion('llama-eagle3.1' for vLLM, 17 tensors, 3.74 MB, 2 changes, vllm: loads)"
    told = texts(found)
    keys = ", ".join(change.what.removeprefix("config.json: ") for change in found.changes)
    assert told[1] == ("p", f"Config keys left out, kept in draftconv.json: {keys}.")
    assert told[0] == ("p", f"17 tensors, 3.74 MB for vLLM ({found.verdicts[0].spec} loads)")


def test_a_quantization(tmp_path: Path) -> None:
    found = draftconv.quantize(STAR, tmp_path / "out", recipe="w4a16", engines="vllm:b200", target=str(TARGET))
    assert repr(found).startswith("Quantization('llama-eagle3.1', w4a16 as compressed-pack, 2.81 MB (75 %), vllm@")
    assert len(repr(found)) <= LONGEST
    told = texts(found)
    assert [text for tag, text in told if tag == "caption"] == ["Recipe w4a16", "Quantized weights"]
    assert ("td", "layers.0.mlp.up_proj") in told
    assert told[0] == ("p", "2.81 MB, 75 % of 3.74 MB")


def test_a_quantization_that_is_not_written_has_no_errors_yet() -> None:
    told = texts(prepare(STAR, QuantizeOptions(recipe="w4a16")))
    assert [text for tag, text in told if tag == "caption"] == ["Recipe w4a16"]


def test_a_verification(out: Path) -> None:
    found = draftconv.verify(out, STAR, target=str(TARGET))
    assert repr(found) == "Verification(pass: 'out' of 'llama-eagle3.1', 17 of 17 tensors equal)"
    assert texts(found)[0] == ("p", "Verified: pass")


def test_a_verification_that_fails(out: Path) -> None:
    weights = bytearray((out / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (out / "model.safetensors").write_bytes(weights)
    found = draftconv.verify(out, STAR, target=str(TARGET))
    count = sum(row.outcome == "different" for row in found.rows)
    assert repr(found) == f"Verification(fail: 'out' of 'llama-eagle3.1', 16 of 17 tensors equal, {count} different)"
    assert ("td", "different") in texts(found)
    assert texts(found)[0] == ("p", "Verified: fail")


def test_differences(out: Path) -> None:
    found = draftconv.diff(STAR, out)
    assert repr(found) == "Differences('llama-eagle3.1' and 'out': 1 fact, 9 config keys)"
    assert ("td", "absent") in texts(found)
    assert repr(draftconv.diff(out, out)) == "Differences('out' and 'out': no difference)"
    assert texts(draftconv.diff(out, out)) == [("p", "No difference.")]


@pytest.mark.parametrize(("engine", "program"), [("vllm", "vllm serve "), ("trtllm", "trtllm-serve ")])
def test_a_server(engine: str, program: str, tmp_path: Path) -> None:
    draftconv.convert(STAR, tmp_path / "out", to=engine, target=str(TARGET))
    found = draftconv.serve(tmp_path / "out", engine=engine, target=str(TARGET))
    assert repr(found).startswith(f"ServeCommand({program}")
    assert len(repr(found)) <= LONGEST
    told = texts(found)
    assert ("td", found.shell()) in told
    for name, content in found.files.items():
        assert told[told.index(("td", name)) + 1] == ("td", content.removesuffix("\n"))


def test_a_trace(recorded: Recorded) -> None:
    found = open_trace(recorded())
    counted = sum(entry.counted for entry in found.entries)
    held = "0, 1, 2, 3, 4, 5, 6, 7, 8"
    assert repr(found) == f"Trace('{found.directory.name}' of 'llama', 8 requests, {counted} tokens, boundaries {held})"
    assert ("td", "8 from 8 prompts") in texts(found)


def test_a_report(recorded: Recorded, out: Path) -> None:
    found = draftconv.parity(STAR, out, trace=recorded())
    name = "llama-eagle3.1"
    assert repr(found) == f"Report(pass: candidate 'out' 1.0000 [1.0000, 1.0000] of '{name}', equal counts)"
    assert texts(found)[-1][1].startswith(f"out drafts exactly as {name} does")


def test_names_of_strangers_are_harmless(tmp_path: Path) -> None:
    name = "<img src=x>\x1b[31m"
    path = tiny.spell("llama", "torchspec-native").write(tmp_path / name)
    found = draftconv.inspect(path)
    assert repr(found).startswith("Inspection('<img src=x>\\x1b[31m', EAGLE-3, ")
    parsed = Parsed(found._repr_html_())
    assert ("caption", "<img src=x>\\x1b[31m") in parsed.texts
    assert "img" not in parsed.opened


# ── passed ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engine", ENGINES)
def test_passed_is_what_inspect_ends_with(engine: str, tmp_path: Path) -> None:
    """Of every layout; some are read rightly by this engine, some are not."""
    seen = set()
    for layout in (layout for layout, variant in tiny.PAIRS if variant == "llama"):
        path = tiny.spell("llama", layout).write(tmp_path / layout)
        found = draftconv.inspect(path, engines=engine)
        assert command("inspect", path, "--for", engine, "--format", "quiet").exit_code == (not found.passed)
        seen.add(found.passed)
    assert seen == {True, False}


def test_a_doubtful_reading_does_not_pass(alike: Path) -> None:
    """Though every engine would load it as it was detected; nor do weights that are not as declared."""
    found = draftconv.inspect(STAR, engines="vllm", target=str(TARGET))
    assert found.passed
    readings = draftconv.inspect(alike, target=str(TARGET)).drafter.readings
    assert readings
    assert not replace(found, drafter=replace(found.drafter, readings=readings)).passed
    assert not replace(found, problems=(Problem(MISDECLARED, "no scales"),)).passed
    assert command("inspect", alike, "--for", "vllm", "--target", TARGET, "--format", "quiet").exit_code == 1


def test_without_engines_every_one_is_judged(out: Path) -> None:
    found = draftconv.inspect(out, target=str(TARGET))
    assert found.passed is all(verdict.status == "loads" for verdict in found.verdicts)


def test_passed_is_what_verify_ends_with(out: Path) -> None:
    assert draftconv.verify(out, STAR, target=str(TARGET)).passed
    assert command("verify", out, "--against", STAR, "--target", TARGET, "--format", "quiet").exit_code == 0
    other = DATA / "drafters/llama-eagle3"
    assert not draftconv.verify(out, other).passed
    assert command("verify", out, "--against", other, "--format", "quiet").exit_code == 1
