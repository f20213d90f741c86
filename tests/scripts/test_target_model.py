"""The reference targets against the slow twin, and cached against whole passes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from target_model import (
    TargetModel,
    TargetSession,
    TargetShape,
    continue_greedily,
    load_target,
    target_shape,
)

from draftconv.drafter.facts import Facts, Gqa, Mla
from draftconv.errors import BadCheckpoint, Refused
from tests.reference import twin
from tests.reference.variants import LLAMA, MLA

FAMILIES = pytest.mark.parametrize("facts", [LLAMA, MLA], ids=["llama", "mla"])
LAYERS = 3


def shape_of(facts: Facts, *, tied: bool = False) -> TargetShape:
    return TargetShape(
        attention=facts.attention,
        layers=LAYERS,
        hidden=facts.hidden,
        intermediate=facts.intermediate,
        vocab=facts.vocab,
        rope=facts.rope,
        eps=facts.eps,
        tied=tied,
    )


def random_target(facts: Facts, *, tied: bool = False) -> TargetModel:
    torch.manual_seed(0)
    model = TargetModel(shape_of(facts, tied=tied)).double().requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.4 + (parameter.ndim == 1))
    return model


TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9]])


@FAMILIES
def test_equals_the_slow_twin_at_every_boundary(facts: Facts) -> None:
    model = random_target(facts)
    w = {name.removeprefix("model."): t.numpy() for name, t in model.state_dict().items()}
    output = model(TOKENS, boundaries=range(LAYERS + 1))
    xs = [w["embed_tokens.weight"][token] for token in TOKENS[0].tolist()]
    for boundary in range(LAYERS + 1):
        assert np.abs(output.states[0, :, boundary].numpy() - np.array(xs)).max() < 1e-9
        if boundary < LAYERS:
            xs = twin.plain_block(facts, w, f"layers.{boundary}.", xs)
    logits = np.array([w["lm_head.weight"] @ twin.rms(x, w["norm.weight"], facts.eps) for x in xs])
    assert np.abs(output.logits[0].numpy() - logits).max() < 1e-9


@FAMILIES
def test_session_equals_one_whole_pass(facts: Facts) -> None:
    model = random_target(facts)
    whole = model(TOKENS, boundaries=(1, 3))
    session = TargetSession(model, (1, 3))
    session.feed(TOKENS[0, :2])
    session.feed(torch.tensor([7, 7, 7]))
    session.rewind(2)
    logits, states = session.feed(TOKENS[0, 2:])
    assert torch.allclose(logits, whole.logits[0, 2:], rtol=0, atol=1e-12)
    assert torch.allclose(states, whole.states[0, 2:], rtol=0, atol=1e-12)


@FAMILIES
def test_greedy_text_is_its_own_argmax(facts: Facts) -> None:
    model = random_target(facts)
    text = torch.cat((TOKENS, continue_greedily(model, TOKENS, 5)), dim=1)
    assert torch.equal(model(text).logits[:, 5:-1].argmax(-1), text[:, 6:])


LLAMA_CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": LAYERS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 40,
}
MLA_CONFIG = LLAMA_CONFIG | {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": LAYERS,
    "kv_lora_rank": 12,
    "num_attention_heads": 3,
    "q_lora_rank": 10,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 8,
    "v_head_dim": 6,
}


def test_shapes_from_config() -> None:
    assert target_shape(LLAMA_CONFIG) == shape_of(LLAMA)
    assert target_shape(MLA_CONFIG) == shape_of(MLA)
    grouped = target_shape(LLAMA_CONFIG | {"num_key_value_heads": 2, "head_dim": 8})
    assert grouped.attention == Gqa(heads=4, kv_heads=2, head_dim=8)
    plain = target_shape(MLA_CONFIG | {"q_lora_rank": None}).attention
    assert isinstance(plain, Mla)
    assert plain.q_lora is None


def test_rope_base_from_either_spelling() -> None:
    new = {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}}
    old = {key: value for key, value in LLAMA_CONFIG.items() if key != "rope_theta"}
    assert target_shape(old | new).rope == replace(LLAMA.rope, theta=5000.0)
    with pytest.raises(Refused, match="spelled in two ways"):
        target_shape(LLAMA_CONFIG | new)


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads"])
def test_a_missing_size_is_named(key: str) -> None:
    with pytest.raises(BadCheckpoint, match=f"has no {key}"):
        target_shape({name: value for name, value in LLAMA_CONFIG.items() if name != key})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA_CONFIG | {"model_type": "mamba"}, "no model_type mamba"),
        (LLAMA_CONFIG | {"attention_bias": True}, "no biases"),
        (LLAMA_CONFIG | {"rope_scaling": {"type": "yarn"}}, r"no scaled rotary embedding \(yarn\)"),
        (MLA_CONFIG | {"first_k_dense_replace": 1}, "no routed experts"),
    ],
)
def test_what_it_does_not_compute_is_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(Refused, match=said):
        target_shape(config)


@pytest.mark.parametrize("tied", [False, True])
def test_loads_sharded_directories(tmp_path: Path, tied: bool) -> None:
    model = random_target(LLAMA, tied=tied)
    names = sorted(set(model.state_dict()) - ({"lm_head.weight"} if tied else set()))
    for part in range(2):
        chosen = {name: model.state_dict()[name] for name in names[part::2]}
        save_file(chosen, tmp_path / f"model-0000{part + 1}-of-00002.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG | {"tie_word_embeddings": tied}))
    loaded = load_target(tmp_path, torch.float64)
    assert torch.allclose(loaded(TOKENS).logits, model(TOKENS).logits, rtol=0, atol=1e-12)


def test_incomplete_directory_is_refused(tmp_path: Path) -> None:
    state = random_target(LLAMA).state_dict()
    del state["model.norm.weight"]
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    with pytest.raises(BadCheckpoint, match=r"1 missing: model\.norm\.weight"):
        load_target(tmp_path)
