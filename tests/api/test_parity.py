"""Parity of the trained fixtures: from directories and a trace to a report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.convert import ConvertOptions, convert
from draftconv.api.parity import exit_code, parity
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import find_target
from draftconv.errors import BadCheckpoint, BadReport, Refused, Undecided, UsageError
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.quantization.recipes import find_recipe
from draftconv.quantization.simulate import simulate, stored_dtypes
from draftconv.reference.accept_length import Counts
from draftconv.replay import controls
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.replay.run import run
from draftconv.replay.target_tables import semantics
from draftconv.report import Comparison, Report, read_report, write_report
from draftconv.report.arms import ArmNames, content
from draftconv.report.model import JoinedSample
from draftconv.report.verdict import EXACT, Gate, Outcome
from draftconv.traces.trace import open_trace
from tests import tiny
from tests.keywords import keywords
from tests.layouts.spelled import ENGINE_LAYOUTS
from tests.reference.test_fixtures import DATA, DRAFTERS
from tests.traces.recorded import Recorded

DRAFTERS_AT = DATA / "drafters"
LLAMA, LLAMA31, MLA = (DRAFTERS_AT / name for name in ("llama-eagle3", "llama-eagle3.1", "mla-eagle3"))
DOWN, UP = "layers.0.mlp.down_proj.weight", "layers.0.mlp.up_proj.weight"
Change = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def altered(source: Path, out: Path, changes: Mapping[str, Change]) -> Path:
    """A copy with some tensors, by the name in the file, changed."""
    shutil.copytree(source, out)
    tensors = load_file(out / "model.safetensors")
    save_file(
        {name: changes.get(name, lambda same: same)(tensor).contiguous() for name, tensor in tensors.items()},
        out / "model.safetensors",
        {"format": "pt"},
    )
    return out


def worse(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def rolled(tensor: torch.Tensor) -> torch.Tensor:
    """Every row under the next token's id."""
    return tensor.roll(1, 0)


def only(report: Report) -> Comparison:
    (found,) = report.comparisons
    return found


def accept_length(report: Report, arm: str) -> float:
    return Counts.pooled(line.counts for line in report.records if line.arm == arm).accept_length


def read(path: Path, target: str = "llama") -> Drafter:
    return read_drafter(open_checkpoint(path), ReadOptions(target=find_target(str(DATA / "targets" / target), None)))


# ── conversions are exact ──────────────────────────────────────────────────────────


@DRAFTERS
def test_a_converted_drafter_is_the_same_to_every_count(name: str, recorded: Recorded, tmp_path: Path) -> None:
    target = name.partition("-")[0]
    options = [ConvertOptions(to=to, target=str(DATA / "targets" / target)) for to in ENGINE_LAYOUTS]
    for option in options:
        convert(DRAFTERS_AT / name, tmp_path / str(option.to), **keywords(option))
    report = parity(DRAFTERS_AT / name, [tmp_path / to for to in ENGINE_LAYOUTS], trace=recorded(target))
    assert [arm.name for arm in report.arms] == [name, f"{name} again", *ENGINE_LAYOUTS]
    layouts = [read(tmp_path / to, target).detection.layout for to in ENGINE_LAYOUTS]
    assert [arm.layout for arm in report.arms[2:]] == layouts
    assert len({arm.content for arm in report.arms}) == 1
    for comparison in report.comparisons:
        assert comparison.verdict.gate == EXACT
        assert comparison.verdict.outcome == "pass"
        assert comparison.diagnostics.agreement == 1
        assert comparison.diagnostics.divergence is not None
        assert comparison.diagnostics.divergence.largest < 1e-6
        assert comparison.losses is not None
        assert (comparison.losses.worse, comparison.losses.better) == (0, 0)
        assert comparison.losses.places > 0
    assert exit_code(report) == 0


@pytest.mark.parametrize("name", ["down_proj", "up_proj"])
def test_one_wrong_tensor_fails_the_exact_gate(name: str, recorded: Recorded, tmp_path: Path) -> None:
    out = altered(LLAMA, tmp_path / "out", {f"midlayer.mlp.{name}.weight": worse})
    found = parity(LLAMA, [out], trace=recorded())
    assert only(found).verdict.outcome == "fail"
    assert exit_code(found) == 1


