"""transformers as the target: its text and states are the reference's, and wrong ones are noticed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from target_model import TargetModel, continue_greedily, load_target
from torch import Tensor, nn

from draftconv.errors import BadCheckpoint, Refused, UsageError, WriteError
from draftconv.traces import spool, transformers_target
from draftconv.traces.transformers_target import TransformersTarget, _block, find_layers, load_model, transformers
from draftconv.traces.writer import CapturedText
from tests.traces.conftest import DATA, Fixture

FAMILIES = pytest.mark.parametrize("name", ["llama", "mla"])
ROUNDING = 1e-5
"""Of a state's size. Measured: 3.7e-6 in float64, where transformers still norms in float32, 5.1e-6 in float32."""


@cache
def prompts() -> list[list[int]]:
    """Unequal lengths, down to one token."""
    found = json.loads((DATA / "prompts.json").read_text())
    return [list(map(int, found[i][:length])) for i, length in enumerate((33, 5, 20, 64, 1))]


@cache
def reference(name: str, dtype: torch.dtype) -> TargetModel:
    return load_target(DATA / "targets" / name, dtype)


def distance(found_TAW: Tensor, wanted_TAW: Tensor) -> float:
    """The largest relative distance of two states."""
    error_TA = (found_TAW.double() - wanted_TAW.double()).norm(dim=-1)
    return float((error_TA / wanted_TAW.double().norm(dim=-1)).max())


def captured(target: TransformersTarget, asked: Sequence[Sequence[int]]) -> list[CapturedText]:
    return target.capture(asked, lambda _: None)


@FAMILIES
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_text_and_states_are_the_reference_s(live: Fixture, name: str, dtype: torch.dtype) -> None:
    model = reference(name, dtype)
    for prompt, found in zip(prompts(), captured(live(name, str(dtype)[6:]), prompts()), strict=True):
        wanted_N = continue_greedily(model, torch.tensor([prompt]), 12 + 4)[0]
        assert (found.prompt, found.counted) == (len(prompt), 12)
        assert found.tokens_N.tolist() == [*prompt, *wanted_N.tolist()]
        assert tuple(found.states_TAW.shape) == (len(prompt) + 15, 5, 256)
        assert found.states_TAW.dtype == dtype
        states_TAW = model(found.tokens_N[None, :-1], boundaries=(0, 2, 4, 5, 8)).states[0]
        assert distance(found.states_TAW[:], states_TAW) < ROUNDING
        # what the bound is worth: a row or a layer too late is far outside
        assert distance(found.states_TAW[:].roll(1, 0), states_TAW) > 0.1
        assert distance(found.states_TAW[:][:, 1:], states_TAW[:, :-1]) > 0.1


@FAMILIES
def test_a_batch_is_its_requests_one_by_one(live: Fixture, name: str) -> None:
    target = live(name, "float64")
    for prompt, together in zip(prompts(), captured(target, prompts()), strict=True):
        (alone,) = captured(target, [prompt])
        assert torch.equal(together.tokens_N, alone.tokens_N)
        assert distance(together.states_TAW[:], alone.states_TAW[:]) < 1e-13


def test_the_text_ends_at_an_end_token_and_is_kept_beyond_it(live: Fixture) -> None:
    free = captured(live("llama", "float64"), prompts())
    generated = [found.tokens_N[found.prompt :].tolist() for found in free]
    end = generated[0][3]
    other = generated[2][1]
    ended = captured(live("llama", "float64", eos=(end, other)), prompts())
    lengths = []
    for prompt, text, found in zip(prompts(), generated, ended, strict=True):
        places = [i + 1 for i, token in enumerate(text[:12]) if token in (end, other)]
        lengths.append(min(places, default=12))
        assert found.counted == lengths[-1]
        assert found.tokens_N.tolist() == [*prompt, *text[: found.counted + 4]]
        assert len(found.states_TAW) == len(found.tokens_N) - 1
    assert lengths[0] <= 4
    assert lengths[2] <= 2
    assert len(set(lengths)) > 1


def test_no_more_is_generated_than_is_kept(live: Fixture) -> None:
    steps: list[int] = []
    live("llama", "float32", max_tokens=3, depth=2).capture(prompts()[:2], steps.append)
    assert steps == [2] * 5


def test_a_boundary_alone_is_the_column_of_many(live: Fixture) -> None:
    (many,) = captured(live("llama", "float32"), prompts()[:1])
    (one,) = captured(live("llama", "float32", boundaries=(8,)), prompts()[:1])
    assert torch.equal(one.states_TAW[:][:, 0], many.states_TAW[:][:, 4])


# ── long prompts ───────────────────────────────────────────────────────────────────


