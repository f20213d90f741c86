"""A search from a drafter and a trace to a certified drafter, or to none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import draftconv
from draftconv.api.slim import SlimOptions, prepare, slim
from draftconv.cli import cli
from draftconv.errors import Refused, UsageError, Void, WriteError
from draftconv.quantization.recipe_schema import parse
from draftconv.search import run
from draftconv.search.report import refuse_slim_place
from draftconv.search.result import SlimResult
from draftconv.traces.halves import split_halves
from draftconv.traces.trace import open_trace
from tests.reference.test_fixtures import DATA
from tests.searched import make_halves
from tests.traces.recorded import Recorded

DRAFTER, TARGET = DATA / "drafters/llama-eagle3", DATA / "targets/llama"
ENGINE = "vllm:b200"


@pytest.fixture(scope="module", autouse=True)
def few_recipes() -> Iterator[None]:
    """What each kind of choice needs, and not every recipe that is shipped: a search replays them all."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "recipe_names", lambda: ("fp8-all", "fp8-tensor", "w4a16", "w4a16-gptq"))
        yield


@pytest.fixture(scope="session")
def trace(halves: Path) -> Path:
    return halves


@pytest.fixture(scope="module")
def found(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[SlimResult, Path]:
    """A search that allows a fifth of the accept length: few prompts certify no less."""
    out = tmp_path_factory.mktemp("found") / "out"
    steps = out.with_name("steps.yaml")
    steps.write_text(
        "loads: [{concurrency: 1, step_ms: {0: 10}, draft_ms: 1}, {concurrency: 8, step_ms: {0: 12, 3: 18}}]\n"
    )
    how: dict[str, Any] = {"engine": ENGINE, "trace": trace, "target": TARGET, "speed": steps}
    return slim(DRAFTER, out, **how, max_loss=0.2, candidates=2), out


def test_the_smallest_that_passes_is_written(found: tuple[SlimResult, Path]) -> None:
    result, out = found
    assert result.passed
    assert result.exit_code == 0
    judged = [c for c in result.path if c.certificate is not None]
    assert len(judged) == 2 < len(result.path)
    assert result.chosen == min((c for c in judged if c.certificate and c.certificate.passed), key=result.bytes_read)
    assert {c.certificate.level for c in judged if c.certificate} == {0.025}
    written = json.loads((out / "config.json").read_text())
    assert written["quantization_config"]["quant_method"] == "compressed-tensors"
    sizes = [result.bytes_read(candidate) for candidate in result.path]
    assert sizes == sorted(sizes, reverse=True)
    assert result.path[0].planned.recipe is None


def test_gptq_and_the_path_saw_the_first_half_only(found: tuple[SlimResult, Path], trace: Path) -> None:
    result, out = found
    halves = split_halves(open_trace(trace).entries)
    assert (result.searched, result.unseen) == (32, 32)
    assert all(c.searched.requests == len(halves.choosing) for c in result.path)
    record = json.loads((out / "draftconv.json").read_text())
    calibration = record["quantization"]["calibration"]
    assert (calibration["on"], calibration["requests"]) == ("half", 32)


def test_what_was_written_is_made_again_from_its_recipe(
    found: tuple[SlimResult, Path], trace: Path, tmp_path: Path
) -> None:
    result, out = found
    result.save(tmp_path / "report")
    recipe = tmp_path / "report/recipe.yaml"
    draftconv.quantize(
        DRAFTER,
        tmp_path / "again",
        recipe=str(recipe),
        engines=ENGINE,
        target=TARGET,
        calibrate=trace,
        calibrate_on="half",
    )
    assert (tmp_path / "again/model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_what_was_written_is_proven_from_its_source_and_trace(found: tuple[SlimResult, Path], trace: Path) -> None:
    _, out = found
    assert draftconv.verify(out, DRAFTER, target=TARGET, calibrate=trace).passed


def test_record_and_card_tell_the_certificate(found: tuple[SlimResult, Path], trace: Path) -> None:
    result, out = found
    assert result.chosen is not None
    certificate = result.chosen.certificate
    assert certificate is not None
    told = json.loads((out / "draftconv.json").read_text())["certificate"]
    assert told == {
        "ratio": pytest.approx(certificate.ratio, rel=1e-5),
        "low": pytest.approx(certificate.low, rel=1e-5),
        "max_loss": 0.2,
        "alpha": 0.05,
        "level": 0.025,
        "prompts": 32,
        "num_speculative_tokens": 3,
        "engine": result.engine,
        "trace": f"sha256:{open_trace(trace).digest}",
    }
    card = (out / "README.md").read_text()
    section = card.partition("\n## Accept length\n")[2].partition("\n## ")[0]
    assert f"on 32 prompts that the search had not seen, a replay gives {certificate.ratio:.4f} of" in section
    assert f"The lower bound is {certificate.low:.4f}, above the 0.8 that `--max-loss 0.2` allows" in section
    assert "Not measured yet" not in card
    assert "by recipe `slim`: " in card
    assert result.chosen.planned.name not in card
    made = json.loads((out / "draftconv.json").read_text())["quantization"]["recipe"]
    assert made["about"] == result.chosen.planned.name
    assert "weights rounded by GPTQ, by the inputs of 32 requests" in card
    assert "static activation scales" not in card
    assert card.lower().count("not run on hardware") == 1
    assert "--calibrate TRACE" in card


def test_a_certificate_is_of_the_bytes_and_not_in_them(found: tuple[SlimResult, Path], tmp_path: Path) -> None:
    """What is made of a certified drafter is another one: its record and card claim nothing."""
    _, out = found
    draftconv.convert(out, tmp_path / "floats", to="vllm", dequantize=True, target=TARGET)
    record = json.loads((tmp_path / "floats/draftconv.json").read_text())
    assert "certificate" not in record
    assert all("certificate" not in step for step in record["earlier"])
    assert "Certified by" not in (tmp_path / "floats/README.md").read_text()


def test_the_report_has_what_was_found(found: tuple[SlimResult, Path], tmp_path: Path) -> None:
    result, _ = found
    result.save(tmp_path / "report")
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "slim.json",
        "slim.md",
        "pareto.svg",
        "recipe.yaml",
    }
    told = (tmp_path / "report/slim.md").read_text()
    assert "not run on hardware" in told
    assert "| combination |" in told
    document = json.loads((tmp_path / "report/slim.json").read_text())
    assert result.chosen is not None
    assert document["chosen"] == result.chosen.planned.name
    assert [row["name"] for row in document["path"]] == [c.planned.name for c in result.path]
    assert [row["unseen"] is None for row in document["path"]] == [c.certificate is None for c in result.path]
    recipe = parse((tmp_path / "report/recipe.yaml").read_text(), "slim", "recipe.yaml")
    assert recipe == result.chosen.planned.recipe
    result.save(tmp_path / "report", overwrite=True)


def test_speed_ups_shrink_what_is_known_of_the_whole_drafter_by_bytes(
    found: tuple[SlimResult, Path], tmp_path: Path
) -> None:
    """T(3) is 10 + 3 ms with one request at a time and 18 ms with eight."""
    result, _ = found
    result.save(tmp_path / "report")
    for candidate, row in zip(
        result.path, json.loads((tmp_path / "report/slim.json").read_text())["path"], strict=True
    ):
        share, length = result.bytes_read(candidate) / result.whole_bytes, candidate.searched.candidate.value
        alone, busy = row["speed"]
        assert (alone["concurrency"], busy["concurrency"]) == (1, 8)
        assert (alone["step_ms"], busy["step_ms"]) == pytest.approx((10 + 3 * share, 12 + 6 * share))
        assert (alone["gain"], busy["gain"]) == pytest.approx(
            (10 * length / (10 + 3 * share), 12 * length / (12 + 6 * share))
        )
        assert alone["interval"][0] < alone["gain"] < alone["interval"][1]
    (sentence,) = (
        block for block in result.blocks() if isinstance(block, str) and "estimates over no drafter" in block
    )
    assert "1 at a time: 1 ms per draft step (draft step given); 8 at a time" in sentence
    assert "speed-up, 8 at a time" in (tmp_path / "report/slim.md").read_text()
    assert "estimated speed-ups" in (tmp_path / "report/pareto.svg").read_text()


def test_a_loss_that_so_few_prompts_cannot_certify_leaves_nothing(trace: Path, tmp_path: Path) -> None:
    result = slim(DRAFTER, tmp_path / "out", engine=ENGINE, trace=trace, max_loss=0.001, target=TARGET)
    assert not result.passed
    assert result.exit_code == 3
    assert result.smallest_loss > 0.001
    assert "No drafter is certified" in str(next(result.blocks()))
    assert list(tmp_path.iterdir()) == []


def test_a_search_that_was_stopped_goes_on(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: list[str] = []

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def options(out: Path) -> SlimResult:
        return slim(
            DRAFTER, out, engine=ENGINE, trace=trace, max_loss=0.2, target=TARGET, candidates=2,
            progress=lambda stage, *_: replayed.append(stage),
        )  # fmt: skip

    monkeypatch.setattr(run, "certified", stop)
    with pytest.raises(KeyboardInterrupt):
        options(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    monkeypatch.setattr("draftconv.search.measuring.Half._replayed", _only_unseen(trace))
    result = options(tmp_path / "out")
    assert result.passed
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def _only_unseen(trace: Path):  # type: ignore[no-untyped-def]
    """In place of what replays a half: it fails for requests of the first one, which are known already."""
    from draftconv.search.measuring import Half

    real, searched = Half._replayed, {entry.id for entry in split_halves(open_trace(trace).entries).choosing}

    def replayed(self: Half, arm: object):  # type: ignore[no-untyped-def]
        assert not {entry.id for entry in self.entries} & searched
        return real(self, arm)  # type: ignore[arg-type]

    return replayed


def test_an_output_that_accepts_something_else_is_removed(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftconv.search.measuring.Half.differing", lambda *_: 3)
    with pytest.raises(Void, match="in 3 requests"):
        slim(DRAFTER, tmp_path / "out", engine=ENGINE, trace=trace, max_loss=0.2, target=TARGET, candidates=1)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_tells_choices_and_time(trace: Path) -> None:
    outline = prepare(DRAFTER, SlimOptions(engine=ENGINE, trace=trace, max_loss=0.01, target=TARGET)).outline()
    assert outline.seconds > 0
    assert (outline.searched, outline.unseen) == (32, 32)
    names = [planned.name for planned in outline.alone]
    assert names[0] == "as it is"
    assert any("by GPTQ" in name for name in names)
    assert any("static" in name for name in names)


def test_what_so_many_prompts_can_certify_is_told_beforehand(trace: Path) -> None:
    options = SlimOptions(engine=ENGINE, trace=trace, max_loss=0.01, target=TARGET)
    few = prepare(DRAFTER, options)
    assert 0.01 < few.foreseen_loss < 0.1
    few_blocks = [str(block) for block in few.outline().blocks()]
    assert any("with 1 % allowed likely nothing is certified" in block for block in few_blocks)
    assert few.outline().document()["certifiable_loss"] == few.foreseen_loss
    enough = prepare(DRAFTER, replace(options, max_loss=0.2)).outline()
    assert not any("likely nothing" in str(block) for block in enough.blocks())
    bold = prepare(DRAFTER, replace(options, candidates=1, alpha=0.2))
    assert bold.foreseen_loss < few.foreseen_loss


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"engine": "vllm"}, UsageError, "names no hardware"),
        ({"alpha": 0.0001}, UsageError, "divided among 4 candidates"),
        ({"num_speculative_tokens": 7}, UsageError, "the trace keeps 4"),
        ({"target_step": 12.0}, UsageError, "no meaning without --speed"),
        ({"keep": ("5",)}, UsageError, "--keep has no meaning without --counts"),
        ({"speed": "b200-vllm"}, UsageError, "names a machine, and not how long a step"),
        ({"speed": "absent.yaml"}, UsageError, "absent.yaml"),
    ],
)
def test_what_is_impossible_is_refused_before_anything_is_measured(
    trace: Path, tmp_path: Path, options: dict[str, object], error: type[Exception], says: str
) -> None:
    asked = {"engine": ENGINE, "trace": trace, "max_loss": 0.01, "target": TARGET} | options
    with pytest.raises(error, match=says):
        slim(DRAFTER, tmp_path / "out", **asked)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"name": "mla", "count": 32}, "half of the trace has 16 prompts"),
        ({"count": 1}, "the trace holds 1 conversation"),
        ({"name": "mla"}, "the trace is of another kind of target: mla is deepseek"),
    ],
)
def test_traces_that_nothing_could_be_certified_on_are_refused(
    recorded: Recorded, tmp_path: Path, made: dict[str, object], says: str
) -> None:
    trace = recorded(**made) if "count" in made else make_halves(tmp_path / "trace", "mla")
    with pytest.raises(UsageError, match=says):
        slim(DRAFTER, tmp_path / "out", engine=ENGINE, trace=trace, max_loss=0.01, target=TARGET)
    assert not (tmp_path / "out").exists()


