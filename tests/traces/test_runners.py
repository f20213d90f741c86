"""A trace through vLLM's server interface: what is asked for, what is refused before anything is written."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftconv.api.trace import TraceOptions, TraceSize, trace
from draftconv.engines import ENGINES
from draftconv.errors import DraftconvError, EngineError, Refused, Undecided, UsageError, Void
from draftconv.reference.sampling import Sampling
from draftconv.traces.options import runners
from draftconv.traces.trace import open_trace
from tests.engines.tracing.stub import BOUNDARIES, VOCAB, WIDTH, Stub, logprob, serving, states, text
from tests.keywords import keywords

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "num_hidden_layers": 8,
    "vocab_size": VOCAB,
    "torch_dtype": "bfloat16",
    "eos_token_id": 49,
}
PROMPTS = [[3, 1, 4], [1, 5], [9, 2, 6, 5]]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A target that only a server runs: its config and its embedding."""
    return write_target(tmp_path / "target", CONFIG, "model.embed_tokens.weight")


def write_target(path: Path, config: dict[str, object], table: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file({table: torch.arange(VOCAB * WIDTH).reshape(VOCAB, WIDTH).bfloat16()}, path / "model.safetensors")
    return path


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(PROMPTS))
    return path


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    (tmp_path / "states").mkdir()
    with serving(tmp_path / "states") as made:
        yield made


def options(stub: Stub) -> TraceOptions:
    return TraceOptions(
        boundaries=BOUNDARIES,
        engine="vllm",
        url=stub.url,
        hidden_states_dir=stub.storage,
        max_tokens=8,
        num_speculative_tokens=3,
        batch=2,
    )


def test_a_trace_from_a_server(tmp_path: Path, target: Path, prompts: Path, stub: Stub) -> None:
    told: list[TraceSize] = []
    made = trace(target, prompts, tmp_path / "trace", **keywords(options(stub), announce=told.append))
    assert made.about == open_trace(tmp_path / "trace").about
    assert made.about.made_by.endswith(", vllm 0.32.0")
    assert (made.about.dtype, made.about.boundaries, made.about.eos) == ("bfloat16", BOUNDARIES, (49,))
    assert told[0].device == f"vLLM 0.32.0 at {stub.url}"
    for prompt, entry in zip(PROMPTS, made.entries, strict=True):
        generated = text(tuple(prompt), 11)
        counted = generated[:8].index(49) + 1 if 49 in generated[:8] else 8
        request = made.read(entry, BOUNDARIES)
        tokens = (*prompt, *generated[: counted + 3])
        assert (request.prompt, request.counted) == (len(prompt), counted)
        assert request.tokens_N.tolist() == list(tokens)
        assert torch.equal(request.states_TAW[:], states(tokens))
    assert list(stub.storage.iterdir()) == []


def test_a_trace_that_stopped_goes_on(tmp_path: Path, target: Path, prompts: Path, stub: Stub) -> None:
    """The server breaks down in the second batch; what the first gave is not asked for again."""
    broken = options(stub)
    whole = stub.answer
    stub.answer = lambda reply: whole(reply) if len(stub.asked) < 4 else b"<html>"
    with pytest.raises(EngineError, match="does not answer as vLLM"):
        trace(target, prompts, tmp_path / "trace", **keywords(broken))
    stub.answer, before = whole, len(stub.asked)
    made = trace(target, prompts, tmp_path / "trace", **keywords(broken))
    assert len(made.entries) == 3
    assert [body["prompt"] for body in stub.asked[before:]] == [PROMPTS[2], PROMPTS[2]]  # a look, and the request


def test_a_server_without_extraction_is_told_how_to_start(
    tmp_path: Path, target: Path, prompts: Path, stub: Stub
) -> None:
    stub.answer = lambda reply: {key: value for key, value in reply.items() if key != "kv_transfer_params"}
    with pytest.raises(EngineError, match="extracts no hidden states") as caught:
        trace(target, prompts, tmp_path / "trace", **keywords(options(stub)))
    assert caught.value.cure.startswith(f"start it with: vllm serve {shlex.quote(str(target))} --host 127.0.0.1")
    assert str(stub.storage) in caught.value.cure
    assert not (tmp_path / "trace").exists()


def test_other_boundaries_void_it_before_it_is_begun(tmp_path: Path, target: Path, prompts: Path, stub: Stub) -> None:
    with pytest.raises(Void, match=r"boundaries \[2, 5\]") as caught:
        trace(target, prompts, tmp_path / "trace", **keywords(replace(options(stub), boundaries=(2, 5))))
    assert '"eagle_aux_hidden_state_layer_ids": [2, 5]' in caught.value.cure
    assert not (tmp_path / "trace").exists()


def test_a_trace_of_drawn_text(tmp_path: Path, target: Path, prompts: Path, stub: Stub) -> None:
    made = trace(target, prompts, tmp_path / "trace", **keywords(replace(options(stub), temperature=0.7, top_p=0.9)))
    assert made.about.sampling == Sampling(0.7, top_p=0.9)
    for entry in made.entries:
        found = made.read(entry, BOUNDARIES).logprobs_N
        assert found is not None
        assert found.tolist() == [logprob(i) for i in range(entry.counted + 3)]
    look, *asked = stub.asked
    assert (look["temperature"], look["top_k"], look["prompt"]) == (1, 1, [0, 1, 2, 3])
    assert {body["temperature"] for body in asked} == {0.7}
    assert list(stub.storage.iterdir()) == []