@FAMILIES
def test_a_prompt_in_blocks_is_the_prompt_at_once(live: Fixture, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, passes = live(name, "float64"), list[int]()
    whole = captured(target, prompts())
    monkeypatch.setattr(transformers_target, "ROWS_AT_ONCE", 35)  # seven rows of each of the five requests
    handle = target.model.register_forward_pre_hook(
        lambda _, __, given: passes.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    for found, wanted in zip(captured(target, prompts()), whole, strict=True):
        assert torch.equal(found.tokens_N, wanted.tokens_N)
        assert distance(found.states_TAW[:], wanted.states_TAW[:]) < 1e-12
    handle.remove()
    assert passes == [7] * 9 + [1] * 16  # 64 = 9 · 7 + 1, and 15 generated tokens that are fed


def test_a_long_text_enters_in_smaller_blocks() -> None:
    assert _block(1, 2048) == 2048
    assert _block(8, 2048) == 256
    assert _block(1, 1 << 15) == 512
    assert _block(64, 1 << 20) == 1


def test_states_of_a_long_text_are_on_disk(live: Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = captured(live("llama", "bfloat16"), prompts())
    monkeypatch.setattr(spool, "IN_MEMORY", 1 << 16)  # eight kilobytes a row would be 1 << 16 after twenty-five
    for found, text in zip(captured(live("llama", "bfloat16", spool=tmp_path), prompts()), wanted, strict=True):
        assert torch.equal(found.states_TAW[:], text.states_TAW[:])
    assert not list(tmp_path.iterdir())  # without a name, so that nothing is left behind
    with pytest.raises(WriteError, match="what was captured so far is kept"):
        captured(live("llama", "bfloat16", spool=tmp_path / "gone"), prompts())


# ── the self-check ─────────────────────────────────────────────────────────────────


@FAMILIES
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("padded", [True, False])
def test_a_sound_target_passes(live: Fixture, name: str, dtype: str, padded: bool) -> None:
    live(name, dtype).check(prompts()[3], padded=padded)
    live(name, dtype).check([7], padded=padded)


def test_hooks_one_layer_off_are_noticed(live: Fixture) -> None:
    layers = live("llama", "bfloat16").layers
    shifted = live("llama", "bfloat16", layers=[*layers[1:], layers[0]])
    with pytest.raises(Refused, match="is not what it calls its hidden states, first at boundary 0"):
        shifted.check(prompts()[0], padded=False)
    swapped = live("llama", "bfloat16", layers=[*layers[:3], layers[4], layers[3], *layers[5:]])
    with pytest.raises(Refused, match="first at boundary 3"):
        swapped.check(prompts()[0], padded=False)
    with pytest.raises(Refused, match=r"\(9 of them, 8 expected\)"):
        live("llama", "bfloat16", layers=layers[:7]).check(prompts()[0], padded=False)


def test_a_layer_that_returns_something_else_is_noticed(live: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_target, "_copy_to_cpu", lambda state: state.detach().float() + 1)
    with pytest.raises(Refused, match="first at boundary 0"):
        live("llama", "float32").check(prompts()[0], padded=False)


@FAMILIES
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_padding_that_is_attended_to_is_noticed(
    live: Fixture, name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    padded = TransformersTarget._pad

    def unmasked(target: TransformersTarget, asked: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        tokens_BT, mask_BT = padded(target, asked)
        return tokens_BT, torch.ones_like(mask_BT)

    monkeypatch.setattr(TransformersTarget, "_pad", unmasked)
    with pytest.raises(Refused, match="states change with padding") as caught:
        live(name, dtype).check(prompts()[3], padded=True)
    assert caught.value.cure == "pass --batch 1"
    live(name, dtype).check(prompts()[3], padded=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_lost_cache_is_noticed(live: Fixture, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = live("llama", dtype)
    whole = target.model.forward

    def forgetful(**words: object) -> object:
        tokens = words["input_ids"]
        assert isinstance(tokens, Tensor)
        return whole(**(words | {"past_key_values": None, "attention_mask": torch.ones_like(tokens)}))

    monkeypatch.setattr(target.model, "forward", forgetful)
    with pytest.raises(Refused, match="states change with the key/value cache"):
        target.check(prompts()[3], padded=False)


# ── models ─────────────────────────────────────────────────────────────────────────


class Repeating(nn.Module):
    """Layers with experts, as many as there are layers, and perhaps another tower."""

    def __init__(self, layers: int, experts: int, tower: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"experts": nn.ModuleList(nn.Identity() for _ in range(experts))}) for _ in range(layers)
        )
        self.vision = nn.ModuleList(nn.Identity() for _ in range(tower))


def test_layers_are_found_or_refused() -> None:
    model = Repeating(4, 4, 3)
    assert find_layers(model, 4) == list(model.layers)
    with pytest.raises(Refused, match=r"2 lists of 4 modules could be its decoder layers \(layers, vision\)"):
        find_layers(Repeating(4, 2, 4), 4)
    with pytest.raises(Refused, match="0 lists of 5 modules"):
        find_layers(model, 5)


def test_tables_of_the_loaded_model(live: Fixture, tmp_path: Path) -> None:
    stored = load_file(DATA / "targets/llama/model.safetensors")
    target = live("llama", "bfloat16")
    for name, spelled in (("embed_tokens", "model.embed_tokens.weight"), ("lm_head", "lm_head.weight")):
        table = target.table(name)
        assert (table.dtype, table.shape) == ("BF16", (2048, 256))
        assert table.read() == stored[spelled].view(torch.uint8).numpy().tobytes()
    bare = TransformersTarget(nn.Linear(2, 2), [], (0,), 1, 1, (), tmp_path)
    with pytest.raises(Refused, match="does not say where its embed_tokens is"):
        bare.table("embed_tokens")
    with pytest.raises(Refused, match="computes in None"):
        _ = bare.dtype


SMALL = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256}  # fmt: skip
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
          "image_size": 28, "patch_size": 14}  # fmt: skip
KINDS: Mapping[str, Mapping[str, object]] = {
    "gpt2": {"vocab_size": 128, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 256},
    "gpt_oss": {**SMALL, "head_dim": 8, "sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma2": {**SMALL, "head_dim": 8, "sliding_window": 4},
    "deepseek_v3": {**SMALL, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 16, "q_lora_rank": 8, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
                    "qk_rope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1},
    "llava": {"text_config": {"model_type": "llama", **SMALL},
              "vision_config": {"model_type": "clip_vision_model", **VISION}},
    "mamba": {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 4, "state_size": 4},
}  # fmt: skip
"""Learned positions; sinks and windows; two norms more; as many experts as layers; a vision tower; no attention."""


def invented(kind: str, directory: Path) -> TransformersTarget:
    """A small model of that kind with random weights, through its files."""
    library = transformers()
    config = library.AutoConfig.for_model(kind, **KINDS[kind])
    torch.manual_seed(0)
    auto = library.AutoModelForImageTextToText if kind == "llava" else library.AutoModelForCausalLM
    auto.from_config(config).save_pretrained(directory)
    model = load_model(directory, dtype="float32", device="cpu", trust_remote_code=False)
    return TransformersTarget(model, find_layers(model, 4), (0, 2, 4), 6, 2, (), directory)


PROBE = [5, 9, 33, 70, 12, 90, 4, 8, 100, 3, 44, 21, 7, 6, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mamba"])
def test_models_of_other_kinds(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = invented(kind, tmp_path)
    target.check(PROBE, padded=True)
    asked = [PROBE[:9], PROBE[:2]]
    for prompt, together in zip(asked, captured(target, asked), strict=True):
        (alone,) = captured(target, [prompt])
        monkeypatch.setattr(transformers_target, "ROWS_AT_ONCE", 3)
        (blocks,) = captured(target, [prompt])
        monkeypatch.undo()
        for found in (together, blocks):
            assert torch.equal(found.tokens_N, alone.tokens_N)
            assert distance(found.states_TAW[:], alone.states_TAW[:]) < 1e-4


@pytest.mark.slow
def test_a_model_that_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not what it calls its hidden states"):
        invented("mamba", tmp_path).check(PROBE, padded=True)


@pytest.mark.slow
def test_positions_that_count_padding_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = invented("gpt2", tmp_path)
    whole = target.model.forward
    monkeypatch.setattr(
        target.model, "forward", lambda **words: whole(**{k: v for k, v in words.items() if k != "position_ids"})
    )
    with pytest.raises(Refused, match="states change with padding"):
        target.check(PROBE, padded=True)
    target.check(PROBE, padded=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "targets/llama", tmp_path / "target"))


def load(directory: Path, device: str = "cpu") -> nn.Module:
    return load_model(directory, dtype=None, device=device, trust_remote_code=False)


def test_weights_are_never_invented(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    del tensors["model.layers.3.mlp.up_proj.weight"]
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadCheckpoint, match=r"lacks 1 weights: model\.layers\.3\.mlp\.up_proj\.weight"):
        load(copy)


def test_a_model_of_no_known_kind(copy: Path) -> None:
    (copy / "config.json").write_text(json.dumps({"model_type": "nobody-knows", "num_hidden_layers": 8}))
    with pytest.raises(BadCheckpoint, match="transformers cannot load target"):
        load(copy)


def test_code_of_a_model_is_not_run(copy: Path) -> None:
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"}}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "own.py").write_text("raise SystemExit('was run')")
    with pytest.raises(UsageError, match="is run by Python code of its own") as caught:
        load(copy)
    assert "--trust-remote-code" in caught.value.cure


def test_a_device_that_is_not_there(copy: Path) -> None:
    with pytest.raises(UsageError, match="--device nowhere"):
        load(copy, "nowhere")


def test_without_transformers_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match="is not installed") as caught:
        transformers()
    assert caught.value.cure == "`pip install 'draftconv[target]'`"
