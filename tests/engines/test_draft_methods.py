"""How engines choose drafts where text is drawn: by their versions, and by what a server is told."""

from __future__ import annotations

import pytest

from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.draft_methods import draft_method, refuse_reduced
from draftconv.errors import UsageError

TOLD = {
    "vllm": ('{"method": "eagle3", "draft_sample_method": "probabilistic"}',),
    "vllm:cpu": ("--speculative-config.draft_sample_method", "probabilistic"),
    "sglang": ("--speculative-use-rejection-sampling",),
    "trtllm": ("speculative_config:\n  use_rejection_sampling: true\n",),
}


@pytest.mark.parametrize("name", [name for name, engine in ENGINES.items() if engine.live])
def test_an_engine_that_is_measured_says_it(name: str) -> None:
    for method in ENGINES[name].draft_methods:
        assert method.source.endswith((" read", " run"))
    assert draft_method(parse_engine(name), ()).startswith("greedy (")


@pytest.mark.parametrize("spec", TOLD)
def test_a_server_that_is_told_to_draw_its_drafts(spec: str) -> None:
    assert draft_method(parse_engine(spec), TOLD[spec]).startswith("probabilistic (")


@pytest.mark.parametrize(
    "texts",
    [
        ('{"draft_sample_method": "greedy"}',),
        ("--model", "/models/probabilistic"),
        ("use_rejection_sampling: false\n",),
    ],
)
def test_a_server_that_is_not(texts: tuple[str, ...]) -> None:
    for spec in TOLD:
        assert draft_method(parse_engine(spec), texts).startswith("greedy (")


def test_a_version_that_was_not_read() -> None:
    assert draft_method(parse_engine("vllm@0.22"), ()) == "not known of vLLM 0.22"
    assert draft_method(parse_engine("vllm@0.32.1"), ()).startswith("greedy (vLLM, config/speculative.py")


def test_a_reduced_vocabulary() -> None:
    """SGLang alone draws drafts from a whole one only."""
    with pytest.raises(UsageError, match="--speculative-use-rejection-sampling beside a drafter") as caught:
        refuse_reduced(parse_engine("sglang"), TOLD["sglang"])
    assert "srt/speculative/eagle_worker_v2.py:260" in caught.value.why
    for spec in ("vllm", "trtllm"):
        refuse_reduced(parse_engine(spec), TOLD[spec])
    refuse_reduced(parse_engine("sglang"), ())
