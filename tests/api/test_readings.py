"""Nothing acts on a doubtful reading without a word, and every command tells how it read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from make_synthetic import read_spec, write_checkpoint

from draftconv.api.convert import ConvertOptions, convert, prepare
from draftconv.api.diff import diff
from draftconv.api.inspect import inspect, remedy
from draftconv.api.live import LiveOptions, plan_live
from draftconv.api.parity import parity
from draftconv.api.quantize import quantize
from draftconv.api.serve import serve
from draftconv.api.trace import TraceOptions, trace
from draftconv.api.verify import verify
from draftconv.errors import Undecided, UsageError
from draftconv.layouts.drafter_reader import DrafterReader, drafter_readers, reading_json, reading_line
from draftconv.traces.trace import open_trace
from tests import tiny
from tests.keywords import keywords
from tests.reference.test_fixtures import DATA, DRAFTERS
from tests.tiny import IDS
from tests.traces.recorded import Recorded

TARGET = str(DATA / "targets" / "llama")
DRAFTERS_AT = DATA / "drafters"
SPECS = DATA.parents[1] / "scripts" / "specs"
PROMPTS = [{"id": str(i), "prompt": text} for i, text in enumerate(("once", "upon a time"))]


@pytest.fixture
def alike(tmp_path: Path) -> Path:
    """A trained drafter that vLLM serves as it is, and whose files look like SpecForge's."""
    path = shutil.copytree(DRAFTERS_AT / "llama-eagle3-reduced", tmp_path / "alike")
    config = json.loads((path / "config.json").read_text())
    config |= {"eagle_config": {IDS: [2, 4, 5], "use_aux_hidden_state": True}, "norm_output": True}
    (path / "config.json").write_text(json.dumps(config))
    return path


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


Act = Callable[..., object]


def acts(path: Path, recorded: Recorded) -> dict[str, Act]:
    """Every command that acts on a drafter; keywords say how it is to be read."""
    out = path.parent / "out"
    sound = DRAFTERS_AT / "llama-eagle3-reduced"

    def options(layout: str | None = None, **said: Any) -> ConvertOptions:
        return ConvertOptions(to="vllm", target=TARGET, layout=layout, **said)

    def live(layout: str = "", **said: Any) -> object:
        asked = LiveOptions(
            engine="vllm:cpu", target=TARGET, run=out, launch=True, layout=[layout] * bool(layout), **said
        )
        return plan_live(path, [sound], asked)

    return {
        "convert": lambda **said: convert(path, out, **keywords(options(**said))),
        "quantize": lambda **said: quantize(path, out, recipe="w4a16", engines=("vllm",), target=TARGET, **said),
        "verify": lambda **said: verify(sound, path, target=TARGET, **said),
        "verify, the output": lambda **said: verify(path, sound, target=TARGET, **_named(path, said)),
        "trace": lambda **said: trace(TARGET, _prompts(path), out, drafters=(path,), max_tokens=4, **said),
        "parity": lambda **said: parity(path, [sound], trace=recorded(), limit=1, **said),
        "parity, a candidate": lambda **said: parity(sound, [path], trace=recorded(), limit=1, **_named(path, said)),
        "parity, live": live,
        "serve": lambda **said: serve(path, engine="vllm", target=TARGET, **said),
    }


def _named(path: Path, said: dict[str, Any]) -> dict[str, Any]:
    return {key: f"{path}={value}" if isinstance(value, str) else value for key, value in said.items()}


def _prompts(path: Path) -> Path:
    file = path.parent / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, PROMPTS)))
    return file


ACTS = ("convert", "quantize", "verify", "verify, the output", "trace", "parity", "parity, a candidate",
        "parity, live", "serve")  # fmt: skip


@pytest.mark.parametrize("name", ACTS)
def test_no_command_acts_on_a_doubtful_reading(name: str, alike: Path, recorded: Recorded) -> None:
    with pytest.raises(Undecided) as caught:
        acts(alike, recorded)[name]()
    error = caught.value
    assert error.exit_code == 2
    assert error.what.startswith("alike can be read in 3 ways")
    of = "" if name in ("convert", "quantize", "serve") else f"{alike}="
    assert error.why == (
        f"as detected, --from {of}specforge-sglang: boundaries 3, 5, 6 and pre-norm feedback; "
        f"--aux-convention {of}before: boundaries 2, 4, 5 and pre-norm feedback; "
        f"--from {of}vllm: boundaries 2, 4, 5 and post-norm feedback"
    )
    assert "--accept-detected" in error.cure
    assert not (alike.parent / "out").exists()


