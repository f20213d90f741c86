"""The committed targets and drafters: what they weigh, what they read like, what they accept."""

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors import safe_open
from speculate import Decoded
from target_model import continue_greedily, load_target
from tokenizers import Tokenizer

from draftconv.reference.accept_length import Counts

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
FEW = 4  # prompts that the fast tests decode; the figures cover all of them


@cache
def train_tiny() -> ModuleType:
    """scripts/train_tiny.py, which knows each fixture's facts and spelling."""
    spec = importlib.util.spec_from_file_location("train_tiny", ROOT / "scripts" / "train_tiny.py")
    if spec is None or spec.loader is None:
        raise ImportError("scripts/train_tiny.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


MEASURED: dict[str, Any] = json.loads((DATA / "measured.json").read_text())
DRAFTERS = pytest.mark.parametrize("name", MEASURED["drafters"])


@cache
def decoded(name: str) -> list[Decoded]:
    """The first few held-out prompts, decoded in float32."""
    requests: list[Decoded] = train_tiny().decode(name, train_tiny().read_prompts()[:FEW])
    return requests


def accept_length(requests: list[Decoded]) -> float:
    return Counts.pooled(request.counts for request in requests).accept_length


def test_every_drafter_was_measured() -> None:
    assert MEASURED["drafters"].keys() == train_tiny().RECIPES.keys()
    assert {path.name for path in (DATA / "drafters").iterdir()} == MEASURED["drafters"].keys()


@DRAFTERS
def test_accept_length_bound(name: str) -> None:
    figures = MEASURED["drafters"][name]
    pooled = 1 + sum(figures["accepted"]) / sum(figures["steps"])
    assert pooled == pytest.approx(figures["accept_length"], abs=1e-4)
    assert pooled >= 1.8
    assert accept_length(decoded(name)) >= 1.8


@DRAFTERS
def test_counts_are_reproduced_exactly(name: str) -> None:
    figures = MEASURED["drafters"][name]
    assert [request.counts.steps for request in decoded(name)] == figures["steps"][:FEW]
    assert [request.counts.accepted for request in decoded(name)] == figures["accepted"][:FEW]


@DRAFTERS
def test_text_is_the_targets_own_and_no_loop(name: str) -> None:
    figures = MEASURED["drafters"][name]
    target = load_target(DATA / "targets" / figures["target"])
    prompts = torch.stack(train_tiny().read_prompts()[:FEW])
    texts = [list(request.tokens) for request in decoded(name)]
    assert texts == continue_greedily(target, prompts, MEASURED["settings"]["length"]).tolist()
    assert train_tiny().distinct_fourgrams(texts) >= 0.5
    assert figures["distinct_fourgrams"] >= 0.5


@DRAFTERS
def test_a_lost_norm_flag_costs_acceptance(name: str) -> None:
    """The negative control: the same weights read with the other feedback accept less."""
    trained = train_tiny().RECIPES[name].facts.feedback
    other = "pre-norm" if trained == "post-norm" else "post-norm"
    misread = train_tiny().decode(name, train_tiny().read_prompts()[:FEW], feedback=other)
    assert accept_length(misread) < accept_length(decoded(name))


def test_sizes_stay_committable() -> None:
    sizes = {path: path.stat().st_size for path in DATA.rglob("*") if path.is_file()}
    assert sum(sizes.values()) <= 40_000_000
    assert max(sizes.values()) <= 16_000_000


@pytest.mark.parametrize("file", sorted(DATA.glob("*/*/model.safetensors")), ids=lambda p: p.parent.name)
def test_weights_are_finite_bfloat16(file: Path) -> None:
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 (not a dict)
            tensor = opened.get_tensor(name)
            if name in {"d2t", "t2d"}:
                assert tensor.dtype == {"d2t": torch.int64, "t2d": torch.bool}[name]
            else:
                assert tensor.dtype == torch.bfloat16
                assert bool(tensor.isfinite().all())


def test_vocabulary_maps_agree() -> None:
    with safe_open(DATA / "drafters" / "llama-eagle3-reduced" / "model.safetensors", framework="pt") as opened:
        kept = opened.get_tensor("d2t") + torch.arange(1024)
        assert torch.equal(opened.get_tensor("t2d").nonzero()[:, 0], kept)


@DRAFTERS
def test_kept_embeddings_are_the_targets(name: str) -> None:
    target = DATA / "targets" / MEASURED["drafters"][name]["target"] / "model.safetensors"
    with safe_open(DATA / "drafters" / name / "model.safetensors", framework="pt") as drafter:
        if "embed_tokens.weight" not in drafter.keys():  # noqa: SIM118
            pytest.skip("this producer's file has no embedding")
        with safe_open(target, framework="pt") as opened:
            table = opened.get_tensor("model.embed_tokens.weight")
        assert torch.equal(drafter.get_tensor("embed_tokens.weight"), table)


@pytest.mark.parametrize("target", ["llama", "mla"])
def test_tokenizer_round_trip(target: str) -> None:
    tokenizer = Tokenizer.from_file(str(DATA / "targets" / target / "tokenizer.json"))
    text = 'def f(x):\n    """Grüße."""\n    return x'
    assert tokenizer.get_vocab_size() == 2048
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
