"""Replay's counts are those of speculative decoding with a live target, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from speculate import speculate
from target_model import TargetSession
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.facts import AuxLayers
from draftconv.errors import BadCheckpoint, UsageError
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.reference.accept_length import Counts
from draftconv.reference.load import load_drafter
from draftconv.replay import lm_head
from draftconv.replay.batches import Columns, context_rows, roots
from draftconv.replay.replay import NOTHING, Acceptance, Arm, replay
from draftconv.traces.request import TraceRequest
from tests.reference.test_fixtures import DATA, DRAFTERS, MEASURED
from tests.reference.variants import LLAMA, VARIANTS, Variant
from tests.replay.scripted import Scripted, random_arm, scripted
from tests.traces.recorded import HELD, described, prompts, requests, target_model

BOUNDARIES = (2, 4, 5)
REDUCED = replace(LLAMA, draft_vocab=30, vocab_order="unordered")


def outcomes(
    arm: Arm, texts: Sequence[TraceRequest], depth: int = 3, held: Sequence[int] | None = None, **how: Any
) -> list[Acceptance]:
    return [found for _, (found,) in replay([arm], texts, held or arm.boundaries, depth=depth, **how)]


def side_by_side(arms: Sequence[Arm], text: TraceRequest) -> tuple[Acceptance, ...]:
    ((_, found),) = replay(arms, [text], BOUNDARIES, depth=3, compared=1)
    return found


def live(arm: Arm, request: TraceRequest, depth: int = 3) -> Counts:
    target = Scripted(request, arm.model.facts.vocab)
    return speculate(arm.model, target, request.tokens_N[: request.prompt], depth=depth, length=request.counted).counts


# ── against a live target ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_counts_equal_live_decoding(variant: Variant) -> None:
    arm = random_arm(variant.facts)
    texts = [scripted(arm, prompt=1 + 2 * seed, counted=20 + seed, seed=seed) for seed in range(3)]
    found = outcomes(arm, texts)
    assert [outcome.counts for outcome in found] == [live(arm, text) for text in texts]
    assert Counts.pooled(outcome.counts for outcome in found).accept_length > 1.8


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_drafter_read_wrongly_has_other_counts(variant: Variant) -> None:
    right, wrongly = variant.facts, variant.wrong
    if variant.lost != "nothing" or (right.layers, right.aux) != (wrongly.layers, wrongly.aux):
        pytest.skip("its weights fit the right reading only")
    arm = random_arm(right)
    wrong = replace(arm, model=arm.model.changed(wrongly))
    texts = [scripted(arm, prompt=3, counted=60, seed=seed) for seed in range(4)]
    assert [o.counts for o in outcomes(wrong, texts)] != [o.counts for o in outcomes(arm, texts)]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_any_depth(depth: int) -> None:
    arm = random_arm(REDUCED)
    text = scripted(arm, prompt=4, counted=40, beyond=depth, depth=depth)
    (found,) = outcomes(arm, [text], depth)
    assert found.counts == live(arm, text, depth)
    assert found.counts.depth == depth
    assert found.counts.histogram[depth] > 0


@DRAFTERS
@pytest.mark.slow
def test_trained_drafters_in_float64(name: str) -> None:
    """Target, trace and drafter in float64, against a loop that knows nothing of replay."""
    arm, target = trained(name, torch.float64), target_model(name.partition("-")[0], torch.float64)
    texts = requests(name.partition("-")[0], dtype=torch.float64, count=6)
    decoded = [
        speculate(arm.model, TargetSession(target, arm.boundaries), prompt, depth=3, length=64).counts
        for prompt in prompts()[:6]
    ]
    assert [outcome.counts for outcome in outcomes(arm, texts, held=HELD)] == decoded


@DRAFTERS
def test_trained_drafters_have_their_measured_counts(name: str) -> None:
    """In float32, what live decoding gave when the fixtures were made, on all 32 prompts."""
    arm, figures = trained(name, torch.float32), MEASURED["drafters"][name]
    texts = requests(name.partition("-")[0], count=32)
    found = [outcome.counts for outcome in outcomes(arm, texts, held=HELD)]
    assert [counts.steps for counts in found] == figures["steps"]
    assert [counts.accepted for counts in found] == figures["accepted"]
    assert list(Counts.pooled(found).histogram) == figures["histogram"]


def trained(name: str, dtype: torch.dtype) -> Arm:
    target = described(name.partition("-")[0])
    drafter = read_drafter(open_checkpoint(DATA / "drafters" / name), ReadOptions(target=target))
    assert not isinstance(drafter.facts.boundaries, AuxLayers)
    return Arm(name, load_drafter(drafter, target, dtype=dtype), drafter.facts.boundaries)


# ── every root ─────────────────────────────────────────────────────────────────────


def test_every_root_is_what_a_round_from_there_would_accept() -> None:
    """The walk skips roots; a request that starts later has them as its first."""
    arm = random_arm(LLAMA)
    text = scripted(arm, prompt=2, counted=30)
    (found,) = outcomes(arm, [text])
    for root in range(roots(text)):
        later = replace(text, prompt=text.prompt + root, counted=text.counted - root)
        (shifted,) = outcomes(arm, [later])
        assert shifted.accepted_R.tolist() == found.accepted_R[root:].tolist()


def test_drafts_are_the_targets_tokens_as_far_as_they_are_accepted() -> None:
    arm = random_arm(REDUCED)
    text = scripted(arm, prompt=3, counted=40)
    (found,) = outcomes(arm, [text])
    for root, (accepted, drafts) in enumerate(zip(found.accepted_R.tolist(), found.drafts_RK.tolist(), strict=True)):
        wanted = text.tokens_N[text.prompt + 1 + root :].tolist()
        assert drafts[:accepted] == wanted[:accepted]
        if accepted < 3:
            assert drafts[accepted] not in (wanted[accepted], NOTHING)
        assert set(drafts[accepted + 1 :]) <= {NOTHING}


# ── what must not change a count ───────────────────────────────────────────────────


def ragged(arm: Arm) -> list[TraceRequest]:
    lengths = ((1, 9), (7, 2), (3, 30), (12, 1), (5, 17))
    return [scripted(arm, prompt=p, counted=c, seed=seed) for seed, (p, c) in enumerate(lengths)]


@pytest.mark.parametrize("rows", [1, 3, 16, 64, 10_000])
def test_batches_and_blocks_of_rows(rows: int) -> None:
    arm = random_arm(LLAMA)
    alone = [outcomes(arm, [text])[0] for text in ragged(arm)]
    for one, found in zip(alone, outcomes(arm, ragged(arm), rows=rows), strict=True):
        assert torch.equal(one.accepted_R, found.accepted_R)
        assert torch.equal(one.drafts_RK, found.drafts_RK)


def test_blocks_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = random_arm(LLAMA), random_arm(LLAMA, "other", seed=1)
    text = scripted(first, prompt=3, counted=30)
    whole = side_by_side([first, second], text)
    monkeypatch.setattr(lm_head, "LOGITS_AT_ONCE", 7 * roots(text))
    parts = side_by_side([first, second], text)
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one.drafts_RK, other.drafts_RK)
    assert whole[1].divergence_R is not None
    assert parts[1].divergence_R is not None
    assert torch.allclose(whole[1].divergence_R, parts[1].divergence_R)


@pytest.mark.parametrize("at_once", [1, 2, 100], ids=["row by row", "two rows", "the whole head"])
def test_of_equal_logits_the_first_is_drafted(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by argmax in the engines, also where the equal ones lie in different blocks of the vocabulary."""
    monkeypatch.setattr(lm_head, "LOGITS_AT_ONCE", at_once)
    head = lm_head.Head(torch.tensor([[0.0], [1.0], [0.5], [1.0], [1.0]]), None)
    assert lm_head.best_tokens(head, torch.ones(1, 1)).tolist() == [1]
    assert lm_head.best_tokens(head, -torch.ones(1, 1)).tolist() == [0]
    assert lm_head.best_tokens(head, torch.full((1, 1), torch.nan)).tolist() == [lm_head.NOT_FINITE]


