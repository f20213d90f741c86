"""The reference drafter against its slow twin, and against itself in its two ways of running."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from draftconv.drafter.facts import Facts
from draftconv.errors import BadCheckpoint, Refused, UsageError
from draftconv.reference import attention
from draftconv.reference.drafter import DrafterModel
from tests.reference import twin
from tests.reference.variants import LLAMA, MLA, VARIANTS, Variant, random_tensors, random_text

ROWS, STEPS = 4, 3


def double(facts: Facts) -> DrafterModel:
    return DrafterModel.from_tensors(facts, random_tensors(facts), dtype=torch.float64)


def unrolled(model: DrafterModel) -> Tensor:
    """Logits [rows, steps, Vd] with every row as the root of its own chain."""
    states, tokens = random_text(model.facts, ROWS)
    cache, state, found = model.cache(), model.fuse(states[None]), []
    for k in range(STEPS):
        z = model.step(state, tokens[None, 1 + k : 1 + k + ROWS], cache, k)
        found.append(model.logits(z)[0])
        state = model.feedback(z)
    return torch.stack(found, dim=1)


def twin_logits(facts: Facts, weights: dict[str, Tensor]) -> np.ndarray:
    states, tokens = random_text(facts, ROWS)
    arrays = {name: tensor.numpy() for name, tensor in weights.items()}
    return np.array([twin.chain_logits(facts, arrays, states.numpy(), tokens.tolist(), i, STEPS) for i in range(ROWS)])


@pytest.fixture(params=list(VARIANTS.values()), ids=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> Variant:
    chosen: Variant = request.param
    return chosen


def test_equals_the_slow_twin(variant: Variant) -> None:
    expected = twin_logits(variant.facts, random_tensors(variant.facts))
    assert np.abs(unrolled(double(variant.facts)).numpy() - expected).max() < 1e-9


def test_the_wrong_reading_is_seen(variant: Variant) -> None:
    weights = {k: v for k, v in random_tensors(variant.facts).items() if not k.endswith(variant.lost)}
    if variant.wrong.aux != variant.facts.aux:
        weights["fc.weight"] = weights["fc.weight"][:, : variant.wrong.aux * variant.wrong.target_hidden]
    mistaken = twin_logits(variant.wrong, weights)
    assert np.abs(unrolled(double(variant.facts)).numpy() - mistaken).max() > 1e-5


def test_chains_equal_cached_decoding(variant: Variant) -> None:
    """One request, context fed in two parts, chains drafted and dropped in between."""
    model = double(variant.facts)
    together = unrolled(model)
    states, tokens = random_text(variant.facts, ROWS)
    fused = model.fuse(states[None])
    cache = model.cache()
    for upto in (2, 3, ROWS):
        new = slice(cache.rows, upto)
        z = model.step(fused[:, new], tokens[None, cache.rows + 1 : upto + 1], cache)[:, -1:]
        for k in range(STEPS):
            assert torch.allclose(model.logits(z)[0, 0], together[upto - 1, k], rtol=0, atol=1e-12)
            if k + 1 < STEPS:
                z = model.step(model.feedback(z), tokens[None, upto + k + 1 : upto + k + 2], cache, k + 1)


@pytest.mark.parametrize("room", [1, 3, ROWS, ROWS + 5])
def test_room_for_the_context_changes_nothing(variant: Variant, room: int) -> None:
    """Rows enter one, two and the others at a time, into less room than there are rows, just enough, and more."""
    model = double(variant.facts)
    states, tokens = random_text(variant.facts, ROWS)
    fused = model.fuse(states[None])
    plain, roomy = model.cache(), model.cache(room)
    for rows in (slice(0, 1), slice(1, 3), slice(3, ROWS)):
        fed = fused[:, rows], tokens[None, rows.start + 1 : rows.stop + 1]
        wanted, found = model.step(*fed, plain), model.step(*fed, roomy)
        assert torch.equal(found, wanted)


def test_rows_that_are_only_remembered_are_the_same_context(variant: Variant) -> None:
    model = double(variant.facts)
    states, tokens = random_text(variant.facts, ROWS)
    fused = model.fuse(states[None])
    computed, remembered = model.cache(), model.cache()
    model.step(fused[:, :-2], tokens[None, 1 : ROWS - 1], computed)
    model.remember(fused[:, :-2], tokens[None, 1 : ROWS - 1], remembered)
    last = fused[:, -2:], tokens[None, ROWS - 1 : ROWS + 1]
    assert torch.equal(model.step(*last, remembered), model.step(*last, computed))


def test_chains_that_go_on_are_those_of_all(variant: Variant) -> None:
    """Other chains of two requests are left out after each step; one column is there twice."""
    model = double(variant.facts)
    texts = [random_text(variant.facts, ROWS, seed) for seed in (0, 1)]
    fused = model.fuse(torch.stack([states for states, _ in texts]))
    tokens = torch.stack([tokens for _, tokens in texts])
    everything, some = model.cache(), model.cache()
    z = model.step(fused, tokens[:, 1 : ROWS + 1], everything)
    chosen = model.step(fused, tokens[:, 1 : ROWS + 1], some)
    row_BT = torch.arange(ROWS).expand(2, -1)
    for k, column_BT in enumerate((torch.tensor([[0, 2, 3], [1, 3, 1]]), torch.tensor([[2, 0], [1, 2]])), 1):
        some.pick(column_BT)
        row_BT = row_BT.gather(1, column_BT)
        chosen = chosen.gather(1, column_BT[..., None].expand(-1, -1, chosen.shape[-1]))
        fed = tokens[:, k + 1 : k + 1 + ROWS]
        z = model.step(model.feedback(z), fed, everything, k)
        chosen = model.step(model.feedback(chosen), fed.gather(1, row_BT), some, k)
        wanted = z.gather(1, row_BT[..., None].expand(-1, -1, z.shape[-1]))
        assert torch.allclose(chosen, wanted, rtol=0, atol=1e-12)


def test_attention_in_row_blocks_changes_nothing(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = unrolled(double(variant.facts))
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", 50)
    assert torch.allclose(unrolled(double(variant.facts)), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", ["ascending", "unordered"])
def test_reduced_vocabulary_maps_by_offset(order: str) -> None:
    facts = replace(LLAMA, draft_vocab=12, vocab_order=order)  # type: ignore[arg-type]
    weights = random_tensors(facts)
    model = DrafterModel.from_tensors(facts, weights)
    ids = torch.arange(12).view(3, 4)
    assert model.logits(torch.zeros(1, 1, 16)).shape == (1, 1, 12)
    expected = [[i + int(weights["d2t"][i]) for i in row] for row in ids.tolist()]
    assert model.to_target_ids(ids).tolist() == expected
    assert model.to_target_ids(ids).tolist() != ids.tolist()


def test_full_vocabulary_needs_no_map() -> None:
    assert double(LLAMA).to_target_ids(torch.tensor([3, 5])).tolist() == [3, 5]


def test_double_norm_is_served_single() -> None:
    """Engines normalise once whatever the trainer did; `as_trained` shows the difference."""
    facts = replace(LLAMA, double_norm=True)
    weights = random_tensors(facts)
    served = unrolled(DrafterModel.from_tensors(facts, weights, dtype=torch.float64))
    trained = unrolled(DrafterModel.from_tensors(facts, weights, dtype=torch.float64, as_trained=True))
    assert torch.equal(served, unrolled(double(LLAMA)))
    assert (served - trained).abs().max() > 1e-3


ALWAYS = (
    "embed_tokens.weight",
    "fc.weight",
    "layers.0.hidden_norm.weight",
    "layers.0.input_layernorm.weight",
    "layers.0.mlp.down_proj.weight",
    "layers.0.mlp.gate_proj.weight",
    "layers.0.mlp.up_proj.weight",
    "layers.0.post_attention_layernorm.weight",
    "layers.0.self_attn.o_proj.weight",
    "lm_head.weight",
    "norm.weight",
)
LLAMA_ATTENTION = ("q_proj", "k_proj", "v_proj")
MLA_ATTENTION = (
    "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj",
)  # fmt: skip


@pytest.mark.parametrize(("facts", "modules"), [(LLAMA, LLAMA_ATTENTION), (MLA, MLA_ATTENTION)], ids=["llama", "mla"])
def test_parameter_names_are_the_canonical_names(facts: Facts, modules: tuple[str, ...]) -> None:
    attention = [f"layers.0.self_attn.{name}.weight" for name in modules]
    assert sorted(DrafterModel(facts).state_dict()) == sorted([*ALWAYS, *attention])


def test_only_the_first_layer_reads_the_embedding() -> None:
    shapes = {k: tuple(v.shape) for k, v in DrafterModel(replace(LLAMA, layers=2)).state_dict().items()}
    assert shapes["layers.0.self_attn.q_proj.weight"] == (16, 32)
    assert shapes["layers.1.self_attn.q_proj.weight"] == (16, 16)
    assert "layers.1.hidden_norm.weight" not in shapes


def test_optional_tensors_follow_the_facts() -> None:
    facts = replace(LLAMA, fusion="fc_norm", draft_vocab=12, vocab_order="ascending", fc_bias=True)
    names = set(DrafterModel(facts).state_dict()) - set(DrafterModel(LLAMA).state_dict())
    assert names == {"fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight", "fc.bias", "d2t"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"norm.weight": None}, "1 missing: norm.weight"),
        ({"stray.weight": torch.zeros(1)}, "1 unexpected: stray.weight"),
        ({"norm.weight": torch.zeros(3)}, "norm.weight (3,) instead of (16,)"),
    ],
    ids=["missing", "unexpected", "shape"],
)
def test_wrong_tensors_are_named(change: dict[str, Tensor | None], said: str) -> None:
    changed = {**random_tensors(LLAMA), **change}
    with pytest.raises(BadCheckpoint, match=re.escape(said)):
        DrafterModel.from_tensors(LLAMA, {name: t for name, t in changed.items() if t is not None})


def test_two_norms_before_fc_are_refused() -> None:
    """Engines disagree on what they compute, so there is no one forward to be a reference."""
    facts = replace(LLAMA, fusion="both")
    with pytest.raises(Refused, match="fc_norm and norm_before_fc at once"):
        DrafterModel.from_tensors(facts, random_tensors(LLAMA))


def test_missing_tables_are_named() -> None:
    weights = random_tensors(LLAMA)
    del weights["embed_tokens.weight"], weights["lm_head.weight"]
    with pytest.raises(BadCheckpoint, match=r"give the target's table for embed_tokens.weight, lm_head.weight"):
        DrafterModel.from_tensors(LLAMA, weights)


def test_integers_are_never_cast() -> None:
    facts = replace(LLAMA, draft_vocab=12, vocab_order="ascending")
    tensors = {**random_tensors(facts), "t2d": torch.zeros(40, dtype=torch.bool)}
    assert DrafterModel.from_tensors(facts, tensors, dtype=torch.bfloat16).d2t.dtype == torch.int64


def test_steps_out_of_order_are_refused() -> None:
    model = double(LLAMA)
    state, token = torch.zeros(1, 2, 16, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.int64)
    cache = model.cache()
    with pytest.raises(UsageError, match="step 1 for 2 rows cannot follow"):
        model.step(state, token, cache, 1)
    model.step(state, token, cache)
    with pytest.raises(UsageError, match="step 2 for 2 rows cannot follow"):
        model.step(state, token, cache, 2)
    with pytest.raises(UsageError, match="step 1 for 3 rows cannot follow"):
        model.step(state.repeat(1, 2, 1)[:, :3], token.repeat(1, 2)[:, :3], cache, 1)


def test_states_of_another_width_are_refused() -> None:
    with pytest.raises(UsageError, match="do not end in"):
        double(LLAMA).fuse(torch.zeros(1, 5, 2, 16, dtype=torch.float64))


# ── the same drafter, changed ──────────────────────────────────────────────────────


def test_changed_tensors_stand_beside_shared_ones() -> None:
    model = double(LLAMA)
    head = torch.zeros_like(model.lm_head.weight)
    changed = model.changed(tensors={"lm_head.weight": head.float()})
    mine, theirs = dict(model.named_parameters()), dict(changed.named_parameters())
    assert torch.equal(theirs["lm_head.weight"], head)  # in the model's dtype
    assert {name for name in mine if mine[name].data_ptr() != theirs[name].data_ptr()} == {"lm_head.weight"}
    assert changed.facts == model.facts
    assert not any(parameter.requires_grad for parameter in changed.parameters())


def test_changed_facts_leave_out_what_has_no_place() -> None:
    right = VARIANTS["mla 3.1"].facts
    model = double(right)
    plain = model.changed(replace(right, fusion="plain", feedback="pre-norm"))
    assert plain.facts.fusion == "plain"
    assert model.state_dict().keys() - plain.state_dict().keys() == {f"fc_norm.{i}.weight" for i in range(right.aux)}
    assert not torch.equal(unrolled(plain), unrolled(model))
    assert torch.equal(unrolled(plain.changed(tensors={})), unrolled(plain))


def test_changed_facts_that_need_other_tensors_are_refused() -> None:
    with pytest.raises(BadCheckpoint, match="fc_norm"):
        double(LLAMA).changed(replace(LLAMA, fusion="fc_norm"))
    with pytest.raises(BadCheckpoint, match="lm_head"):
        double(LLAMA).changed(tensors={"lm_head.weight": torch.zeros(3, 16)})