def test_the_content_is_the_same_bits_in_any_layout(tmp_path: Path) -> None:
    """t2d, the map's dtype, names and positions are spelling; a single bit is not."""
    source = DRAFTERS_AT / "llama-eagle3-reduced"
    convert(source, tmp_path / "out", to="vllm", target=str(DATA / "targets/llama"))
    narrow = altered(source, tmp_path / "narrow", {"d2t": lambda offsets: offsets.to(torch.int32)})
    flipped = altered(source, tmp_path / "flipped", {"norm.weight": flip})
    moved = altered(source, tmp_path / "moved", {"d2t": lambda offsets: offsets + 1})
    (moved / "model.safetensors").write_bytes(without_t2d(moved))
    same = {content(read(path)) for path in (source, tmp_path / "out", narrow)}
    assert len(same) == 1
    assert len(same | {content(read(flipped)), content(read(moved))}) == 3


def flip(tensor: torch.Tensor) -> torch.Tensor:
    bits = tensor.view(torch.int16).clone()
    bits[0] ^= 1
    return bits.view(tensor.dtype)


def without_t2d(path: Path) -> bytes:
    tensors = load_file(path / "model.safetensors")
    del tensors["t2d"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return (path / "model.safetensors").read_bytes()


# ── simulated candidates and gates ─────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("margin", "gates"),
    [
        (None, [EXACT, Gate(0.02), Gate(0.01), Gate(0.02)]),
        (0.05, [Gate(0.05)] * 4),
        (0.0, [EXACT] * 4),
    ],
)
def test_what_is_asked_depends_on_what_was_done(
    margin: float | None, gates: list[Gate], recorded: Recorded, tmp_path: Path
) -> None:
    shutil.copytree(LLAMA, tmp_path / "copy")
    options: dict[str, Any] = {"margin": margin, "fake_quant": ("w4a16", "fp8", "w4a8"), "limit": 2}
    report = parity(LLAMA, [tmp_path / "copy"], **keywords(options, trace=recorded()))
    assert [comparison.verdict.gate for comparison in report.comparisons] == gates
    names = [f"llama-eagle3 as {recipe}" for recipe in options["fake_quant"]]
    assert [c.candidate for c in report.comparisons] == ["copy", *names]
    simulated = report.arms[3:]
    assert simulated[0].quantization.startswith("simulated w4a16: weights INT4")
    assert len({arm.content for arm in report.arms}) == 4  # the copy and the second run are the reference


@pytest.mark.parametrize("margin", [-0.1, 1.0, 1.5])
def test_a_margin_that_is_no_share_is_refused(margin: float, recorded: Recorded) -> None:
    with pytest.raises(UsageError, match="is not between 0 and 1"):
        parity(LLAMA, [LLAMA], trace=recorded(), margin=margin, limit=1)


def test_a_simulated_candidate_is_what_simulate_makes(recorded: Recorded) -> None:
    report = parity(LLAMA, (), trace=recorded(), fake_quant=("w4a8",))
    trace, drafter = open_trace(recorded()), read(LLAMA)
    arm = load_arm("whole", drafter, LoadSettings(trace.table))
    model = simulate(arm.model, find_recipe("w4a8"), stored=stored_dtypes(drafter))
    found = run(trace, trace.entries, arm, [], [replace(arm, name="simulated", model=model)], depth=3)
    for alone, name in (("whole", "llama-eagle3"), ("simulated", "llama-eagle3 as w4a8")):
        mine = [line.counts for line in found.records if line.arm == alone]
        assert mine == [line.counts for line in report.records if line.arm == name]


# ── attribution ────────────────────────────────────────────────────────────────────


def test_each_changed_tensor_is_measured_alone(recorded: Recorded, tmp_path: Path) -> None:
    changes = {"midlayer.mlp.down_proj.weight": worse, "midlayer.mlp.up_proj.weight": rolled}
    out = altered(LLAMA, tmp_path / "both", changes)
    report = parity(LLAMA, [out], trace=recorded(), attribute=True)
    rows = only(report).diagnostics.attribution
    assert {row.tensor for row in rows} == {DOWN, UP}
    assert [row.change for row in rows] == sorted(row.change for row in rows)
    for row in rows:
        spelled = f"midlayer.{row.tensor.removeprefix('layers.0.')}"
        alone = altered(LLAMA, tmp_path / row.tensor, {spelled: changes[spelled]})
        expected = parity(LLAMA, [alone], trace=recorded())
        assert row.accept_length == accept_length(expected, row.tensor)
        assert row.change == pytest.approx(row.accept_length / accept_length(expected, "llama-eagle3") - 1)
    assert rows[0].change < 0


