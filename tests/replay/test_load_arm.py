"""Which tables a drafter gets, what it shares with another, and which tensors tell two apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from draftconv.checkpoint import Checkpoint, MemoryFile, TensorRef
from draftconv.drafter.drafter import Detection, Drafter
from draftconv.drafter.facts import AuxLayers, Facts
from draftconv.drafter.tensors import EMBEDDING, HEAD
from draftconv.errors import BadCheckpoint, Refused, Undecided, UsageError
from draftconv.replay.load_arm import LoadSettings, fed_by, load_arm, replaced_one_by_one
from draftconv.replay.target_tables import from_target, semantics
from tests.reference.variants import LLAMA, random_tensors
from tests.replay.scripted import random_arm

NARROW = replace(LLAMA, hidden=12)
BARE = replace(LLAMA, own_embedding=False, own_head=False)
DOWN = "layers.0.mlp.down_proj.weight"


def ref(name: str, tensor: torch.Tensor) -> TensorRef:
    data = tensor.to(torch.float32).numpy().tobytes()
    return TensorRef(name, "F32", tuple(tensor.shape), MemoryFile(name, data), 0, len(data))


def drafter(facts: Facts, seed: int = 0) -> Drafter:
    """On disk as far as anybody can tell: its own tables only where the facts say so."""
    stored = random_tensors(facts, seed)
    absent = {EMBEDDING: not facts.own_embedding, HEAD: not facts.own_head}
    refs = {name: ref(name, tensor) for name, tensor in stored.items() if not absent.get(name)}
    checkpoint = Checkpoint("drafter", None, {}, "", refs, {}, {}, ())
    return Drafter(checkpoint, Detection("made", "certain", ()), facts, refs, {name: name for name in refs}, {})


TABLES = {
    "embed_tokens": ref("target.embed", torch.full((LLAMA.vocab, LLAMA.hidden), 0.25)),
    "lm_head": ref("target.head", torch.full((LLAMA.vocab, LLAMA.hidden), 0.5)),
}


def lent(tables: Mapping[str, TensorRef] = TABLES, **how: object) -> LoadSettings:
    return LoadSettings(tables.get, **how)  # type: ignore[arg-type]


# ── whose tables ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("engine", "replaced"), [("vllm", set[str]()), ("sglang", {EMBEDDING}), ("trtllm", {EMBEDDING})]
)
def test_the_embedding_is_the_engines_choice_and_the_head_is_kept(engine: str, replaced: set[str]) -> None:
    own = random_tensors(LLAMA, 0)
    arm = load_arm("d", drafter(LLAMA), lent(semantics=engine))
    held = dict(arm.model.named_parameters())
    for name, short in ((EMBEDDING, "embed_tokens"), (HEAD, "lm_head")):
        given = torch.full_like(held[name], 0.25 if short == "embed_tokens" else 0.5)
        assert torch.equal(held[name], given if name in replaced else own[name].float()), name
    assert from_target(LLAMA, engine) == replaced


@pytest.mark.parametrize("engine", list(semantics()))
def test_what_the_drafter_lacks_is_the_targets(engine: str) -> None:
    arm = load_arm("d", drafter(BARE), lent(semantics=engine))
    assert bool((arm.model.embed_tokens.weight == 0.25).all())
    assert bool((arm.model.lm_head.weight == 0.5).all())
    assert from_target(BARE, engine) == {EMBEDDING, HEAD}


@pytest.mark.parametrize("engine", list(semantics()))
def test_a_drafter_of_another_width_keeps_its_own(engine: str) -> None:
    arm = load_arm("d", drafter(NARROW), lent({}, semantics=engine))
    assert torch.equal(arm.model.embed_tokens.weight, random_tensors(NARROW, 0)[EMBEDDING].float())
    assert from_target(NARROW, engine) == set()


def test_a_table_as_wide_as_the_target_does_not_fit_a_drafter_of_another_width() -> None:
    with pytest.raises(BadCheckpoint, match="embed_tokens"):
        load_arm("d", drafter(replace(NARROW, own_embedding=False)), lent())


@pytest.mark.parametrize(
    ("facts", "engine", "missing", "why", "cure"),
    [
        (BARE, "vllm", "embed_tokens", "the drafter stores no embed_tokens", "draftconv trace"),
        (LLAMA, "sglang", "embed_tokens", "sglang replaces the drafter's own", "draftconv trace"),
        (LLAMA, "trtllm", "embed_tokens", "trtllm replaces the drafter's own", "draftconv trace"),
        (BARE, "vllm", "lm_head", "the drafter stores no lm_head", "--lm-head"),
    ],
)
def test_a_table_that_nobody_lends_is_named(facts: Facts, engine: str, missing: str, why: str, cure: str) -> None:
    tables = {name: table for name, table in TABLES.items() if name != missing}
    with pytest.raises(UsageError, match=f"needs the target's {missing}, and the trace does not hold it") as error:
        load_arm("mine", drafter(facts), lent(tables, semantics=engine))
    assert error.value.what.startswith("mine needs")
    assert error.value.why == why
    assert cure in error.value.cure


# ── boundaries, dtype, device ──────────────────────────────────────────────────────


@pytest.mark.parametrize("aux_layers", AuxLayers)
def test_boundaries_that_nobody_told_are_not_guessed(aux_layers: AuxLayers) -> None:
    for ask in (fed_by, lambda name, of: load_arm(name, of, lent())):
        with pytest.raises(Undecided, match="mine: its files do not tell") as error:
            ask("mine", drafter(replace(LLAMA, boundaries=aux_layers)))
        assert "--aux-convention" in error.value.cure


def test_boundaries_are_the_drafters() -> None:
    assert load_arm("d", drafter(LLAMA), lent()).boundaries == fed_by("d", drafter(LLAMA)) == (2, 4, 5)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_every_parameter_has_the_dtype(dtype: str) -> None:
    arm = load_arm("d", drafter(BARE), lent(dtype=dtype))
    assert {parameter.dtype for parameter in arm.model.parameters()} == {getattr(torch, dtype)}


def test_a_device_that_torch_does_not_have_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="--device nowhere:") as error:
        load_arm("d", drafter(LLAMA), lent(device="nowhere"))
    assert "\n" not in error.value.what


# ── sharing ────────────────────────────────────────────────────────────────────────


def test_equal_tensors_share_memory_and_others_do_not() -> None:
    first = load_arm("first", drafter(LLAMA), lent())
    changed = drafter(LLAMA)
    weight = random_tensors(LLAMA, 0)[DOWN]
    weight[0, 0] += 1
    second = load_arm(
        "second", replace(changed, tensors={**changed.tensors, DOWN: ref(DOWN, weight)}), lent(), like=first.model
    )
    mine, theirs = dict(first.model.named_parameters()), dict(second.model.named_parameters())
    for name in mine:
        assert (mine[name].data_ptr() == theirs[name].data_ptr()) is (name != DOWN), name
    assert torch.equal(theirs[DOWN], weight.float())
    assert not any(parameter.requires_grad for parameter in second.model.parameters())


def test_tensors_of_other_shapes_are_left_alone() -> None:
    first = load_arm("first", drafter(LLAMA), lent())
    second = load_arm("second", drafter(NARROW), lent(), like=first.model)
    assert second.model.fc.weight.shape == (12, 48)


# ── one tensor at a time ───────────────────────────────────────────────────────────


def test_each_differing_tensor_is_replaced_alone() -> None:
    reference, candidate = random_arm(LLAMA), random_arm(LLAMA, "other", seed=1)
    parts = replaced_one_by_one(reference, candidate)
    mine, theirs = reference.model.state_dict(), candidate.model.state_dict()
    assert parts.keys() == {name for name in mine if not torch.equal(mine[name], theirs[name])}
    assert DOWN in parts
    for tensor, part in parts.items():
        for name, held in part.model.state_dict().items():
            assert torch.equal(held, (theirs if name == tensor else mine)[name])


def test_the_same_drafter_has_no_parts() -> None:
    """What is stored, and how it was trained or is served, is no difference."""
    reference = random_arm(LLAMA)
    other = replace(LLAMA, own_embedding=False, own_head=False, double_norm=True, max_positions=4096)
    assert replaced_one_by_one(reference, replace(reference, model=reference.model.changed(other))) == {}


@pytest.mark.parametrize(
    "facts", [replace(LLAMA, feedback="post-norm"), replace(LLAMA, boundaries=(1, 4, 5)), replace(LLAMA, eps=1e-6)]
)
def test_drafters_that_compute_something_else_have_none(facts: Facts) -> None:
    with pytest.raises(Refused, match="other is not drafter with other weights"):
        replaced_one_by_one(random_arm(LLAMA), random_arm(facts, "other"))


def test_drafters_of_other_tokens_have_none() -> None:
    reduced = replace(LLAMA, draft_vocab=30, vocab_order="unordered")
    first, other = random_arm(reduced), random_arm(reduced, "other", seed=1)
    assert not torch.equal(first.model.d2t, other.model.d2t)
    with pytest.raises(Refused, match="other is not drafter with other weights"):
        replaced_one_by_one(first, other)