def test_log_probabilities_before_temperature_are_refused(
    tmp_path: Path, target: Path, prompts: Path, stub: Stub
) -> None:
    stub.raw = True
    with pytest.raises(
        EngineError, match=r"tells log p -0\.125 of a token that top_k 1 left without a rival"
    ) as caught:
        trace(target, prompts, tmp_path / "trace", **keywords(replace(options(stub), temperature=0.7)))
    assert "without --logprobs-mode processed_logprobs vLLM tells those of raw logits" in caught.value.why
    assert "--logprobs-mode processed_logprobs" in caught.value.cure
    assert not (tmp_path / "trace").exists()


WRONG: dict[str, tuple[dict[str, object], type[DraftconvError], str]] = {
    "a url without a directory": ({"hidden_states_dir": None}, UsageError, "--url needs --hidden-states-dir"),
    "a directory that is not there": ({"hidden_states_dir": Path("/nowhere")}, UsageError, "is no directory"),
    "a directory without a url": ({"url": None}, UsageError, "--hidden-states-dir has no meaning"),
    "a url for transformers": ({"engine": "transformers"}, UsageError, "--url has no meaning"),
    "an unknown engine": ({"engine": "toy"}, UsageError, "--engine toy: unknown"),
    "an engine without states": ({"engine": "sglang"}, UsageError, "--engine sglang: SGLang hands out no states"),
    "a device": ({"device": "cpu"}, UsageError, "--device has no meaning"),
    "devices of a server": ({"tensor_parallel_size": 8}, UsageError, "--tensor-parallel-size has no meaning"),
    "what vLLM does not compute in": ({"dtype": "float64"}, UsageError, "--dtype float64"),
    "no address": ({"url": "localhost"}, UsageError, "no address"),
    "what vLLM leaves out": ({"temperature": 0.7, "min_p": 0.1}, UsageError, "--min-p 0.1: vLLM leaves it out"),
    "what vLLM raises": ({"temperature": 0.005}, UsageError, "--temperature 0.005: vLLM draws at 0.01"),
    "what vLLM refuses": ({"temperature": 2.5}, UsageError, "--temperature 2.5: vLLM draws at 0.01 to 2"),
    "a text that does not fit": ({"max_tokens": 60}, UsageError, "do not fit into the engine's 64"),
}


@pytest.mark.parametrize("name", WRONG)
def test_options_that_do_not_fit(tmp_path: Path, target: Path, prompts: Path, stub: Stub, name: str) -> None:
    changes, kind, told = WRONG[name]
    with pytest.raises(kind, match=told):
        trace(target, prompts, tmp_path / "trace", **keywords(replace(options(stub), **changes)))  # type: ignore[arg-type]
    assert stub.asked == []
    assert not (tmp_path / "trace").exists()


def test_an_engine_that_hands_out_states_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runners() == ("transformers", "vllm")
    toy = replace(ENGINES["sglang"], name="toy", rules=(), covers=(), tracing=ENGINES["vllm"].tracing)
    monkeypatch.setitem(ENGINES.by_name, "toy", toy)
    assert runners() == ("transformers", "vllm", "toy")


def test_a_dtype_that_nobody_tells(tmp_path: Path, prompts: Path, stub: Stub) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "torch_dtype"}
    target = write_target(tmp_path / "target", config, "model.embed_tokens.weight")
    with pytest.raises(Undecided, match="does not say what vLLM shall compute in"):
        trace(target, prompts, tmp_path / "trace", **keywords(options(stub)))
    assert (
        trace(target, prompts, tmp_path / "trace", **keywords(replace(options(stub), dtype="bfloat16"))).about.dtype
        == "bfloat16"
    )


def test_a_multimodal_target_says_it_in_its_text_config(tmp_path: Path, prompts: Path, stub: Stub) -> None:
    """As Kimi-K2.6 does, whose embedding has a longer name too."""
    text_config = {key: value for key, value in CONFIG.items() if key not in ("architectures", "torch_dtype")}
    config: dict[str, object] = {
        "model_type": "kimi_k25",
        "text_config": {**text_config, "model_type": "kimi_k2", "dtype": "bfloat16"},
    }
    target = write_target(tmp_path / "target", config, "language_model.model.embed_tokens.weight")
    made = trace(target, prompts, tmp_path / "trace", **keywords(options(stub)))
    assert (made.about.dtype, set(made.tables)) == ("bfloat16", {"embed_tokens"})


def test_a_table_that_no_file_holds(tmp_path: Path, prompts: Path, stub: Stub) -> None:
    target = write_target(tmp_path / "target", CONFIG, "transformer.wte.weight")
    with pytest.raises(Refused, match="hold no unquantized embed_tokens"):
        trace(target, prompts, tmp_path / "trace", **keywords(options(stub)))
    assert not (tmp_path / "trace").exists()


def test_offline_without_vllm(tmp_path: Path, target: Path, prompts: Path) -> None:
    wanted = TraceOptions(boundaries=BOUNDARIES, engine="vllm", max_tokens=8, num_speculative_tokens=3)
    with pytest.raises(EngineError, match="vLLM is not installed") as caught:
        trace(target, prompts, tmp_path / "trace", **keywords(wanted))
    assert "vllm serve" in caught.value.cure
    assert '"shared_storage_path": "DIR"' in caught.value.cure
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.json", "target"]
