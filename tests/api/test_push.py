"""`push`: what a record names goes as it was written, nothing else, and never over what somebody else wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, ModelCardData, close_session, constants

import draftconv
from draftconv.api.push import Push, PushOptions, prepare
from draftconv.checkpoint import open_checkpoint
from draftconv.checkpoint.staging import FileDigest
from draftconv.errors import BadCheckpoint, BadReport, CheckFailed, DraftconvError, UsageError
from draftconv.layouts.drafter_reader import DrafterReader
from draftconv.report import read_report
from draftconv.report.arms import content
from tests.checkpoint.stub_hub import REPO, SHA, Hub, serving
from tests.report import simulated
from tests.traces.recorded import Recorded

DATA = Path(__file__).parents[1] / "data"
TOKEN = "hf_verysecret"
WRITTEN = ["README.md", "config.json", "draftconv.json", "model.safetensors"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A repository that somebody made, private and still empty."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    close_session()
    with serving(Hub({".gitattributes": b""}, private=True)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
    close_session()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    draftconv.convert(DATA / "drafters/llama-eagle3.1", tmp_path / "out", to="vllm", target=str(DATA / "targets/llama"))
    return tmp_path / "out"


def push(out: Path, **options: object) -> Push:
    return draftconv.push(out, REPO, token=TOKEN, **options)  # type: ignore[arg-type]


def refused(kind: type[DraftconvError], what: str, hub: Hub, out: Path, **options: object) -> DraftconvError:
    with pytest.raises(kind, match=what) as caught:
        push(out, **options)
    assert (hub.pushed, hub.deleted, hub.committed, hub.created) == ({}, [], [], {})
    assert caught.value.why
    assert caught.value.cure
    return caught.value


def test_what_the_record_names_goes_and_nothing_else(hub: Hub, out: Path) -> None:
    for name in (".env", "notes.txt", "optimizer.bin"):
        (out / name).write_text("secret")
    (out / "link").symlink_to("/etc/passwd")
    done = push(out)
    assert hub.pushed == {name: (out / name).read_bytes() for name in WRITTEN}
    assert hub.committed == [("main", SHA, False)]
    assert hub.created == {}
    assert done.url == f"{hub.url}/{REPO}/commit/{SHA}"
    assert done.left == (".env", "link", "notes.txt", "optimizer.bin")
    assert {file.state for file in done.files} == {"as written"}
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert TOKEN not in repr(done) + done._repr_html_() + repr(done.upload)


def test_a_file_that_cannot_be_read_is_an_error_in_words(hub: Hub, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("huggingface_hub.lfs.UploadInfo.from_path", fails)
    refused(BadCheckpoint, r"README\.md cannot be read: Input/output error", hub, out)


def test_a_directory_that_cannot_be_listed_is_an_error_in_words(
    hub: Hub, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> None:
        raise OSError(4, "Interrupted system call")

    monkeypatch.setattr(Path, "iterdir", fails)
    with pytest.raises(BadCheckpoint, match="out cannot be listed: Interrupted system call"):
        push(out)
    assert hub.committed == []


def test_a_card_may_be_edited_or_missing(hub: Hub, out: Path) -> None:
    (out / "README.md").write_text("---\nlicense: mit\n---\nmine\n")
    assert [(file.name, file.state) for file in push(out).files if file.state != "as written"] == [
        ("README.md", "edited")
    ]
    assert hub.pushed["README.md"] == b"---\nlicense: mit\n---\nmine\n"
    (out / "README.md").unlink()
    assert "README.md" not in {file.name for file in push(out, overwrite=True).files}


def flipped(out: Path) -> None:
    """One bit of the last weight; the header is what it was."""
    path = out / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def unhashed(out: Path) -> None:
    """As early versions wrote records, and under a digest that fits."""
    from draftconv.checkpoint import open_checkpoint
    from draftconv.conversion.provenance import output_digest

    record = json.loads((out / "draftconv.json").read_text())
    record["files"]["model.safetensors"]["sha256"] = None
    opened = open_checkpoint(out)
    record["output"] = output_digest(opened.tensors, opened.config, record)
    (out / "draftconv.json").write_text(json.dumps(record))


def card_elsewhere(out: Path) -> None:
    (out / "README.md").unlink()
    (out / "README.md").symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (flipped, r"model\.safetensors was changed since it was written"),
        (unhashed, r"holds no hash of model\.safetensors"),
        (card_elsewhere, r"README\.md is not a file of out itself"),
        (lambda out: (out / "draftconv.json").unlink(), r"holds no draftconv\.json of its own"),
        (lambda out: (out / "draftconv.json").write_text("{}"), r"holds no draftconv\.json of its own"),
    ],
)
def test_what_is_not_as_it_was_written_stays(change: Callable[[Path], object], what: str, hub: Hub, out: Path) -> None:
    change(out)
    refused(CheckFailed, what, hub, out)


def test_a_new_repository_is_private_unless_asked(hub: Hub, out: Path) -> None:
    hub.exists = False
    push(out)
    private = dict(hub.created)
    push(out, public=True)
    assert (private.pop("visibility"), hub.created.pop("visibility")) == ("private", "public")
    assert private == hub.created
    assert hub.committed == [("main", None, False)] * 2


def test_a_public_repository_is_named(hub: Hub, out: Path) -> None:
    hub.private = False
    assert "--public" in refused(UsageError, "owner/drafter is public", hub, out).cure
    refused(UsageError, "is public", hub, out, create_pr=True)
    push(out, public=True)
    assert sorted(hub.pushed) == WRITTEN


def test_what_somebody_else_wrote_is_not_replaced(hub: Hub, out: Path) -> None:
    hub.files |= {"README.md": b"theirs", "model-00001-of-00002.safetensors": b"", "hf_quant_config.json": b"{}"}
    caught = refused(UsageError, "holds README.md, hf_quant_config.json, model-00001", hub, out)
    assert "--overwrite" in caught.cure
    done = push(out, overwrite=True)
    assert hub.deleted == ["hf_quant_config.json", "model-00001-of-00002.safetensors"]
    assert done.deleted == tuple(hub.deleted)
    assert sorted(hub.pushed) == WRITTEN


def test_the_same_output_may_go_again(hub: Hub, out: Path, tmp_path: Path) -> None:
    push(out)
    hub.files |= hub.pushed
    push(out)
    draftconv.convert(
        DATA / "drafters/llama-eagle3.1", tmp_path / "other", to="sglang", target=str(DATA / "targets/llama")
    )
    hub.pushed, hub.committed = {}, []
    refused(UsageError, "which this directory did not write", hub, tmp_path / "other")


def test_branches_and_pull_requests(hub: Hub, out: Path) -> None:
    push(out, revision="fp8")
    assert hub.branches == ["main", "fp8"]
    assert hub.committed == [("fp8", None, False)]
    hub.files["README.md"] = b"theirs"
    assert push(out, create_pr=True).url == f"{hub.url}/{REPO}/discussions/1"
    assert hub.committed[-1] == ("main", SHA, True)


def test_a_hub_that_refuses(hub: Hub, out: Path) -> None:
    hub.status = 403
    with pytest.raises(BadCheckpoint, match=r"refuses access to owner/drafter \(HTTP 403\)") as caught:
        push(out)
    assert TOKEN not in str(caught.value)


def test_a_file_that_changes_meanwhile(hub: Hub, out: Path) -> None:
    decided = prepare(out, REPO, PushOptions(token=TOKEN))
    flipped(out)
    with pytest.raises(CheckFailed, match=r"model\.safetensors was changed while it was read"):
        decided.run()
    assert hub.pushed == {}


# ── with a report ──────────────────────────────────────────────────────────────────

REPORT = ["parity/junit.xml", "parity/records.jsonl", "parity/report.html", "parity/report.json", "parity/report.md"]
MARKS = ("<!-- draftconv: accept length -->", "<!-- end: accept length -->")


@pytest.fixture
def report(out: Path, tmp_path: Path, recorded: Recorded) -> Path:
    """Of a real replay: the output against what it was made from."""
    found = draftconv.parity(DATA / "drafters/llama-eagle3.1", out, trace=recorded(count=4))
    found.save(tmp_path / "report")
    return tmp_path / "report"


def about(path: Path, of: Path, **how: Any) -> Path:
    """A simulated report whose candidate is the drafter `of`; `how` as `simulated.make`."""
    made = simulated.make(names=("bf16 | <b>", "cand"), prompts=40, details=False, losses=False, **how)
    print_of = content(DrafterReader().read(open_checkpoint(of), None))
    arms = tuple(replace(arm, content=print_of) if arm.name == "cand" else arm for arm in made.arms)
    replace(made, arms=arms).save(path)
    return path


def hub_card(hub: Hub) -> ModelCard:
    """The card that arrived, as the Hub's own client reads it."""
    return ModelCard(hub.pushed["README.md"].decode())