def test_arms_beside_each_other_are_as_if_alone() -> None:
    arms = [random_arm(facts, str(i), seed=i) for i, facts in enumerate((LLAMA, REDUCED, VARIANTS["mla 3.1"].facts))]
    text = scripted(arms[0], prompt=3, counted=30)
    together = side_by_side(arms, text)
    for arm, found in zip(arms, together, strict=True):
        assert found.counts == outcomes(arm, [text])[0].counts


def test_states_are_taken_by_boundary() -> None:
    arm = random_arm(LLAMA)
    text = scripted(arm, prompt=3, counted=30)
    states_TAW = text.states_TAW[:]
    wider = torch.stack([torch.zeros_like(states_TAW[:, 0]), *states_TAW.unbind(1)], dim=1)
    held = (1, 2, 4, 5)
    ((_, (found,)),) = replay([arm], [replace(text, states_TAW=wider)], held, depth=3)
    assert found.counts == outcomes(arm, [text])[0].counts
    shifted = replace(arm, boundaries=(1, 4, 5))
    ((_, (wrong,)),) = replay([shifted], [replace(text, states_TAW=wider)], held, depth=3)
    assert wrong.counts != found.counts


# ── divergence ─────────────────────────────────────────────────────────────────────


def test_divergence_is_that_of_the_whole_distributions() -> None:
    first, second = random_arm(LLAMA), random_arm(LLAMA, "other", seed=1)
    text = scripted(first, prompt=3, counted=12)
    mine, theirs = side_by_side([first, second], text)
    rows = slice(text.prompt - 1, text.prompt - 1 + roots(text))

    def log_probabilities(arm: Arm) -> Tensor:
        model, last = arm.model, rows.stop
        z = model.step(model.fuse(text.states_TAW[:last][None]), text.tokens_N[None, 1 : last + 1], model.cache())
        return model.logits(z)[0, rows].log_softmax(-1)

    p, q = log_probabilities(first), log_probabilities(second)
    assert mine.divergence_R is None
    assert theirs.divergence_R is not None
    assert torch.allclose(theirs.divergence_R.double(), (p.exp() * (p - q)).sum(-1), rtol=1e-5)