@pytest.mark.parametrize("name", ACTS)
def test_every_command_that_was_built_for_this_test_runs(name: str, alike: Path, recorded: Recorded) -> None:
    """Said which it is, each goes on: to a result, or to what its own check says of these facts."""
    acts(alike, recorded)[name](layout="vllm")


def test_the_list_is_whole(alike: Path, recorded: Recorded) -> None:
    assert tuple(acts(alike, recorded)) == ACTS


# ── going on ───────────────────────────────────────────────────────────────────────


def test_what_was_accepted_is_recorded(alike: Path, tmp_path: Path) -> None:
    convert(alike, tmp_path / "out", to="vllm", target=TARGET, accept_detected=True)
    record = document(tmp_path / "out" / "draftconv.json")
    assert record["facts"]["boundaries"] == [3, 5, 6]
    assert record["options"]["accept_detected"] is True
    assert [row["option"] for row in record["source"]["readings"]] == [
        "--from specforge-sglang", "--aux-convention before", "--from vllm"
    ]  # fmt: skip
    assert [row["code"] for row in record["warnings"]] == [
        "aux-other-triple", "norm-output-specforge", "reading-doubtful"
    ]  # fmt: skip
    assert "reading-doubtful" in (tmp_path / "out" / "README.md").read_text()


def test_a_reading_that_was_said_is_recorded_with_its_own_warnings(alike: Path, tmp_path: Path) -> None:
    convert(alike, tmp_path / "out", to="vllm", target=TARGET, layout="vllm")
    record = document(tmp_path / "out" / "draftconv.json")
    assert (record["facts"]["boundaries"], record["facts"]["feedback"]) == ([2, 4, 5], "post-norm")
    assert (record["source"]["readings"], record["warnings"]) == ([], [])
    convert(alike, tmp_path / "other", to="vllm", target=TARGET, layout="specforge")
    codes = [row["code"] for row in document(tmp_path / "other" / "draftconv.json")["warnings"]]
    assert codes == ["aux-other-triple", "norm-output-specforge"]


def test_a_quantized_output_tells_how_its_source_was_read(alike: Path, tmp_path: Path) -> None:
    found = quantize(alike, tmp_path / "out", recipe="w4a16", engines=("vllm",), target=TARGET, accept_detected=True)
    assert "reading-doubtful" in [problem.code for problem in found.conversion.warnings]
    codes = [row["code"] for row in document(tmp_path / "out" / "draftconv.json")["warnings"]]
    assert "reading-doubtful" in codes


def test_an_output_is_verified_under_the_reading_that_it_was_made_with(alike: Path, tmp_path: Path) -> None:
    """What was said has to be said again: the record of an output cannot tell what its source means."""
    convert(alike, tmp_path / "said", to="vllm", target=TARGET, layout="vllm")
    assert verify(tmp_path / "said", alike, target=TARGET, layout="vllm").passed
    with pytest.raises(Undecided):
        verify(tmp_path / "said", alike)
    convert(alike, tmp_path / "accepted", to="vllm", target=TARGET, accept_detected=True)
    with pytest.raises(Undecided):
        verify(tmp_path / "accepted", alike)
    assert verify(tmp_path / "accepted", alike, target=TARGET, accept_detected=True).passed
    assert not verify(tmp_path / "accepted", alike, target=TARGET, layout="vllm").passed


def test_a_trace_tells_how_its_drafters_were_read(alike: Path, tmp_path: Path) -> None:
    options = TraceOptions(drafters=(alike,), max_tokens=4, accept_detected=True)
    trace(TARGET, _prompts(alike), tmp_path / "trace", **keywords(options))
    told = open_trace(tmp_path / "trace").about.drafters
    assert told == tuple(document(tmp_path / "trace" / "trace.json")["drafters"])
    assert told[0].startswith("alike is read as specforge-sglang (likely: ")
    assert [line.partition(":")[0] for line in told[1:]] == [
        "aux-other-triple", "norm-output-specforge", "reading-doubtful"
    ]  # fmt: skip


