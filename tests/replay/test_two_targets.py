"""One drafter on two targets: paired by prompt, and never compared where the prompts are others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from draftconv.api.parity import parity
from draftconv.errors import BadCheckpoint, UsageError
from draftconv.replay.options import ParityOptions
from draftconv.replay.two_targets import MARGIN, vocabulary_of
from draftconv.report import Report, read_report
from draftconv.traces.trace import INDEX, open_trace
from draftconv.traces.writer import CapturedText, Slot, TraceWriter
from tests.keywords import keywords
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import HELD, make_trace, requests

LLAMA = DATA / "drafters/llama-eagle3"
COUNT = 32


@cache
def tuned_text(length: int) -> tuple[CapturedText, ...]:
    """What a fine-tuned target could have written: the texts of other prompts behind the first ones' prompts.

    The states stay those of the text that they belong to, so the drafter accepts as it does there.
    """
    made = requests("llama", count=COUNT, length=length)
    rolled = (*made[1:], made[0])
    return tuple(
        CapturedText(mine.prompt, mine.counted, mine.tokens_N if i % 4 else other.tokens_N, mine.states_TAW)
        for i, (mine, other) in enumerate(zip(made, rolled, strict=True))
    )


@pytest.fixture
def first(tmp_path: Path) -> Path:
    make_trace(tmp_path / "first", "llama", count=COUNT)
    return tmp_path / "first"


@pytest.fixture
def second(first: Path, tmp_path: Path) -> Path:
    """Three texts of four are the same, with the same states; the others are the next prompt's."""
    about = replace(open_trace(first).about, target="tuned")
    made = requests("llama", count=COUNT)
    slots = [Slot(request.id, request.cluster, request.category) for request in made]
    with TraceWriter(tmp_path / "second", about, slots, tables={}) as writer:
        for i, text in enumerate(tuned_text(made[0].counted)):
            writer.write(i, replace(text, states_TAW=text.states_TAW[:][:, list(HELD)]))
        writer.finish()
    return tmp_path / "second"


def judged(first: Path, second: Path, **changes: object) -> Report:
    options = replace(ParityOptions(trace=first, trace_cand=second), **changes)  # type: ignore[arg-type]
    return parity(LLAMA, (), **keywords(options))


def edited(trace: Path, change: Callable[[dict[str, object]], object]) -> Path:
    index = trace / INDEX
    document = json.loads(index.read_text())
    change(document)
    index.write_text(json.dumps(document))
    return trace


def test_the_same_target_twice_is_equal(first: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(first, tmp_path / "copy"))
    report = judged(first, copy)
    (comparison,) = report.comparisons
    assert comparison.verdict.outcome == "equivalent"
    assert comparison.verdict.estimate is not None
    assert comparison.verdict.estimate.ratio == 1
    assert comparison.diagnostics.texts is not None
    assert (comparison.diagnostics.texts.identical, comparison.diagnostics.texts.splits) == (COUNT, ())
    assert [arm.name for arm in report.arms] == ["on llama", "on llama (2)"]


def test_other_texts_are_paired_by_prompt(first: Path, second: Path, tmp_path: Path) -> None:
    report = judged(first, second)
    (comparison,) = report.comparisons
    texts = comparison.diagnostics.texts
    assert texts is not None
    assert (texts.requests, texts.identical) == (COUNT, COUNT * 3 // 4)
    assert len(texts.splits) == COUNT // 4
    assert comparison.verdict.outcome == "fail"  # a drafter that is fed the states of another text accepts little
    assert comparison.verdict.gate.margin == MARGIN
    assert report.about.settings["target of the candidate"] == "tuned"
    assert report.about.settings["trace of the candidate"] == open_trace(second).digest
    pairs = report.pairs(comparison)
    equal = [pair.equal for pair in pairs]
    assert equal == [bool(i % 4) for i in range(COUNT)]
    report.save(tmp_path / "report")
    assert read_report(tmp_path / "report") == report


def test_a_margin_that_is_given(first: Path, second: Path) -> None:
    (comparison,) = judged(first, second, margin=0.5).comparisons
    assert comparison.verdict.gate.margin == 0.5
    with pytest.raises(UsageError, match="--margin 0"):
        judged(first, second, margin=0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fake_quant": ("w4a16",)}, "--fake-quant"),
        ({"attribute": True}, "--attribute"),
        ({"self_test": True}, "--self-test"),
        ({"extend": "report"}, "--extend"),
        ({"baseline": "accept.json"}, "--baseline"),
        ({"num_speculative_tokens": 9}, "the trace keeps 4 tokens"),
        ({"draft_sample_method": "probabilistic"}, "is greedy"),
    ],
)
def test_options_that_compare_drafters(first: Path, second: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        judged(first, second, **changes)


def test_two_drafters_are_refused(first: Path, second: Path) -> None:
    with pytest.raises(UsageError, match="one drafter on two targets"):
        parity(LLAMA, [LLAMA], trace=first, trace_cand=second)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(prompts_sha256="1" * 64), "were not asked the same"),
        (lambda d: d.update(prompts_sha256="1" * 64, chat=True), "chat template and one without"),
        (lambda d: d.update(vocab=4096), "a vocabulary of 2048"),
        (lambda d: d.update(max_tokens=65), "texts of at most 64"),
    ],
)
def test_traces_that_are_not_alike(
    first: Path, second: Path, change: Callable[[dict[str, object]], object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        judged(first, edited(second, change))


def test_tokenizers_that_differ(first: Path, second: Path) -> None:
    """By what they call which number; how the files are laid out is nothing."""
    vocabulary = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": []}
    (first / "tokenizer.json").write_text(json.dumps(vocabulary))
    (second / "tokenizer.json").write_text(json.dumps({"version": "1.0", **vocabulary}, indent=1))
    assert judged(first, second).comparisons
    (second / "tokenizer.json").write_text(json.dumps({**vocabulary, "model": {"vocab": {"a": 1, "b": 0}}}))
    with pytest.raises(UsageError, match="the tokenizers of llama and tuned differ"):
        judged(first, second)
    (second / "tokenizer.json").write_text("[]")
    with pytest.raises(BadCheckpoint):
        vocabulary_of(second / "tokenizer.json")


def test_requests_that_only_one_has(first: Path, tmp_path: Path) -> None:
    make_trace(tmp_path / "fewer", "llama", count=4)
    with pytest.raises(UsageError, match="has 32 requests, that of llama 4"):
        judged(first, tmp_path / "fewer")