def test_a_drafter_does_not_diverge_from_itself() -> None:
    arm = random_arm(LLAMA)
    _, again = side_by_side([arm, arm], scripted(arm, prompt=3, counted=12))
    assert again.divergence_R is not None
    assert not again.divergence_R.any()


def test_heads_for_other_tokens_have_no_divergence() -> None:
    full, some, others = random_arm(LLAMA), random_arm(REDUCED, seed=1), random_arm(REDUCED, seed=2)
    text = scripted(full, prompt=3, counted=12)
    for pair in ((full, some), (some, full), (some, others)):
        _, found = side_by_side(pair, text)
        assert found.divergence_R is None


# ── memory ─────────────────────────────────────────────────────────────────────────


class SlicedStates:
    """States that are handed out in slices only, and the rows of each."""

    def __init__(self, states_TAW: Tensor) -> None:
        self.states_TAW, self.shape, self.dtype = states_TAW, states_TAW.shape, states_TAW.dtype
        self.read: list[range] = []

    def __len__(self) -> int:
        return len(self.states_TAW)

    def __getitem__(self, rows: slice, /) -> Tensor:
        self.read.append(range(*rows.indices(len(self))))
        return self.states_TAW[rows]


@pytest.mark.parametrize("rows", [3, 16, 10_000])
def test_what_decides_nothing_need_not_be_computed(rows: int) -> None:
    """Prompts are remembered and rejected chains dropped, unless somebody watches the modules."""
    arm = random_arm(LLAMA)
    watched: list[int] = []
    handle = arm.model.get_submodule("layers.0.mlp").register_forward_pre_hook(
        lambda _, given: watched.append(given[0].shape[:2].numel())
    )
    less = outcomes(arm, ragged(arm), rows=rows)
    computed = sum(watched)
    watched.clear()
    all_of_it = outcomes(arm, ragged(arm), rows=rows, whole=True)
    handle.remove()
    for one, other in zip(less, all_of_it, strict=True):
        assert torch.equal(one.accepted_R, other.accepted_R)
        assert torch.equal(one.drafts_RK, other.drafts_RK)
    assert computed < sum(watched)


