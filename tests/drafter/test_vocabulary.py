"""Draft vocabularies: map and d2t/t2d are inverses, and damage shows."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.checkpoint import SIZES, MemoryFile, TensorRef
from draftconv.drafter.vocabulary import VocabMap, offset_twins, read_maps


def ref(dtype: str, data: bytes, name: str = "d2t") -> TensorRef:
    return TensorRef(name, dtype, (len(data) * 8 // SIZES[dtype],), MemoryFile("x.safetensors", data), 0, len(data))


def offsets(*values: int) -> TensorRef:
    return ref("I64", struct.pack(f"<{len(values)}q", *values))


def mask(*tokens: int, vocab: int, dtype: str = "BOOL") -> TensorRef:
    flags = np.zeros(vocab, {"BOOL": "?", "I64": "<i8", "F32": "<f4"}[dtype])
    flags[list(tokens)] = 1
    return ref(dtype, flags.tobytes(), "t2d")


def bf16(values: object) -> TensorRef:
    return ref("BF16", (np.asarray(values, "<f4").view("<u4") >> np.uint32(16)).astype("<u2").tobytes())


@st.composite
def vocabularies(draw: st.DrawFn) -> VocabMap:
    vocab = draw(st.integers(1, 400))
    ids = draw(st.lists(st.integers(0, vocab - 1), unique=True, min_size=1, max_size=vocab))
    return VocabMap(tuple(sorted(ids) if draw(st.booleans()) else ids), vocab)


@given(vocabularies())
def test_map_and_tensors_are_inverses(vocabulary: VocabMap) -> None:
    d2t, t2d = ref("I64", vocabulary.d2t()), ref("BOOL", vocabulary.t2d(), "t2d")
    reading = read_maps(d2t, t2d, vocabulary.vocab)
    assert (reading.map, reading.faults) == (vocabulary, ())
    assert reading.offsets == tuple(target - i for i, target in enumerate(vocabulary.ids))
    assert np.frombuffer(vocabulary.t2d(), bool).nonzero()[0].tolist() == sorted(vocabulary.ids)


@given(vocabularies())
def test_ascending_is_a_permutation_of_rows(vocabulary: VocabMap) -> None:
    ascending, order = vocabulary.ascending()
    assert sorted(order) == list(range(len(vocabulary.ids)))
    assert [vocabulary.ids[row] for row in order] == list(ascending.ids) == sorted(vocabulary.ids)
    assert ascending.order in ("full", "ascending")
    assert ascending.t2d() == vocabulary.t2d()
    assert ascending.ascending() == (ascending, tuple(range(len(order))))


@given(vocabularies())
def test_order_by_its_definition(vocabulary: VocabMap) -> None:
    ids = list(vocabulary.ids)
    full = ids == list(range(vocabulary.vocab))
    assert vocabulary.order == ("full" if full else "ascending" if ids == sorted(ids) else "unordered")


@given(vocabularies(), st.sampled_from(["I64", "F32"]))
def test_masks_of_other_dtypes_mean_the_same(vocabulary: VocabMap, dtype: str) -> None:
    t2d = mask(*vocabulary.ids, vocab=vocabulary.vocab, dtype=dtype)
    assert read_maps(ref("I64", vocabulary.d2t()), t2d, vocabulary.vocab).faults == ()


def test_a_flag_of_any_value_is_set() -> None:
    t2d = ref("U8", bytes([0, 255, 2, 0, 0]), "t2d")
    assert read_maps(offsets(1, 1), t2d, 5).faults == ()


@pytest.mark.parametrize("dtype", ["I32", "F32", "F64"])
def test_other_number_types_hold_the_same_offsets(dtype: str) -> None:
    data = np.array([3, 0, -2], {"I32": "<i4", "F32": "<f4", "F64": "<f8"}[dtype]).tobytes()
    reading = read_maps(ref(dtype, data), None, 10)
    assert reading.offsets == (3, 0, -2)
    assert reading.map == VocabMap((3, 1, 0), 10)
    assert [code for code, _ in reading.faults] == ([] if dtype == "I32" else ["d2t-dtype"])


# ── absolute ids ───────────────────────────────────────────────────────────────────


@given(vocabularies())
def test_absolute_ids_are_found_whenever_t2d_is_there(vocabulary: VocabMap) -> None:
    absolute = struct.pack(f"<{len(vocabulary.ids)}q", *vocabulary.ids)
    reading = read_maps(ref("I64", absolute), ref("BOOL", vocabulary.t2d(), "t2d"), vocabulary.vocab)
    if absolute == vocabulary.d2t():
        assert reading.faults == ()
    elif {i + target for i, target in enumerate(vocabulary.ids)} == set(vocabulary.ids):
        assert reading.faults == ()  # as offsets they reach the same tokens, and nothing can tell
    else:
        assert (reading.map, [code for code, _ in reading.faults]) == (None, ["d2t-absolute"])


def test_absolute_ids_without_t2d() -> None:
    assert [code for code, _ in read_maps(offsets(0, 5, 9), None, 10).faults] == ["d2t-absolute"]  # 9 + 2 > 9
    rng = np.random.default_rng(0)
    real = np.sort(rng.choice(100_000, 32_000, replace=False))
    assert [c for c, _ in read_maps(offsets(*real.tolist()), None, 151_936).faults] == ["d2t-absolute"]
    healthy = real - np.arange(len(real))
    assert read_maps(offsets(*healthy.tolist()), None, 151_936).faults == ()


def test_few_distinct_offsets_are_believed() -> None:
    """Every second token: distinct offsets, but in a vocabulary so small that chance allows it."""
    assert read_maps(offsets(*range(20)), None, 40).map == VocabMap(tuple(range(0, 40, 2)), 40)


# ── rounded offsets ────────────────────────────────────────────────────────────────

REAL = np.sort(np.random.default_rng(1).choice(151_936, 32_000, replace=False))
SHUFFLED = np.random.default_rng(2).permutation(REAL)


def through(dtype: str, values: np.ndarray) -> list[int]:
    import torch

    kinds = {"bf16": torch.bfloat16, "f16": torch.float16}
    return torch.from_numpy(values).to(kinds[dtype]).to(torch.int64).tolist()


@pytest.mark.parametrize("ids", [REAL, SHUFFLED], ids=["ascending", "frequency"])
def test_a_real_vocabulary_is_not_rounded_until_it_is(ids: np.ndarray) -> None:
    healthy = ids - np.arange(len(ids))
    assert read_maps(offsets(*healthy.tolist()), None, 151_936).faults == ()
    found = dict(read_maps(offsets(*through("bf16", healthy)), None, 151_936).faults)
    assert "8 significant bits (BF16)" in found["d2t-rounded"]


def test_t2d_says_which_offsets_were_rounded() -> None:
    ids = REAL[REAL < 60_000]  # float16 ends at 65504
    healthy = ids - np.arange(len(ids))
    t2d = mask(*ids.tolist(), vocab=60_000)
    for dtype, name in (("bf16", "BF16"), ("f16", "F16")):
        values = through(dtype, healthy)
        wrong = sum(a != b for a, b in zip(values, healthy.tolist(), strict=True))
        found = dict(read_maps(offsets(*values), t2d, 60_000).faults)
        assert found["d2t-rounded"] == f"{wrong} of {len(ids)} offsets are those of t2d rounded to {name}"


def test_half_precision_storage_tells_itself() -> None:
    small = np.array([0, 0, 3, 3, 200, 250])
    assert [code for code, _ in read_maps(bf16(small), None, 1000).faults] == ["d2t-dtype"]
    found = {code for code, _ in read_maps(bf16(SHUFFLED - np.arange(len(SHUFFLED))), None, 151_936).faults}
    assert {"d2t-dtype", "d2t-rounded"} <= found


@pytest.mark.parametrize("block", [256, 1024, 4096])
def test_a_vocabulary_cut_in_blocks_is_not_rounded(block: int) -> None:
    """Every other block of tokens: offsets are multiples of the block, short of bits but true."""
    vocab = 64 * block
    ids = [token for token in range(vocab) if (token // block) % 2]
    values = [target - i for i, target in enumerate(ids)]
    assert read_maps(offsets(*values), None, vocab).faults == ()


def test_a_mask_that_agrees_ends_all_doubt() -> None:
    """A vocabulary whose true offsets happen to have eight significant bits."""
    values = sorted({m << s for s in range(1, 7) for m in range(128, 256)})[:400]
    ids = [i + value for i, value in enumerate(values)]
    assert read_maps(offsets(*values), mask(*ids, vocab=ids[-1] + 1), ids[-1] + 1).faults == ()


# ── other damage ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("values", "vocab", "code", "words"),
    [
        ((0, 0, -3), 5, "d2t-range", "first: draft 2 → -1"),
        ((0, 0, 3), 5, "d2t-range", "draft 2 → 5"),
        ((0, -1, 0), 5, "d2t-duplicate", "1 draft ids"),
        ((0, 0, 1 << 62), 5, "d2t-range", "first: draft 2"),
    ],
)
def test_broken_offsets(values: tuple[int, ...], vocab: int, code: str, words: str) -> None:
    reading = read_maps(offsets(*values), None, vocab)
    assert reading.map is None
    assert [found for found, _ in reading.faults] == [code]
    assert words in reading.faults[0][1]
    assert reading.offsets == values


def test_disagreement_is_counted() -> None:
    (code, detail), = read_maps(offsets(0, 1, 1), mask(0, 2, 4, vocab=6), 6).faults  # fmt: skip
    assert code == "d2t-t2d-mismatch"
    assert detail == "t2d marks 3 tokens, d2t reaches 3; 1 of them unmarked"


def test_an_absurd_vocabulary_costs_no_memory() -> None:
    reading = read_maps(offsets(0, 1, 1), mask(0, 2, 3, vocab=6), (1 << 31) - 1)
    assert [code for code, _ in reading.faults] == ["d2t-t2d-mismatch"]


def test_an_empty_map() -> None:
    assert read_maps(ref("I64", b""), None, 5).map == VocabMap((), 5)


@given(st.lists(st.integers(-5, 5), max_size=60), st.integers(1, 16))
def test_twins_share_their_offset(values: list[int], limit: int) -> None:
    pairs = offset_twins(values, limit)
    assert len(pairs) <= limit
    assert all(a < b and values[a] == values[b] for a, b in pairs)
    assert bool(pairs) == (len(set(values)) < len(values))