def test_each_quantized_tensor_is_measured_alone(recorded: Recorded) -> None:
    recipe = find_recipe("w4a8")
    report = parity(LLAMA, (), trace=recorded(), fake_quant=("w4a8",), attribute=True)
    rows = only(report).diagnostics.attribution
    assert len(rows) == 7
    assert list(rows) == sorted(rows, key=lambda row: (row.change, row.tensor))
    trace, drafter = open_trace(recorded()), read(LLAMA)
    whole = load_arm("whole", drafter, LoadSettings(trace.table))
    stored = stored_dtypes(drafter)
    parts = [
        replace(whole, name=row.tensor, model=simulate(whole.model, recipe, only=[row.tensor], stored=stored))
        for row in rows
    ]
    found = run(trace, trace.entries, whole, [], parts, depth=3)
    for row in rows:
        counts = (line.counts for line in found.records if line.arm == row.tensor)
        assert row.accept_length == Counts.pooled(counts).accept_length
    assert {line.arm for line in report.records} == {arm.name for arm in report.arms}  # parts are no arms of the report


def test_nothing_changed_costs_nothing(recorded: Recorded, tmp_path: Path) -> None:
    convert(LLAMA, tmp_path / "out", to="sglang")
    report = parity(LLAMA, [tmp_path / "out"], trace=recorded(), attribute=True, limit=1)
    assert only(report).diagnostics.attribution == ()


def test_another_drafter_has_no_cost_per_tensor(recorded: Recorded) -> None:
    with pytest.raises(Refused, match=r"llama-eagle3.1 is not llama-eagle3 with other weights"):
        parity(LLAMA, [LLAMA31], trace=recorded(), attribute=True)
    assert only(parity(LLAMA, [LLAMA31], trace=recorded())).verdict.outcome == "fail"


# ── names ──────────────────────────────────────────────────────────────────────────


def test_equal_names_are_told_apart(recorded: Recorded, tmp_path: Path) -> None:
    paths = [tmp_path / str(i) / name for i, name in enumerate(["out", "out", "out (2)", "out again", "out"])]
    for path in paths:
        shutil.copytree(LLAMA, path)
    options: dict[str, Any] = {"fake_quant": ("w4a16", "w4a16"), "limit": 1}
    report = parity(paths[0], paths[1:], **keywords(options, trace=recorded()))
    assert [arm.name for arm in report.arms] == [
        "out",
        "out again (2)",
        "out (2)",
        "out (2) (2)",
        "out again",
        "out (3)",
        "out as w4a16",
        "out as w4a16 (2)",
    ]
    assert {comparison.again for comparison in report.comparisons} == {"out again (2)"}
    assert [arm.source for arm in report.arms[:3]] == ["out", "out", "out"]


def test_names_are_handed_out_once() -> None:
    names = ArmNames()
    wanted = ["a", "a", "a (2)", "a", "b"]
    assert [names.new(name) for name in wanted] == ["a", "a (2)", "a (2) (2)", "a (3)", "b"]


# ── the trace ──────────────────────────────────────────────────────────────────────


def test_limit_takes_the_first_requests(recorded: Recorded) -> None:
    whole = parity(LLAMA, [LLAMA31], trace=recorded())
    some = parity(LLAMA, [LLAMA31], trace=recorded(), limit=3)
    assert some.records == tuple(line for line in whole.records if line.id in ("00/1", "01/1", "02/1"))
    assert some.about.settings["requests"] == "3"
    assert some.about.trace != whole.about.trace


def test_the_order_of_requests_changes_no_count(recorded: Recorded) -> None:
    trace, drafter = open_trace(recorded()), read(LLAMA)
    arm = load_arm("whole", drafter, LoadSettings(trace.table))
    other = replace(arm, name="other", model=simulate(arm.model, find_recipe("w4a16")))
    there, back = (run(trace, entries, arm, [other], depth=3) for entries in (trace.entries, trace.entries[::-1]))
    assert sorted(there.records, key=str) == sorted(back.records, key=str)
    mine, theirs = (found.tallies["other"].diagnostics() for found in (there, back))
    assert mine.agreement == theirs.agreement
    assert mine.discordance == theirs.discordance
    assert mine.every_position == theirs.every_position


