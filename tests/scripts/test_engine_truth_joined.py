"""How scripts/engine-truth reads joined layers, runners and targets: what differs is told, whoever answers.

No engine is asked: stand-ins answer in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from truth import asking
from truth.asking import Refusal
from truth.drafts import DATA, LAYER, Directory, read, target_of
from truth.sglang import joined as sglang_joined
from truth.sglang import targets
from truth.trained import Truth
from truth.vllm import engine, joined, runner

PARTS = ("gate_proj", "up_proj")
WIDTH = 64


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def fp8(gate: float, up: float) -> Directory:
    """gate and up in FP8 under one scale, and an input scale each."""
    tensors: dict[str, Tensor] = {}
    for seed, (part, scale) in enumerate(zip(PARTS, (gate, up), strict=True)):
        name = f"{LAYER}mlp.{part}"
        tensors[f"{name}.weight"] = numbers(32, WIDTH, seed=seed).to(torch.float8_e4m3fn)
        tensors[f"{name}.weight_scale"] = torch.tensor(0.5)
        tensors[f"{name}.input_scale"] = torch.tensor(scale)
    return Directory({}, tensors)


# ── vLLM ───────────────────────────────────────────────────────────────────────────


def drafted(outputs: Mapping[str, Tensor], **built: object) -> engine.Draft:
    return engine.Draft({}, {}, outputs, {}, frozenset(), built)


def products(directory: Directory, scales: tuple[float, float]) -> Tensor:
    """Of inputs rounded under these scales, each element by itself."""
    x_RI = engine.inputs(WIDTH).double()
    sides = []
    for part, scale in zip(PARTS, scales, strict=True):
        weight = directory.tensors[f"{LAYER}mlp.{part}.weight"].double() * 0.5
        codes = (x_RI / scale).clamp(-448, 448).float().to(torch.float8_e4m3fn).double()
        sides.append((codes * scale) @ weight.T)
    return torch.cat(sides, dim=1).bfloat16()


@pytest.mark.parametrize(
    ("stored", "used", "word"),
    [
        ((0.004, 0.05), (0.05, 0.05), "the largest"),
        ((0.004, 0.05), (0.004, 0.05), "their own"),
        ((0.004, 0.05), (0.004, 0.004), "no scale of theirs"),
        ((0.05, 0.05), (0.05, 0.05), "their own"),
    ],
)
def test_under_which_scale_inputs_were_rounded(
    stored: tuple[float, float], used: tuple[float, float], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = fp8(*stored)
    outputs = {joined.MODULE: products(directory, used)}
    monkeypatch.setattr(engine, "look", lambda *_: drafted(outputs))
    answer = joined.observed(directory.write(tmp_path / "made"))
    assert answer["observed"] == f"loads, inputs under {word}"


@pytest.mark.parametrize(
    ("captured", "word"), [((2, 4, 5), "loads"), ((1, 3, 4), "mis-read: layers"), ((2, 4), "mis-read: layers")]
)
def test_a_runner_captures_what_was_trained_or_not(
    captured: tuple[int, ...], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = read(DATA / "drafters" / "llama-eagle3", "llama-eagle3").facts
    draft = drafted({}, captured=(9,), captured_v2=captured)
    monkeypatch.setattr(engine, "look", lambda *_, **__: draft)
    answer = runner.observed(Path("nowhere"), "llama-eagle3", "captured_v2", facts)
    assert answer == {"observed": word, "detail": f"captures {list(captured)}"}


def test_a_refusal_is_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "look", lambda *_, **__: Refusal("OSError: disk full"))
    facts = read(DATA / "drafters" / "llama-eagle3", "llama-eagle3").facts
    assert runner.observed(Path("nowhere"), "llama-eagle3", "captured", facts)["observed"] == "refused"
    assert joined.observed(Path("nowhere"))["observed"] == "refused"


# ── SGLang ─────────────────────────────────────────────────────────────────────────


def stored_fp8() -> Directory:
    d = fp8(0.01, 0.02)
    return d.put(f"{LAYER}mlp.up_proj.weight_scale", torch.tensor(0.1))


def left_fp8(d: Directory, *, again: bool) -> dict[str, Any]:
    """A joined layer under the largest scale: weights rounded once more, or kept by a miracle."""
    own = [
        d.tensors[f"{LAYER}mlp.{part}.weight"].float() * scale for part, scale in zip(PARTS, (0.5, 0.1), strict=True)
    ]
    if again:
        own = [(part / 0.5).to(torch.float8_e4m3fn).float() * 0.5 for part in own]
    return {"input_scale": 0.02, "weight_scale": 0.5, "weight": torch.cat(own).tolist()}


def stored_fp4() -> Directory:
    tensors: dict[str, Tensor] = {}
    for seed, part in enumerate(PARTS):
        name = f"{LAYER}mlp.{part}"
        tensors[f"{name}.weight"] = torch.full((4, 8), 16 + seed, dtype=torch.uint8)
        tensors[f"{name}.weight_scale"] = numbers(4, 1, seed=seed).to(torch.float8_e4m3fn)
        tensors[f"{name}.weight_scale_2"] = torch.tensor(0.25 / (seed + 1))
        tensors[f"{name}.input_scale"] = torch.tensor(0.02)
    return Directory({}, tensors)


def left_fp4(d: Directory) -> dict[str, Any]:
    blocks = torch.cat([d.tensors[f"{LAYER}mlp.{part}.weight_scale"].view(torch.uint8).flatten() for part in PARTS])
    codes = torch.cat([d.tensors[f"{LAYER}mlp.{part}.weight"].flatten() for part in PARTS])
    return {"input_scale": 0.02, "weight_scale": 0.25, "blocks": sorted(blocks.tolist()), "codes": codes.tolist()}


def read_joined(
    directory: Directory, layer: Mapping[str, Any] | Refusal, work: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    monkeypatch.setattr(asking, "ask", lambda _: layer)
    name = sglang_joined.DRAFTER
    truth = Truth(read(DATA / "drafters" / name, name).facts, {}, target_of(name))
    return str(sglang_joined.observed(directory.write(work / "made"), truth)["observed"])


BOTH = "loads, weights rounded once more, inputs under the largest"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda layer: layer, BOTH),
        (lambda layer: {**layer, "input_scale": 0.01}, "no input scale of theirs"),
        (lambda layer: {**layer, "weight": [[0.0] * WIDTH] * 64}, "loads other weights, inputs under the largest"),
        (lambda _: Refusal("AttributeError: cuda"), "refused"),
    ],
)
def test_what_fp8_layers_are_left_with(
    change: Callable[[Any], Any], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = stored_fp8()
    assert read_joined(directory, change(left_fp8(directory, again=True)), tmp_path, monkeypatch) == word


def test_weights_that_are_kept_are_told_from_rounded_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = stored_fp8()
    layer = left_fp8(directory, again=False)
    assert read_joined(directory, layer, tmp_path, monkeypatch) == "loads, inputs under the largest"


@pytest.mark.parametrize(
    ("same", "change", "word"),
    [
        (False, lambda layer: layer, "mis-read: scales"),
        (True, lambda layer: layer, "loads"),
        (True, lambda layer: {**layer, "weight_scale": 0.3}, "mis-read: scales"),
        (False, lambda layer: {**layer, "codes": layer["codes"][::-1]}, "loads other weights"),
        (False, lambda layer: {**layer, "blocks": [0, *layer["blocks"][1:]]}, "loads other weights"),
    ],
)
def test_what_fp4_layers_are_left_with(
    same: bool, change: Callable[[Any], Any], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = stored_fp4()
    if same:
        directory = directory.put(f"{LAYER}mlp.up_proj.weight_scale_2", torch.tensor(0.25))
    assert read_joined(directory, change(left_fp4(directory)), tmp_path, monkeypatch) == word


def test_the_changes_leave_the_numbers() -> None:
    """What is halved in one place is doubled in another, but for codes that are rounded anew."""
    up = f"{LAYER}mlp.up_proj"
    before = stored_fp4().put(f"{up}.weight_scale", torch.tensor([[0.5], [1.0], [2.0], [8.0]]).to(torch.float8_e4m3fn))
    after = sglang_joined.own_block_scale(before)
    numbers_ = [d.tensors[f"{up}.weight_scale"].float() * d.tensors[f"{up}.weight_scale_2"] for d in (before, after)]
    assert torch.equal(*numbers_)
    assert after.tensors[f"{up}.weight_scale_2"] != before.tensors[f"{up}.weight_scale_2"]


@pytest.mark.parametrize("answer", ["hidden", "no"])
def test_a_target_that_answers_otherwise_disagrees(answer: str) -> None:
    rows = list(targets.rows("sglang@0.5.23", lambda *_: {"observed": f"hands out {answer} states", "detail": ""}))
    silent, noted = ({row.case for row in rows if bool(row.rules) is spoke} for spoke in (False, True))
    assert {"a llama target", "a mistral target"} <= silent
    assert {"a kimi_vl target", "a mistral3 target"} <= noted
    assert {row.case for row in rows if not row.agrees} == (noted if answer == "hidden" else silent)