def test_a_report_goes_with_the_drafter(hub: Hub, out: Path, report: Path) -> None:
    card = (out / "README.md").read_text()
    listed = prepare(out, REPO, PushOptions(token=TOKEN, report=report))
    assert hub.pushed == {}
    assert [(file.name, file.state) for file in listed.files] == [
        ("README.md", "with accept length"),
        *((name, "as written") for name in WRITTEN[1:2]),
        ("model.safetensors", "as written"),
        ("draftconv.json", "as written"),
        *((name, "of the report") for name in ("parity/report.json", "parity/records.jsonl", "parity/report.md",
                                               "parity/junit.xml", "parity/report.html")),
    ]  # fmt: skip
    done = listed.run()
    assert sorted(hub.pushed) == sorted([*WRITTEN, *REPORT])
    assert {name: hub.pushed[name] for name in REPORT} == {
        name: (report / Path(name).name).read_bytes() for name in REPORT
    }
    for file in done.files:
        assert file.digest == FileDigest.of(hub.pushed[file.name])
    assert (out / "README.md").read_text() == card  # what was written stays as it is


def test_the_card_has_the_figures(hub: Hub, out: Path, report: Path) -> None:
    push(out, report=report)
    found = read_report(report)
    estimate = found.comparisons[0].verdict.estimate
    assert estimate is not None
    figure = f"{estimate.candidate.value:.3f}"
    card = hub_card(hub)
    data = card.data
    assert isinstance(data, ModelCardData)
    assert data.eval_results is not None
    assert [(result.metric_type, result.metric_value) for result in data.eval_results] == [
        ("accept_length", round(estimate.candidate.value, 4)),
        ("accept_length_ratio", 1.0),
    ]
    assert data.model_name == "drafter"
    section = card.text.partition(MARKS[0])[2].partition(MARKS[1])[0]
    for words in (
        "✓ **pass**: out drafts exactly as llama-eagle3.1 does",
        f"| reference | llama-eagle3.1 | none | {figure} |",
        f"| this drafter | out | none | {figure} |",
        "| method | replay: every drafter reads the same stored text and states of the target |",
        "| target | llama |",
        f"| trace | {found.about.trace} |",
        f"| drafted tokens per step | {found.about.depth} |",
        "| replay | float32 on cpu |",
        "[The whole report](parity/report.md)",
    ):
        assert words in section
    low, high = (f"{bound:.3f}" for bound in (estimate.candidate.interval.low, estimate.candidate.interval.high))
    assert f"| {figure} | {low} to {high} |" in section