def test_the_same_call_gives_the_same_report_and_bytes(recorded: Recorded, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "fake_quant": ("w4a16",),
        "attribute": True,
        "self_test": True,
        "limit": 2,
        "command": ("draftconv",),
    }
    reports = [parity(LLAMA, (), **keywords(options, trace=recorded())) for _ in range(2)]
    assert reports[0] == reports[1]
    for number, report in enumerate(reports):
        write_report(report, tmp_path / str(number))
    files = sorted(path.name for path in (tmp_path / "0").iterdir())
    assert files == ["junit.xml", "records.jsonl", "report.html", "report.json", "report.md"]
    for name in files:
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()
        assert str(tmp_path.parent).encode() not in (tmp_path / "0" / name).read_bytes()


def test_a_drafter_of_another_kind_of_target_is_void(recorded: Recorded) -> None:
    """As wide and with as many tokens, so it runs: but it gets hardly anything accepted."""
    report = parity(MLA, [MLA], trace=recorded("llama"))
    assert only(report).verdict.outcome == "void"
    assert "that is wrong wiring" in only(report).verdict.reasons[0]
    assert exit_code(report) == 4


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"vocab": 2049}, "llama-eagle3 is made for a vocabulary of 2048, llama has 2049"),
        ({"hidden": 255}, "llama-eagle3 is made for states of width 256, llama has 255"),
    ],
)
def test_a_drafter_of_a_target_of_other_sizes_is_refused(
    about: Mapping[str, int], said: str, recorded: Recorded, tmp_path: Path
) -> None:
    shutil.copytree(recorded(), tmp_path / "trace")
    edit(tmp_path / "trace/trace.json", about)
    with pytest.raises(UsageError, match=said) as error:
        parity(LLAMA, [LLAMA], trace=tmp_path / "trace")
    assert error.value.cure == "give a trace of its own target"


def edit(path: Path, changes: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(changes)))


def test_a_boundary_that_the_trace_lacks_is_told_before_anything_is_loaded(recorded: Recorded) -> None:
    told: list[str] = []
    with pytest.raises(UsageError, match="holds boundaries 2,4, not 5") as error:
        parity(LLAMA, [LLAMA], trace=recorded(boundaries=(2, 4)), progress=lambda stage, *_: told.append(stage))
    assert "--boundaries 2,4,5" in error.value.cure
    assert told == []


def test_a_head_that_nobody_has_names_the_option(recorded: Recorded, tmp_path: Path) -> None:
    out = shutil.copytree(LLAMA, tmp_path / "headless")
    tensors = load_file(out / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match="headless needs the target's lm_head") as error:
        parity(LLAMA, [out], trace=recorded())
    assert error.value.cure == "make the trace with --lm-head"


@pytest.mark.parametrize(("family", "boundaries"), [("deepseek", (2, 4, 5)), ("llama", (3, 5, 6)), (None, None)])
def test_ids_that_depend_on_the_target_are_read_as_inspect_reads_them(
    family: str | None, boundaries: tuple[int, ...] | None, recorded: Recorded, tmp_path: Path
) -> None:
    """SpecForge captures through SGLang, which numbers the layers of DeepSeek targets in its own way."""
    drafter = shutil.copytree(DRAFTERS_AT / "llama-eagle3-reduced", tmp_path / "drafter")
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "use_aux_hidden_state": True}
    edit(drafter / "config.json", {"eagle_config": ids})
    trace = shutil.copytree(recorded(), tmp_path / "trace")
    edit(trace / "trace.json", {"family": family})
    assert open_trace(trace).about.family == family
    options: dict[str, Any] = {"limit": 1, "accept_detected": True}
    run = lambda: parity(drafter, [drafter], **keywords(options, trace=trace))  # noqa: E731
    if boundaries is None:
        with pytest.raises(Undecided):
            run()
    else:
        assert run().arms[0].facts["boundaries"] == str(list(boundaries))


# ── whose tables ───────────────────────────────────────────────────────────────────