def test_columns_stand_side_by_side() -> None:
    """Rows 1 and 4 of the first request, none of the second, 0, 2 and 3 of the third."""
    columns = Columns.of(torch.tensor([1, 4, 10, 12, 13]), 3, 5)
    assert columns.row_BC.tolist() == [[1, 4, 0], [0, 0, 0], [0, 2, 3]]
    assert columns.place_R.tolist() == [0, 1, 6, 7, 8]
    assert columns.picked(torch.arange(15).view(3, 5)).flatten()[columns.place_R].tolist() == [1, 4, 10, 12, 13]


def test_states_of_a_long_text_are_read_once_and_in_blocks() -> None:
    arm = random_arm(LLAMA)
    text = scripted(arm, prompt=60, counted=50)
    sliced = SlicedStates(text.states_TAW[:])
    (whole,), (found,) = outcomes(arm, [text]), outcomes(arm, [replace(text, states_TAW=sliced)], rows=16)
    assert torch.equal(found.drafts_RK, whole.drafts_RK)
    assert max(map(len, sliced.read)) == 16
    assert [row for rows in sliced.read for row in rows] == list(range(context_rows(text)))


class Widest(TorchDispatchMode):
    """The most elements of a matrix product's result."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func._schema.name in ("aten::mm", "aten::bmm", "aten::addmm"):
            self.elements = max(self.elements, found.numel())
        return found


def test_logits_are_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = random_arm(replace(LLAMA, vocab=4000, draft_vocab=4000))
    text = scripted(arm, prompt=2, counted=120)
    monkeypatch.setattr(lm_head, "LOGITS_AT_ONCE", 20_000)
    with Widest() as bounded:
        outcomes(arm, [text], rows=32)
    assert bounded.elements <= 20_000
    monkeypatch.undo()
    with Widest() as whole:
        outcomes(arm, [text], rows=32)
    assert whole.elements >= 31 * 4000


# ── what is refused ────────────────────────────────────────────────────────────────


def test_a_missing_boundary_is_named() -> None:
    arm = random_arm(LLAMA)
    with pytest.raises(UsageError, match=r"reads boundaries \[2, 4, 5\], the trace holds \[2, 4\]") as error:
        list(replay([arm], [scripted(arm, prompt=3, counted=9)], (2, 4), depth=3))
    assert error.value.cure.endswith("--boundaries 2,4,5")


def test_a_clipped_last_round_is_refused() -> None:
    arm = random_arm(LLAMA)
    text = scripted(arm, prompt=3, counted=9, beyond=2)
    assert outcomes(arm, [text], depth=3)[0].counts == live(arm, text)
    with pytest.raises(UsageError, match="keeps 2 tokens beyond its end, drafts of 4 need 3"):
        outcomes(arm, [text], depth=4)


def test_a_request_of_one_token_has_no_step() -> None:
    arm = random_arm(LLAMA)
    (found,) = outcomes(arm, [scripted(arm, prompt=3, counted=1)])
    assert found.counts == Counts((0, 0, 0, 0))
    assert len(found.accepted_R) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    arm = random_arm(LLAMA)
    text = scripted(arm, prompt=3, counted=9)
    head = arm.model.lm_head.weight.clone()
    head[7] = value
    broken = replace(arm, model=arm.model.changed(tensors={"lm_head.weight": head}))
    with pytest.raises(BadCheckpoint, match="its logits are not finite on request"):
        outcomes(broken, [text])


def test_tokens_are_reported_as_they_are_done() -> None:
    arm, done = random_arm(LLAMA), list[int]()
    outcomes(arm, ragged(arm), rows=16, done=done.append)
    assert done == [len(text.tokens_N) for text in ragged(arm)]