def test_names_in_a_report_are_no_markup(hub: Hub, out: Path, tmp_path: Path) -> None:
    push(out, report=about(tmp_path / "report", out, loss=0.3))
    card = hub.pushed["README.md"].decode()
    assert "✗ **fail**: cand keeps" in card
    assert "<b>" not in card
    assert hub_card(hub).data.to_dict()["model-index"]


def test_a_void_measurement_is_not_indexed(hub: Hub, out: Path, tmp_path: Path) -> None:
    push(out, report=about(tmp_path / "report", out, how="live"))
    card = hub_card(hub)
    assert "∅ **void**" in card.text
    assert "model-index" not in card.data.to_dict()


def test_a_report_of_another_drafter_is_refused(hub: Hub, out: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    draftconv.convert(DATA / "drafters/llama-eagle3", other, to="vllm", target=str(DATA / "targets/llama"))
    named = refused(CheckFailed, "report is not about out: that is", hub, out, report=about(tmp_path / "report", other))
    theirs, ours = (content(DrafterReader().read(open_checkpoint(path), None))[:12] for path in (other, out))
    assert f"that is {ours}, and the report judges" in named.what
    assert f"({theirs})" in named.what
    # as the reference of a run it is not what was judged
    refused(CheckFailed, "is not about", hub, out, report=_as_reference(tmp_path, out))


def _as_reference(tmp_path: Path, out: Path) -> Path:
    made = simulated.make(prompts=40, details=False, losses=False)
    print_of = content(DrafterReader().read(open_checkpoint(out), None))
    arms = tuple(replace(arm, content=print_of) if arm is made.arms[0] else arm for arm in made.arms)
    replace(made, arms=arms).save(tmp_path / "reference")
    return tmp_path / "reference"


def test_the_default_triple_is_that_of_a_target(hub: Hub, tmp_path: Path, recorded: Recorded) -> None:
    """Converted without --target, a drafter has no layers of its own until somebody says of how many they are."""
    out, report = tmp_path / "bare", tmp_path / "report"
    draftconv.convert(DATA / "drafters/llama-eagle3", out, to="vllm")
    draftconv.parity(DATA / "drafters/llama-eagle3", out, trace=recorded(count=4)).save(report)
    caught = refused(CheckFailed, "is not about bare", hub, out, report=report)
    assert caught.cure == "add --target, which decides what the default triple of captured layers is"
    push(out, report=report, target=str(DATA / "targets/llama"))
    assert set(REPORT) <= hub.pushed.keys()


def test_an_edited_report_is_refused(hub: Hub, out: Path, report: Path) -> None:
    (report / "records.jsonl").write_bytes((report / "records.jsonl").read_bytes().replace(b"kind 1", b"kind 2"))
    refused(BadReport, r"records\.jsonl is not the one", hub, out, report=report)


def test_a_page_that_leads_elsewhere_is_not_followed(hub: Hub, out: Path, report: Path) -> None:
    (report / "report.md").unlink()
    (report / "report.md").symlink_to("/etc/passwd")
    refused(CheckFailed, r"report\.md is not a file of report itself", hub, out, report=report)


def test_an_edited_card_keeps_what_was_edited(hub: Hub, out: Path, report: Path) -> None:
    text = (out / "README.md").read_text().replace("\ntags:", "\nlicense: mit\ntags:") + "\n## Mine\n\nmy words\n"
    (out / "README.md").write_text(text)
    assert push(out, report=report).files[0].state == "edited, with accept length"
    card = hub.pushed["README.md"].decode()
    assert card.endswith("\n## Mine\n\nmy words\n")
    assert hub_card(hub).data.to_dict()["license"] == "mit"
    before, after = text.partition(MARKS[0])[0], text.partition(MARKS[1])[2]
    assert card.partition(MARKS[1])[2] == after
    assert card.partition(MARKS[0])[0].partition("model-index")[0] == before.partition("# end:")[0]
    # a card that was filled once is filled again
    (out / "README.md").write_text(card)
    push(out, report=report, overwrite=True)
    assert hub.pushed["README.md"].decode() == card


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (MARKS[0], "", "its text has no longer one place for accept length"),
        (MARKS[1], "", "its text has no longer one place"),
        (MARKS[1], f"{MARKS[1]}\n{MARKS[0]}\n{MARKS[1]}", "its text has no longer one place"),
        ("# end: accept length\n", "", "its front matter has no longer one place"),
        ("---\nlibrary_name", "library_name", "its front matter has no longer one place"),
        ("\ntags:", "\nmodel-index: []\ntags:", "its front matter has a model-index of its own"),
    ],
)
def test_a_card_without_a_place_is_not_overwritten(
    old: str, new: str, what: str, hub: Hub, out: Path, report: Path
) -> None:
    path = out / "README.md"
    path.write_text(path.read_text().replace(old, new, 1))
    refused(CheckFailed, what, hub, out, report=report)
    push(out)