def test_engines_that_replace_the_embedding_are_told_apart(recorded: Recorded, tmp_path: Path) -> None:
    out = altered(LLAMA, tmp_path / "out", {"embed_tokens.weight": rolled})
    found: dict[str, Outcome] = {}
    for engine in semantics():
        report = parity(LLAMA, [out], trace=recorded(), semantics=engine)
        found[engine] = only(report).verdict.outcome
        assert report.about.settings["tables"] == f"as {engine} takes them"
    assert found == {"vllm": "fail", "sglang": "pass", "trtllm": "pass"}


# ── negative controls ──────────────────────────────────────────────────────────────


def test_the_self_test_notices_every_fault(recorded: Recorded) -> None:
    report = parity(LLAMA, (), trace=recorded(), self_test=True)
    assert report.comparisons == ()
    assert [control.name for control in report.controls] == [fault.name for fault in controls.FAULTS]
    assert {control.name for control in report.controls if control.caught is None} == {"d2t zeroed", "fusion norm"}
    for control in report.controls:
        assert control.caught in (True, None)
        assert (control.accept_length is None) == (control.caught is None)
        assert control.note or control.caught
    int4 = [control.name for control in report.controls if control.note == "against llama-eagle3 in INT4"]
    assert int4 == ["doubled scales", "permuted nibbles"]
    assert exit_code(report) == 0


def test_a_fault_that_changes_nothing_is_not_said_to_be_noticed(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmless = controls.PlantedFault("nothing", "nothing is done", lambda of: of.arm)
    twin = controls.PlantedFault("nothing in INT4", "nothing is done", lambda of: of.with_qvalues(), "int4")
    monkeypatch.setattr(controls, "FAULTS", (*controls.FAULTS[:1], harmless, twin))
    report = parity(LLAMA, [LLAMA], trace=recorded(), self_test=True)
    assert [control.caught for control in report.controls] == [True, False, False]
    assert report.controls[1].accept_length == accept_length(report, "llama-eagle3")
    assert only(report).verdict.outcome == "pass"
    assert exit_code(report) == 1


# ── exit codes ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["pass"], 0),
        (["pass", "equivalent"], 0),
        (["pass", "inconclusive"], 3),
        (["inconclusive", "fail"], 1),
        (["fail", "void", "inconclusive"], 4),
    ],
)
def test_the_worst_outcome_decides(outcomes: list[Outcome], code: int, recorded: Recorded) -> None:
    report = parity(LLAMA, [LLAMA], trace=recorded(), limit=1)
    made = only(report)
    rows = tuple(replace(made, verdict=replace(made.verdict, outcome=outcome)) for outcome in outcomes)
    assert exit_code(replace(report, comparisons=rows)) == code


# ── extension ──────────────────────────────────────────────────────────────────────

W4A16: dict[str, Any] = {"fake_quant": ("w4a16",)}


@pytest.fixture
def earlier(recorded: Recorded, tmp_path: Path) -> Path:
    """An inconclusive report of the first eight prompts."""
    report = parity(LLAMA, (), **keywords(W4A16, trace=recorded()))
    assert only(report).verdict.outcome == "inconclusive"
    write_report(report, tmp_path / "earlier")
    return tmp_path / "earlier"


def test_an_extension_judges_both_samples_as_one(earlier: Path, recorded: Recorded, tmp_path: Path) -> None:
    options = keywords(W4A16, extend=earlier)
    both = parity(LLAMA, (), **keywords(options, trace=recorded(first=8, count=8)))
    at_once = parity(LLAMA, (), **keywords(W4A16, trace=recorded(count=16)))
    assert sorted(both.records, key=str) == sorted(at_once.records, key=str)
    found, expected = only(both).verdict, only(at_once).verdict
    assert only(both).extended
    assert found.estimate == expected.estimate
    assert found.more_prompts is None
    assert "extended once" in found.reasons[-1]
    assert both.about.prompts == "held-out + held-out"
    assert both.about.settings["requests"] == "8 + 8"
    write_report(both, tmp_path / "both")
    with pytest.raises(UsageError, match="was extended before"):
        parity(LLAMA, (), **keywords(W4A16, extend=tmp_path / "both", trace=recorded()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"margin": 0.05}, "has gate a loss below 2 %, this run has a loss below 5 %"),
        (
            {"fake_quant": ("quark-w4a8",)},
            "the candidate of the report is llama-eagle3 as w4a16 .content [0-9a-f]{12}., "
            "this run's is llama-eagle3 as quark-w4a8 .content",
        ),
        ({"num_speculative_tokens": 2}, "has depth 3, this run has 2"),
        ({"dtype": "bfloat16"}, "has replay: float32 on cpu; this run has bfloat16 on cpu"),
        ({"semantics": "sglang"}, "has tables: as vllm takes them; this run has as sglang takes them"),
    ],
)
def test_an_extension_changes_nothing_but_the_prompts(
    change: Mapping[str, Any], said: str, earlier: Path, recorded: Recorded
) -> None:
    with pytest.raises(UsageError, match=said):
        parity(LLAMA, (), **keywords(W4A16, extend=earlier, **change, trace=recorded(first=8, count=8)))


