"""From a directory to a drafter that runs: every trained fixture, as it is and converted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from speculate import draft
from target_model import TargetModel, TargetSession, load_target
from torch import Tensor

from draftconv.api.convert import convert
from draftconv.checkpoint import MemoryFile, TensorRef, open_checkpoint
from draftconv.drafter.checks import target_table
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import AuxLayers
from draftconv.drafter.targets import EMBED_NAMES, Target, find_target
from draftconv.drafter.vocabulary import MapReading
from draftconv.errors import BadCheckpoint, DraftconvError, Refused, UsageError
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.load import load_drafter, to_torch
from tests import tiny
from tests.reference.test_fixtures import DATA, DRAFTERS, train_tiny

EMBEDDING = "embed_tokens.weight"
LENDERS = ("llama-eagle3-reduced", "mla-eagle3.1")
"""Fixtures without an embedding of their own."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


def target_path(name: str) -> Path:
    return DATA / "targets" / name.partition("-")[0]


def target_of(name: str) -> Target:
    found = find_target(str(target_path(name)), None)
    assert found is not None
    return found


@cache
def running_target(name: str) -> TargetModel:
    return load_target(target_path(name))


def read(path: Path, target: Target | None = None) -> Drafter:
    return read_drafter(open_checkpoint(path), ReadOptions(target=target))


def drafts(path: Path, name: str) -> list[list[int]]:
    """What the drafter in a directory proposes after each of a few prompts, two rounds each."""
    described = target_of(name)
    opened = read(path, described)
    model = load_drafter(opened, described)
    assert not isinstance(opened.facts.boundaries, AuxLayers)
    found = []
    for prompt in train_tiny().read_prompts()[:3]:
        cache, session = model.cache(), TargetSession(running_target(name), opened.facts.boundaries)
        logits, states = session.feed(prompt)
        following = torch.cat((prompt[1:], logits[-1:].argmax(-1)))
        for rows in (slice(0, 40), slice(40, None)):
            found.append(draft(model, cache, states[rows], following[rows], 3).tolist())
    return found


@DRAFTERS
def test_the_weights_are_those_of_the_file(name: str) -> None:
    drafter = read(DATA / "drafters" / name)
    loaded = load_drafter(drafter, target_of(name), dtype=torch.bfloat16).state_dict()
    stored = load_file(DATA / "drafters" / name / "model.safetensors")
    assert set(drafter.names.values()) == set(stored)
    for canonical, tensor in loaded.items():
        if canonical == EMBEDDING and name in LENDERS:
            wanted = load_file(target_path(name) / "model.safetensors")["model.embed_tokens.weight"]
        else:
            wanted = stored.pop(drafter.names[canonical])
        assert tensor.dtype == wanted.dtype
        assert torch.equal(tensor.view(torch.uint8), wanted.view(torch.uint8))
    assert set(stored) <= {"t2d"}


@pytest.mark.parametrize("to", ["vllm", "portable", "torchspec"])
@DRAFTERS
def test_a_converted_copy_drafts_the_same(name: str, to: str, tmp_path: Path) -> None:
    source = DATA / "drafters" / name
    convert(source, tmp_path / "out", to=to, target=str(target_path(name)))
    assert drafts(tmp_path / "out", name) == drafts(source, name)