def test_a_report_needs_a_card(hub: Hub, out: Path, report: Path) -> None:
    (out / "README.md").unlink()
    refused(CheckFailed, r"out has no README\.md", hub, out, report=report)


def test_a_report_of_what_stood_there_goes(hub: Hub, out: Path, report: Path, tmp_path: Path) -> None:
    push(out, report=report)
    hub.files |= hub.pushed
    hub.deleted.clear()
    assert push(out).deleted == ()  # the same drafter: what was measured holds
    other = tmp_path / "other"
    draftconv.convert(DATA / "drafters/llama-eagle3", other, to="vllm", target=str(DATA / "targets/llama"))
    assert push(other, overwrite=True).deleted == tuple(REPORT)


def test_a_report_may_lie_in_the_directory(hub: Hub, out: Path, report: Path) -> None:
    report.rename(out / "parity")
    done = push(out, report=out / "parity")
    assert done.left == ()
    assert set(REPORT) <= hub.pushed.keys()


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b"null", b"{}", b'{"commitUrl": 5}', b'{"commitUrl": "x"}'])
def test_an_answer_that_is_none_of_a_hub(answer: bytes, hub: Hub, out: Path) -> None:
    hub.commit = answer
    with pytest.raises(BadCheckpoint, match=f"what {REPO} answered to the upload is no answer of a Hub") as caught:
        push(out)
    assert "is not known" in caught.value.why