def test_an_extension_names_both_samples(earlier: Path, recorded: Recorded, tmp_path: Path) -> None:
    old = read_report(earlier)
    told: list[str] = []
    added = recorded(first=8, count=8)
    both = parity(LLAMA, (), **keywords(W4A16, extend=earlier, trace=added), announce=told.append)
    reference, candidate = (old.arm(name) for name in (only(old).reference, only(old).candidate))
    first, second = both.about.joined
    assert first == JoinedSample(
        reference="llama-eagle3",
        reference_content=reference.content,
        candidate="llama-eagle3 as w4a16",
        candidate_content=candidate.content,
        requests=8,
        prompts="held-out",
        prompts_sha256=old.about.prompts_sha256,
        trace=open_trace(recorded()).digest,
    )
    assert second == replace(first, prompts_sha256=second.prompts_sha256, trace=open_trace(added).digest)
    arms = f"reference llama-eagle3 (content {reference.content[:12]}), candidate llama-eagle3 as w4a16"
    assert [line.partition(" (content")[0] for line in told] == [
        "the report that is extended: reference llama-eagle3", "added to it: reference llama-eagle3"
    ]  # fmt: skip
    assert all(arms in line and candidate.content[:12] in line for line in told)
    assert f"trace {str(first.trace)[:12]}" in told[0]
    write_report(both, tmp_path / "both")
    assert read_report(tmp_path / "both").about.joined == both.about.joined
    said = [block for block in both.blocks() if isinstance(block, str)]
    for name, sample in zip(("extended report", "added to it"), both.about.joined, strict=True):
        line = next(line for line in said if line.startswith(f"{name}: {arms}"))
        assert f"8 requests of held-out (sha256 {sample.prompts_sha256[:12]}), trace {str(sample.trace)[:12]}" in line
        assert line.partition(": ")[2] in (tmp_path / "both/report.md").read_text()


def test_another_drafter_under_the_same_name_is_no_extension(recorded: Recorded, tmp_path: Path) -> None:
    """Refused before anything is replayed: `small` was w4a16 in the report and is something else now."""
    first, second = (tmp_path / name / "small" for name in ("first", "second"))
    for out, scale in ((first, 1.02), (second, 1.03)):
        copy_scaled(LLAMA, out, scale)
    report = parity(LLAMA, first, trace=recorded(), margin=0.02)
    assert only(report).verdict.outcome == "inconclusive"
    write_report(report, tmp_path / "earlier")
    options: dict[str, Any] = {"margin": 0.02, "extend": tmp_path / "earlier", "trace": recorded(first=8, count=8)}
    stages: list[str] = []
    with pytest.raises(UsageError, match=r"candidate of the report is small .*, this run's is small .*same name"):
        parity(LLAMA, second, **options, progress=lambda stage, *_: stages.append(stage))
    assert "replaying" not in stages
    moved = first.rename(tmp_path / "renamed")
    joined = parity(LLAMA, moved, **options).about.joined
    assert [sample.candidate for sample in joined] == ["small", "renamed"]
    assert len({sample.candidate_content for sample in joined}) == 1


def copy_scaled(source: Path, out: Path, scale: float) -> None:
    shutil.copytree(source, out)
    tensors = load_file(out / "model.safetensors")
    tensors["midlayer.mlp.down_proj.weight"] *= scale
    save_file(tensors, out / "model.safetensors", {"format": "pt"})