@DRAFTERS
def test_a_damaged_copy_does_not(name: str, tmp_path: Path) -> None:
    """The negative control of the test above: half of the final norm is gone."""
    source = DATA / "drafters" / name
    convert(source, tmp_path / "out", to="vllm", target=str(target_path(name)))
    norm = open_checkpoint(tmp_path / "out").tensors["norm.weight"]
    weights = tmp_path / "out" / norm.file.name
    data = bytearray(weights.read_bytes())
    data[norm.offset : norm.offset + norm.nbytes // 2] = bytes(norm.nbytes // 2)
    weights.write_bytes(data)
    assert drafts(tmp_path / "out", name) != drafts(source, name)


# ── what cannot be loaded ──────────────────────────────────────────────────────────


def refuses(error: type[DraftconvError], said: str, drafter: Drafter, target: Target | None = None) -> None:
    with pytest.raises(error, match=said) as caught:
        load_drafter(drafter, target)
    assert caught.value.why
    assert caught.value.cure


@pytest.mark.parametrize("name", LENDERS)
def test_a_table_that_nobody_lends(name: str, tmp_path: Path) -> None:
    drafter = read(DATA / "drafters" / name)
    refuses(UsageError, "stores no embed_tokens", drafter)
    refuses(UsageError, "known by its config only", drafter, replace(target_of(name), path=None))
    bare = tiny.write_target(tmp_path / "bare", tables={"model.norm.weight": tiny.floats("n", (64,), "BF16")})
    refuses(UsageError, "the target bare stores no embed_tokens", drafter, find_target(str(bare), None))


def test_a_quantized_drafter() -> None:
    drafter = read(DATA / "drafters" / "llama-eagle3")
    quantized = replace(drafter, facts=replace(drafter.facts, quantization="quark int4 per_channel"))
    refuses(Refused, "this one is quark int4 per_channel", quantized)


@pytest.mark.parametrize("maps", [None, MapReading(None, (("d2t-range", "2 draft ids"),))])
def test_a_map_that_is_not_usable(maps: MapReading | None) -> None:
    name = "llama-eagle3-reduced"
    drafter = replace(read(DATA / "drafters" / name), maps=maps)
    refuses(Refused, "its map is missing or not usable", drafter, target_of(name))


def test_a_dtype_that_needs_scales() -> None:
    drafter = read(DATA / "drafters" / "llama-eagle3")
    norm = replace(drafter.tensors["norm.weight"], dtype="I16")
    refuses(BadCheckpoint, "norm.weight is I16", replace(drafter, tensors={**drafter.tensors, "norm.weight": norm}))


def test_an_empty_tensor_does_not_fit() -> None:
    drafter = read(DATA / "drafters" / "llama-eagle3")
    empty = replace(drafter.tensors["norm.weight"], shape=(0,), nbytes=0, file=MemoryFile("x", b""), offset=0)
    with pytest.raises(BadCheckpoint, match=r"norm.weight \(0,\) instead of \(256,\)"):
        load_drafter(replace(drafter, tensors={**drafter.tensors, "norm.weight": empty}))


def test_float_weights_are_cast_and_offsets_are_not() -> None:
    name = "llama-eagle3-reduced"
    loaded: dict[str, Tensor] = load_drafter(read(DATA / "drafters" / name), target_of(name)).state_dict()
    assert {tensor.dtype for key, tensor in loaded.items() if key != "d2t"} == {torch.float32}
    assert loaded["d2t"].dtype == torch.int64


def test_loading_needs_no_file_afterwards(tmp_path: Path) -> None:
    path = tiny.spell("llama", "torchspec-native").write(tmp_path / "x")
    model: DrafterModel = load_drafter(read(path))
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    (path / "model.safetensors").write_bytes(bytes((path / "model.safetensors").stat().st_size))
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_given_tables_stand_in_for_the_drafters_own() -> None:
    """What SGLang and TensorRT-LLM do with the embedding of a drafter as wide as its target."""
    name = "llama-eagle3"
    drafter, table = read(DATA / "drafters" / name), target_table(target_of(name), EMBED_NAMES)
    assert table is not None
    changed = replace(drafter, tensors={**drafter.tensors, EMBEDDING: doubled(drafter.tensors[EMBEDDING])})
    given = load_drafter(changed, tables={EMBEDDING: table})
    assert torch.equal(given.embed_tokens.weight, load_drafter(drafter).embed_tokens.weight)
    assert not torch.equal(load_drafter(changed).embed_tokens.weight, given.embed_tokens.weight)


def doubled(ref: TensorRef) -> TensorRef:
    """The same tensor, BF16, with every value doubled."""
    data = bytes((to_torch(ref) * 2).view(torch.uint8).flatten().tolist())
    return replace(ref, file=MemoryFile("doubled", data), offset=0)