def test_a_trace_of_given_boundaries_has_read_no_drafter(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    trace(TARGET, _prompts(tmp_path / "x"), tmp_path / "trace", boundaries=(2, 4, 5), max_tokens=4)
    assert open_trace(tmp_path / "trace").about.drafters == ()


def test_the_wrong_reading_costs_accept_length_and_the_right_one_none(recorded: Recorded, tmp_path: Path) -> None:
    """An EAGLE-3.1 drafter as vLLM serves it, read as vLLM's and as if TorchSpec's numbering were meant."""
    reference = DRAFTERS_AT / "llama-eagle3.1"
    spelled = shutil.copytree(reference, tmp_path / "spelled")
    config = document(spelled / "config.json")
    del config["_torchspec_version"]
    config |= {"eagle_config": {IDS: [2, 4, 5], "use_aux_hidden_state": True}}
    (spelled / "config.json").write_text(json.dumps(config))
    _bare_metadata(spelled)
    outcomes = {}
    for layout in ("vllm", "specforge"):
        options: dict[str, Any] = {"layout": f"{spelled}={layout}"}
        report = parity(reference, [spelled], **keywords(options, trace=recorded()))
        outcomes[layout] = report.comparisons[0].verdict.outcome
    assert outcomes == {"vllm": "pass", "specforge": "fail"}


def _bare_metadata(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_file(load_file(path / "model.safetensors"), path / "model.safetensors", {"format": "pt"})


def test_a_report_tells_how_each_arm_was_read(alike: Path, recorded: Recorded) -> None:
    sound = DRAFTERS_AT / "llama-eagle3-reduced"
    options: dict[str, Any] = {"limit": 1, "accept_detected": True}
    report = parity(sound, [alike], **keywords(options, trace=recorded()))
    first, _, second = (arm.facts for arm in report.arms)
    assert first["read"].startswith("llama-eagle3-reduced is read as specforge-sglang (likely: ")
    assert "doubtful" not in first
    assert second["doubtful"].startswith("alike: aux-other-triple: [2, 4, 5], read as `after the layer`; norm-output-")


# ── each drafter its own ───────────────────────────────────────────────────────────


def test_a_reference_in_one_spelling_beside_a_candidate_in_an_engines(
    alike: Path, recorded: Recorded, tmp_path: Path
) -> None:
    """The usual case: `--from` is about the reference, and the candidate is read by its mark."""
    convert(alike, tmp_path / "out", to="sglang", target=TARGET, layout="vllm")
    report = parity(alike, [tmp_path / "out"], trace=recorded(), layout="vllm")
    assert [arm.layout for arm in report.arms] == ["vllm", "vllm", "sglang"]
    assert report.comparisons[0].verdict.outcome == "pass"


def test_what_is_said_of_each() -> None:
    drafters: list[str | Path] = ["a", Path("dir/b"), "owner/c"]
    said = drafter_readers(drafters, "specforge", ("dir/b=before", "owner/c=after"), accept_detected=True)
    assert said == [
        DrafterReader("specforge", None, True, "a"),
        DrafterReader(None, "before", True, "dir/b"),
        DrafterReader(None, "after", True, "owner/c"),
    ]  # fmt: skip
    assert drafter_readers(["x=y/a", "b"], "x=y/a=vllm")[0].layout == "vllm"
    assert [each.layout for each in drafter_readers(["a/", "b"], ("./a=vllm", "b=sglang"))] == ["vllm", "sglang"]


@pytest.mark.parametrize(
    ("given", "words"),
    [("c=vllm", "is about no drafter of this command"), (("vllm", "a=sglang"), "says two things of a")],
)
def test_what_is_said_of_nobody_or_twice_is_refused(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        drafter_readers(["a", "b"], given)


def test_a_layout_without_a_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no drafter"):
        trace(TARGET, _prompts(tmp_path / "x"), tmp_path / "t", layout="vllm")


# ── what is told of a reading ──────────────────────────────────────────────────────


def test_a_reading_in_one_line_and_as_json() -> None:
    drafter = inspect(DRAFTERS_AT / "mla-eagle3").drafter
    assert reading_line(drafter) == (
        "mla-eagle3 is read as torchspec-native (certain: TorchSpec's version mark in config.json or the safetensors "
        "metadata): boundaries 2, 4, 5 (after the layer: TorchSpec 2026-04…08: hook on the output of layer n); "
        "feedback pre-norm (norm_output absent: false everywhere); "
        "norm_before_residual false (absent: TorchSpec adds the raw state)"
    )
    told = reading_json(drafter)
    assert (told["layout"], told["confidence"], told["warnings"], told["readings"]) == (
        "torchspec-native", "certain", [], []
    )  # fmt: skip


def test_inspect_offers_no_conversion_of_what_can_be_read_in_several_ways(alike: Path) -> None:
    found = inspect(alike, engines=["vllm"], target=TARGET)
    assert "reading-doubtful" in [problem.code for problem in found.problems]
    assert remedy(found) is None
    assert remedy(inspect(alike, engines=["vllm"], target=TARGET, layout="specforge")) is not None


def test_diff_tells_the_reading_and_stops_at_none(alike: Path) -> None:
    found = diff(alike, alike, target=TARGET)
    assert found.none
    assert found.left.readings == found.right.readings != ()


def test_a_producers_own_config_that_came_back_is_as_doubtful_as_it_was(tmp_path: Path) -> None:
    source = tiny.spell("fc-norm", "specforge-hf").write(tmp_path / "source")
    convert(source, tmp_path / "there", to="vllm", layout="specforge")
    back = convert(tmp_path / "there", tmp_path / "back", to="specforge")
    assert back.ambiguous
    assert document(tmp_path / "back" / "config.json") == document(source / "config.json")
    with pytest.raises(Undecided, match="back can be read in 2 ways"):
        verify(tmp_path / "back", tmp_path / "there")
    assert verify(tmp_path / "back", tmp_path / "there", layout=f"{tmp_path / 'back'}=specforge").passed


# ── no option where none is needed ─────────────────────────────────────────────────


@DRAFTERS
def test_every_fixture_converts_in_every_producers_spelling(name: str, tmp_path: Path) -> None:
    """With the fixtures' own facts, marks kept and lost; without a mark a Llama-style norm_output is anybody's."""
    drafter = inspect(DRAFTERS_AT / name, target=str(DATA / "targets" / name.partition("-")[0])).drafter
    facts = tiny.replace(drafter.facts, own_embedding=True)
    ids = drafter.maps.map.ids if drafter.maps and drafter.maps.map and facts.reduced_vocab else None
    spelled = 0
    for layout in tiny.FIRST:
        variant = tiny.Variant(name, facts, ids=ids, dtype="F16" if layout == "safeailab" else "BF16")
        if tiny.fits(variant, layout):
            for written in (True, False):
                made = tiny.spell(variant, layout, ids=written)
                for marked in (True, False) if facts.feedback == "pre-norm" else (True,):
                    if not marked:
                        made.config.pop("_torchspec_version", None)
                        made.metadata = {"format": "pt"}
                    path = made.write(tmp_path / f"{layout}-{written}-{marked}")
                    prepare(path, ConvertOptions(to="vllm"))
                    spelled += 1
    assert spelled >= 4


KIMI = {
    "kimi-k2.5-eagle3": "kimi-k2.5", "kimi-k2.5-eagle3-mla": "kimi-k2.5", "kimi-k2.6-eagle3-mla": "kimi-k2.6",
    "kimi-k2.6-eagle3.1-mla": "kimi-k2.6", "nvidia-kimi-k2.6-eagle3": "kimi-k2.6", "eagle3-kimik2.5-w4a8": "kimi-k2.5",
}  # fmt: skip
"""The drafters of README, in full size, and their targets."""


def _published(name: str) -> dict[str, dict[str, Any]]:
    """A drafter's spec in every spelling that it may be published in, by what is different."""
    spec = read_spec(SPECS / f"{name}.json")
    found = {"as it is": spec}
    section = spec["config"].get("eagle_config", {})
    renamed = {"midlayer.": "layers.0.", "layers.0.": "midlayer."}
    first = next(old for old in renamed if any(tensor.startswith(old) for tensor in spec["tensors"]))
    tensors = {tensor.replace(first, renamed[first], 1): row for tensor, row in spec["tensors"].items()}
    config = spec["config"]
    if "_torchspec_version" in config and IDS in section:  # the export for vLLM counts ids before the layer
        config = config | {"eagle_config": section | {IDS: [2, 30, 58]}}
    if "quantization_config" not in config:
        found["the other name of the layer"] = {**spec, "tensors": tensors, "config": config}
    if "_torchspec_version" in spec["config"]:
        bare = {key: value for key, value in spec["config"].items() if key != "_torchspec_version"}
        found["without a mark"] = {**spec, "config": bare, "metadata": {"format": "pt"}}
    return found


@pytest.mark.parametrize("name", KIMI)
def test_the_drafters_of_readme_convert_as_they_are_published(name: str, tmp_path: Path) -> None:
    pack = "compressed-pack" if "w4a8" in name else None
    for number, (what, spec) in enumerate(_published(name).items()):
        write_checkpoint(spec, tmp_path / str(number), sparse=True)
        for target in (None, KIMI[name]):
            found = prepare(tmp_path / str(number), ConvertOptions(to="vllm", target=target, pack=pack))
            wanted = (2, 30, 58) if target else found.drafter.facts.boundaries
            assert found.drafter.facts.boundaries == wanted, what
            assert [warning.code for warning in found.warnings if warning.kind.reading] == [], what