def test_a_quantized_drafter_is_no_reference(trace: Path, found: tuple[SlimResult, Path], tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is quantized already"):
        slim(found[1], tmp_path / "out", engine=ENGINE, trace=trace, max_loss=0.01, target=TARGET)


def test_an_occupied_place_is_refused(trace: Path, tmp_path: Path) -> None:
    shutil.copytree(DRAFTER, tmp_path / "out")
    with pytest.raises(WriteError, match="out exists already"):
        slim(DRAFTER, tmp_path / "out", engine=ENGINE, trace=trace, max_loss=0.01, target=TARGET)


@pytest.mark.parametrize(
    ("report", "says"),
    [("out/report", "lies inside out"), ("out", "is out"), (".", "contains out"), ("link/report", "lies inside out")],
)
def test_a_report_is_no_part_of_the_drafter(tmp_path: Path, report: str, says: str) -> None:
    (tmp_path / "link").symlink_to("out")
    with pytest.raises(UsageError, match=says):
        refuse_slim_place(tmp_path / report, tmp_path / "out")
    refuse_slim_place(tmp_path / "out-report", tmp_path / "out")


def test_a_report_inside_the_drafter_is_refused_before_anything_is_measured(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ("--for", ENGINE, "--trace", trace, "--max-loss", "0.2", "--target", TARGET)
    with pytest.raises(SystemExit) as ended:
        cli.main(list(map(str, ("slim", DRAFTER, tmp_path / "out", *how, "--report", tmp_path / "out/report"))))
    assert ended.value.code == 2
    assert "--report report lies inside out" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