def test_the_same_prompts_are_no_extension(earlier: Path, recorded: Recorded) -> None:
    with pytest.raises(UsageError, match="request 00/1 is in the report already, and 7 more are"):
        parity(LLAMA, (), **keywords(W4A16, extend=earlier, trace=recorded()))


def test_what_cannot_be_extended_is_told_before_anything_is_replayed(
    earlier: Path, recorded: Recorded, tmp_path: Path
) -> None:
    settled = parity(LLAMA, [LLAMA], trace=recorded())
    write_report(settled, tmp_path / "settled")
    told: list[str] = []
    for path, candidates, said in (
        (tmp_path / "settled", [LLAMA], "the report is pass, not inconclusive"),
        (earlier, [LLAMA, LLAMA], "the report has 1 candidates, this run 2"),
    ):
        with pytest.raises(UsageError, match=said):
            parity(
                LLAMA,
                candidates,
                trace=recorded(first=8, count=8),
                progress=lambda stage, *_: told.append(stage),
                extend=path,
            )
    assert told == []


def test_a_report_that_is_none_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    with pytest.raises(BadReport):
        parity(LLAMA, [LLAMA], trace=recorded(), extend=tmp_path)


# ── options and progress ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_speculative_tokens": 0}, "--num-speculative-tokens 0"),
        ({"limit": 0}, "--limit 0"),
        ({"dtype": "int8"}, "--dtype int8: unknown"),
        ({"semantics": "tgi"}, "--semantics tgi: unknown"),
        ({"fake_quant": ("w3a16",)}, "no recipe is called w3a16"),
        (
            {"num_speculative_tokens": 6},
            "--num-speculative-tokens 6: the trace keeps 4 tokens beyond the end of each text, 5 are needed",
        ),
        (
            {"num_speculative_tokens": 9},
            "--num-speculative-tokens 9: the trace keeps [0-7] tokens beyond the end of each text, 8 are needed",
        ),
        ({"num_speculative_tokens": 10**11}, "--num-speculative-tokens 100000000000: the trace keeps"),
        ({"device": "nowhere"}, "--device nowhere"),
    ],
)
def test_options_that_cannot_be(changes: Mapping[str, Any], said: str, recorded: Recorded) -> None:
    with pytest.raises(UsageError, match=said):
        parity(LLAMA, [LLAMA], trace=recorded(), **changes)


def test_somebody_has_to_be_compared(recorded: Recorded) -> None:
    with pytest.raises(UsageError, match="there is no candidate"):
        parity(LLAMA, (), trace=recorded())


def test_quantized_weights_that_are_not_there_are_refused(recorded: Recorded, tmp_path: Path) -> None:
    out = shutil.copytree(LLAMA, tmp_path / "int4")
    edit(out / "config.json", {"quantization_config": {"quant_method": "compressed-tensors"}})
    with pytest.raises(BadCheckpoint, match=r"int4: weights are declared quantized .*, and none is"):
        parity(LLAMA, [out], trace=recorded())


def test_progress_counts_bytes_and_then_tokens(recorded: Recorded, tmp_path: Path) -> None:
    shutil.copytree(LLAMA, tmp_path / "copy")
    told: list[tuple[str, int, int]] = []
    parity(LLAMA, [tmp_path / "copy"], trace=recorded(), progress=lambda *step: told.append(step))
    stages = [stage for stage, _, _ in told]
    assert list(dict.fromkeys(stages)) == ["reading", "replaying"]
    assert stages == sorted(stages, key=["reading", "replaying"].index)
    size = sum(ref.nbytes for ref in read(LLAMA).tensors.values())
    for stage, total in (("reading", 4 * size), ("replaying", sum(64 + 32 + 4 for _ in range(8)))):
        steps = [(done, of) for name, done, of in told if name == stage]
        assert {of for _, of in steps} == {total}
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        assert steps[-1][0] == total


def test_a_tiny_drafter_is_of_another_target(recorded: Recorded, tmp_path: Path) -> None:
    path = tiny.spell("llama", "torchspec-native").write(tmp_path / "tiny")
    with pytest.raises(UsageError, match="tiny is made for a vocabulary of 160, llama has 2048"):
        parity(path, [path], trace=recorded())
